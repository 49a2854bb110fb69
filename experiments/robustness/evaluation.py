"""Evaluate models on perturbed data, batch by batch, in this process or in workers, with a cache."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import asdict, dataclass, replace
from io import BytesIO
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from phiball.backends import Rng
from phiball.backends.files import atomic_write, read_arrays
from phiball.backends.progress import Progress
from phiball.backends.random import as_rng
from phiball.experiments.framework.requirements import require
from phiball.experiments.robustness.attack_suite import (
    AttackSettings,
    MeasureKey,
    Measures,
    ThreatModel,
    measure_batch,
)
from phiball.experiments.robustness.models import (
    CLASSIFIER,
    REGRESSOR,
    Model,
    as_model,
    as_numpy,
    dump_model,
    restore_model,
)
from phiball.experiments.robustness.report_formats import RobustnessReport
from phiball.experiments.robustness.summary import summarize_measures
from phiball.refimpl import Ball, white_noise
from phiball.refimpl.distributions.norms import NORMS, as_norm, norm_name
from phiball.refimpl.validation import valid_number

Norm = str | float


def robustness_report(
    models: Any,
    data: Any,
    *,
    norm: Norm | Sequence[Norm] | None = None,
    radii: Sequence[float] | Mapping[Any, Sequence[float]] | None = None,
    clip: tuple[float, float] | None = None,
    feature_scale: Any = None,
    settings: AttackSettings | None = None,
    rng: Any = None,
    n_jobs: int | None = None,
    cache: str | Path | None = None,
    progress: bool = False,
) -> RobustnessReport:
    """Measure the errors and losses of models under perturbations of increasing radius.

    Arguments:
    - `models`: a model, or a dict of models by name. A model is a torch module, a fitted scikit-learn
      estimator, a `LinearModel`, a `SmoothedClassifier`, a function of arrays, or the path of a .pt2 or .onnx
      file. Modules, functions and files return logits (n, classes), one logit (n, 1) for two classes, or
      predictions (n,); a module may also return one logit as (n,). Functions and ONNX files have no
      gradients, and are attacked only by noise and random search.
    - `data`: (x, y) or (x, y, groups), arrays or data frames; or a DataLoader or another iterable of such
      batches, which is read once. With groups, errors are also shown by group.
    - `norm`: "l1", "l2", "linf", or several of them; by default the norms of `radii`, or l2 and linf.
    - `radii`: at least one positive number; or a dict of such lists by norm, instead of `norm`. The default
      depends on the data: 0, 1, 2, 3 and 4 % of the median range of the features (of the width of `clip`, if
      it is given) in the first batch, in units of `feature_scale`; times sqrt(d) in l2 and times d in l1.
    - `clip`: the range (lo, hi) of valid inputs, for example (0, 1) for images.
    - `feature_scale`: a scale per feature, as in `Ball`; 0 fixes a feature, such as a category.
    - `settings`: the attacks and their effort, see `AttackSettings`.
    - `rng`: the seed or generator of all random numbers; None draws fresh entropy. The results of a model do
      not depend on the other models.
    - `cache`: a folder for the results of batches, from which the same call resumes; it needs `rng`. A model
      is measured again if its outputs at the data, or at random points of the balls, have changed.
    - `n_jobs`: the number of processes, with joblib's meaning; None measures in this process.
      `phiball.backends.workers.cluster` selects a Dask or Ray cluster.
    - `progress`: show a progress bar.

    Returns a `RobustnessReport`. Its attacked errors are lower bounds of the worst error, and its certified
    errors are upper bounds. Torch modules are run in evaluation mode and restored.

    >>> import numpy as np
    >>> from phiball.experiments.robustness import robustness_report
    >>> x, y = np.array([[0.2], [1.0], [-1.0]]), np.array([1, 1, 0])
    >>> model = lambda x: np.concatenate([-x, x], axis=1)
    >>> robustness_report(model, (x, y), norm="linf", radii=[0, 0.5, 2])
    RobustnessReport(model: error 0 -> 100 % (sampled, optimistic) at linf 2, 3 points; 1 warning)
    """
    if isinstance(models, (list, tuple)):
        raise ValueError(
            f"models is a {type(models).__name__}; expected a model, or a dict of models by name"
        )
    named = dict(models) if isinstance(models, Mapping) else {"model": models}
    if not named:
        raise ValueError("models is empty; expected at least one model")
    if cache is not None and rng is None:
        raise ValueError(
            "cache is given and rng is None; expected a seed, such as rng=0, to find cached results"
        )
    if n_jobs is not None:
        require("joblib", user="a report with n_jobs", extra="verify")
    if n_jobs == 0:
        raise ValueError("n_jobs is 0; expected a number of processes, or -1 for all cores")
    settings = AttackSettings() if settings is None else settings
    box = _valid_box(clip, feature_scale)
    root = as_rng(rng)
    seed, [source] = repr(root), root.spawn(1)
    batches, total, features = _batches(data, settings.chunk)
    if radii is None:
        first = next(batches, None)
        if first is None:
            raise ValueError("data is empty; expected at least one point")
        batches = chain([first], batches)
        radii = _default_radii(_valid_norms(norm), as_numpy(first[0]), *box)
    threat = ThreatModel(_radii_by_norm(norm, radii), *box)
    folder = None if cache is None else Path(cache)
    classes = _classes(named)
    prepared: list[Model] = []
    labels: list[Any] = []
    groups: list[Any] = []
    results: dict[str, dict[int, Measures]] = {name: {} for name in named}
    with ExitStack() as stack:
        show = stack.enter_context(Progress("report")).update if progress else None

        points: Any = None

        def missing() -> Iterator[BatchTask]:
            """Read the data, and yield the tasks that are not in the cache."""
            nonlocal points
            for k, (x, y, group) in enumerate(batches):
                if not prepared:
                    kind = settings.kind or (REGRESSOR if as_numpy(y).dtype.kind == "f" else CLASSIFIER)
                    points = _probe_points(x, threat)
                    for name, model in named.items():
                        prepared.append(as_model(name, model, kind, classes, points))
                    for model in prepared:
                        stack.enter_context(model.evaluating())
                y = _encode(y, classes) if prepared[0].kind == CLASSIFIER else as_numpy(y)
                labels.append(y)
                groups.extend([] if group is None else as_numpy(group).tolist())
                for model in prepared:
                    task = BatchTask(model, k, x, y, source.keyed(f"batch {k}"), points)
                    task = task if folder is None else task.with_file(folder, threat, settings)
                    cached = task.read()
                    if cached is None:
                        yield task
                    else:
                        results[model.name][k] = cached

        with closing(_measure_tasks(missing(), threat, settings, classes, n_jobs)) as outcomes:
            for task, out in outcomes:
                task.write(out)
                results[task.model.name][task.number] = out
                if show is not None:
                    ended = [out for batches in results.values() for out in batches.values()]
                    done = sum(len(out[MeasureKey("loss")]) for out in ended)
                    share = done / (total * len(named)) if total else 0.0
                    smoothed = task.model.smoothed
                    votes = "" if smoothed is None else f", {smoothed.n_samples} votes for each point"
                    show(share, f"{task.model.name}, batch {task.number + 1}{votes}")
    if not prepared:
        raise ValueError("data is empty; expected at least one point")
    y = np.concatenate(labels)
    summary = summarize_measures(
        prepared,
        {name: [ended[k] for k in sorted(ended)] for name, ended in results.items()},
        threat,
        settings,
        y,
        classes=_class_names(classes, data, y) if prepared[0].kind == CLASSIFIER else None,
        groups=np.asarray(groups) if groups else None,
        features=features,
    )
    return RobustnessReport({**summary, "rng": seed})


# --- Arguments ------------------------------------------------------------------------------------------


def _valid_norms(norm: Norm | Sequence[Norm] | None) -> tuple[str, ...]:
    if norm is None:
        return "l2", "linf"
    several = [norm] if isinstance(norm, str) or not isinstance(norm, Iterable) else norm
    names = tuple(dict.fromkeys(norm_name(as_norm(one)) for one in several))
    if not names or not set(names) <= set(NORMS):
        raise ValueError(f"norm is {norm!r}; expected 'l1', 'l2', 'linf', or several of them")
    return names


def _radii_by_norm(norm: Any, radii: Any) -> dict[str, tuple[float, ...]]:
    if isinstance(radii, Mapping):
        found = {_valid_norms(key)[0]: _valid_radii(values) for key, values in radii.items()}
        if norm is not None and {*_valid_norms(norm)} != {*found}:
            raise ValueError(
                f"norm is {norm!r} and radii has the norms {[*found]}; expected the same, or no norm"
            )
        return found
    return dict.fromkeys(_valid_norms(norm), _valid_radii(radii))


def _default_radii(norms: tuple[str, ...], x: Any, clip: Any, feature_scale: Any) -> dict[str, list[float]]:
    """The default radii, see `robustness_report`."""
    ranges = np.ptp(x, axis=0) * 1.0 if clip is None else np.full(x.shape[1:], clip[1] - clip[0])
    scale = np.broadcast_to(1.0 if feature_scale is None else feature_scale, ranges.shape)
    ranges = ranges[scale > 0] / scale[scale > 0]
    ranges, d = ranges[ranges > 0], ranges.size
    if not ranges.size:
        raise ValueError("all features are constant, so radii has no default; expected numbers")
    factors = {"l1": d, "l2": d**0.5, "linf": 1.0}
    steps = {norm: float(f"{0.01 * np.median(ranges) * factors[norm]:.2g}") for norm in norms}
    return {norm: [float(f"{k * step:.6g}") for k in range(5)] for norm, step in steps.items()}


def _valid_radii(radii: Sequence[float]) -> tuple[float, ...]:
    values = sorted({valid_number("radii", radius, least=0.0) for radius in radii})
    if not values or values[-1] == 0:
        raise ValueError(f"radii is {radii!r}; expected at least one positive number")
    return tuple(values)


def _valid_box(clip: Any, feature_scale: Any) -> tuple[tuple[float, float] | None, Any]:
    ball = Ball(2.0, 1.0, clip, feature_scale)
    return ball.clip, None if feature_scale is None else np.asarray(ball.feature_scale.values).tolist()


def _batches(data: Any, chunk: int) -> tuple[Iterator[tuple[Any, Any, Any]], int, list[str] | None]:
    """The data as batches (x, y, groups), the number of points (0 if unknown) and the feature names."""
    if isinstance(data, (tuple, list)) and len(data) in (2, 3) and hasattr(data[0], "shape"):
        n = len(data[0])
        for name, column in zip(("labels", "groups"), data[1:], strict=False):
            if len(column) != n:
                raise ValueError(f"data has {n} points and {len(column)} {name}; expected one per point")
        features = [str(name) for name in data[0].columns] if hasattr(data[0], "columns") else None
        x, y, *groups = (np.array(part) if hasattr(part, "to_numpy") else part for part in data)
        cuts = (slice(k, k + chunk) for k in range(0, n, chunk))
        return ((x[cut], y[cut], groups[0][cut] if groups else None) for cut in cuts), n, features
    if not isinstance(data, Iterable):
        raise TypeError(f"data is {type(data).__name__}; expected (x, y), or an iterable of such batches")
    n = len(data.dataset) if hasattr(data, "dataset") and hasattr(data.dataset, "__len__") else 0
    return ((batch[0], batch[1], batch[2] if len(batch) > 2 else None) for batch in data), n, None


def _classes(models: Mapping[str, Any]) -> Any:
    """The classes of scikit-learn classifiers, in the order of the scores; None without such models."""
    known = [np.asarray(model.classes_) for model in models.values() if hasattr(model, "classes_")]
    for other in known[1:]:
        if not np.array_equal(known[0], other):
            raise ValueError("the models have different classes; expected one report per set of classes")
    return known[0] if known else None


def _class_names(classes: Any, data: Any, y: Any) -> Any:
    """The classes of an estimator, or of the data set of a DataLoader; None without names."""
    names = getattr(getattr(data, "dataset", None), "classes", None) if classes is None else classes
    return names if names is not None and len(names) > y.max() else None


def _encode(y: Any, classes: Any) -> Any:
    """Labels as indices of the columns of the scores, which belong to `classes`.

    If `classes` is None, the labels must be indices already.
    """
    y = as_numpy(y)
    if classes is None:
        if y.dtype.kind not in "biuf":
            raise ValueError(
                f"y has labels like {y.flat[0]!r}, and no model has classes_; expected the indices of the "
                "scores, 0, 1, ..., or scikit-learn estimators"
            )
        wrong = y[y != np.floor(y)] if y.dtype.kind == "f" else y[:0]
        if wrong.size:
            raise ValueError(f"y has the label {wrong[0]!s}; expected the indices of the scores, 0, 1, ...")
        return y.astype(np.int64)
    unknown = sorted(set(y.tolist()) - set(classes.tolist()))
    if unknown:
        raise ValueError(f"y has the label {unknown[0]!r}; expected one of the models' {classes.tolist()}")
    order = np.argsort(classes)
    return order[np.searchsorted(classes, y, sorter=order)]


def _probe_points(x: Any, threat: ThreatModel) -> tuple[Any, Any] | None:
    """The points of a table, and perturbed points in the largest balls; None for other data."""
    x = as_numpy(x)
    if x.ndim != 2 or x.dtype.kind not in "fbui":
        return None
    x, rng = x.astype(np.float64), as_rng(0)
    balls = [threat.ball(norm, radii[-1], clip=False) for norm, radii in threat.radii.items()]
    return x, np.concatenate([white_noise(x, ball, rng=rng) for ball in balls])


# --- Batches ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class BatchTask:
    """A model to be attacked on the data (x, y) of batch `number`, and the file that caches the results.

    `points` are those of `as_model`, the same for all batches.
    """

    model: Model
    number: int
    x: Any
    y: Any
    rng: Rng
    points: Any = None
    file: Path | None = None

    def with_file(self, folder: Path, threat: ThreatModel, settings: AttackSettings) -> BatchTask:
        """The task with its cache file, named by a hash of everything that the results depend on."""
        # A model is identified by its outputs at the data and at random points of every ball.
        x, rng = self.model.to_array(self.x), as_rng(0)
        balls = [
            threat.ball(norm, radius) for norm, radii in threat.radii.items() for radius in radii if radius
        ]
        points = [x, *(white_noise(x, ball, rng=rng) for ball in balls for _ in range(4))]
        outputs = [as_numpy(self.model.attacked(point)) for point in points]
        facts = [asdict(threat), asdict(settings), repr(self.rng), self.model.kind, self.number]
        smoothed = self.model.smoothed
        facts += [] if smoothed is None else [repr(replace(smoothed, classifier=len))]
        digest = hashlib.sha256(json.dumps(facts).encode())
        for array in (as_numpy(self.x), self.y, *outputs):
            shape = repr((array.shape, array.dtype.str))
            digest.update(shape.encode() + np.ascontiguousarray(array).tobytes())
        safe = "".join(c if c.isalnum() else "_" for c in self.model.name)[:40]
        return replace(self, file=folder / f"{safe}-{self.number:05d}-{digest.hexdigest()[:16]}.npz")

    def read(self) -> Measures | None:
        """The cached results; None if there are none, or the file is damaged."""
        if self.file is None or not self.file.exists():
            return None
        with suppress(ValueError, KeyError, TypeError):
            arrays = read_arrays(self.file)
            keys = json.loads(str(arrays["keys"]))
            return {MeasureKey(**fields): arrays[str(k)] for k, fields in enumerate(keys)}
        return None

    def write(self, out: Measures) -> None:
        """Cache the results, atomically."""
        if self.file is None:
            return
        self.file.parent.mkdir(parents=True, exist_ok=True)
        keys = np.asarray(json.dumps([key._asdict() for key in out]))
        stream = BytesIO()
        np.savez(stream, keys=keys, **{str(k): values for k, values in enumerate(out.values())})
        with atomic_write(self.file) as target:
            target.write(stream.getvalue())


def _measure_tasks(
    tasks: Iterable[BatchTask],
    threat: ThreatModel,
    settings: AttackSettings,
    classes: Any,
    n_jobs: int | None,
) -> Generator[tuple[BatchTask, Measures], None, None]:
    """Yield tasks with their results as they end.

    A batch of data is read when a process is free, and released when it has been sent. `classes` are the
    class labels of `as_model`.
    """
    if n_jobs is None:
        for task in tasks:
            yield task, measure_task(task.model, task.x, task.y, threat, settings, task.rng)
        return
    from phiball.backends.workers import run_tasks  # joblib is optional

    dumps: dict[str, bytes] = {}
    sent: dict[int, BatchTask] = {}

    def calls() -> Iterator[tuple[Any, ...]]:
        for k, task in enumerate(tasks):
            model = task.model
            if model.name not in dumps:
                dumps[model.name] = dump_model(model)
            sent[k] = replace(task, x=None, y=None)
            # Clone tensors, because pickling a view would pickle all of the data.
            x = task.x.detach().clone() if hasattr(task.x, "detach") else task.x
            remote = model.name, model.kind, classes, dumps[model.name], task.points
            yield remote, x, task.y, threat, settings, task.rng

    with closing(run_tasks(measure_remotely, calls(), n_jobs=n_jobs)) as outcomes:
        for k, out in outcomes:
            yield sent.pop(k), out


def measure_remotely(remote: tuple[str, str, Any, bytes, Any], *arguments: Any) -> Measures:
    """Call `measure_task` in a worker; `remote` is the model's name, kind, classes, content and points."""
    name, kind, classes, content, points = remote
    model = as_model(name, restore_model(content), kind, classes, points)
    with model.evaluating():
        return measure_task(model, *arguments)


def measure_task(
    model: Model, x: Any, y: Any, threat: ThreatModel, settings: AttackSettings, rng: Rng
) -> Measures:
    """Run `measure_batch` on data of any library."""
    x = model.to_array(x)
    if model.kind == CLASSIFIER:
        _check_labels(model, x, y)
    return measure_batch(model, x, model.to_array(y), threat, settings, rng)


def _check_labels(model: Model, x: Any, y: Any) -> None:
    """Raise ValueError unless every label is the index of a score."""
    out = model.outputs(x[:1])
    if out.ndim != 2:
        return
    wrong = y[(y < 0) | (y >= out.shape[1])]
    if wrong.size:
        raise ValueError(
            f"y has the label {wrong[0]!s}; expected whole numbers from 0 to {out.shape[1] - 1}, as model "
            f"{model.name!r} returns {out.shape[1]} scores"
        )

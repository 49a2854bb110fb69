"""How robust models are: errors and losses against the size of the perturbation, in one call."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from phiball.backends.progress import Progress
from phiball.experiments.framework.requirements import require
from phiball.experiments.robustness.attacks import ATTACKS, NORMS, OWN, Settings, installed
from phiball.experiments.robustness.models import CLASSIFIER, REGRESSOR, Model, as_model
from phiball.experiments.robustness.parts import Measures, Part, as_numpy, measured
from phiball.experiments.robustness.summary import summarise
from phiball.refimpl import Ball
from phiball.refimpl.validation import valid_count, valid_number


@dataclass(frozen=True)
class Report:
    """What was measured; `repr` is a line, `plot()` draws, `write()` keeps it as HTML, JSON or CSV.

    - `summary`: plain numbers, words and lists: what the page shows and the JSON file holds.
    """

    summary: dict[str, Any] = field(repr=False)

    def __repr__(self) -> str:
        kind = "error" if self.summary["kind"] == CLASSIFIER else "loss"
        scale, unit = (100, " %") if kind == "error" else (1, "")
        parts = []
        for name, model in self.summary["models"].items():
            worst = [rows[-1]["measures"]["worst"][kind] for rows in model["norms"].values()]
            after = " / ".join(f"{value * scale:.3g}" for value in worst)
            parts.append(f"{name}: {kind} {model['clean'][kind] * scale:.3g} -> {after}{unit}")
        norms = " / ".join(self.summary["models"][name]["norms"])
        size = f"{norms} {self.summary['radii'][-1]:g}, {self.summary['points']} points"
        warnings = len(self.summary["warnings"])
        return f"Report({'; '.join(parts)} at {size}; {warnings} warning{'s' * (warnings != 1)})"

    def plot(self) -> Any:
        """Return a matplotlib figure: a panel per norm, a curve per model, noise dashed."""
        from phiball.experiments.robustness.files import draw

        return draw(self.summary)

    def write(self, file: str | Path) -> Path:
        """Write the report; the ending .html, .json or .csv says in which form. Returns the path."""
        from phiball.experiments.robustness.files import write

        return write(self.summary, Path(file))


def robustness_report(
    models: Any,
    data: Any,
    *,
    norms: Sequence[str] = ("l2", "linf"),
    radii: Sequence[float] = (0.0, 0.25, 0.5, 0.75, 1.0),
    attacks: Sequence[str] | None = None,
    etas: Sequence[float] = (0.1, 1.0),
    clip: tuple[float, float] | None = None,
    scale: Any = None,
    kind: str | None = None,
    groups: Any = None,
    features: Sequence[str] | None = None,
    batch: int = 256,
    draws: int = 8,
    samples: int = 32,
    steps: int = 20,
    restarts: int = 2,
    queries: int = 100,
    seed: int = 0,
    cache: str | Path | None = None,
    jobs: int | None = None,
    progress: bool = False,
) -> Report:
    """Measure how errors and losses of models grow with the size of the perturbation.

    Arguments:
    - `models`: a model, or a dict of several by name. A model is a torch module whose outputs are scores (n,
      classes) or predictions (n,), a fitted scikit-learn estimator, a function from arrays to scores or
      predictions, or the name of a .pt2 or .onnx file. Functions have no gradients: noise, sampling and the
      search without gradients are tried on them.
    - `data`: (x, y), arrays; or a DataLoader or another iterable of such batches, which is passed once.
    - `norms`: of "l1", "l2" and "linf". `radii`: the sizes of the perturbation, not negative.
    - `attacks`: of "fgm", "pgm" and "search" (which needs no gradients), and of "apgd-ce", "apgd-dlr", "fab"
      and "square", which torchattacks has: they are run on torch classifiers of images with `clip=(0, 1)`,
      in l2 and linf. All by default, those of torchattacks where it is installed.
    - `etas`: the prices at which the regularised risk is estimated, with the entropic divergence.
    - `clip`: (lo, hi) if inputs live in a box, for instance (0, 1) for images. Nothing is clipped by default.
    - `scale`: the sizes of the features, as in `Ball`: one for each, and 0 for what must not move, such as
      categories. The attacks of torchattacks know none, and are left out.
    - `kind`: "classifier" or "regressor"; by default the labels say it: whole numbers are classes.
    - `groups`: a label per point; errors are then also shown by group. `features`: names of the columns.
    - `batch`: the points per batch of arrays. `draws`: random points per data point and radius. `samples`:
      points per ball for the risk. `steps`, `restarts`: of "pgm". `queries`: of "search".
    - `seed`: of everything that is drawn. What is found does not depend on the other models.
    - `cache`: a folder that keeps each batch; the same call then goes on where a killed one was. A model
      whose outputs have changed is measured anew.
    - `jobs`: the number of processes of one thread that batches are spread over, with joblib's meaning;
      `phiball.backends.parallel.cluster` selects a Dask or Ray cluster. None measures in this process.
      Another number of threads may round sums differently; nothing else depends on it.
    - `progress`: show how far it is, and the time left.

    Returns a `Report`. A torch module is evaluated in evaluation mode, and left as it was. Attacks are lower
    bounds: none of them proves that a point is safe.

    >>> import numpy as np
    >>> from phiball.experiments.robustness import robustness_report
    >>> x, y = np.array([[0.2], [1.0], [-1.0]]), np.array([1, 1, 0])
    >>> model = lambda x: np.concatenate([-x, x], axis=1)
    >>> robustness_report(model, (x, y), norms=["linf"], radii=[0, 0.5, 2])
    Report(model: error 0 -> 100 % at linf 2, 3 points; 0 warnings)
    """
    if attacks is None:
        attacks = ATTACKS if installed() else OWN
    settings = Settings(
        norms=_valid_words("norms", norms, NORMS),
        radii=_valid_radii(radii),
        attacks=_valid_words("attacks", attacks, ATTACKS),
        etas=tuple(valid_number("etas", eta, above=0.0) for eta in etas),
        clip=Ball(2, 1.0, clip).clip,
        scale=None
        if scale is None
        else np.asarray(Ball(2, 1.0, feature_scale=scale).feature_scale.values).tolist(),
        draws=valid_count("draws", draws),
        samples=valid_count("samples", samples, 2),
        steps=valid_count("steps", steps),
        restarts=valid_count("restarts", restarts),
        queries=valid_count("queries", queries),
        seed=valid_count("seed", seed, 0),
    )
    if isinstance(models, (list, tuple)):
        raise ValueError(f"models is a {type(models).__name__}; expected a model, or a dict of them by name")
    named = dict(models) if isinstance(models, Mapping) else {"model": models}
    if not named:
        raise ValueError("models is empty; expected at least one model")
    batches, total = _batches(data, valid_count("batch", batch))
    folder = None if cache is None else Path(cache)
    if jobs is not None:
        require("joblib", user="a report with jobs", extra="verify")
        if jobs == 0 or jobs < -1:
            raise ValueError(f"jobs is {jobs}; expected a number of processes, or -1 for one per core")
    prepared: list[Model] = []
    parts: dict[str, dict[int, Measures]] = {name: {} for name in named}
    labels: list[Any] = []
    classes = _classes(named)
    with ExitStack() as stack:
        show = stack.enter_context(Progress("report")).update if progress else None

        def missing() -> Iterator[Part]:
            """The parts that no file keeps, as the data come."""
            for k, (x, y) in enumerate(batches):
                if not prepared:
                    is_kind = _kind(kind, y)
                    prepared.extend(as_model(name, model, is_kind, classes) for name, model in named.items())
                    for model in prepared:
                        stack.enter_context(model.evaluating())
                encoded = _encoded(y, classes) if prepared[0].kind == CLASSIFIER else as_numpy(y)
                labels.append(encoded)
                for model in prepared:
                    part = Part.of(model, k, x, encoded, settings, folder)
                    kept = part.read()
                    if kept is None:
                        yield part
                    else:
                        parts[model.name][k] = kept

        with closing(measured(missing(), settings, classes, jobs)) as found:
            for part, out in found:
                part.write(out)
                parts[part.model.name][part.number] = out
                done = sum(len(out["clean/loss"]) for ended in parts.values() for out in ended.values())
                share = done / (total * len(named)) if total else 0.0
                if show is not None:
                    show(share, f"{part.model.name}, batch {part.number + 1}")
    if not prepared:
        raise ValueError("data has no points; expected at least one batch")
    return Report(
        summarise(
            prepared,
            {name: [ended[k] for k in sorted(ended)] for name, ended in parts.items()},
            settings,
            np.concatenate(labels),
            classes=classes if prepared[0].kind == CLASSIFIER else None,
            groups=None if groups is None else np.asarray(groups),
            features=None if features is None else [str(name) for name in features],
        )
    )


def _batches(data: Any, size: int) -> tuple[Iterator[tuple[Any, Any]], int]:
    """The data as batches (x, y), and how many points there are (0 if that is not known)."""
    if isinstance(data, (tuple, list)) and len(data) == 2 and hasattr(data[0], "shape"):
        x, y = data
        if len(x) != len(y):
            raise ValueError(f"data has {len(x)} points and {len(y)} labels; expected as many")
        x = x.to_numpy() if hasattr(x, "to_numpy") else x
        y = y.to_numpy() if hasattr(y, "to_numpy") else y
        pieces = ((x[k : k + size], y[k : k + size]) for k in range(0, len(x), size))
        return pieces, len(x)
    if not isinstance(data, Iterable):
        raise TypeError(f"data is {type(data).__name__}; expected (x, y), or an iterable of such batches")
    points = len(data.dataset) if hasattr(data, "dataset") and hasattr(data.dataset, "__len__") else 0
    return ((x, y) for x, y in data), points


def _kind(kind: str | None, y: Any) -> str:
    if kind is None:
        return REGRESSOR if as_numpy(y).dtype.kind == "f" else CLASSIFIER
    if kind not in (CLASSIFIER, REGRESSOR):
        raise ValueError(f"kind is {kind!r}; expected {CLASSIFIER!r} or {REGRESSOR!r}")
    return kind


def _classes(models: Mapping[str, Any]) -> Any:
    """The labels of estimators, in the order of their scores; None if there are none."""
    known = [np.asarray(model.classes_) for model in models.values() if hasattr(model, "classes_")]
    for other in known[1:]:
        if not np.array_equal(known[0], other):
            raise ValueError("the models know different classes; expected a report for each")
    return known[0] if known else None


def _encoded(y: Any, classes: Any) -> Any:
    """Labels as places in `classes`, which is what scores are indexed by."""
    y = as_numpy(y)
    if classes is None:
        if y.dtype.kind not in "biuf":
            raise ValueError(
                f"y has labels like {y.flat[0]!r}, and the models do not say which score is whose; expected "
                "the numbers of the scores, 0, 1, ..., or models with classes_"
            )
        return y
    unknown = sorted(set(y.tolist()) - set(classes.tolist()))
    if unknown:
        raise ValueError(f"y has the label {unknown[0]!r}, which the models do not know: {classes.tolist()}")
    order = np.argsort(classes)
    return order[np.searchsorted(classes, y, sorter=order)]


def _valid_words(name: str, words: Sequence[str], known: Iterable[str]) -> tuple[str, ...]:
    for word in words:
        if word not in known:
            raise ValueError(f"{name} has {word!r}; expected some of {', '.join(known)}")
    return tuple(words)


def _valid_radii(radii: Sequence[float]) -> tuple[float, ...]:
    values = sorted({valid_number("radii", radius, least=0.0) for radius in radii})
    if not values or values[-1] == 0:
        raise ValueError(f"radii is {radii!r}; expected at least one positive number")
    return tuple(values)

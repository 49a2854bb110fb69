"""What is measured of one model on one batch, here or in other processes, and the files that keep it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from phiball.backends.files import atomic_write, read_arrays
from phiball.backends.random import Rng
from phiball.experiments.robustness.attacks import Settings, measure_batch
from phiball.experiments.robustness.models import CLASSIFIER, Model, as_model, packed, unpacked

Measures = dict[str, Any]  # see `measure_batch`


@dataclass(frozen=True)
class Part:
    """The batch `number` of points `x` and labels `y`, to be tried on a model, and the file that keeps it."""

    model: Model
    number: int
    x: Any
    y: Any
    file: Path | None = None

    @staticmethod
    def of(model: Model, number: int, x: Any, y: Any, settings: Settings, folder: Path | None) -> Part:
        """A part whose file is named by all that its measures depend on; it has none without a folder."""
        if folder is None:
            return Part(model, number, x, y)
        outputs = as_numpy(model.outputs(model.to_array(x)))  # they say which model it is
        digest = hashlib.sha256(json.dumps([asdict(settings), model.kind, number]).encode())
        for array in (as_numpy(x), y, outputs):
            shape = repr((array.shape, array.dtype.str))
            digest.update(shape.encode() + np.ascontiguousarray(array).tobytes())
        safe = "".join(c if c.isalnum() else "_" for c in model.name)[:40]
        name = f"{safe}-{number:05d}-{digest.hexdigest()[:16]}.npz"
        return Part(model, number, x, y, folder / name)

    def read(self) -> Measures | None:
        """What the file holds, if there is one; a damaged one is measured again."""
        if self.file is not None and self.file.exists():
            with suppress(ValueError):
                return read_arrays(self.file)
        return None

    def write(self, out: Measures) -> None:
        """Keep what was measured, in one step."""
        if self.file is None:
            return
        self.file.parent.mkdir(parents=True, exist_ok=True)
        stream = BytesIO()
        np.savez(stream, **out)
        with atomic_write(self.file) as target:
            target.write(stream.getvalue())


def as_numpy(x: Any) -> Any:
    """An array of any library as a NumPy array of its own dtype."""
    if not hasattr(x, "detach"):
        return np.asarray(x)
    x = x.detach().cpu()
    return x.float().numpy() if str(x.dtype) == "torch.bfloat16" else x.numpy()  # which NumPy does not know


def measured(
    parts: Iterable[Part], settings: Settings, classes: Any, jobs: int | None
) -> Generator[tuple[Part, Measures], None, None]:
    """Yield parts with what was measured, as they end: one after the other here, or on `jobs` processes.

    Parts are taken as processes become free, and their data dropped when they have ended.
    """
    if jobs is None:
        for part in parts:
            yield part, measure(part.model, part.x, part.y, settings, part.number)
        return
    from phiball.backends.parallel import run_tasks  # joblib is optional

    sent: dict[str, bytes] = {}
    handed: dict[int, Part] = {}

    def tasks() -> Iterator[tuple[Any, ...]]:
        for k, part in enumerate(parts):
            model = part.model
            if model.name not in sent:
                sent[model.name] = packed(model)
            handed[k] = replace(part, x=None, y=None)
            x = part.x.detach().clone() if hasattr(part.x, "detach") else part.x  # or all data go along
            yield model.name, sent[model.name], model.kind, classes, x, part.y, settings, part.number

    with closing(run_tasks(measure_elsewhere, tasks(), n_jobs=jobs)) as outcomes:
        for k, out in outcomes:
            yield handed[k], out


def measure(model: Model, x: Any, y: Any, settings: Settings, number: int) -> Measures:
    """What is found on a batch. Random numbers depend on the seed and the number of the batch."""
    points = model.to_array(x)
    source = Rng(np.random.SeedSequence([settings.seed, number]))
    labels = model.to_array(y) if model.kind == CLASSIFIER or not hasattr(points, "detach") else y
    if model.kind == CLASSIFIER:
        _check_labels(model, points, as_numpy(labels))
    return measure_batch(model, points, model.to_array(labels), settings, source)


def _check_labels(model: Model, points: Any, labels: Any) -> None:
    """Raise unless every label is the place of a score."""
    out = model.outputs(points[:1])
    if out.ndim != 2:
        return
    wrong = labels[(labels < 0) | (labels >= out.shape[1])] if labels.dtype.kind in "iu" else labels
    if wrong.size:
        raise ValueError(
            f"y has the label {wrong[0]!s}; expected whole numbers from 0 to {out.shape[1] - 1}, as model "
            f"{model.name!r} gives {out.shape[1]} scores"
        )


def measure_elsewhere(
    name: str, content: bytes, kind: str, classes: Any, x: Any, y: Any, settings: Settings, number: int
) -> Measures:
    """What `measure` finds, in another process, which gets the model as `packed` has made it."""
    model = as_model(name, unpacked(content), kind, classes)
    with model.evaluating():
        return measure(model, x, y, settings, number)

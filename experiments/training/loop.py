"""The training loop, with checkpoints: a killed training resumes, and ends with the same weights.

A checkpoint holds everything that the next step depends on: weights, optimizer, random state, and the
position in the data. It also records the settings of the training, and is refused by a training with others.

Under torchrun, each process takes its part of every batch. The first process writes the checkpoint, with the
random states of all processes, and all processes resume from it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from importlib import import_module
from math import ceil, cos, isfinite, pi
from pathlib import Path
from time import monotonic
from typing import Any
from zipfile import ZipFile

import numpy as np

from phiball.backends import Array, Rng
from phiball.backends.files import atomic_write, open_regular
from phiball.backends.provenance import differences
from phiball.experiments.framework.tasks import as_json
from phiball.experiments.training.ranks import Ranks
from phiball.experiments.training.training_methods import Loss, Objective, StatefulObjective
from phiball.refimpl import pointwise_loss

SAVE_EVERY = 20.0  # seconds between checkpoints


@dataclass(frozen=True)
class Schedule:
    """A training schedule: passes over the data, data points per step, and Adam's learning rate.

    `warmup`: None keeps the learning rate constant. Otherwise it is the fraction of all steps, less than 1,
    over which the rate increases linearly up to `rate`; it then decays to 0 along a cosine.
    """

    epochs: int
    batch: int
    rate: float
    warmup: float | None = None

    def rate_at(self, step: int, total: int) -> float:
        """Return the learning rate of a step from 0 to total - 1."""
        if self.warmup is None:
            return float(self.rate)
        first = self.warmup * total
        if step + 1 <= first:
            return self.rate * (step + 1) / first
        return self.rate * (1 + cos(pi * (step + 1 - first) / (total + 1 - first))) / 2

    def settings(self) -> dict[str, float]:
        """Return the settings that are not None, by name."""
        return {name: value for name, value in asdict(self).items() if value is not None}


def cross_entropy_loss(model: Any, y: Array) -> Loss:
    """Return loss(x, i), the cross-entropy of each x, a perturbed copy of data point i."""
    return pointwise_loss(model, y, import_module("torch").nn.CrossEntropyLoss(reduction="none"))


@dataclass(frozen=True)
class Checkpoint:
    """The file that a training is saved to and resumed from.

    - `file`: written every `save_every` seconds and at the end.
    - `about`: the settings that the training depends on, as JSON; a file with other settings is refused.
    """

    file: Path
    about: Mapping[str, Any] = field(default_factory=dict)
    save_every: float = SAVE_EVERY


def train_network(
    model: Any,
    objective: Objective | StatefulObjective,
    data: tuple[Array, Array],
    schedule: Schedule,
    rng: Rng,
    *,
    state: Array | None = None,
    checkpoint: Checkpoint | None = None,
    on_step: Callable[[int, int, float], None] = lambda done, total, loss: None,
) -> list[float]:
    """Train `model` in place by Adam on the data (x, y), and return the mean loss of each epoch.

    - `objective(loss, x, rng)`: the scalar that a batch is trained with.
    - `rng`: generates the order of the data and the draws of the objective.
    - `state`: the state of a `StatefulObjective`, one row per data point. The objective is called with the
      rows of the batch as a fourth argument, and returns the scalar and the new rows. The array is updated in
      place and is part of the checkpoint. Not supported under torchrun.
    - `checkpoint`: after a kill, the same call, with the same initial weights and rng, resumes from the
      checkpoint and ends with the weights of an uninterrupted run.
    - `on_step(done, total, loss)`: called after every step.
    """
    torch = import_module("torch")
    x, y = data
    ranks = Ranks.here()
    if state is not None and ranks.count > 1:
        raise ValueError(f"state is an array, and there are {ranks.count} processes; expected one process")
    shared = {"ranks": ranks.count} if ranks.count > 1 else {}
    plan = {"plan": schedule.settings(), "images": list(x.shape)}
    # As JSON, because `read_checkpoint` does not load NumPy numbers.
    about = as_json({**(checkpoint.about if checkpoint else {}), **shared, **plan})
    steps = ceil(len(x) / schedule.batch)
    total = schedule.epochs * steps
    order, rng = rng.spawn(2)
    orders = order.spawn(schedule.epochs)
    rng = ranks.rng(rng)
    optimizer = torch.optim.Adam(model.parameters(), lr=float(schedule.rate))
    curve: list[float] = []  # mean losses of finished epochs
    losses: list[float] = []  # of the steps of this epoch
    first = 0
    if checkpoint is not None and checkpoint.file.exists():
        saved = read_checkpoint(checkpoint.file, about)
        model.load_state_dict(saved["model"])
        first, curve, losses = saved["step"], saved["curve"], saved["losses"]
        if first < total:
            optimizer.load_state_dict(saved["optimizer"])
            if state is not None:
                state.copy_(saved["state"])
            rng = Rng.restore(saved["rng"][ranks.rank] if shared else saved["rng"])
    averaging_model = ranks.wrap(model)
    evaluate: Callable[..., Any] = objective
    last_save = monotonic()
    for step in range(first, total):
        epoch, place = divmod(step, steps)
        if place == 0 or step == first:
            permutation = orders[epoch].permutation(len(x), like=np.empty(0))
            shuffled = torch.from_numpy(permutation).to(x.device)
        batch = shuffled[place * schedule.batch : (place + 1) * schedule.batch]
        optimizer.zero_grad()
        for group in optimizer.param_groups:
            group["lr"] = schedule.rate_at(step, total)
        part, factor = ranks.part(batch)
        arguments = cross_entropy_loss(averaging_model, y[part]), x[part], rng
        if state is None:
            loss = evaluate(*arguments)
        else:
            loss, state[part] = evaluate(*arguments, state[part])
        loss = loss * factor if shared else loss
        loss.backward()
        optimizer.step()
        losses.append(ranks.mean(loss.detach()))
        if not isfinite(losses[-1]):
            raise ValueError(f"the training loss is {losses[-1]} at step {step + 1}; a smaller rate may help")
        if place == steps - 1:
            curve.append(float(np.mean(losses)))
            losses = []
        on_step(step + 1, total, float(np.mean(losses)) if losses else curve[-1])
        if checkpoint is None:
            continue
        if step + 1 == total or ranks.broadcast_object(monotonic() - last_save >= checkpoint.save_every):
            content = {"about": about, "step": step + 1, "curve": curve, "losses": losses}
            if step + 1 < total:  # the last checkpoint holds only the network
                states = ranks.gather(rng.state())
                content |= {"optimizer": optimizer.state_dict(), "rng": states if shared else states[0]}
                content |= {} if state is None else {"state": state}
            if ranks.rank == 0:
                write_checkpoint(checkpoint.file, {**content, "model": model.state_dict()})
            ranks.broadcast_object(True)  # a barrier: all processes wait for the file
            last_save = monotonic()
    return curve


def write_checkpoint(file: Path, content: dict[str, Any]) -> None:
    """Write a checkpoint atomically."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(file) as stream:
        import_module("torch").save(content, stream)


def read_checkpoint(file: Path, about: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Read a checkpoint, without running code that it may contain.

    Raise ValueError for a damaged or unrelated file, or a checkpoint with settings other than `about`.
    """
    torch = import_module("torch")
    remedy = "delete it to train from the start"
    with open_regular(file) as stream:
        try:
            with ZipFile(stream) as packed:
                if sum(part.file_size for part in packed.infolist()) > file.stat().st_size:
                    raise ValueError("it is compressed")  # torch never compresses; this may be a zip bomb
                if packed.testzip():
                    raise ValueError("a checksum is wrong")  # torch does not check them
            stream.seek(0)
            saved = torch.load(stream, map_location="cpu", weights_only=True)
        except Exception as error:  # torch.load raises almost anything
            raise ValueError(
                f"{file} is damaged or not a checkpoint ({type(error).__name__}); {remedy}"
            ) from error
    if not isinstance(saved, dict) or not {"about", "step", "curve", "losses", "model"} <= saved.keys():
        raise ValueError(f"{file} is not a checkpoint of this program; {remedy}")
    if about is not None and saved["about"] != about:
        different = differences(saved["about"], dict(about))
        raise ValueError(f"{file} is a checkpoint of another training: {different}; {remedy}")
    return dict(saved)

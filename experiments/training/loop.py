"""Training of a torch model that can be killed at any moment: it goes on, and ends with the same weights.

A checkpoint holds everything that the next step depends on: weights, optimizer, random numbers, the place in
the order of the data. It also says what it belongs to (`about`), and one of anything else is refused.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib import import_module
from math import ceil, isfinite
from pathlib import Path
from time import monotonic
from typing import Any
from zipfile import ZipFile

import numpy as np

from phiball.backends import Array, Rng
from phiball.experiments.framework.atomic_write import atomic_write

SAVE = 20.0  # seconds between checkpoints
Objective = Callable[[Callable[[Array, Array], Array], Array, Rng], Array]


@dataclass(frozen=True)
class Plan:
    """How long and how fast: passes over the data, data points a step, and Adam's step size."""

    epochs: int
    batch: int
    rate: float


def losses(model: Any, y: Array) -> Callable[[Array, Array], Array]:
    """The cross-entropy of each x, a perturbed copy of the data point i with label y[i]."""
    cross_entropy = import_module("torch").nn.functional.cross_entropy
    return lambda x, i: cross_entropy(model(x), y[i], reduction="none")


def train(
    model: Any,
    objective: Objective,
    x: Array,
    y: Array,
    plan: Plan,
    source: Rng,
    *,
    about: dict[str, Any],
    keep: Path | None = None,
    every: float = SAVE,
    on_step: Callable[[int, int, float], None] = lambda done, total, loss: None,
) -> list[float]:
    """Train `model` in place by Adam on the data (x, y); the mean loss of each epoch.

    `objective(loss, x, rng)` gives the scalar that a batch is trained with. Whoever kills this and calls it
    again with a model of the same initial weights, the same `about`, seed and file `keep` gets the weights of
    an undisturbed run. A checkpoint is written to `keep` every so many seconds, and at the end of all.
    `on_step(done, total, loss)` hears of every step.
    """
    torch = import_module("torch")
    # As JSON has it, without NumPy's numbers: `read` would not load them again.
    about = json.loads(
        json.dumps({**about, "plan": asdict(plan), "images": list(x.shape)}, default=lambda v: v.tolist())
    )
    steps = ceil(len(x) / plan.batch)
    total = plan.epochs * steps
    order, source = source.spawn(2)
    orders = order.spawn(plan.epochs)
    optimizer = torch.optim.Adam(model.parameters(), lr=float(plan.rate))
    curve: list[float] = []  # of epochs that are over
    seen: list[float] = []  # losses of the steps of this one
    first = 0
    if keep is not None and keep.exists():
        kept = read(keep, about)
        model.load_state_dict(kept["model"])
        first, curve, seen = kept["step"], kept["curve"], kept["seen"]
        if first < total:
            optimizer.load_state_dict(kept["optimizer"])
            source = Rng.restore(kept["rng"])
    saved = monotonic()
    for step in range(first, total):
        epoch, place = divmod(step, steps)
        if place == 0 or step == first:
            shuffled = torch.from_numpy(orders[epoch].permutation(len(x), like=np.empty(0))).to(x.device)
        batch = shuffled[place * plan.batch : (place + 1) * plan.batch]
        optimizer.zero_grad()
        loss = objective(losses(model, y[batch]), x[batch], source)
        loss.backward()
        optimizer.step()
        seen.append(float(loss.detach()))
        if not isfinite(seen[-1]):
            raise ValueError(f"the training loss is {seen[-1]} at step {step + 1}; a smaller rate may help")
        if place == steps - 1:
            curve.append(float(np.mean(seen)))
            seen = []
        on_step(step + 1, total, float(np.mean(seen)) if seen else curve[-1])
        if keep is not None and (step + 1 == total or monotonic() - saved >= every):
            state = {"about": about, "step": step + 1, "curve": curve, "seen": seen}
            if step + 1 < total:  # the last one is the network, and no more
                state |= {"optimizer": optimizer.state_dict(), "rng": source.state()}
            write(keep, {**state, "model": model.state_dict()})
            saved = monotonic()
    return curve


def write(file: Path, content: dict[str, Any]) -> None:
    """Save a checkpoint, all of it or nothing."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(file) as stream:
        import_module("torch").save(content, stream)


def read(file: Path, about: dict[str, Any] | None = None) -> dict[str, Any]:
    """A checkpoint, read without running anything that it may contain; ValueError unless it is of `about`."""
    torch = import_module("torch")
    remedy = "delete it, and training begins anew"
    with file.open("rb") as stream:
        try:
            with ZipFile(stream) as packed:
                if packed.testzip():
                    raise ValueError("a checksum is wrong")  # torch does not look at them
            stream.seek(0)
            kept = torch.load(stream, map_location="cpu", weights_only=True)
        except Exception as error:  # a file that is not what it should be raises almost anything
            raise ValueError(
                f"{file} is damaged, or no checkpoint ({type(error).__name__}); {remedy}"
            ) from error
    if not isinstance(kept, dict) or not {"about", "step", "curve", "seen", "model"} <= kept.keys():
        raise ValueError(f"{file} is not a checkpoint of this program; {remedy}")
    if about is not None and kept["about"] != about:
        there = kept["about"]
        different = "; ".join(
            f"{name} is {there.get(name)!r}, not {about.get(name)!r}"
            for name in sorted({*about, *there})
            if there.get(name) != about.get(name)
        )
        raise ValueError(f"{file} is a checkpoint of another training: {different}; {remedy}")
    return dict(kept)

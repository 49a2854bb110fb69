"""A small training run that can be stopped and resumed, with every kind of objective."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from phiball.backends import Rng, rng
from phiball.experiments.training.loop import Checkpoint, Schedule, train_network
from phiball.refimpl import ENTROPIC, RTMLMC, SG, Ball, RegularizedLoss, Tilted

torch = pytest.importorskip("torch", reason="torch: not installed")

PLAN = Schedule(epochs=2, batch=8, rate=0.01)  # 22 images: three steps per epoch, the last with six images
STEPS = 6
DESCRIPTION = {"setting": "ERM", "trial": 0, "seed": 7, "data": "d1", "width": 8, "objective": {"rho": 0.45}}


def plain(loss: Any, x: Any, source: Rng) -> Any:
    return loss(x, torch.arange(len(x))).mean()


def perturb_stored(loss: Any, x: Any, source: Rng, stored: Any) -> Any:
    """Add noise to the stored perturbations of the images x; return the loss and the new perturbations."""
    stored = stored + 0.1 * source.normal(tuple(x.shape), like=x)
    return plain(loss, x + stored, source), stored


def regularized(*how: Any) -> Any:
    return lambda loss, x, source: RegularizedLoss(*how)(loss, x, rng=source)


OBJECTIVES = {
    "plain": plain,
    "RT-MLMC stratified": regularized(Ball(inf, 0.45), 0.9, ENTROPIC, RTMLMC(3, "stratified")),
    "RT-MLMC random": regularized(Ball(2, 2.0), 0.9, ENTROPIC, RTMLMC(3, "random")),
    "tilted linf": regularized(Ball(inf, 0.3), 0.006, ENTROPIC, SG(0), Tilted()),
    "stored perturbations": perturb_stored,
}
# The schedules of some objectives; all others have PLAN.
PLANS = {"stored perturbations": Schedule(epochs=2, batch=8, rate=0.01, warmup=0.3)}


def model() -> Any:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        nn = torch.nn
        return nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.ELU(), nn.Linear(8, 3))


def images() -> tuple[Any, Any]:
    draws = np.random.default_rng(0)
    x = draws.random((22, 1, 4, 4), dtype=np.float32)
    return torch.from_numpy(x), torch.from_numpy(draws.integers(0, 3, 22))


class Training:
    """A training run and its results. `run` can be stopped and called again, like a new process."""

    def __init__(self, name: str, path: Path | None, plan: Schedule | None = None) -> None:
        self.objective, self.path, self.plan = OBJECTIVES[name], path, plan or PLANS.get(name, PLAN)
        self.source: Rng | None = None  # the generator that was last passed to the objective

    def run(self, on_step: Callable[[int, int, float], None] = lambda done, total, loss: None) -> Training:
        self.model = model()  # a new process starts from the initial weights
        x, y = images()

        def objective(loss: Any, x: Any, source: Rng, *stored: Any) -> Any:
            self.source = source
            return self.objective(loss, x, source, *stored)

        self.curve = train_network(
            self.model, objective, (x, y), self.plan, rng(11),
            state=torch.zeros_like(x) if self.objective is perturb_stored else None,
            checkpoint=None if self.path is None else Checkpoint(self.path, DESCRIPTION, save_every=0),
            on_step=on_step,
        )  # fmt: skip
        return self

    def run_until(self, step: int) -> None:
        """Run, and stop at the end of step `step`, before its checkpoint is written."""

        def stop(done: int, total: int, loss: float) -> None:
            if done >= step:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            self.run(stop)

    def result(self) -> tuple[Any, ...]:
        assert self.source is not None
        later = self.source.uniform((3,), like=torch.zeros(0)), self.source.uniform((2,), like=np.empty(0))
        return self.curve, weights(self.model), [draw.tolist() for draw in later]


def weights(model: Any) -> list[Any]:
    return [value.tolist() for value in model.state_dict().values()]

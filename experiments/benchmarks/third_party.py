"""Training steps of other libraries, on the same network and batch, for those that are installed."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np

from phiball.refimpl import Ball

HINT = "{0} cannot be imported: pip install --no-deps {0}, and what its import asks for, adds it to the table"
SAMPLES = 20
Peer = tuple[Callable[[], None], bool]  # leaves the gradient of a step; whether its cost is random


def _module(name: str) -> Any | None:
    try:
        return import_module(name)
    except (ImportError, RuntimeError):  # a torchvision of another torch raises RuntimeError
        return None


def peers(task: Any, ball: Ball, steps: int, level: int, seed: int) -> dict[str, Peer]:
    """Name to its step; all of these draw from global generators, which are seeded here if one is there."""
    found: dict[str, Peer] = {}
    for name, make in _MAKERS.items():
        module = _module(name)
        if module is not None:
            import_module("torch").manual_seed(seed)
            np.random.seed(seed)  # noqa: NPY002
            found.update(make(module, task, ball, steps, level))
    return found


def _torchattacks(module: Any, task: Any, ball: Ball, steps: int, level: int) -> dict[str, Peer]:
    attack = module.PGDL2(task.model, eps=ball.radius, alpha=2.5 * ball.radius / steps, steps=steps)
    return {f"torchattacks PGD, {steps} steps": (lambda: task.plain(attack(task.x, task.y), task.y), False)}


def _skwdro(module: Any, task: Any, ball: Ball, steps: int, level: int) -> dict[str, Peer]:
    """Wasserstein DRO with an entropic regulariser: flat points, labels as floats, 20 samples."""
    torch = import_module("torch")

    class Loss(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.model = task.model

        def forward(self, x: Any, y: Any) -> Any:
            logits = self.model(x.reshape(-1, *task.x.shape[1:]))
            each = torch.nn.functional.cross_entropy(logits, y.reshape(-1).long(), reduction="none")
            return each.reshape(*x.shape[:-1], 1)

    x, y = task.x.flatten(1), task.y[:, None].float()
    dual = module.robustify(Loss(), None, torch.tensor(ball.radius), x, y, n_samples=SAMPLES)
    return {f"skwdro, {SAMPLES} samples": (lambda: dual(x, y).backward(), False)}


def _dro(module: Any, task: Any, ball: Ball, steps: int, level: int) -> dict[str, Peer]:
    """Sinkhorn DRO by RT-MLMC with levels 0, ..., k_sample_max - 1, one for the whole batch."""
    model = module.SinkhornNNDRO(
        784, 10, model_type="linear", k_sample_max=level + 1, optimization_type="RTMLMC"
    )
    model.model = task.model  # its own training loop has no step to call; this is the loss in it
    return {f"dro RT-MLMC, L = {level}": (lambda: model._rtmlmc_criterion(task.x, task.y).backward(), True)}


_MAKERS = {"torchattacks": _torchattacks, "skwdro.torch": _skwdro, "dro.neural_model.sinkhorn_nn": _dro}


def missing() -> list[str]:
    """The packages that are not there."""
    return [name.partition(".")[0] for name in _MAKERS if _module(name) is None]

"""Other libraries, if they are installed, and their training steps on the same network and batch."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np

from phiball.refimpl import Ball

HINT = "{0} cannot be imported: pip install --no-deps {0}, and what its import asks for, adds it to the table"
SAMPLES = 20
Step = tuple[Callable[[], None], bool]  # leaves the gradient of a step; whether its cost is random


def optional_module(name: str) -> Any | None:
    """Return a module, or None if it cannot be imported."""
    try:
        return import_module(name)
    except (ImportError, RuntimeError):  # a torchvision for another torch raises RuntimeError
        return None


def third_party_steps(work: Any, ball: Ball, steps: int, level: int, seed: int) -> dict[str, Step]:
    """Return name to training step; they draw from global generators, seeded here if one is installed."""
    named: dict[str, Step] = {}
    for name, make in _MAKERS.items():
        module = optional_module(name)
        if module is not None:
            import_module("torch").manual_seed(seed)
            np.random.seed(seed)  # noqa: NPY002
            named.update(make(module, work, ball, steps, level))
    return named


def _torchattacks(module: Any, work: Any, ball: Ball, steps: int, level: int) -> dict[str, Step]:
    attack = module.PGDL2(work.model, eps=ball.radius, alpha=2.5 * ball.radius / steps, steps=steps)
    return {f"torchattacks PGD, {steps} steps": (lambda: work.plain(attack(work.x, work.y), work.y), False)}


def _skwdro(module: Any, work: Any, ball: Ball, steps: int, level: int) -> dict[str, Step]:
    """Wasserstein DRO with an entropic regulariser: flat points, labels as floats, 20 samples."""
    torch = import_module("torch")

    class Loss(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.model = work.model

        def forward(self, x: Any, y: Any) -> Any:
            logits = self.model(x.reshape(-1, *work.x.shape[1:]))
            losses = torch.nn.functional.cross_entropy(logits, y.reshape(-1).long(), reduction="none")
            return losses.reshape(*x.shape[:-1], 1)

    x, y = work.x.flatten(1), work.y[:, None].float()
    dual = module.robustify(Loss(), None, torch.tensor(ball.radius), x, y, n_samples=SAMPLES)
    return {f"skwdro, {SAMPLES} samples": (lambda: dual(x, y).backward(), False)}


def _dro(module: Any, work: Any, ball: Ball, steps: int, level: int) -> dict[str, Step]:
    """Sinkhorn DRO by RT-MLMC with levels 0, ..., k_sample_max - 1, one for the whole batch."""
    model = module.SinkhornNNDRO(
        784, 10, model_type="linear", k_sample_max=level + 1, optimization_type="RTMLMC"
    )
    model.model = work.model  # its own training loop has no step to call; this is the loss in it
    return {f"dro RT-MLMC, L = {level}": (lambda: model._rtmlmc_criterion(work.x, work.y).backward(), True)}


_MAKERS = {"torchattacks": _torchattacks, "skwdro.torch": _skwdro, "dro.neural_model.sinkhorn_nn": _dro}


def missing() -> list[str]:
    """Return the packages that cannot be imported."""
    return [name.partition(".")[0] for name in _MAKERS if optional_module(name) is None]

"""Attacks of torchattacks, the parts of AutoAttack, where it is installed and takes model and data."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from phiball.backends import Array
from phiball.experiments.robustness.models import CLASSIFIER, Model
from phiball.refimpl import Ball

THIRD_PARTY = ("apgd-ce", "apgd-dlr", "fab", "square")
_NORMS = {2.0: "L2", float("inf"): "Linf"}


def installed() -> bool:
    """Whether torchattacks can be imported."""
    return find_spec("torchattacks") is not None


def applies(name: str, model: Model, x: Array, norm: float, clip: tuple[float, float] | None) -> bool:
    """Whether an attack of torchattacks is run on a model and its data.

    torchattacks takes torch classifiers of images, knows l2 and linf, and clips every input to [0, 1]; the
    loss of apgd-dlr needs three classes.
    """
    images = model.module is not None and model.kind == CLASSIFIER and x.ndim == 4 and clip == (0.0, 1.0)
    known = installed() and images and norm in _NORMS
    return known and (name != "apgd-dlr" or model.classes_of(x) >= 3)


def attack(
    name: str,
    model: Model,
    x: Array,
    y: Array,
    ball: Ball,
    *,
    steps: int,
    queries: int,
    seed: int,
    count: Callable[[int], None],
) -> Array:
    """The points that an attack of `THIRD_PARTY` finds, put back into the ball where rounding left it.

    `count` is told how many points each evaluation has, with or without a gradient. torch's generator is left
    as it was.
    """
    torchattacks = import_module("torchattacks")
    norm, classes = _NORMS[ball.norm], model.classes_of(x)
    common = {"norm": norm, "eps": ball.radius, "seed": seed}
    kinds: dict[str, Callable[[Any], Any]] = {
        "apgd-ce": lambda net: torchattacks.APGD(net, **common, steps=steps, loss="ce"),
        "apgd-dlr": lambda net: torchattacks.APGD(net, **common, steps=steps, loss="dlr"),
        "fab": lambda net: torchattacks.FAB(net, **common, steps=steps, n_classes=classes),
        "square": lambda net: torchattacks.Square(net, **common, n_queries=queries),
    }
    with import_module("torch").random.fork_rng(devices=[]):  # it seeds the global generator
        found = kinds[name](_counting(model.module, count))(x, y).to(x.dtype)
    return ball.project(found, x, event_ndim=x.ndim - 1)


def _counting(module: Any, count: Callable[[int], None]) -> Any:
    """`module` as another one that counts the points it is run on, and takes single precision."""
    torch = import_module("torch")
    parameter = next(module.parameters())

    class Counting(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.inside = module
            self.training = module.training

        def forward(self, z: Any) -> Any:
            count(len(z))
            return self.inside(z.to(parameter.dtype))

    return Counting()

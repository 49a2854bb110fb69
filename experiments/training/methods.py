"""Training methods: what a batch is trained with, and what that costs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module

from phiball.backends import Array, Rng, input_gradient
from phiball.refimpl import RegularizedLoss

UNWEIGHTED_ETA = 1e6  # an eta at which all perturbed points have equal weights, and none is tilted

Loss = Callable[[Array, Array], Array]  # perturbed points and the indices of their data points, to losses
Objective = Callable[[Loss, Array, Rng], Array]  # loss, batch and generator, to the scalar to minimise
# The same with what was kept of each data point, which it returns anew beside the scalar.
KeepingObjective = Callable[[Loss, Array, Rng, Array], tuple[Array, Array]]


@dataclass(frozen=True)
class Method:
    """A training method: its family and setting, evaluations per data point, and its objective.

    `first(x, rng)`, where there is one, returns what is kept of each data point before the first step.
    """

    family: str
    setting: str
    evaluations: float
    objective: Objective | KeepingObjective = field(compare=False)
    first: Callable[[Array, Rng], Array] | None = field(default=None, compare=False)


def mean_loss(loss: Loss, x: Array, source: Rng | None = None) -> Array:
    """Return the mean loss of a batch: the objective of plain training, which draws nothing."""
    return loss(x, import_module("torch").arange(len(x))).mean()


def attacked(attack: Callable[[Loss, Array, Rng], Array], loss: Loss, x: Array, source: Rng) -> Array:
    """Return the mean loss at the points that `attack(gradient, x, source)` finds."""
    return mean_loss(loss, attack(partial(input_gradient, loss), x, source))


def by_objective(objective: RegularizedLoss, loss: Loss, x: Array, source: Rng) -> Array:
    """Return the estimated regularised loss of a batch."""
    return objective(loss, x, rng=source)

"""Training methods: what a batch is trained with, and what that costs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module

from phiball.backends import Array, Rng
from phiball.refimpl import (
    ENTROPIC,
    RTMLMC,
    SG,
    Ball,
    Divergence,
    RegularizedLoss,
    Tilted,
    Uniform,
    fgm,
)

UNWEIGHTED_ETA = 1e6  # an eta at which all perturbed points have equal weights, and none is tilted

Loss = Callable[[Array, Array], Array]  # perturbed points and the indices of their data points, to losses
Objective = Callable[[Loss, Array, Rng], Array]  # loss, batch and generator, to the scalar to minimise
# The same with what was kept of each data point, which it returns anew beside the scalar.
StatefulObjective = Callable[[Loss, Array, Rng, Array], tuple[Array, Array]]


@dataclass(frozen=True)
class Method:
    """A training method: its family and setting, evaluations per data point, and its objective.

    `first(x, rng)`, where there is one, returns what is kept of each data point before the first step.
    """

    family: str
    setting: str
    evaluations: float
    objective: Objective | StatefulObjective = field(compare=False)
    first: Callable[[Array, Rng], Array] | None = field(default=None, compare=False)


def mean_loss(loss: Loss, x: Array, rng: Rng | None = None) -> Array:
    """Return the mean loss of a batch: the objective of plain training, which draws nothing."""
    return loss(x, import_module("torch").arange(len(x))).mean()


def plain_training() -> Method:
    """Return plain training, ERM."""
    return Method("ERM", "", 1, mean_loss)


def adversarial_training(
    family: str, setting: str, evaluations: float, attack: Callable[..., Array]
) -> Method:
    """Return training at the points that `attack(loss, x, rng)` finds."""

    def objective(loss: Loss, x: Array, rng: Rng) -> Array:
        return mean_loss(loss, attack(loss, x, rng))

    return Method(family, setting, evaluations, objective)


def random_start_fgm(setting: str, ball: Ball) -> Method:
    """Return FGM from a uniform point of the ball."""

    def attack(loss: Loss, x: Array, rng: Rng) -> Array:
        return fgm(loss, x, ball, rng=rng)

    return adversarial_training("random-start FGM", setting, 2, attack)


def regularized_training(
    family: str, setting: str, ball: Ball, eta: float, divergence: Divergence, estimator: SG | RTMLMC
) -> Method:
    """Return training with the regularised loss, estimated at uniform points of the ball."""
    objective = RegularizedLoss(ball, eta, divergence, estimator, Uniform())
    return Method(family, setting, estimator.evaluations, partial(_by_objective, objective))


def tilted_training(
    family: str, setting: str, ball: Ball, proposal: Tilted, eta: float = UNWEIGHTED_ETA
) -> Method:
    """Return training at one tilted point of the ball."""
    objective = RegularizedLoss(ball, eta, ENTROPIC, SG(0), proposal)
    return Method(family, setting, 2, partial(_by_objective, objective))


def _by_objective(objective: RegularizedLoss, loss: Loss, x: Array, rng: Rng) -> Array:
    return objective(loss, x, rng=rng)

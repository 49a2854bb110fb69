"""Training methods: the objective that is minimised on each batch, and its cost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module

from phiball.backends import Array, Rng
from phiball.refimpl import ENTROPIC, RTMLMC, SG, Ball, Divergence, RegularizedLoss, Tilted, Uniform, fgm

UNWEIGHTED_ETA = 1e6  # so large that all perturbed points have equal weights

Loss = Callable[[Array, Array], Array]  # (points, indices of their data points) -> losses
Objective = Callable[[Loss, Array, Rng], Array]  # (loss, batch, generator) -> scalar to minimise
# An objective with a state per data point: (loss, batch, generator, state) -> (scalar, new state).
StatefulObjective = Callable[[Loss, Array, Rng, Array], tuple[Array, Array]]


@dataclass(frozen=True)
class Method:
    """A training method: family, setting, evaluations per data point, and objective.

    `initial_state(x, rng)` returns the initial state of a `StatefulObjective`.
    """

    family: str
    setting: str
    evaluations: float
    objective: Objective | StatefulObjective = field(compare=False)
    initial_state: Callable[[Array, Rng], Array] | None = field(default=None, compare=False)


def mean_loss(loss: Loss, x: Array, rng: Rng | None = None) -> Array:
    """Return the mean loss of a batch, the objective of plain training."""
    return loss(x, import_module("torch").arange(len(x))).mean()


def plain_training() -> Method:
    """Return plain training (ERM)."""
    return Method("ERM", "", 1, mean_loss)


def adversarial_training(
    family: str, setting: str, evaluations: float, attack: Callable[..., Array]
) -> Method:
    """Return training at the perturbed points `attack(loss, x, rng)`."""

    def objective(loss: Loss, x: Array, rng: Rng) -> Array:
        return mean_loss(loss, attack(loss, x, rng))

    return Method(family, setting, evaluations, objective)


def random_start_fgm(setting: str, ball: Ball) -> Method:
    """Return training by FGM from a uniform point of the ball."""

    def attack(loss: Loss, x: Array, rng: Rng) -> Array:
        return fgm(loss, x, ball, rng=rng)

    return adversarial_training("random-start FGM", setting, 2, attack)


def regularized_training(
    family: str, setting: str, ball: Ball, eta: float, divergence: Divergence, estimator: SG | RTMLMC
) -> Method:
    """Return training with the regularised loss, estimated at uniform points of the ball."""
    objective = RegularizedLoss(ball, eta, divergence, estimator, Uniform())
    return Method(family, setting, estimator.evaluations, partial(_evaluate, objective))


def tilted_training(
    family: str, setting: str, ball: Ball, proposal: Tilted, eta: float = UNWEIGHTED_ETA
) -> Method:
    """Return training at one tilted point of the ball; a kappa of `proposal` replaces eta."""
    objective = RegularizedLoss(ball, eta, ENTROPIC, SG(0), proposal)
    return Method(family, setting, 2, partial(_evaluate, objective))


def _evaluate(objective: RegularizedLoss, loss: Loss, x: Array, rng: Rng) -> Array:
    return objective(loss, x, rng=rng)

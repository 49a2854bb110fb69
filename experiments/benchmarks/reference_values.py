"""Reference values for the entropic risk of a trained network and its gradient, from long runs.

The true value is not known: the reference is a long run with tilted points, checked against one with uniform
points. Estimates of the risk are low on average, whatever the proposal: an estimate above the reference
proves that it is too low.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import hypot, sqrt

import numpy as np

from phiball.backends import Array, Rng
from phiball.experiments.training.pretrained import Classifier
from phiball.refimpl import ENTROPIC, SG, Ball, RegularizedLoss, Tilted, Uniform

# Two estimates agree if they differ by at most so many errors of their difference: one pair in 200 differs by
# more where errors come from eight runs.
AGREE = 4
SHARP = 0.1  # of the length of the gradient: a reference with a larger error is not used
CHUNK = 8192  # points that are evaluated at a time


@dataclass(frozen=True)
class Mean:
    """Independent estimates of the value and the gradient (p,): their means and standard deviations."""

    count: int
    value: float
    value_sd: float
    gradient: Array
    gradient_sd: float
    evaluations: float

    @property
    def value_error(self) -> float:
        """The standard error of `value`."""
        return self.value_sd / sqrt(self.count)

    @property
    def gradient_error(self) -> float:
        """The standard error of `gradient`, a length."""
        return self.gradient_sd / sqrt(self.count)


@dataclass(frozen=True)
class Reference:
    """The best estimate of the truth, with errors; `known` unless something speaks against it."""

    value: float
    value_error: float
    gradient: Array
    gradient_error: float
    known: bool

    @property
    def length(self) -> float:
        """The length of the gradient."""
        return float(np.linalg.norm(self.gradient))


def estimate(
    classifier: Classifier,
    ball: Ball,
    eta: float,
    proposal: Uniform | Tilted,
    level: int,
    count: int,
    source: Rng,
) -> Mean:
    """Estimate the risk of the test images and its gradient `count` times, from 2^level points per image."""
    objective = RegularizedLoss(ball, eta, ENTROPIC, SG(level), proposal, check_index=False)
    parameters = list(classifier.model.parameters())
    seen, values, gradients = 0, [], []

    def loss(x: Array, i: Array) -> Array:
        nonlocal seen
        seen += len(x)
        return classifier.loss(x, i)

    for _ in range(count):
        classifier.model.zero_grad()
        values.append(float(objective.backward(loss, classifier.x, rng=source, chunk=CHUNK)))
        gradients.append(np.concatenate([p.grad.numpy().ravel() for p in parameters]).astype(np.float64))
    classifier.model.zero_grad()
    return Mean(
        count,
        float(np.mean(values)),
        float(np.std(values, ddof=1)),
        np.mean(gradients, axis=0),
        sqrt(np.sum(np.var(gradients, axis=0, ddof=1))),
        seen / (count * len(classifier.x)),
    )


def long_run(
    classifier: Classifier,
    ball: Ball,
    eta: float,
    proposal: Uniform | Tilted,
    level: int,
    count: int,
    source: Rng,
) -> Mean:
    """Return the mean of a few estimates from very many points, with the remaining bias added to its error.

    A bias that falls as 1/n is a third of the change in the last four-fold increase of n.
    """
    short, long = (estimate(classifier, ball, eta, proposal, k, count, source) for k in (level - 2, level))
    left = abs(long.value - short.value) / 3, float(np.linalg.norm(long.gradient - short.gradient)) / 3
    root = sqrt(long.count)
    return replace(
        long,
        value_sd=hypot(long.value_sd, root * left[0]),
        gradient_sd=hypot(long.gradient_sd, root * left[1]),
    )


def judge(tilted: Mean, uniform: Mean, others: list[Mean]) -> Reference:
    """Return the tilted run, with the errors of both.

    It is not `known` if they differ, if the errors are large, or if another estimate is above it.
    """
    error = hypot(tilted.value_error, uniform.value_error)
    slope_error = hypot(tilted.gradient_error, uniform.gradient_error)
    agree = (
        abs(tilted.value - uniform.value) <= AGREE * error
        and float(np.linalg.norm(tilted.gradient - uniform.gradient)) <= AGREE * slope_error
    )
    above = any(m.value - tilted.value > AGREE * hypot(m.value_error, error) for m in others)
    sharp = slope_error <= SHARP * float(np.linalg.norm(tilted.gradient))
    return Reference(tilted.value, error, tilted.gradient, slope_error, agree and sharp and not above)

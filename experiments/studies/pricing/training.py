"""Training of pricing rules for all trials at once: plain, adversarial and regularised.

Each trial has its own theta, features and data. The points of all trials are stacked: T trials, N points per
trial, d coordinates. If trials have different numbers of points, zeros of weight 0 are added. So one call of
the library attacks, samples or solves for all trials.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod
from typing import Any, TypeAlias

import numpy as np

from phiball.backends import Array, Rng
from phiball.experiments.studies.pricing.model import Cost, Market
from phiball.refimpl import ENTROPIC, RTMLMC, SG, Ball, fgm, ifgm, pgm
from phiball.refimpl.optimize import onto_ball, projected_sgd
from phiball.refimpl.sampling import signed_weights

Estimator: TypeAlias = SG | RTMLMC


@dataclass(frozen=True)
class PricingProblem:
    """Data x (T, N, d) with mean coefficients z (T, N, 2), and the cost of a price."""

    market: Market
    cost: Cost
    x: Array
    z: Array

    def batch(self, size: int, rng: Rng) -> PricingProblem:
        """Draw `size` data points of each trial without replacement, or take all if there are no more."""
        T, N, _ = self.x.shape
        if size >= N:
            return self
        order = np.argpartition(rng.uniform((T, N), like=self.x), size - 1, axis=1)[:, :size, None]
        return replace(
            self, x=np.take_along_axis(self.x, order, axis=1), z=np.take_along_axis(self.z, order, axis=1)
        )

    def values(self, theta: Array, x: Array) -> Array:
        """The costs (T, N) of the rules theta (T, F) at x (T, N, d)."""
        return self.cost.value(_prices(theta, self.market.features(x)), self.z)

    def gradient(self, theta: Array, x: Array) -> Array:
        """The gradient (T, F) in theta of the mean cost at x (T, N, d)."""
        g = self.market.features(x)
        return _mean_gradient(self.cost.slope(_prices(theta, g), self.z), g, x.shape[1])

    def input_gradient(self, theta: Array, x: Array) -> Array:
        """The gradients (T, N, d) of the costs in x (T, N, d)."""
        angles = self.market.angles(x)
        slope = self.cost.slope(_prices(theta, np.cos(angles)), self.z)
        sine = np.sin(angles, out=angles)
        sine *= theta[:, None, :]
        return -slope[:, :, None] * (sine @ self.market.omega.astype(x.dtype))


def _prices(theta: Array, g: Array) -> Array:
    """The prices (T, N) of the rules theta (T, F) at features g (T, N, F)."""
    return (g @ theta[:, :, None])[:, :, 0]


def _mean_gradient(factors: Array, g: Array, n: int) -> Array:
    """The sum over points of factors (T, N) times features g (T, N, F), divided by n: (T, F)."""
    return (factors[:, None, :] @ g)[:, 0, :] / n


def attack_covariates(
    problem: PricingProblem,
    theta: Array,
    ball: Ball,
    attack: Callable[..., Array],
    loss: Any = None,
    **options: Any,
) -> Array:
    """The covariates (T, N, d) perturbed by `attack` (fgm, ifgm or pgm of the library) with these options."""
    shape = problem.x.shape

    def slope(x: Array, i: Array) -> Array:
        return problem.input_gradient(theta, x.reshape(shape)).reshape(x.shape)

    x = problem.x.reshape(-1, shape[-1])
    return attack(loss, x, ball, gradient=slope, **options).reshape(shape)


def worst_cost(problem: PricingProblem, theta: Array, ball: Ball, steps: int) -> Array:
    """The mean (T,) of the largest costs that a PGM attack finds in the balls around the data."""

    def loss(x: Array, i: Array) -> Array:
        return problem.values(theta, x.reshape(problem.x.shape)).reshape(-1)

    points = attack_covariates(problem, theta, ball, pgm, steps=steps, loss=loss)
    return problem.values(theta, points).mean(axis=1)


def regularized_gradient(
    problem: PricingProblem, theta: Array, ball: Ball, eta: float, estimator: Estimator, rng: Rng
) -> Array:
    """The estimated gradient (T, F) of the KL-regularised risk: `RegularizedLoss.gradient` for each trial."""
    T, N, d = problem.x.shape
    x, z = problem.x.reshape(-1, d), problem.z.reshape(-1, 2)
    groups = estimator.assign_levels(T * N, rng, like=x)
    members = [np.array(group.members) for group in groups]
    points = [ball.sample(x[k], 1 << group.level, rng=rng) for group, k in zip(groups, members, strict=True)]
    # `owner` is the index of the data point that each sampled point perturbs.
    owner = np.concatenate([np.repeat(k, 1 << group.level) for group, k in zip(groups, members, strict=True)])
    position = _positions(owner // N, T)
    stack = _stacked(np.concatenate([p.reshape(-1, d) for p in points]), position, T)
    g = problem.market.features(stack)
    v = _prices(theta, g)[position]
    losses = problem.cost.value(v, z[owner])
    weights, start = np.empty_like(losses), 0
    for group, drawn in zip(groups, points, strict=True):
        shape = drawn.shape[:2]
        part = slice(start, start + prod(shape))
        _, signed = signed_weights(losses[part].reshape(shape), eta, ENTROPIC, telescoping=group.telescoping)
        weights[part] = group.weight * signed.reshape(-1)
        start = part.stop
    factors = _stacked(weights * problem.cost.slope(v, z[owner]), position, T)
    return _mean_gradient(factors, g, N)


Position: TypeAlias = tuple[Array, Array]


def _positions(trial: Array, T: int) -> Position:
    """The trial of each point, and the index of the point within its trial."""
    order = np.argsort(trial, kind="stable")
    first = np.searchsorted(trial[order], np.arange(T))
    rank = np.empty_like(trial)
    rank[order] = np.arange(len(trial)) - first[trial[order]]
    return trial, rank


def _stacked(values: Array, position: Position, T: int) -> Array:
    """Stack values (points, ...) as (T, points per trial, ...), padded with zeros."""
    stack = np.zeros((T, int(position[1].max()) + 1, *values.shape[1:]), dtype=values.dtype)
    stack[position] = values
    return stack


@dataclass(frozen=True)
class TrainingSettings:
    """The ball around covariates, eta, the bound on |theta|, and the parameters of the descent."""

    ball: Ball
    eta: float
    bound: float
    level: int
    attack_steps: int
    steps: int
    batch: int
    step_size: float


METHODS = ("erm", "fgm", "ifgm", "sg", "rt-mlmc")


def gradient(
    method: str, problem: PricingProblem, theta: Array, settings: TrainingSettings, rng: Rng
) -> Array:
    """The gradient (T, F) in theta that a method descends, on the data of `problem`."""
    if method == "erm":
        return problem.gradient(theta, problem.x)
    if method == "fgm":
        return problem.gradient(theta, attack_covariates(problem, theta, settings.ball, fgm))
    if method == "ifgm":
        attacked = attack_covariates(problem, theta, settings.ball, ifgm, steps=settings.attack_steps)
        return problem.gradient(theta, attacked)
    estimator = SG(settings.level) if method == "sg" else RTMLMC(settings.level)
    return regularized_gradient(problem, theta, settings.ball, settings.eta, estimator, rng)


def train_rule(method: str, problem: PricingProblem, settings: TrainingSettings, rng: Rng) -> Array:
    """The last iterate (T, F) of projected descent, with steps that decay linearly to zero.

    Iterates are not averaged: the risk is not convex, and averaging noisy iterates would shrink theta. Single
    precision suffices, since the noise of the steps exceeds rounding; it makes cosines ten times faster.
    """
    single = replace(problem, x=problem.x.astype(np.float32), z=problem.z.astype(np.float32))

    def noisy(theta: Array) -> Array:
        return gradient(method, single.batch(settings.batch, rng), theta, settings, rng)

    run = projected_sgd(
        noisy,
        np.zeros(problem.market.b.shape, dtype=np.float32),
        step_size=lambda t: settings.step_size * (1 - (t - 1) / settings.steps),
        steps=settings.steps + 1,
        project=onto_ball(Ball(2, settings.bound)),
    )
    return run.last.astype(np.float64)

"""Projected SGD with two-valued noise: all paths at once, with their probabilities."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from math import ceil, comb, cos, inf, pi, sqrt
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from hypothesis import strategies as st

from phiball.backends import Array, active, array_namespace, rng, to_numpy
from phiball.refimpl import RegularizedLoss
from phiball.refimpl.optimize import gradient_mapping, onto_box
from phiball.verification.instances.conversion import array
from phiball.verification.instances.strategies import powers_of_ten

Sgd: TypeAlias = Callable[..., Any]


class SgdPaths(NamedTuple):
    """The T iterates (T, N), the outputs (N,) and the probabilities (N,) of N paths."""

    iterates: Any
    outputs: Any
    chance: Any


def all_noise(sigma: float, batch: int, steps: int) -> tuple[Any, Any]:
    """All N sequences of noise (N, steps - 1), and their probabilities (N,).

    Each number in a sequence is the mean of `batch` independent values sigma or -sigma, equally likely.
    """
    values = sigma * (2 * np.arange(batch + 1) / batch - 1)
    chances = np.array([comb(batch, k) for k in range(batch + 1)]) / 2.0**batch
    if sigma == 0:
        values, chances = np.zeros(1), np.ones(1)
    every = list(product(range(len(values)), repeat=steps - 1))
    picks = np.array(every, dtype=int).reshape(len(every), steps - 1)
    return values[picks], np.prod(chances[picks], axis=1)


def follow(
    sgd: Sgd,
    slope: Callable[[Array], Array],
    start: float,
    *,
    step_size: float,
    noise: Any,
    chance: Any,
    low: float = -inf,
    high: float = inf,
) -> SgdPaths:
    """Run `sgd` on [low, high] with each row of `noise` added to the slope; `chance`: row probabilities."""
    xp = active().namespace
    seen: list[Any] = []

    def gradient(theta: Array) -> Array:
        added = noise[:, len(seen)]
        seen.append(to_numpy(theta))
        return slope(theta) + array(added)

    theta0 = xp.full((len(chance),), start, dtype=xp.float64)
    how = {"step_size": step_size, "steps": noise.shape[1] + 1, "project": onto_box(low, high)}
    run = sgd(gradient, theta0, **how)
    return SgdPaths(np.stack([*seen, to_numpy(run.last)]), to_numpy(run.theta), chance)


# --- Smooth functions -----------------------------------------------------------------------------


@dataclass(frozen=True)
class SmoothFunction:
    """F = a (1 - cos(k theta)), or a (k theta)^2/2 if `bowl`, on [low, high], with noise sigma or -sigma.

    `start`, `batch` and `steps` are the first iterate, the batch size and the number T of iterates of SGD.
    """

    bowl: bool
    a: float
    k: float
    low: float
    high: float
    start: float
    sigma: float
    batch: int
    steps: int

    @property
    def smoothness(self) -> float:
        """The Lipschitz constant of F'."""
        return self.a * self.k**2

    @property
    def lipschitz(self) -> float:
        """A Lipschitz constant of F on [low, high]; for a bowl, the interval must be bounded."""
        return self.a * self.k * (self.k * max(abs(self.low), abs(self.high)) if self.bowl else 1.0)

    def value(self, theta: float) -> float:
        """F."""
        return self.a * ((self.k * theta) ** 2 / 2 if self.bowl else 1 - cos(self.k * theta))

    def slope(self, theta: Array) -> Array:
        """F'."""
        return self.a * self.k * (self.k * theta if self.bowl else array_namespace(theta).sin(self.k * theta))

    @property
    def drop(self) -> float:
        """D_* = F(theta_1) - min F."""
        period = 2 * pi / self.k
        trough = 0.0 if self.bowl or self.low <= 0 else period * ceil(self.low / period)
        if not self.bowl and self.high < 0:
            trough = -period * ceil(-self.high / period)
        ends = [v for v in (self.low, self.high) if abs(v) < inf]
        least = 0.0 if self.low <= trough <= self.high else min(self.value(v) for v in ends)
        return self.value(self.start) - least

    @property
    def rounding(self) -> float:
        """The rounding error of a squared slope or mapping."""
        size = self.smoothness * (abs(self.start) + 1) + self.lipschitz + self.sigma
        return 2.0**-44 * size**2


@st.composite
def smooth_functions(draw: st.DrawFn, max_steps: int = 64) -> SmoothFunction:
    """Cosines and parabolas on an interval: many steps without noise, or few steps with it."""
    bowl = draw(st.booleans())
    a, k = draw(powers_of_ten(-1, 1)), draw(powers_of_ten(-1, 1))
    low = draw(st.sampled_from([-1.0, -0.1, 0.5, 0.0, -3.0]))
    high = low + draw(st.sampled_from([2.0, 0.2, 6.0, 1.0]))
    start = low + (high - low) * draw(st.sampled_from([1.0, 0.0, 0.5, 0.9, 0.3]))
    sigma = a * k * draw(st.sampled_from([0.0, 1.0, 0.1, 10.0]))
    batch = draw(st.sampled_from([1, 2, 4]))
    steps = draw(st.integers(1, max_steps if sigma == 0 else {1: 9, 2: 6, 4: 5}[batch]))
    return SmoothFunction(bowl, a, k, low, high, start, sigma, batch, steps)


def stationarity(F: SmoothFunction, sgd: Sgd, S: float) -> float:
    """E|gradient mapping|^2 at a random iterate of SGD with step size 1/(2S), over all paths."""
    noise, chance = all_noise(F.sigma, F.batch, F.steps)
    step = 1 / (2 * S)
    how = {"noise": noise, "chance": chance, "low": F.low, "high": F.high}
    iterates = follow(sgd, F.slope, F.start, step_size=step, **how).iterates
    theta = array(iterates)
    mapping = gradient_mapping(F.slope(theta), theta, step_size=step, project=onto_box(F.low, F.high))
    return float(np.mean(to_numpy(mapping) ** 2 @ chance))


# --- Training by an estimator ---------------------------------------------------------------------


def stacked_gradient(
    objective: RegularizedLoss,
    value: Callable[[Array, Array], Array],
    slope: Callable[[Array, Array], Array],
    data: tuple[float, ...],
    *,
    runs: int,
    batch: int,
    seed: int,
) -> Callable[[Array], Array]:
    """Return a function that maps the iterates theta (runs,) of independent runs to their gradient estimates.

    value(theta, x) and slope(theta, x) are the loss and its derivative in theta. Each run draws its own batch
    of `data`: the rows r batch, ..., (r + 1) batch - 1 of all drawn points belong to run r.
    """
    xp = active().namespace
    draws = rng(seed)
    points = array(data)
    run_numbers = xp.arange(runs)

    def gradient(theta: Array) -> Array:
        drawn = draws.integers(len(data), (runs * batch,), like=theta)
        x = xp.take(points, drawn)[:, None]

        def loss(theta: Array, x: Array, i: Array) -> Array:
            return value(xp.take(theta, i // batch), x[:, 0])

        def gradients(theta: Array, x: Array, i: Array) -> Array:
            is_own_run = xp.astype(i[:, None] // batch == run_numbers[None, :], xp.float64)
            return is_own_run * slope(xp.take(theta, i // batch), x[:, 0])[:, None]

        # `objective.gradient` divides by the number of points of all runs, not of one run.
        return runs * objective.gradient(theta, loss, gradients, x, rng=draws)

    return gradient


@dataclass(frozen=True)
class PiecewiseLinear:
    """F = max(-left u, right u), u = theta - centre, on [-1, 1], with noise sigma or -sigma on its slope."""

    left: float
    right: float
    centre: float
    start: float
    sigma: float
    steps: int

    def value(self, theta: Any) -> Any:
        """F."""
        away = theta - self.centre
        return np.maximum(-self.left * away, self.right * away)

    def slope(self, theta: Array) -> Array:
        """A subgradient of F: 0 at the kink."""
        xp = array_namespace(theta)
        away = theta - self.centre
        rising = xp.where(away > 0, self.right * xp.ones_like(away), xp.zeros_like(away))
        return xp.where(away < 0, -self.left * xp.ones_like(away), rising)

    @property
    def minimiser(self) -> float:
        """theta*, the minimiser on [-1, 1]."""
        return min(1.0, max(-1.0, self.centre))

    @property
    def gap(self) -> float:
        """F(theta_1) - min F, which the paper calls D_*."""
        return float(self.value(self.start) - self.value(self.minimiser))

    @property
    def distance(self) -> float:
        """|theta_1 - theta*|."""
        return abs(self.start - self.minimiser)

    @property
    def M(self) -> float:  # noqa: N802 - the paper's symbol
        """The square root of the largest second moment of the noisy slope."""
        return sqrt(max(self.left, self.right) ** 2 + self.sigma**2)


@st.composite
def piecewise_linear(draw: st.DrawFn) -> PiecewiseLinear:
    """Steep and flat functions, kinks inside and outside Theta; many steps without noise, few with it."""
    slope = st.one_of(st.sampled_from([1.0, 0.01, 100.0]), powers_of_ten(-1, 1))
    left, right = draw(slope), draw(slope)
    centre, start = draw(st.integers(-16, 16)) / 8, draw(st.integers(-7, 7)) / 7
    sigma = max(left, right) * draw(st.sampled_from([0.0, 1.0, 3.0]))
    return PiecewiseLinear(left, right, centre, start, sigma, draw(st.integers(1, 10 if sigma else 100)))


def mean_gap(F: PiecewiseLinear, sgd: Sgd, step_size: float) -> float:
    """E F(average iterate) - min F, over all paths."""
    noise, chance = all_noise(F.sigma, 1, F.steps)
    how = {"noise": noise, "chance": chance, "low": -1.0, "high": 1.0}
    paths = follow(sgd, F.slope, F.start, step_size=step_size, **how)
    return float(chance @ (F.value(paths.outputs) - F.value(F.minimiser)))

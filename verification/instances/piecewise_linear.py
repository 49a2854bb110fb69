"""Convex functions with one kink on [-1, 1], and the exact mean gap that projected SGD reaches on them."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import Any

import numpy as np
from hypothesis import strategies as st

from phiball.backends import Array, array_namespace
from phiball.verification.instances.sgd_paths import Sgd, all_noise, follow
from phiball.verification.instances.strategies import powers_of_ten


@dataclass(frozen=True)
class PiecewiseLinear:
    """F = max(-left (theta - c), right (theta - c)), and noise of deviation sigma on its slope."""

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
    def nearest(self) -> float:
        """theta*."""
        return min(1.0, max(-1.0, self.centre))

    @property
    def gap(self) -> float:
        """F(theta_1) - min F, which the paper calls D_*."""
        return float(self.value(self.start) - self.value(self.nearest))

    @property
    def distance(self) -> float:
        """|theta_1 - theta*|."""
        return abs(self.start - self.nearest)

    @property
    def M(self) -> float:  # noqa: N802 - the paper's symbol
        """The root of the largest second moment of the noisy slope."""
        return sqrt(max(self.left, self.right) ** 2 + self.sigma**2)


@st.composite
def piecewise_linear(draw: st.DrawFn) -> PiecewiseLinear:
    """Steep and flat, kinks inside and outside Theta; no noise and many steps, or all paths of a noise."""
    slope = st.one_of(st.sampled_from([1.0, 0.01, 100.0]), powers_of_ten(-1, 1))
    left, right = draw(slope), draw(slope)
    centre, start = draw(st.integers(-16, 16)) / 8, draw(st.integers(-7, 7)) / 7
    sigma = max(left, right) * draw(st.sampled_from([0.0, 1.0, 3.0]))
    return PiecewiseLinear(left, right, centre, start, sigma, draw(st.integers(1, 10 if sigma else 100)))


def mean_gap(F: PiecewiseLinear, sgd: Sgd, step_size: float) -> float:
    """E F(average) - min F, over all paths."""
    noise, chance = all_noise(F.sigma, 1, F.steps)
    how = {"noise": noise, "chance": chance, "low": -1.0, "high": 1.0}
    paths = follow(sgd, F.slope, F.start, step_size=step_size, **how)
    return float(chance @ (F.value(paths.answers) - F.value(F.nearest)))

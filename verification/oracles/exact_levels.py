"""Exact levels of a two-point distribution, and exact risks of one-dimensional losses, for Section 3.

Nothing here shares code with refimpl.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from scipy.stats import binom


class Level(NamedTuple):
    """F^l, grad F^l and E|G^l|^2."""

    value: float
    gradient: float
    moment: float


def two_point_level(level: int, q: float, ratio: float) -> Level:
    """The entropic level l at eta = 1: f = B with probability q, else 0; grad f = 1 where f = B, else -1.

    All three are sums over the binomial number of samples at B (in each half, for the difference G^l).
    """
    n, e = 2**level, np.exp(ratio)
    k = np.arange(n + 1)
    chance = binom.pmf(k, n, q)

    def slope(k: Any, n: int) -> Any:
        return (k * e - (n - k)) / (k * e + n - k)

    value = float(chance @ np.log((k * e + n - k) / n))
    gradient = float(chance @ slope(k, n))
    if level == 0:
        return Level(value, gradient, 1.0)
    h = n // 2
    half = np.arange(h + 1)
    part = slope(half, h) / 2
    difference = slope(half[:, None] + half, n) - part[:, None] - part
    own = binom.pmf(half, h, q)
    return Level(value, gradient, float(own @ difference**2 @ own))


def two_point_limit(q: float, ratio: float) -> tuple[float, float, float]:
    """F, grad F and the chi-square divergence of the worst case from the two-point distribution."""
    e = np.exp(ratio)
    mean = q * e + 1 - q
    top, rest = e / mean, 1 / mean
    return float(np.log(mean)), float(q * top - (1 - q) * rest), float(q * top**2 + (1 - q) * rest**2 - 1)


def distance_risk(c: Any, rho: float, eta: float) -> Any:
    """The quadratic risk of |c - b|, b uniform on [-rho, rho], for E|c - b| - min|c - b| <= eta.

    Under this condition the density is positive, and the risk is the mean plus the variance over 2 eta.
    """
    c = np.abs(np.asarray(c, dtype=float))
    inside = c < rho
    mean = np.where(inside, (rho**2 + c**2) / (2 * rho), c)
    square = c**2 + rho**2 / 3
    least = np.where(inside, 0.0, c - rho)
    if np.any(mean - least > eta):
        raise ValueError("eta is too small: the density vanishes somewhere")
    return mean + (square - mean**2) / (2 * eta)


def wave_slope(theta: Any, height: float, eta: float) -> Any:
    """The slope of the entropic risk of B (1 - cos(theta - b))/2, b uniform on [-1, 1], by quadrature."""
    b, rule = np.polynomial.legendre.leggauss(40)
    angle = np.asarray(theta, dtype=float)[..., None] - b
    weights = rule * np.exp(height * (1 - np.cos(angle)) / 2 / eta)
    return (weights * height * np.sin(angle) / 2).sum(axis=-1) / weights.sum(axis=-1)


def samples_needed(delta: float) -> float:
    """The smallest number of signs of mean 3 delta or -3 delta that can give a gap of delta.

    F = -3 delta s theta on [-1, 1] for an unknown sign s, so a gap is 3 delta times a number from 0 to 2. The
    best guess of s is wrong with probability (1 - TV)/2, where TV is the total variation between the two
    distributions of n signs. For the worse sign, the mean gap of every method is at least 6 delta (1 - TV)/2.
    """
    mean = min(3 * delta, 0.999)

    def least_gap(k: int) -> float:
        """6 delta (1 - TV)/2 for n = 2 k + 1 signs: (1 - TV)/2 is the probability of a wrong majority."""
        return 6 * delta * float(binom.cdf(k, 2 * k + 1, (1 + mean) / 2))

    if least_gap(0) <= delta:
        return 1.0
    low, high = 0, 1
    while least_gap(high) > delta:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if least_gap(middle) > delta else (low, middle)
    return 2.0 * high + 1

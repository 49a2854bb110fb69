"""Exact levels of a two-point distribution, and exact risks of one-dimensional losses, for Section 3."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from scipy.stats import binom


class Level(NamedTuple):
    """F^l, grad F^l and E|G^l|^2.

    F^l is the expected risk of 2^l samples. G^l is the gradient of the risk of these samples, minus the mean
    of the gradients for their two halves.
    """

    value: float
    gradient: float
    moment: float


def two_point_level(level: int, q: float, ratio: float) -> Level:
    """Level l for the entropic phi, eta = 1, and B = `ratio`.

    f = B and grad f = 1 with probability q; else f = 0 and grad f = -1. The number of samples with f = B is
    binomial. F^l and grad F^l are sums over this number, and E|G^l|^2 is a sum over the numbers in the two
    halves.
    """
    n, e = 2**level, np.exp(ratio)
    k = np.arange(n + 1)
    chance = binom.pmf(k, n, q)

    def slope(k: Any, n: int) -> Any:
        """The gradient of the risk of n samples, of which k have f = B."""
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
    """F, grad F and the chi-square of the worst case, for the distribution in `two_point_level`."""
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
        raise ValueError(f"eta is {eta!r}; expected at least {float(np.max(mean - least)):.3g}")
    return mean + (square - mean**2) / (2 * eta)


def wave_slope(theta: Any, height: float, eta: float) -> Any:
    """The slope in theta of the entropic risk of B (1 - cos(theta - b))/2, for b uniform on [-1, 1].

    B is `height`; the risk is an integral, computed by quadrature.
    """
    b, rule = np.polynomial.legendre.leggauss(40)
    angle = np.asarray(theta, dtype=float)[..., None] - b
    weights = rule * np.exp(height * (1 - np.cos(angle)) / 2 / eta)
    return (weights * height * np.sin(angle) / 2).sum(axis=-1) / weights.sum(axis=-1)


def samples_needed(delta: float) -> float:
    """The smallest number n of random signs from which any method can reach an expected gap of delta.

    The signs have mean 3 delta s for an unknown s = 1 or -1, and F = -3 delta s theta on [-1, 1]. The best
    guess of s is wrong with probability (1 - TV)/2, where TV is the total variation between the distributions
    of n signs for s = 1 and s = -1. For one of the two s, the expected gap is at least 6 delta (1 - TV)/2.
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

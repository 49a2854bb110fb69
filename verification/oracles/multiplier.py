"""The inner problem for strongly convex phi, by bisection on its first-order condition.

Nothing here shares code with refimpl.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Any, NamedTuple

import numpy as np
from scipy.special import wrightomega, xlogy


class StrongPhi(NamedTuple):
    """A strongly convex phi.

    - `phi`: its values at x >= 0.
    - `ratios`: the x at which phi'(x) = s, kept in the domain: the derivative of the conjugate.
    - `slope1`: phi'(1).
    """

    phi: Callable[[Any], Any]
    ratios: Callable[[Any], Any]
    slope1: float = 0.0


class Solution(NamedTuple):
    """mu*, gamma* and the optimal value of each row."""

    mu: Any
    weights: Any
    value: Any


EXAMPLE_3 = StrongPhi(lambda x: (x * x - 1) / 2, lambda s: np.maximum(s, 0), 1.0)


def square(top: float = inf) -> StrongPhi:
    """(x - 1)^2/2 on [0, top]."""
    return StrongPhi(lambda x: (x - 1) ** 2 / 2, lambda s: np.clip(1 + s, 0, top))


def mixture(k: float) -> StrongPhi:
    """x log x - x + 1 + k (x - 1)^2/2, of which k x + log(k x) = s + k + log k."""
    return StrongPhi(
        lambda x: xlogy(x, x) - x + 1 + k * (x - 1) ** 2 / 2,
        lambda s: np.real(wrightomega(s + k + np.log(k))) / k,
    )


def _quartic_ratios(s: Any) -> Any:
    y = np.cbrt(s)  # y + y^3 = s with y = x - 1, by Newton's method
    for _ in range(60):
        y = (2 * y**3 + s) / (3 * y**2 + 1)
    return np.maximum(1 + y, 0)


QUARTIC = StrongPhi(lambda x: (x - 1) ** 2 / 2 + (x - 1) ** 4 / 4, _quartic_ratios)


def solve_rows(rows: Any, eta: float, of: StrongPhi) -> Solution:
    """The solution for each row of equally likely losses: the mean of ratios((f - mu)/eta) is one.

    mu* lies between min f - eta phi'(1) and max f - eta phi'(1).
    """
    f = np.asarray(rows, dtype=float)
    # From the largest loss down, so that rounding is relative to the range.
    top = f.max(axis=-1, keepdims=True)
    g = f - top
    low, high = g.min(axis=-1, keepdims=True) - eta * of.slope1, np.full_like(top, -eta * of.slope1)
    for _ in range(200):
        mu = (low + high) / 2
        if not np.any((low < mu) & (mu < high)):
            break
        above = of.ratios((g - mu) / eta).mean(axis=-1, keepdims=True) > 1
        low, high = np.where(above, mu, low), np.where(above, high, mu)
    x = of.ratios((g - high) / eta)
    weights = x / x.sum(axis=-1, keepdims=True)
    cost = of.phi(f.shape[-1] * weights).mean(axis=-1)
    value = top[..., 0] + (weights * g).sum(axis=-1) - eta * cost
    return Solution((high + top)[..., 0], weights, value)

"""The multiplier of the inner problem for strongly convex phi, by bisection on its first-order condition.

Nothing here shares code with refimpl.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from scipy.special import wrightomega

Ratios: TypeAlias = Callable[[Any], Any]
"""The density ratio x at which phi'(x) = s, and 0 below phi'(0): the derivative of the conjugate."""


def of_square(centre: float) -> Ratios:
    """For phi = (x - 1)^2/2, where centre is 1, and for (x^2 - 1)/2, where it is 0."""
    return lambda s: np.maximum(s + centre, 0)


def of_mixture(k: float) -> Ratios:
    """For phi = x log x - x + 1 + k (x - 1)^2/2: k x + log(k x) = s + k + log k."""
    return lambda s: wrightomega(s + k + np.log(k)) / k


def of_quartic(s: Any) -> Any:
    """For phi = (x - 1)^2/2 + (x - 1)^4/4: y + y^3 = s with y = x - 1, by Newton's method."""
    y = np.cbrt(s)
    for _ in range(60):
        y = (2 * y**3 + s) / (3 * y**2 + 1)
    return np.maximum(1 + y, 0)


def multiplier(f: Any, eta: float, ratios: Ratios, slope1: float) -> tuple[float, Any]:
    """mu* and gamma* of equally likely losses: the mean of ratios((f - mu)/eta) is one.

    With slope1 = phi'(1) it lies between min f - eta slope1 and max f - eta slope1.
    """
    f = np.asarray(f, dtype=float)
    low, high = f.min() - eta * slope1, f.max() - eta * slope1
    for _ in range(200):
        mu = (low + high) / 2
        if not low < mu < high:
            break
        low, high = (mu, high) if ratios((f - mu) / eta).mean() > 1 else (low, mu)
    x = ratios((f - high) / eta)
    return float(high), x / x.sum()

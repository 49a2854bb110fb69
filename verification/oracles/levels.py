"""Many small inner problems at once, all draws of a small law, and samples of laws with known quantiles.

Nothing here shares code with refimpl.
"""

from __future__ import annotations

from functools import cache
from itertools import pairwise, product
from typing import Any

import numpy as np
from scipy.special import beta, betainc


def draws(k: int, n: int) -> Any:
    """All k^n ways to draw n times from k points: their indices, one way per row."""
    return np.array(list(product(range(k), repeat=n)))


def chances(p: Any, picks: Any) -> Any:
    """The probability of each row of `picks` under the law p."""
    return np.asarray(p, dtype=float)[picks].prod(axis=-1)


def solve(rows: Any, eta: float, family: str, parameter: float | None = None) -> tuple[Any, Any]:
    """The value and the weights of each row, by the closed forms of Examples 1 to 5 for a uniform law."""
    f = np.asarray(rows, dtype=float)
    m = f.shape[-1]
    top = f.max(axis=-1, keepdims=True)
    if family == "entropic":
        e = np.exp((f - top) / eta)
        return top[..., 0] + eta * np.log(e.mean(axis=-1)), e / e.sum(axis=-1, keepdims=True)
    if family == "quadratic":
        ranked = -np.sort(top - f, axis=-1)
        mu = (np.cumsum(ranked, axis=-1) - m * eta) / np.arange(1, m + 1)
        active = (ranked > mu).sum(axis=-1, keepdims=True)
        x = np.maximum(f - top - np.take_along_axis(mu, active - 1, axis=-1), 0) / eta
        w = x / x.sum(axis=-1, keepdims=True)
        return (w * f).sum(axis=-1) - eta / 2 * chi_square(w), w
    if family == "indicator":
        assert parameter is not None
        rank = np.argsort(np.argsort(-f, axis=-1, kind="stable"), axis=-1)
        w = np.clip(1 - rank / (parameter * m), 0, 1 / (parameter * m))
        return (w * f).sum(axis=-1), w
    if family in ("absolute", "hinge"):
        c = top - (2 * eta if family == "absolute" else eta)
        idle, tied = (f <= c).mean(axis=-1, keepdims=True), (f == top).mean(axis=-1, keepdims=True)
        w = np.where(f <= c, 0.0, np.where(f == top, 1 + idle / tied, 1.0)) / m
        return np.maximum(f, c).mean(axis=-1), w
    raise ValueError(f"family is {family!r}; expected one of the paper's five")


def chi_square(weights: Any) -> Any:
    """m sum (gamma_i - 1/m)^2 of each row."""
    m = weights.shape[-1]
    return m * ((weights - 1 / m) ** 2).sum(axis=-1)


def order_means(u: Any, x: Any, n: int) -> Any:
    """The means of n order statistics of the law whose quantile function is linear between the (u, x)."""
    u, x = np.asarray(u, dtype=float), np.asarray(x, dtype=float)
    i = np.arange(1, n + 1)[:, None]
    # E min(U_(i), u), U_(i) of the Beta(i, n + 1 - i) law
    capped = u * (1 - betainc(i, n + 1 - i, u)) + i / (n + 1) * betainc(i + 1, n + 1 - i, u)
    return x[0] + (np.diff(x) / np.diff(u) * np.diff(capped, axis=-1)).sum(axis=-1)


def average_value_at_risk(u: Any, x: Any, alpha: float) -> float:
    """AV@R of the law with this quantile function: the mean of its quantiles above 1 - alpha."""
    u, x = np.asarray(u, dtype=float), np.asarray(x, dtype=float)
    inside = u > 1 - alpha
    t = np.concatenate([[1 - alpha], u[inside]])
    q = np.concatenate([[np.interp(1 - alpha, u, x)], x[inside]])
    return float((np.diff(t) * (q[1:] + q[:-1]) / 2).sum() / alpha)


def coordinate_law(x: Any, d: int) -> tuple[Any, Any]:
    """The distribution function of b_1 for b uniform on the unit ball of R^d, and E[b_1; b_1 < x]."""
    a = (d + 1) / 2
    shape = np.clip(1 - np.asarray(x) ** 2, 0, None)
    return betainc(a, a, (1 + x) / 2), -(shape**a) / ((d + 1) * beta(a, 0.5))


@cache
def _nodes() -> tuple[Any, Any]:
    return np.polynomial.legendre.leggauss(60)


def hinge_bias(n: int, d: int, eta: float) -> float:
    """F - F^n of the hinge, for f = b_1, b uniform on the unit ball of R^d, and n >= 2 points of it.

    F = E max(f, 1 - eta), and F^n = E max(f_1, M - eta) with M the largest of the n: an integral over M.
    """

    def upper(c: Any, M: Any) -> Any:
        """E[max(f, c); f < M]."""
        (at_c, below_c), (_, below_M) = coordinate_law(c, d), coordinate_law(M, d)
        return c * at_c + below_M - below_c

    t, w = _nodes()
    kink = np.arccos(1 - eta)  # where M - eta = -1; angle 0 is M = -1
    total = 0.0
    ends = [0.0, *np.linspace(kink, np.pi, 7)]
    for low, high in pairwise(ends):
        angle = low + (high - low) * (t + 1) / 2
        M = -np.cos(angle)
        at_M, _ = coordinate_law(M, d)
        density = np.sin(angle) ** d / beta((d + 1) / 2, 0.5) * w * (high - low) / 2
        rest = upper(np.maximum(M - eta, -1), M)
        total += float((density * (M * at_M ** (n - 1) + (n - 1) * at_M ** (n - 2) * rest)).sum())
    return float(upper(np.array(1 - eta), np.array(1.0))) - total

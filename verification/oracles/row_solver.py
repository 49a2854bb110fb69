"""Batches of small inner problems, all draws of a discrete distribution, and order statistics."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise, product
from math import inf
from typing import Any, NamedTuple

import numpy as np
from scipy.special import beta, betainc, wrightomega, xlogy


def draws(k: int, n: int) -> Any:
    """The indices of all k^n ways to draw n times from k points, one per row."""
    return np.array(list(product(range(k), repeat=n)))


def chances(p: Any, picks: Any) -> Any:
    """The probability of each row of `picks` under the distribution p."""
    return np.asarray(p, dtype=float)[picks].prod(axis=-1)


def solve_closed_form(rows: Any, eta: float, family: str, parameter: float | None = None) -> tuple[Any, Any]:
    """Value and weights of each row of equally likely losses, by the closed forms of Examples 1 to 5."""
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
        moved, at_top = (f <= c).mean(axis=-1, keepdims=True), (f == top).mean(axis=-1, keepdims=True)
        w = np.where(f <= c, 0.0, np.where(f == top, 1 + moved / at_top, 1.0)) / m
        return np.maximum(f, c).mean(axis=-1), w
    raise ValueError(f"family is {family!r}; expected one of the paper's five")


def chi_square(weights: Any) -> Any:
    """m sum_i (gamma_i - 1/m)^2 for each row of m weights gamma."""
    m = weights.shape[-1]
    return m * ((weights - 1 / m) ** 2).sum(axis=-1)


# --- Strongly convex phi, by bisection on the first-order condition -------------------------------


class StrongPhi(NamedTuple):
    """A strongly convex phi.

    - `phi`: the function, for x >= 0.
    - `ratios`: the derivative of its conjugate, which maps s to the x with phi'(x) = s.
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
    """(x - 1)^2/2 on [0, top], and infinite elsewhere."""
    return StrongPhi(lambda x: (x - 1) ** 2 / 2, lambda s: np.clip(1 + s, 0, top))


def mixture(k: float) -> StrongPhi:
    """x log x - x + 1 + k (x - 1)^2/2; the x with phi'(x) = s solves k x + log(k x) = s + k + log k."""
    return StrongPhi(
        lambda x: xlogy(x, x) - x + 1 + k * (x - 1) ** 2 / 2,
        lambda s: np.real(wrightomega(s + k + np.log(k))) / k,
    )


def _quartic_ratios(s: Any) -> Any:
    y = np.cbrt(s)  # solve y + y^3 = s for y = x - 1, by Newton's method
    for _ in range(60):
        y = (2 * y**3 + s) / (3 * y**2 + 1)
    return np.maximum(1 + y, 0)


QUARTIC = StrongPhi(lambda x: (x - 1) ** 2 / 2 + (x - 1) ** 4 / 4, _quartic_ratios)


def solve_rows(rows: Any, eta: float, of: StrongPhi) -> Solution:
    """Solve each row of equally likely losses, by bisection for the mu at which the mean ratio is one.

    mu* lies between min f - eta phi'(1) and max f - eta phi'(1).
    """
    f = np.asarray(rows, dtype=float)
    # Subtract the largest loss, so that rounding errors are relative to the range.
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


# --- Order statistics and balls -------------------------------------------------------------------


def order_means(u: Any, x: Any, n: int) -> Any:
    """The means of the n order statistics of a distribution, given by its quantile function.

    The quantile function interpolates linearly between the points (u, x).
    """
    u, x = np.asarray(u, dtype=float), np.asarray(x, dtype=float)
    i = np.arange(1, n + 1)[:, None]
    # E min(U_(i), u) for the i-th order statistic U_(i), which has a Beta(i, n + 1 - i) distribution.
    capped = u * (1 - betainc(i, n + 1 - i, u)) + i / (n + 1) * betainc(i + 1, n + 1 - i, u)
    return x[0] + (np.diff(x) / np.diff(u) * np.diff(capped, axis=-1)).sum(axis=-1)


def average_value_at_risk(u: Any, x: Any, alpha: float) -> float:
    """AV@R for the quantile function of `order_means`: the mean of the quantiles above 1 - alpha."""
    u, x = np.asarray(u, dtype=float), np.asarray(x, dtype=float)
    inside = u > 1 - alpha
    t = np.concatenate([[1 - alpha], u[inside]])
    q = np.concatenate([[np.interp(1 - alpha, u, x)], x[inside]])
    return float((np.diff(t) * (q[1:] + q[:-1]) / 2).sum() / alpha)


def coordinate_distribution(x: Any, d: int) -> tuple[Any, Any]:
    """P(b_1 < x) and E[b_1; b_1 < x], for b uniform on the Euclidean unit ball of R^d."""
    a = (d + 1) / 2
    shape = np.clip(1 - np.asarray(x) ** 2, 0, None)
    return betainc(a, a, (1 + x) / 2), -(shape**a) / ((d + 1) * beta(a, 0.5))


def hinge_bias(n: int, d: int, eta: float) -> float:
    """The risk F of the hinge minus the mean risk F^n of n >= 2 draws, for the loss f = b_1.

    b is uniform on the Euclidean unit ball of R^d. F = E max(f, 1 - eta), and F^n = E max(f_1, M - eta) with
    M = max(f_1, ..., f_n). F^n is computed as an integral over M.
    """

    def upper(c: Any, M: Any) -> Any:
        """E[max(f, c); f < M]."""
        (at_c, below_c), (_, below_M) = coordinate_distribution(c, d), coordinate_distribution(M, d)
        return c * at_c + below_M - below_c

    t, w = np.polynomial.legendre.leggauss(60)
    kink = np.arccos(1 - eta)  # M = -cos(angle), so M - eta = -1 at this angle
    total = 0.0
    ends = [0.0, *np.linspace(kink, np.pi, 7)]
    for low, high in pairwise(ends):
        angle = low + (high - low) * (t + 1) / 2
        M = -np.cos(angle)
        at_M, _ = coordinate_distribution(M, d)
        density = np.sin(angle) ** d / beta((d + 1) / 2, 0.5) * w * (high - low) / 2
        rest = upper(np.maximum(M - eta, -1), M)
        total += float((density * (M * at_M ** (n - 1) + (n - 1) * at_M ** (n - 2) * rest)).sum())
    return float(upper(np.array(1 - eta), np.array(1.0))) - total

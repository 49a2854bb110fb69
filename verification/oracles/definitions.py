"""The primal and the dual objective by definition, in 50 digits, and optimal values by general solvers."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import mpmath as mp
import numpy as np
from scipy.optimize import linprog

DIGITS = 50


def phi(x: Any, family: str, parameter: float | None = None) -> Any:
    """phi(x) in mpmath's arithmetic, by the paper's formula."""
    if x < 0:
        return mp.inf
    if family == "entropic":
        return x * mp.log(x) - x + 1 if x else mp.mpf(1)
    if family == "quadratic":
        return (x * x - 1) / 2
    if family == "absolute":
        return abs(x - 1)
    if family == "hinge":
        return max(x - 1, mp.mpf(0))
    if family == "hockey_stick":
        return max(x - mp.mpf(parameter), mp.mpf(0))
    if family == "indicator":
        # x may be the float 1/alpha, rounded up.
        return mp.mpf(0) if x * mp.mpf(parameter) <= 1 + mp.mpf(10) ** -12 else mp.inf
    if family != "cressie_read":
        raise ValueError(f"family is {family!r}; expected one whose phi is defined here")
    k = mp.mpf(parameter)
    if k == 0:
        return x - 1 - mp.log(x) if x else mp.inf
    if x == 0 and k < 0:
        return mp.inf
    return (x**k - k * x + k - 1) / (k * (k - 1))


def conjugate(s: Any, family: str, parameter: float | None = None) -> Any:
    """phi*(s) in mpmath's arithmetic, derived by hand for each phi."""
    if family == "entropic":
        return mp.expm1(s)
    if family == "quadratic":
        return (max(s, 0) ** 2 + 1) / 2
    if family in ("absolute", "hinge"):
        return mp.inf if s > 1 else max(s, mp.mpf(-1 if family == "absolute" else 0))
    if family == "hockey_stick":
        return mp.inf if s > 1 else mp.mpf(parameter) * max(s, mp.mpf(0))
    if family == "indicator":
        return max(s, mp.mpf(0)) / mp.mpf(parameter)
    if family != "cressie_read":
        raise ValueError(f"family is {family!r}; expected one whose conjugate is defined here")
    k = mp.mpf(parameter)
    y = 1 + (k - 1) * s
    if k > 1:
        return (max(y, mp.mpf(0)) ** (k / (k - 1)) - 1) / k
    if y < 0 or (y == 0 and k >= 0):
        return mp.inf
    return -mp.log(y) if k == 0 else (y ** (k / (k - 1)) - 1) / k


def _probabilities(m: int, p: Any) -> list[Any]:
    """p divided by its sum, or m equal probabilities if p is None."""
    q = [mp.mpf(1)] * m if p is None else [mp.mpf(float(v)) for v in p]
    total = mp.fsum(q)
    return [v / total for v in q]


def primal_objective(
    f: Any, w: Any, eta: float, family: str, parameter: float | None = None, p: Any = None
) -> Any:
    """sum_i w_i f_i - eta sum_i p_i phi(w_i/p_i), after w is divided by its sum."""
    with mp.workdps(DIGITS):
        ps = _probabilities(len(f), p)
        w = [mp.mpf(float(v)) for v in w]
        total = mp.fsum(w)
        value = mp.mpf(0)
        for v, x, q in zip(f, w, ps, strict=True):
            if x > 0 and not q:
                return -mp.inf
            if q:
                value += x / total * mp.mpf(float(v)) - mp.mpf(eta) * q * phi(
                    x / total / q, family, parameter
                )
        return value


def dual_objective(
    f: Any, mu: Any, eta: float, family: str, parameter: float | None = None, p: Any = None
) -> Any:
    """mu + eta sum_i p_i phi*((f_i - mu)/eta)."""
    with mp.workdps(DIGITS):
        mu, e = mp.mpf(mu), mp.mpf(eta)
        pairs = [(mp.mpf(float(v)), q) for v, q in zip(f, _probabilities(len(f), p), strict=True) if q]
        return mu + e * mp.fsum(q * conjugate((v - mu) / e, family, parameter) for v, q in pairs)


def golden_section(function: Callable[[Any], Any], low: Any, high: Any, *, steps: int) -> tuple[Any, Any]:
    """The minimum of a convex function and its location; if both probes are infinite, search to the right."""
    golden = (5**0.5 - 1) / 2
    a, b = high - golden * (high - low), low + golden * (high - low)
    at_a, at_b = function(a), function(b)
    for _ in range(steps):
        if at_a < at_b:
            high, b, at_b = b, a, at_a
            a = high - golden * (high - low)
            at_a = function(a)
        else:
            low, a, at_a = a, b, at_b
            b = low + golden * (high - low)
            at_b = function(b)
    return (at_a, a) if at_a < at_b else (at_b, b)


def dual_minimum(f: Any, eta: float, family: str, parameter: float | None = None, p: Any = None) -> Any:
    """The minimum of the dual over mu, by bracketing and golden section."""
    with mp.workdps(DIGITS):

        def at(mu: Any) -> Any:
            return dual_objective(f, mu, eta, family, parameter, p)

        # phi*(s) is finite for s <= 0, so the dual is finite where mu >= max f.
        start = mp.mpf(max(float(v) for v, q in zip(f, _probabilities(len(f), p), strict=True) if q))
        ends = []
        for sign in (-1, 1):
            step, best, ahead = mp.mpf(eta), at(start), at(start + sign * mp.mpf(eta))
            while ahead < best:
                step, best = 2 * step, ahead
                ahead = at(start + sign * step)
            ends.append(start + sign * step)
        return golden_section(at, *ends, steps=90)[0]  # 0.618^90 = 2e-19 of the interval


def conic(f: Any, eta: float, family: str, parameter: float | None, p: Any) -> float:
    """The optimal primal value by a general convex solver (cvxpy with Clarabel)."""
    import cvxpy as cp

    f, p = np.asarray(f, dtype=float), np.asarray(p, dtype=float)
    x = cp.Variable(len(f), nonneg=True)
    limits = [p @ x == 1]
    if family == "entropic":
        cost = -cp.entr(x) - x + 1
    elif family == "quadratic":
        cost = (cp.square(x) - 1) / 2
    elif family == "absolute":
        cost = cp.abs(x - 1)
    elif family == "hinge":
        cost = cp.pos(x - 1)
    elif family == "hockey_stick":
        cost = cp.pos(x - parameter)
    elif family == "indicator":
        cost = 0 * x
        assert parameter is not None
        limits.append(x <= 1 / parameter)
    else:
        raise ValueError(f"family is {family!r}; expected another")
    problem = cp.Problem(cp.Maximize((p * f) @ x - eta * (p @ cost)), limits)
    problem.solve(solver=cp.CLARABEL)
    return float(problem.value)


def wasserstein_value(values: Any, mass: Any, distance: Any, rho: float) -> float:
    """The largest mean sum_l P(l) values[l], over distributions P on L places with W_inf(P, mass) <= rho.

    - `values` (L,): the loss at each place.
    - `mass` (K,): the distribution of the data.
    - `distance` (K, L): the distances between data points and places.

    W_inf is at most rho if and only if some transport plan moves no mass farther than rho.
    """
    f, p, distances = np.asarray(values, float), np.asarray(mass, float), np.asarray(distance, float)
    K, L = distances.shape
    moved = np.kron(np.eye(K), np.ones((1, L)))  # sums the mass that leaves each data point
    bounds = [(0, None if d <= rho else 0) for d in distances.ravel()]
    found = linprog(-np.tile(f, K), A_eq=moved, b_eq=p, bounds=bounds, method="highs")
    if not found.success:
        raise RuntimeError(f"the linear program reports {found.message}")
    return float(-found.fun)


def exact_difference(a: Any, b: Any) -> float:
    """a - b for floats, fractions and 50-digit numbers, rounded to a float at the end."""
    with mp.workdps(DIGITS):
        return float(_exactly(a) - _exactly(b))


def _exactly(v: Any) -> Any:
    return mp.mpf(v.numerator) / v.denominator if isinstance(v, Fraction) else mp.mpf(v)

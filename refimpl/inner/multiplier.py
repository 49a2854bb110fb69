"""The price at which the worst case uses the whole budget, for entropic and Cressie-Read divergences.

As the price varies, the worst cases gamma form a curve with a parameter beta > 0. With g = f - max f, gamma_i
is proportional to

    p_i exp(g_i/beta)                                 for k = 1 (entropic)
    p_i (1 + sign(a) g_i/beta)_+^(1/a),  a = k - 1    for other orders k (Cressie-Read)

so that mu is not needed. At beta = 0, gamma is p restricted to the largest losses and normalized. As beta
grows, the divergence of gamma decreases to 0. Newton's method finds the beta at which the divergence equals
the budget.
"""

from __future__ import annotations

from math import copysign, exp, factorial, inf, log
from typing import NamedTuple

from phiball.backends import Array, array_namespace, ignore_float_warnings, is_abstract, iterate, kernel
from phiball.refimpl.inner.divergences import Divergence, expm1_over
from phiball.refimpl.inner.solvers import shifted
from phiball.refimpl.numerics import total

FAMILIES = ("entropic", "quadratic", "cressie_read")
_MAX_STEPS = 200  # about 10 suffice; the limit ends the loop if values are NaN
_LONGEST = 30.0  # the largest step in log beta
_SMALL, _TERMS = 0.25, 12  # where abs(t) max(1, abs(k)) < _SMALL, phi(exp(t)) is a series up to t^_TERMS


@kernel
def multiplier(f: Array, budget: Array, p: Array | None, d: Divergence) -> tuple[Array, Array]:
    """Find (eta, cost): the multiplier of the budget, and the divergence of the worst case at the price eta.

    f (..., m), budget (...), p (..., m) or None are valid, and d is of FAMILIES. eta is 0 where the budget
    allows all mass on the largest losses, and infinite where the budget is 0. If phi(0) is infinite, a
    large budget needs weights too small for the dtype: the cost then stays below the budget. All computations
    are in float64, because the curve is steep where a weight is near zero.
    """
    xp = array_namespace(f)
    dtype, k = f.dtype, order(d)
    f, budget = xp.astype(f, xp.float64), xp.astype(budget, xp.float64)
    p = xp.full_like(f, 1 / f.shape[-1]) if p is None else xp.astype(p, xp.float64)
    with ignore_float_warnings():
        _, g = shifted(f, p)
        max_cost = largest_cost(total(xp.where(g == 0, p, xp.zeros_like(p))), k)
        alike = xp.min(g, axis=-1) == 0  # all losses are equal: the cost is 0, even if p is rounded
        max_cost = xp.where(alike, xp.zeros_like(max_cost), max_cost)
        idle = alike | (budget >= max_cost)
        tiny = float(xp.finfo(dtype).smallest_normal)
        eta, cost = _root(g, p, budget, max_cost, k, ~idle & (budget > 0), tiny)
        eta = xp.where(idle, xp.zeros_like(eta), xp.where(budget > 0, eta, xp.full_like(eta, xp.inf)))
        cost = xp.where(idle, max_cost, xp.where(budget > 0, cost, xp.zeros_like(cost)))
    return xp.astype(eta, dtype), xp.astype(cost, dtype)


def order(d: Divergence) -> float:
    """The order k of a divergence of FAMILIES, as a member of the Cressie-Read family."""
    return 1.0 if d.family == "entropic" else 2.0 if d.family == "quadratic" else float(d.parameter or 0.0)


def largest_cost(mass: Array, k: float) -> Array:
    """The divergence of p restricted to a set of this mass and normalized: (mass^(1-k) - 1)/(k(k-1))."""
    xp = array_namespace(mass)
    if k <= 0:
        return xp.where(mass < 1, xp.full_like(mass, inf), xp.zeros_like(mass))
    return expm1_over(k - 1, -xp.log(mass)) / k


class _Point(NamedTuple):
    """A point of the curve: its divergence, the derivative of the divergence in log beta, and its price."""

    cost: Array
    slope: Array
    eta: Array


def _root(
    g: Array, p: Array, budget: Array, max_cost: Array, k: float, wanted: Array, tiny: float
) -> tuple[Array, Array]:
    """(eta, cost) with cost = budget, for the rows in the mask `wanted`; eta is at least `tiny`.

    `max_cost` is the divergence at beta = 0, the largest on the curve.
    """
    xp = array_namespace(g)
    eps = float(xp.finfo(g.dtype).eps)
    spread, zero = -xp.min(g, axis=-1), xp.zeros_like(budget)
    # beta >= end, so that ratios of about (spread/beta)^(1/a) do not underflow if phi(0) is huge or infinite.
    log_range = 690.0 if k > 0.5 else min(690.0, (1 - k) * (-14 - log(tiny)))
    end = xp.maximum(spread * exp(-log_range), xp.full_like(spread, 1e-290))
    odds = budget / (1 - budget / max_cost)
    start = xp.maximum(_start(g, p, odds, k), end)
    point, beta = _newton(g, p, budget, max_cost, k, ~wanted, start, zero, end)
    missed = wanted & (xp.abs(point.cost - budget) > 8 * eps * budget) & (beta > end)
    if k > 2 and (is_abstract(missed) or xp.any(missed)):
        # The smallest loss with positive weight has a tiny weight: there beta + g cancels, and the digits of
        # beta do not suffice. The search is repeated with x = beta + g at this loss in place of beta.
        close = (g >= -(beta * (1 + 16 * eps))[..., None]) & (p > 0)
        lowest = xp.min(xp.where(close, g, xp.zeros_like(g)), axis=-1)
        start = xp.maximum(beta + lowest, eps * beta)
        again, _ = _newton(g, p, budget, max_cost, k, ~missed, start, lowest, 1e-307 + zero)
        better = missed & (xp.abs(again.cost - budget) < xp.abs(point.cost - budget))
        point = _Point(*(xp.where(better, x, y) for x, y in zip(again, point, strict=True)))
    return xp.maximum(point.eta, xp.full_like(point.eta, tiny)), point.cost


def _newton(
    g: Array,
    p: Array,
    budget: Array,
    max_cost: Array,
    k: float,
    met: Array,
    x: Array,
    shift: Array,
    end: Array,
) -> tuple[_Point, Array]:
    """The point of the curve with cost = budget, and its x = beta + shift; rows in `met` are skipped.

    This is Newton's method with a bracket for log(cost/(max_cost - cost)), which is nearly linear in log beta
    at both ends of the curve. It starts at `x`, and stops at `end` if the root lies below.
    """
    xp = array_namespace(g)
    eps = float(xp.finfo(g.dtype).eps)
    goal = xp.log(budget / (1 - budget / max_cost))

    def step(x: Array, low: Array, high: Array, met: Array) -> tuple[tuple[Array, ...], Array]:
        """One Newton step in each row that is not `met`, within the bracket from `low` to `high`."""
        point = _curve_point(x, shift, g, p, k)
        exceeds = point.cost > budget
        low, high = xp.where(exceeds, x, low), xp.where(exceeds, high, x)
        left = 1 - point.cost / max_cost
        move = (goal - xp.log(point.cost / left)) * point.cost * left / point.slope
        met = met | (xp.abs(point.cost - budget) <= 2 * eps * budget) | (xp.abs(move) <= 2 * eps)
        met = met | (low >= high * (1 - 4 * eps)) | (~exceeds & (x <= end))
        new = x * xp.exp(xp.clip(move, -_LONGEST, _LONGEST))
        # A step that leaves the bracket is replaced by bisection, or by a factor while an end is missing.
        middle = xp.where(high == inf, 16 * low, xp.where(low == 0, high / 16, xp.sqrt(low) * xp.sqrt(high)))
        new = xp.where((new > low) & (new < high), new, middle)
        return (xp.where(met, x, xp.maximum(new, end)), low, high, met), met

    x, *_ = iterate(step, (x, xp.zeros_like(x), xp.full_like(x, inf), met), _MAX_STEPS)
    return _curve_point(x, shift, g, p, k), x


def _start(g: Array, p: Array, odds: Array, k: float) -> Array:
    """An initial beta: at a large price the divergence is about Var g/(2 eta^2), set equal to `odds` here.

    `odds` is budget/(1 - budget/max_cost), which is about the budget where the price is large.
    """
    xp = array_namespace(g)
    spread = -xp.min(g, axis=-1)
    size = xp.where(spread > 0, spread, xp.ones_like(spread))  # avoids squares that overflow
    g = g / size[..., None]
    mean = total(p * g)
    variance = total(p * (g - mean[..., None]) ** 2)
    eta = xp.sqrt(variance / 2) / xp.sqrt(odds)
    if k != 1:
        eta = xp.maximum(eta / abs(k - 1) - copysign(1.0, k - 1) * mean, eta / (16 * abs(k - 1)))
    return xp.minimum(eta * size, xp.full_like(eta, float(xp.finfo(eta.dtype).max)))


def _curve_point(x: Array, shift: Array, g: Array, p: Array, k: float) -> _Point:
    """The point of the curve at beta = x - shift; `slope` is the derivative in log x.

    The logs of the ratios gamma/p are computed, because they are accurate for ratios near 1: log_w before
    normalization, and t after it.
    """
    xp = array_namespace(g)
    a, zero = k - 1, xp.zeros_like(g)
    beta = (x - shift)[..., None]
    if a == 0:
        active = g <= 0
        log_w = g / beta
        dlog_w = -log_w  # the derivative of log_w in log x, up to a constant
    else:
        v = copysign(1.0, a) * g / beta
        z = xp.where(v > -0.5, 1 + v, ((g - shift[..., None]) + x[..., None]) / beta)
        active = z > 0
        z = xp.where(active, z, xp.ones_like(z))
        log_w = xp.where(v > -0.5, xp.log1p(xp.where(active, v, zero)), xp.log(z)) / a
        dlog_w = x[..., None] / beta * xp.where(shift[..., None] == 0, -v / z, 1 / z) / a
    w_minus_1 = xp.where(active, xp.expm1(log_w), -xp.ones_like(g))
    excess = total(p * w_minus_1, keepdims=True)
    whole = total(p * xp.where(active, xp.exp(log_w), zero), keepdims=True)
    log_total = xp.where(excess > -0.5, xp.log1p(excess), xp.log(whole))
    t = log_w - log_total  # log of gamma/p
    weights = p * xp.where(active, xp.exp(t), zero)
    cost = xp.where(active, phi_of_exp(t, k), xp.full_like(t, 1 / k if k > 0 else 0.0))
    cost = total(xp.where(p > 0, p * cost, zero))
    dlog_w = xp.where(weights > 0, dlog_w, zero)
    dlog_w = dlog_w - total(weights * dlog_w, keepdims=True)
    slope = total(xp.where(weights > 0, weights * expm1_over(a, t) * dlog_w, zero))
    eta = beta[..., 0] * (abs(a) * xp.exp(a * log_total[..., 0]) if a else 1.0)
    return _Point(cost, slope, eta)


def phi_of_exp(t: Array, k: float) -> Array:
    """phi(exp(t)) for the order k; for small t, the sum over n >= 2 of t^n/n! (1 + k + ... + k^(n-2))."""
    xp = array_namespace(t)
    small = xp.abs(t) * max(1.0, abs(k)) < _SMALL
    near = xp.where(small, t, xp.zeros_like(t))
    series = xp.zeros_like(t)
    for n in range(_TERMS, 1, -1):
        series = series * near + sum(k**j for j in range(n - 1)) / factorial(n)
    far = xp.where(small, xp.ones_like(t), t)
    value = xp.exp(far) * expm1_over(k - 1, far) - expm1_over(k, far)
    value = xp.where(xp.isnan(value), xp.full_like(t, inf), value)  # inf - inf, where phi overflows
    return xp.where(small, series * near * near, value)

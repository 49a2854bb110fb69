"""The price at which the worst case uses the whole budget, for entropic and Cressie-Read divergences.

Over all prices, the worst cases form a curve with one parameter beta > 0. With g = f - max f,

    gamma_i ~ p_i exp(g_i/beta)                                              for k = 1
    gamma_i ~ p_i (1 + sign(a) g_i/beta)_+^(1/a),  a = k - 1                 for other orders k

so that mu need not be computed. Along the curve the divergence decreases from its value for the reference
distribution on the largest losses to zero; Newton's method finds where it equals the budget.
"""

from __future__ import annotations

from math import copysign, exp, factorial, inf, log
from typing import NamedTuple

from phiball.backends import Array, array_namespace, ignore_float_warnings, is_abstract, iterate, kernel
from phiball.refimpl.inner.divergences import Divergence, expm1_over
from phiball.refimpl.inner.solvers import shifted
from phiball.refimpl.numerics import total

FAMILIES = ("entropic", "quadratic", "cressie_read")
_STEPS = 200  # about 10 are needed; bounds the loop on NaN
_LONGEST = 30.0  # step in log beta
_SMALL, _TERMS = 0.25, 12  # phi(exp(t)) is summed as a series up to t^12 where abs(t) max(1, abs(k)) is small


@kernel
def multiplier(f: Array, budget: Array, p: Array | None, d: Divergence) -> tuple[Array, Array]:
    """(eta, cost): the multiplier of the constraint cost <= budget, and the divergence of its worst case.

    For a divergence of FAMILIES and valid input: f has shape (..., m), budget (...), p (..., m) or None. eta
    is 0 where the budget reaches the distribution on the largest losses, and infinite where the budget is 0.
    Where phi(0) is infinite, the cost stays below a budget that would need weights below the range of the
    dtype. The curve is steep where a weight is near zero, so that everything is computed in float64.
    """
    xp = array_namespace(f)
    dtype, k = f.dtype, order(d)
    f, budget = xp.astype(f, xp.float64), xp.astype(budget, xp.float64)
    p = xp.full_like(f, 1 / f.shape[-1]) if p is None else xp.astype(p, xp.float64)
    with ignore_float_warnings():
        _, g = shifted(f, p)
        most = largest_cost(total(xp.where(g == 0, p, xp.zeros_like(p))), k)
        alike = xp.min(g, axis=-1) == 0  # all losses are equal, even if rounded masses do not sum to one
        most = xp.where(alike, xp.zeros_like(most), most)
        idle = alike | (budget >= most)
        tiny = float(xp.finfo(dtype).smallest_normal)
        eta, cost = _root(g, p, budget, most, k, ~idle & (budget > 0), tiny)
        eta = xp.where(idle, xp.zeros_like(eta), xp.where(budget > 0, eta, xp.full_like(eta, xp.inf)))
        cost = xp.where(idle, most, xp.where(budget > 0, cost, xp.zeros_like(cost)))
    return xp.astype(eta, dtype), xp.astype(cost, dtype)


def order(d: Divergence) -> float:
    """The order k of a divergence of FAMILIES in the Cressie-Read family."""
    return 1.0 if d.family == "entropic" else 2.0 if d.family == "quadratic" else float(d.parameter or 0.0)


def largest_cost(at_top: Array, k: float) -> Array:
    """The divergence of the reference on a set of mass `at_top`: (at_top^(1-k) - 1)/(k(k-1))."""
    xp = array_namespace(at_top)
    if k <= 0:
        return xp.where(at_top < 1, xp.full_like(at_top, inf), xp.zeros_like(at_top))
    return expm1_over(k - 1, -xp.log(at_top)) / k


class _Point(NamedTuple):
    """A worst case on the curve: its divergence, the slope of the divergence in log beta, and its price."""

    cost: Array
    slope: Array
    eta: Array


def _root(
    g: Array, p: Array, budget: Array, most: Array, k: float, wanted: Array, tiny: float
) -> tuple[Array, Array]:
    """(eta, cost) with cost = budget, for the rows in the mask `wanted`; eta is at least `tiny`."""
    xp = array_namespace(g)
    eps = float(xp.finfo(g.dtype).eps)
    spread, zero = -xp.min(g, axis=-1), xp.zeros_like(budget)
    # Ratios of about (spread/beta)^(1/a) must not underflow where phi(0) is large or infinite.
    longest = 690.0 if k > 0.5 else min(690.0, (1 - k) * (-14 - log(tiny)))
    end = xp.maximum(spread * exp(-longest), xp.full_like(spread, 1e-290))
    odds = budget / (1 - budget / most)
    start = xp.maximum(_start(g, p, odds, k), end)
    point, beta = _newton(g, p, budget, most, k, ~wanted, start, zero, end)
    missed = wanted & (xp.abs(point.cost - budget) > 8 * eps * budget) & (beta > end)
    if k > 2 and (is_abstract(missed) or xp.any(missed)):
        # The smallest loss with weight is so close to zero weight that beta has too few digits: use its
        # distance from that loss as the parameter of the curve.
        close = (g >= -(beta * (1 + 16 * eps))[..., None]) & (p > 0)
        lowest = xp.min(xp.where(close, g, xp.zeros_like(g)), axis=-1)
        start = xp.maximum(beta + lowest, eps * beta)
        again, _ = _newton(g, p, budget, most, k, ~missed, start, lowest, 1e-307 + zero)
        better = missed & (xp.abs(again.cost - budget) < xp.abs(point.cost - budget))
        point = _Point(*(xp.where(better, x, y) for x, y in zip(again, point, strict=True)))
    return xp.maximum(point.eta, xp.full_like(point.eta, tiny)), point.cost


def _newton(
    g: Array, p: Array, budget: Array, most: Array, k: float, met: Array, x: Array, anchor: Array, end: Array
) -> tuple[_Point, Array]:
    """The point of the curve with cost = budget, and x = beta + anchor there; rows in `met` are skipped.

    Newton's method in a bracket, on log(cost/(most - cost)), which is nearly linear in log beta at both ends.
    It stops at `end` if the root lies below.
    """
    xp = array_namespace(g)
    eps = float(xp.finfo(g.dtype).eps)
    goal = xp.log(budget / (1 - budget / most))

    def step(x: Array, low: Array, high: Array, met: Array) -> tuple[tuple[Array, ...], Array]:
        point = _at(x, anchor, g, p, k)
        far = point.cost > budget
        low, high = xp.where(far, x, low), xp.where(far, high, x)
        left = 1 - point.cost / most
        move = (goal - xp.log(point.cost / left)) * point.cost * left / point.slope
        met = met | (xp.abs(point.cost - budget) <= 2 * eps * budget) | (xp.abs(move) <= 2 * eps)
        met = met | (low >= high * (1 - 4 * eps)) | (~far & (x <= end))
        new = x * xp.exp(xp.clip(move, -_LONGEST, _LONGEST))
        # A step outside the bracket is replaced by its middle, or by a factor while it is unbounded.
        middle = xp.where(high == inf, 16 * low, xp.where(low == 0, high / 16, xp.sqrt(low) * xp.sqrt(high)))
        new = xp.where((new > low) & (new < high), new, middle)
        return (xp.where(met, x, xp.maximum(new, end)), low, high, met), met

    x, *_ = iterate(step, (x, xp.zeros_like(x), xp.full_like(x, inf), met), _STEPS)
    return _at(x, anchor, g, p, k), x


def _start(g: Array, p: Array, odds: Array, k: float) -> Array:
    """An initial beta: the divergence is about Var g/(2 eta^2) for a large price."""
    xp = array_namespace(g)
    spread = -xp.min(g, axis=-1)
    size = xp.where(spread > 0, spread, xp.ones_like(spread))  # squares of huge losses would overflow
    g = g / size[..., None]
    mean = total(p * g)
    variance = total(p * (g - mean[..., None]) ** 2)
    eta = xp.sqrt(variance / 2) / xp.sqrt(odds)
    if k != 1:
        eta = xp.maximum(eta / abs(k - 1) - copysign(1.0, k - 1) * mean, eta / (16 * abs(k - 1)))
    return xp.minimum(eta * size, xp.full_like(eta, float(xp.finfo(eta.dtype).max)))


def _at(x: Array, anchor: Array, g: Array, p: Array, k: float) -> _Point:
    """The point of the curve at beta = x - anchor, computed with logs of ratios, accurate near 1.

    The derivative is taken in log x.
    """
    xp = array_namespace(g)
    a, zero = k - 1, xp.zeros_like(g)
    beta = (x - anchor)[..., None]
    if a == 0:
        active = g <= 0
        log_w = g / beta
        turn = -log_w  # the derivative of log_w in log x, up to a constant
    else:
        v = copysign(1.0, a) * g / beta
        z = xp.where(v > -0.5, 1 + v, ((g - anchor[..., None]) + x[..., None]) / beta)
        active = z > 0
        z = xp.where(active, z, xp.ones_like(z))
        log_w = xp.where(v > -0.5, xp.log1p(xp.where(active, v, zero)), xp.log(z)) / a
        turn = x[..., None] / beta * xp.where(anchor[..., None] == 0, -v / z, 1 / z) / a
    less_one = xp.where(active, xp.expm1(log_w), -xp.ones_like(g))
    excess = total(p * less_one, keepdims=True)
    whole = total(p * xp.where(active, xp.exp(log_w), zero), keepdims=True)
    log_total = xp.where(excess > -0.5, xp.log1p(excess), xp.log(whole))
    t = log_w - log_total  # log of gamma/p
    weights = p * xp.where(active, xp.exp(t), zero)
    cost = xp.where(active, phi_of_exp(t, k), xp.full_like(t, 1 / k if k > 0 else 0.0))
    cost = total(xp.where(p > 0, p * cost, zero))
    turn = xp.where(weights > 0, turn, zero)
    turn = turn - total(weights * turn, keepdims=True)
    slope = total(xp.where(weights > 0, weights * expm1_over(a, t) * turn, zero))
    eta = beta[..., 0] * (abs(a) * xp.exp(a * log_total[..., 0]) if a else 1.0)
    return _Point(cost, slope, eta)


def phi_of_exp(t: Array, k: float) -> Array:
    """phi(exp(t)) for the order k, as a series where it would cancel: sum t^n/n! (1 + k + ... + k^(n-2))."""
    xp = array_namespace(t)
    small = xp.abs(t) * max(1.0, abs(k)) < _SMALL
    near = xp.where(small, t, xp.zeros_like(t))
    series = xp.zeros_like(t)
    for n in range(_TERMS, 1, -1):
        series = series * near + sum(k**j for j in range(n - 1)) / factorial(n)
    far = xp.where(small, xp.ones_like(t), t)
    value = xp.exp(far) * expm1_over(k - 1, far) - expm1_over(k, far)
    value = xp.where(xp.isnan(value), xp.full_like(t, inf), value)  # both terms overflow, and so does phi
    return xp.where(small, series * near * near, value)

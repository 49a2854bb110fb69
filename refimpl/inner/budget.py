"""The inner problem with a budget for the divergence in place of a price.

V(f) = max over gamma in the simplex of  sum gamma_i f_i   with  sum p_i phi(gamma_i/p_i) <= budget
     = min over eta >= 0 of  eta budget + R_eta(f),   R_eta(f) the value of worst_case at the price eta
"""

from __future__ import annotations

from math import inf
from typing import Any, NamedTuple

from phiball.backends import Array, array_namespace, device, ignore_float_warnings, is_abstract, iterate
from phiball.refimpl.inner.divergences import Divergence, centred
from phiball.refimpl.inner.multiplier import FAMILIES, multiplier
from phiball.refimpl.inner.solvers import Solution, check_finite_field, dual_shifted, shifted, solve
from phiball.refimpl.numerics import add_up, cast_up, largest, to_double, tolerance, total

_MET = 1 + 1e-12  # a divergence of up to this times the budget meets it
_STEPS = 300  # about 30 are needed; bounds the loop on NaN
_POLISH = 8  # further steps for eta once the value, which is flat in eta, is exact
_CLOSE = 1e-6  # relative distance of a cost to the budget below which its eta is taken as the root


def solve_budget(f: Array, budget: Array, p: Array | None, d: Divergence, check: bool = False) -> Solution:
    """The fields of `WorstCase`, for valid input: f (..., m), budget (...), and p (..., m) or None."""
    xp, dtype, losses = array_namespace(f), f.dtype, f
    f, budget, p = to_double(f), to_double(budget), None if p is None else to_double(p)
    top = largest(f)
    # Scale losses whose intermediate results would overflow or underflow.
    unit = 2.0**100 if top > 1e280 else 2.0**-600 if 0 < top < 1e-200 else 1.0
    f = f / unit
    with ignore_float_warnings():
        if d.family in FAMILIES:
            value, mu, weights, gap, eta = _solve_smooth(f, budget, p, d)
        elif d.family == "indicator":
            value, mu, weights, gap = solve(f, xp.ones_like(budget), p, d)
            eta = xp.zeros_like(budget)
        elif d.family in ("absolute", "hinge"):
            value, mu, weights, gap, eta = _solve_kinked(f, budget, p, d)
        else:
            value, mu, weights, gap, eta = _solve_by_search(f, budget, p, d)
        if unit != 1:
            value, eta, mu, gap = (unit * v for v in (value, eta, mu, gap))
        tiny = float(xp.finfo(dtype).smallest_normal)
        # An eta that underflows to 0 would mean that the budget does not bind.
        eta = xp.where((eta > 0) & (eta < tiny), xp.full_like(eta, tiny), eta)
        value, eta, weights, gap = (xp.astype(v, dtype, copy=False) for v in (value, eta, weights, gap))
        mu = cast_up(mu, dtype)
    if check:
        check_finite_field(value, losses, d, "the value overflows {}: rescale the losses")
        check_finite_field(gap, losses, d, "the gap overflows {}: rescale the losses")
        price = xp.where(budget > 0, eta, xp.zeros_like(eta))
        message = "the multiplier eta overflows {}: rescale the losses or increase the budget"
        check_finite_field(price, losses, d, message)
    return value, mu, weights, gap, eta


def _solve_smooth(f: Array, budget: Array, p: Array | None, d: Divergence) -> Solution:
    """Solve for a smooth divergence, by the worst case at the price that uses the whole budget."""
    xp = array_namespace(f)
    c = centred(d)
    eta, cost = multiplier(f, budget, p, c)
    inner = (eta > 0) & (eta < xp.inf)
    some = xp.where(inner, eta, xp.ones_like(eta))
    # The centred phi gives the more accurate certificate: its mu does not contain eta.
    value, mu, weights, gap = solve(f, some, p, c)
    spent = eta * (budget - cost)
    usual = inner & (2 * cost > budget) & (cost <= budget * _MET)
    if not is_abstract(usual) and xp.all(usual):
        mu = mu - eta * d.slope1 if d.slope1 else mu
        return value + eta * budget, mu, weights, gap + spent, eta
    distribution = xp.full_like(f, 1 / f.shape[-1]) if p is None else p
    top, g = shifted(f, distribution)
    zero = xp.zeros_like(top)
    # Where the weights underflow, the largest loss is a better bound.
    gain = total(weights * g)
    bound = xp.minimum(gain + gap + spent, zero)
    # Mixed with the reference distribution, weights that exceed the budget meet it, as phi is convex.
    share = xp.where(inner & (cost > budget * _MET), budget / cost, xp.ones_like(cost))[..., None]
    weights = xp.where(share < 1, distribution + share * (weights - distribution), weights)
    gain = total(weights * g)
    # A zero budget leaves the reference distribution; one that does not bind, its part on the largest losses.
    at_top = xp.where(g == 0, distribution, xp.zeros_like(distribution))
    at_top = at_top / total(at_top, keepdims=True)
    mean, idle = total(distribution * g), eta == 0
    bound = xp.where(inner, bound, xp.where(idle, zero, mean))
    gap = xp.where(inner, bound - gain, zero)
    mu = xp.where(inner, mu, top + xp.where(idle, zero, mean))
    mu = mu - eta * d.slope1 if d.slope1 else mu
    weights = xp.where(inner[..., None], weights, xp.where(idle[..., None], at_top, distribution))
    return top + bound, mu, weights, gap, eta


def _solve_kinked(f: Array, budget: Array, p: Array | None, d: Divergence) -> Solution:
    """Solve for the absolute value and the hinge: mass moves from the smallest losses to the largest."""
    xp = array_namespace(f)
    distribution = xp.full_like(f, 1 / f.shape[-1]) if p is None else p
    top, g = shifted(f, distribution)
    unit = 1 / (1 - d.slope0)  # the mass that a unit of divergence moves
    moved = unit * budget
    level = smallest_charged(g, distribution, moved)[..., None]
    zero = xp.zeros_like(g)
    below = total(xp.where(g < level, distribution, zero), keepdims=True)
    tied = total(xp.where(g == level, distribution, zero), keepdims=True)
    at_top = xp.where(g == 0, distribution, zero)
    mass_at_top = total(at_top, keepdims=True)
    taken = xp.clip((moved[..., None] - below) / tied, 0.0, 1.0)
    lost = xp.where(g < level, distribution, xp.where((g == level) & (g < 0), distribution * taken, zero))
    gained = total(lost, keepdims=True)
    weights = (distribution - lost) + at_top * (gained / mass_at_top)
    eta = unit * xp.abs(level[..., 0])
    idle = eta == 0
    # As in `solve`: rounding mu down would put the largest loss beyond the domain of phi*.
    mu = add_up(top, -eta * (1 - tolerance(f)))
    bound = dual_shifted(f, top, mu, xp.where(idle, xp.ones_like(eta), eta), distribution, d) + eta * budget
    bound = xp.where(idle, zero[..., 0], bound)
    return top + bound, mu, weights, bound - total(weights * g), eta


def smallest_charged(g: Array, p: Array, moved: Array) -> Array:
    """The smallest loss with mass left after the mass `moved` is taken from the smallest losses."""
    xp = array_namespace(g)
    order = xp.argsort(g, axis=-1, stable=True)
    ranked = xp.take_along_axis(g, order, axis=-1)
    mass = xp.cumulative_sum(xp.take_along_axis(p, order, axis=-1), axis=-1)
    kept = mass > (moved * (1 + tolerance(g)))[..., None]
    return xp.min(xp.where(kept, ranked, xp.zeros_like(g)), axis=-1)


def _solve_by_search(f: Array, budget: Array, p: Array | None, d: Divergence) -> Solution:
    """Solve for a divergence given by its functions, by a search over prices."""
    xp = array_namespace(f)
    m = f.shape[-1]
    uniform = xp.full_like(f, 1 / m)
    top, g = shifted(f, uniform if p is None else p)
    distribution = None if p is None else xp.reshape(p, (-1, 1, m))
    found = solve_shared_budget(
        xp.reshape(g, (-1, 1, m)), xp.reshape(budget, (-1,)), distribution, centred(d)
    )
    eta, upper, lower, idle = (
        xp.reshape(x, budget.shape) for x in (found.eta, found.upper, found.lower, found.idle)
    )
    _, mu, _, gap = solve(f, eta, p, centred(d))
    upper = xp.minimum(upper, xp.zeros_like(upper))
    value, gap = top + upper, gap + (upper - lower)
    weights = xp.reshape(found.weights, f.shape)
    if 0 < d.curvature1 < inf:  # then a zero budget leaves only the reference, which no finite price gives
        none = budget == 0
        mean = top + total((uniform if p is None else p) * g)
        value, gap = xp.where(none, mean, value), xp.where(none, xp.zeros_like(gap), gap)
        eta = xp.where(none, xp.full_like(eta, inf), eta)
        mu = xp.where(none, mean, mu)
    mu = mu - eta * d.slope1 if d.slope1 else mu
    return value, mu, weights, gap, xp.where(idle, xp.zeros_like(eta), eta)


class SharedBudget(NamedTuple):
    """The optimum of each problem under a budget on the mean divergence of its rows.

    - `eta` (problems,): the multiplier; `upper` and `lower` bound the mean expected loss.
    - `weights` (problems, rows, m): a distribution within the budget, whose expected loss is `lower`.
    - `idle` (problems,): whether the budget is not binding.
    """

    eta: Array
    upper: Array
    lower: Array
    weights: Array
    idle: Array


class _Side(NamedTuple):
    """The worst cases at a price: mean expected loss, mean divergence, its slope in log eta, and weights."""

    eta: Array
    gain: Array
    cost: Array
    slope: Array
    weights: Array


def solve_shared_budget(f: Array, budget: Array, p: Array | None, c: Divergence) -> SharedBudget:
    """Maximise the mean expected loss of f (problems, rows, m), with one budget per problem; phi is centred.

    The optimum lies between a price whose worst case exceeds the budget (`far`) and one whose worst case
    meets it (`near`). The mixture of the two that just meets the budget gives a lower bound. It equals the
    value at which the tangents of the convex function eta budget + R_eta at the two prices cross, and is
    exact where this function is piecewise linear. The next price comes from Newton's method in log eta, from
    that crossing or from bisection.
    """
    xp = array_namespace(f)
    distribution = xp.full_like(f, 1 / f.shape[-1]) if p is None else p
    top = xp.max(xp.where(distribution > 0, f, xp.full_like(f, -inf)), axis=(1, 2))
    bottom = xp.min(xp.where(distribution > 0, f, xp.full_like(f, inf)), axis=(1, 2))
    eps = float(xp.finfo(f.dtype).eps)
    with ignore_float_warnings():
        spread = xp.where(top > bottom, top - bottom, xp.ones_like(top))
        target = tolerance(f) * (spread + xp.where(top > -bottom, xp.abs(top), xp.abs(bottom)))
        far = _at(f, spread * (eps / (1 + budget)), p, distribution, c)
        near = _at(f, spread / eps, p, distribution, c)
        idle = far.cost <= budget
        eta, upper = _smaller(far.eta, far.gain + far.eta * (budget - far.cost), near, budget)
        # If the budget is too small for both, only the reference distribution is known to meet it.
        zero, mean = xp.zeros_like(eta), xp.mean(xp.sum(distribution * f, axis=-1), axis=-1)
        reference = _Side(near.eta, mean, zero, zero, distribution)
        short = near.cost > budget
        far, near = _choose(short, near, far), _choose(short, reference, near)

        def step(
            eta: Array, upper: Array, far: _Side, near: _Side, n: Array, rest: Array
        ) -> tuple[tuple[Any, ...], Array]:
            share = _share(far, near, budget)
            lower = near.gain + share * (far.gain - near.gain)
            miss = xp.minimum(xp.abs(far.cost - budget), xp.abs(near.cost - budget))
            ended = (near.eta <= far.eta * (1 + 4 * eps)) | (miss <= 4 * eps * budget) | idle
            exact = xp.all(ended | (upper - lower <= target))
            rest = xp.where(exact, rest - 1, xp.full_like(rest, _POLISH))
            jump = far.cost - near.cost
            crossing = (far.gain - near.gain) / xp.where(jump > 0, jump, xp.ones_like(jump))
            halfway = xp.sqrt(far.eta) * xp.sqrt(near.eta)
            best = _choose(xp.abs(far.cost - budget) < xp.abs(near.cost - budget), far, near)
            newton = best.eta * xp.exp(xp.log(budget / best.cost) * best.cost / best.slope)
            new = _inside(newton, far, near, _inside(crossing, far, near, halfway))
            new = xp.where((n % 3 == 2) & (rest == _POLISH), halfway, new)
            tried = _at(f, xp.where(ended, eta, new), p, distribution, c)
            eta, upper = _smaller(eta, upper, tried, budget)
            far = _choose(~ended & (tried.cost > budget), tried, far)
            near = _choose(~ended & (tried.cost <= budget), tried, near)
            return (eta, upper, far, near, n + 1, rest), ended | (rest == 0)

        n = xp.zeros((), dtype=xp.int64, device=device(f))
        start = (eta, upper, far, near, n, xp.full_like(n, _POLISH))
        eta, upper, far, near, *_ = iterate(step, start, _STEPS)
        share = _share(far, near, budget)
        lower = near.gain + share * (far.gain - near.gain)
        # If one of the two is the root, its price and weights are more accurate than those of the mixture.
        weights = near.weights + share[:, None, None] * (far.weights - near.weights)
        miss = _CLOSE * budget
        for side in (far, near):
            closer = xp.abs(side.cost - budget) <= miss
            eta, miss = xp.where(closer, side.eta, eta), xp.where(closer, xp.abs(side.cost - budget), miss)
            exact = closer & (miss <= 16 * eps * budget)
            lower = xp.where(exact, side.gain, lower)
            weights = xp.where(exact[:, None, None], side.weights, weights)
    return SharedBudget(eta, upper, lower, weights, idle)


def _at(f: Array, eta: Array, p: Array | None, distribution: Array, c: Divergence) -> _Side:
    xp = array_namespace(f)
    rows = xp.broadcast_to(eta[:, None], f.shape[:-1])
    _, mu, weights, _ = solve(f, rows, p, c)
    charged, zero = distribution > 0, xp.zeros_like(f)
    ratio = xp.where(
        charged, weights / xp.where(charged, distribution, xp.ones_like(distribution)), xp.ones_like(f)
    )
    cost = xp.sum(xp.where(charged, distribution * _phi(ratio, c), zero), axis=-1)
    s = (f - mu[..., None]) / rows[..., None]
    bend = xp.where(charged & (weights > 0), distribution * c.d2conj(s), zero)
    total = xp.sum(bend, axis=-1, keepdims=True)
    centre = xp.sum(bend * s, axis=-1, keepdims=True) / xp.where(total > 0, total, xp.ones_like(total))
    slope = -xp.sum(xp.where(bend > 0, bend * (s - centre) ** 2, zero), axis=-1)
    gain = xp.sum(weights * f, axis=-1)
    gain, cost, slope = (xp.mean(x, axis=-1) for x in (gain, cost, slope))
    return _Side(eta, gain, cost, slope, weights)


def _phi(ratio: Array, c: Divergence) -> Array:
    """phi, for ratios that rounding may have moved out of its domain."""
    xp = array_namespace(ratio)
    phi, tol = c.phi(ratio), tolerance(ratio)
    if not is_abstract(phi) and xp.all(phi < inf):
        return phi
    return xp.minimum(phi, xp.minimum(c.phi(ratio * (1 - tol)), c.phi(ratio * (1 + tol))))


def _smaller(eta: Array, upper: Array, side: _Side, budget: Array) -> tuple[Array, Array]:
    xp = array_namespace(eta)
    new = side.gain + side.eta * (budget - side.cost)
    return xp.where(new < upper, side.eta, eta), xp.where(new < upper, new, upper)


def _choose(where: Array, a: _Side, b: _Side) -> _Side:
    xp = array_namespace(a.eta)
    return _Side(
        *(xp.where(xp.reshape(where, (-1,) + (1,) * (x.ndim - 1)), x, y) for x, y in zip(a, b, strict=True))
    )


def _inside(new: Array, far: _Side, near: _Side, otherwise: Array) -> Array:
    return array_namespace(new).where((new > far.eta) & (new < near.eta), new, otherwise)


def _share(far: _Side, near: _Side, budget: Array) -> Array:
    """The share of `far` in the mixture with `near` that meets the budget; 1 if `far` meets it."""
    xp = array_namespace(far.eta)
    jump = far.cost - near.cost
    share = (budget - near.cost) / xp.where(jump > 0, jump, xp.ones_like(jump))
    return xp.where(jump > 0, xp.clip(share, 0.0, 1.0), xp.ones_like(share))

"""Solvers of the inner problem with a budget for the divergence instead of a price eta.

    V(f) = max over gamma in the simplex of  sum_i gamma_i f_i  with  sum_i p_i phi(gamma_i/p_i) <= budget
         = min over eta >= 0 of  eta budget + R_eta(f)

f are the losses, p is the reference distribution, and R_eta(f) is the value of `worst_case` at the price eta.
"""

from __future__ import annotations

from math import inf
from typing import Any, NamedTuple

from phiball.backends import Array, array_namespace, device, ignore_float_warnings, is_abstract, iterate
from phiball.refimpl.inner.divergences import Divergence, centred
from phiball.refimpl.inner.multiplier import FAMILIES, multiplier
from phiball.refimpl.inner.solvers import Solution, check_finite_field, dual_shifted, shifted, solve
from phiball.refimpl.numerics import add_up, cast_up, largest, to_double, tolerance, total

_SLACK = 1 + 1e-12  # a divergence up to _SLACK * budget counts as within the budget
_MAX_STEPS = 300  # about 30 suffice; the limit ends the loop if values are NaN
_EXTRA_STEPS = 8  # steps after the value has converged: eta converges later, as the value is flat in eta
_ROOT_TOL = 1e-6  # relative: an end of the bracket whose cost is this close to the budget gives eta


def solve_budget(f: Array, budget: Array, p: Array | None, d: Divergence, check: bool = False) -> Solution:
    """Solve for valid f (..., m), budget (...), and p (..., m) or None; `check` raises on overflow."""
    xp, dtype, losses = array_namespace(f), f.dtype, f
    f, budget, p = to_double(f), to_double(budget), None if p is None else to_double(p)
    size = largest(f)
    # Rescale huge and tiny losses, whose intermediate results would overflow or underflow.
    unit = 2.0**100 if size > 1e280 else 2.0**-600 if 0 < size < 1e-200 else 1.0
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
        # eta must not underflow: eta = 0 means that the budget does not bind.
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
    """Solve for a smooth divergence: find the price whose worst case uses the whole budget."""
    xp = array_namespace(f)
    c = centred(d)
    eta, cost = multiplier(f, budget, p, c)
    binds = (eta > 0) & (eta < xp.inf)
    # The centred phi gives a more accurate certificate: its mu has no term eta slope1.
    value, mu, weights, gap = solve(f, xp.where(binds, eta, xp.ones_like(eta)), p, c)
    unspent = eta * (budget - cost)
    usual = binds & (2 * cost > budget) & (cost <= budget * _SLACK)
    if not is_abstract(usual) and xp.all(usual):
        mu = mu - eta * d.slope1 if d.slope1 else mu
        return value + eta * budget, mu, weights, gap + unspent, eta
    distribution = xp.full_like(f, 1 / f.shape[-1]) if p is None else p
    top, g = shifted(f, distribution)
    zero = xp.zeros_like(top)
    # Where the weights underflow, the largest loss (0 after the shift) is a better upper bound.
    expected = total(weights * g)
    bound = xp.minimum(expected + gap + unspent, zero)
    # Weights over budget are mixed with the reference distribution: as phi is convex, this meets the budget.
    share = xp.where(binds & (cost > budget * _SLACK), budget / cost, xp.ones_like(cost))[..., None]
    weights = xp.where(share < 1, distribution + share * (weights - distribution), weights)
    expected = total(weights * g)
    # The weights at a zero budget are `distribution`; where the budget does not bind, they are `at_top`.
    at_top = xp.where(g == 0, distribution, xp.zeros_like(distribution))
    at_top = at_top / total(at_top, keepdims=True)
    mean, idle = total(distribution * g), eta == 0
    bound = xp.where(binds, bound, xp.where(idle, zero, mean))
    gap = xp.where(binds, bound - expected, zero)
    mu = xp.where(binds, mu, top + xp.where(idle, zero, mean))
    mu = mu - eta * d.slope1 if d.slope1 else mu
    weights = xp.where(binds[..., None], weights, xp.where(idle[..., None], at_top, distribution))
    return top + bound, mu, weights, gap, eta


def _solve_kinked(f: Array, budget: Array, p: Array | None, d: Divergence) -> Solution:
    """Solve for the absolute value and the hinge, which move mass from the smallest losses to the largest."""
    xp = array_namespace(f)
    distribution = xp.full_like(f, 1 / f.shape[-1]) if p is None else p
    top, g = shifted(f, distribution)
    mass_per_cost = 1 / (1 - d.slope0)  # the mass that a divergence of 1 moves
    moved = mass_per_cost * budget
    level = smallest_remaining(g, distribution, moved)[..., None]
    zero = xp.zeros_like(g)
    below = total(xp.where(g < level, distribution, zero), keepdims=True)
    tied = total(xp.where(g == level, distribution, zero), keepdims=True)
    at_top = xp.where(g == 0, distribution, zero)
    mass_at_top = total(at_top, keepdims=True)
    taken = xp.clip((moved[..., None] - below) / tied, 0.0, 1.0)
    lost = xp.where(g < level, distribution, xp.where((g == level) & (g < 0), distribution * taken, zero))
    gained = total(lost, keepdims=True)
    weights = (distribution - lost) + at_top * (gained / mass_at_top)
    eta = mass_per_cost * xp.abs(level[..., 0])
    idle = eta == 0
    # As in `solve`, round mu up: a smaller mu would put the largest loss outside the domain of phi*.
    mu = add_up(top, -eta * (1 - tolerance(f)))
    bound = dual_shifted(f, top, mu, xp.where(idle, xp.ones_like(eta), eta), distribution, d) + eta * budget
    bound = xp.where(idle, zero[..., 0], bound)
    return top + bound, mu, weights, bound - total(weights * g), eta


def smallest_remaining(g: Array, p: Array, moved: Array) -> Array:
    """The smallest loss that keeps mass after the mass `moved` (...) is taken from the smallest losses."""
    xp = array_namespace(g)
    order = xp.argsort(g, axis=-1, stable=True)
    ranked = xp.take_along_axis(g, order, axis=-1)
    mass = xp.cumulative_sum(xp.take_along_axis(p, order, axis=-1), axis=-1)
    remains = mass > (moved * (1 + tolerance(g)))[..., None]
    return xp.min(xp.where(remains, ranked, xp.zeros_like(g)), axis=-1)


def _solve_by_search(f: Array, budget: Array, p: Array | None, d: Divergence) -> Solution:
    """Solve for a divergence without a family, by a search over prices."""
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
    if 0 < d.curvature1 < inf:  # at budget 0 only the reference is feasible, and no finite price gives it
        no_budget = budget == 0
        mean = top + total((uniform if p is None else p) * g)
        value, gap = xp.where(no_budget, mean, value), xp.where(no_budget, xp.zeros_like(gap), gap)
        eta = xp.where(no_budget, xp.full_like(eta, inf), eta)
        mu = xp.where(no_budget, mean, mu)
    mu = mu - eta * d.slope1 if d.slope1 else mu
    return value, mu, weights, gap, xp.where(idle, xp.zeros_like(eta), eta)


class SharedBudget(NamedTuple):
    """The solutions of several problems, each with one budget for the mean divergence of its rows.

    - `eta` (problems,): the multiplier of the budget.
    - `upper`, `lower` (problems,): bounds on the optimal mean expected loss.
    - `weights` (problems, rows, m): distributions within the budget, whose mean expected loss is `lower`.
    - `idle` (problems,): True where the budget does not bind.
    """

    eta: Array
    upper: Array
    lower: Array
    weights: Array
    idle: Array


class _PricePoint(NamedTuple):
    """The worst cases at the prices eta (problems,), for one end of the bracket.

    `gain`, `cost`: the mean expected loss and divergence; `slope`: the derivative of `cost` in log eta.
    """

    eta: Array
    gain: Array
    cost: Array
    slope: Array
    weights: Array


def solve_shared_budget(f: Array, budget: Array, p: Array | None, c: Divergence) -> SharedBudget:
    """Maximise the mean expected loss over the rows of f (problems, rows, m); c is centred.

    The mean divergence over the rows of a problem is at most its budget (problems,). The search keeps two
    prices: the worst case at `far` exceeds the budget, and the one at `near` meets it. A mixture of the two
    uses the whole budget, and its expected loss is the lower bound. This is also the height at which the
    tangents of the function eta -> eta budget + R_eta at the two prices intersect. The next price comes from
    Newton's method in log eta, from this intersection, or from bisection.
    """
    xp = array_namespace(f)
    distribution = xp.full_like(f, 1 / f.shape[-1]) if p is None else p
    top = xp.max(xp.where(distribution > 0, f, xp.full_like(f, -inf)), axis=(1, 2))
    bottom = xp.min(xp.where(distribution > 0, f, xp.full_like(f, inf)), axis=(1, 2))
    eps = float(xp.finfo(f.dtype).eps)
    with ignore_float_warnings():
        spread = xp.where(top > bottom, top - bottom, xp.ones_like(top))
        target = tolerance(f) * (spread + xp.where(top > -bottom, xp.abs(top), xp.abs(bottom)))
        far = _solve_at(f, spread * (eps / (1 + budget)), p, distribution, c)
        near = _solve_at(f, spread / eps, p, distribution, c)
        idle = far.cost <= budget
        eta, upper = _smaller(far.eta, far.gain + far.eta * (budget - far.cost), near, budget)
        # If both ends exceed the budget, the reference distribution replaces `near`: its divergence is 0.
        zero, mean = xp.zeros_like(eta), xp.mean(xp.sum(distribution * f, axis=-1), axis=-1)
        reference = _PricePoint(near.eta, mean, zero, zero, distribution)
        exceeds = near.cost > budget
        far, near = _choose(exceeds, near, far), _choose(exceeds, reference, near)

        def step(
            eta: Array, upper: Array, far: _PricePoint, near: _PricePoint, n: Array, steps_left: Array
        ) -> tuple[tuple[Any, ...], Array]:
            """Try one more price in each problem, and narrow the bracket from `far` to `near`."""
            share = _share(far, near, budget)
            lower = near.gain + share * (far.gain - near.gain)
            miss = xp.minimum(xp.abs(far.cost - budget), xp.abs(near.cost - budget))
            ended = (near.eta <= far.eta * (1 + 4 * eps)) | (miss <= 4 * eps * budget) | idle
            exact = xp.all(ended | (upper - lower <= target))
            steps_left = xp.where(exact, steps_left - 1, xp.full_like(steps_left, _EXTRA_STEPS))
            jump = far.cost - near.cost
            intersection = (far.gain - near.gain) / xp.where(jump > 0, jump, xp.ones_like(jump))
            halfway = xp.sqrt(far.eta) * xp.sqrt(near.eta)
            best = _choose(xp.abs(far.cost - budget) < xp.abs(near.cost - budget), far, near)
            newton = best.eta * xp.exp(xp.log(budget / best.cost) * best.cost / best.slope)
            new = _inside(newton, far, near, _inside(intersection, far, near, halfway))
            new = xp.where((n % 3 == 2) & (steps_left == _EXTRA_STEPS), halfway, new)
            tried = _solve_at(f, xp.where(ended, eta, new), p, distribution, c)
            eta, upper = _smaller(eta, upper, tried, budget)
            far = _choose(~ended & (tried.cost > budget), tried, far)
            near = _choose(~ended & (tried.cost <= budget), tried, near)
            return (eta, upper, far, near, n + 1, steps_left), ended | (steps_left == 0)

        n = xp.zeros((), dtype=xp.int64, device=device(f))
        start = (eta, upper, far, near, n, xp.full_like(n, _EXTRA_STEPS))
        eta, upper, far, near, *_ = iterate(step, start, _MAX_STEPS)
        share = _share(far, near, budget)
        lower = near.gain + share * (far.gain - near.gain)
        # An end whose cost equals the budget has a more accurate price and weights than the mixture.
        weights = near.weights + share[:, None, None] * (far.weights - near.weights)
        miss = _ROOT_TOL * budget
        for end in (far, near):
            closer = xp.abs(end.cost - budget) <= miss
            eta, miss = xp.where(closer, end.eta, eta), xp.where(closer, xp.abs(end.cost - budget), miss)
            exact = closer & (miss <= 16 * eps * budget)
            lower = xp.where(exact, end.gain, lower)
            weights = xp.where(exact[:, None, None], end.weights, weights)
    return SharedBudget(eta, upper, lower, weights, idle)


def _solve_at(f: Array, eta: Array, p: Array | None, distribution: Array, c: Divergence) -> _PricePoint:
    """Solve all problems at their prices eta (problems,)."""
    xp = array_namespace(f)
    rows = xp.broadcast_to(eta[:, None], f.shape[:-1])
    _, mu, weights, _ = solve(f, rows, p, c)
    charged, zero = distribution > 0, xp.zeros_like(f)
    ratio = xp.where(
        charged, weights / xp.where(charged, distribution, xp.ones_like(distribution)), xp.ones_like(f)
    )
    cost = xp.sum(xp.where(charged, distribution * _phi(ratio, c), zero), axis=-1)
    s = (f - mu[..., None]) / rows[..., None]
    curvature = xp.where(charged & (weights > 0), distribution * c.d2conj(s), zero)
    whole = xp.sum(curvature, axis=-1, keepdims=True)
    mean = xp.sum(curvature * s, axis=-1, keepdims=True) / xp.where(whole > 0, whole, xp.ones_like(whole))
    slope = -xp.sum(xp.where(curvature > 0, curvature * (s - mean) ** 2, zero), axis=-1)
    gain = xp.sum(weights * f, axis=-1)
    gain, cost, slope = (xp.mean(x, axis=-1) for x in (gain, cost, slope))
    return _PricePoint(eta, gain, cost, slope, weights)


def _phi(ratio: Array, c: Divergence) -> Array:
    """phi of `ratio`, finite for ratios that only rounding moved out of the domain."""
    xp = array_namespace(ratio)
    phi, tol = c.phi(ratio), tolerance(ratio)
    if not is_abstract(phi) and xp.all(phi < inf):
        return phi
    return xp.minimum(phi, xp.minimum(c.phi(ratio * (1 - tol)), c.phi(ratio * (1 + tol))))


def _smaller(eta: Array, upper: Array, point: _PricePoint, budget: Array) -> tuple[Array, Array]:
    """(eta, upper): the smaller of the bound `upper` at the price `eta` and the bound at `point`."""
    xp = array_namespace(eta)
    new = point.gain + point.eta * (budget - point.cost)
    return xp.where(new < upper, point.eta, eta), xp.where(new < upper, new, upper)


def _choose(mask: Array, a: _PricePoint, b: _PricePoint) -> _PricePoint:
    """`a` for the problems in the mask, `b` for the others."""
    xp = array_namespace(a.eta)
    return _PricePoint(
        *(xp.where(xp.reshape(mask, (-1,) + (1,) * (x.ndim - 1)), x, y) for x, y in zip(a, b, strict=True))
    )


def _inside(new: Array, far: _PricePoint, near: _PricePoint, otherwise: Array) -> Array:
    """`new` where it lies inside the bracket, `otherwise` elsewhere."""
    return array_namespace(new).where((new > far.eta) & (new < near.eta), new, otherwise)


def _share(far: _PricePoint, near: _PricePoint, budget: Array) -> Array:
    """The share of `far` in the mixture with `near` that uses the whole budget; 1 if `far` meets it."""
    xp = array_namespace(far.eta)
    jump = far.cost - near.cost
    share = (budget - near.cost) / xp.where(jump > 0, jump, xp.ones_like(jump))
    return xp.where(jump > 0, xp.clip(share, 0.0, 1.0), xp.ones_like(share))

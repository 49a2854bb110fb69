"""The worst distribution within a budget for the divergence: the inner problem with a radius for a price.

V(f) = max over gamma in the simplex of  sum gamma_i f_i   with  sum p_i phi(gamma_i/p_i) <= radius
     = min over eta >= 0 of  eta radius + R_eta(f),   R_eta(f) the value of worst_case at the price eta
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import ClassVar

from phiball.backends import (
    Array,
    array_namespace,
    detach,
    differentiable_solve,
    ignore_float_warnings,
    kernel_memory,
    tracks_derivatives,
)
from phiball.refimpl.inner.budget import spend
from phiball.refimpl.inner.constrained_derivatives import SolvedConstrained
from phiball.refimpl.inner.derivatives import Triple
from phiball.refimpl.inner.divergences import Divergence, centred, valid_divergence
from phiball.refimpl.inner.half import halved, is_half, single
from phiball.refimpl.inner.multiplier import FAMILIES, multiplier
from phiball.refimpl.inner.solvers import dual_shifted, shifted, solve
from phiball.refimpl.inner.worst_case import check_value
from phiball.refimpl.numerics import add_up, cast_up, largest, to_double, tolerance, total
from phiball.refimpl.printing import one_line
from phiball.refimpl.validation import (
    check_p,
    check_radius,
    valid_finite,
    valid_losses,
    valid_p,
    valid_radius,
)

Solution = tuple[Array, Array, Array, Array, Array]
_MET = 1 + 1e-12  # times the radius: a divergence up to that has met it


@dataclass(frozen=True)
class ConstrainedWorstCase:
    """The worst case within a radius, batched over leading axes.

    - `value` (...): the optimal value V(f), from above.
    - `eta` (...): the multiplier of the radius, which is the derivative of the value in it. It is 0 where the
      radius does not bind, and infinite at radius 0 if phi is smooth at 1.
    - `mu` (...): the multiplier of the constraint sum gamma = 1, as in `WorstCase` at the price `eta`.
    - `weights` (..., m): gamma, the worst-case probabilities, within the radius up to rounding.
    - `gap` (...): the dual value at `eta` minus the expected loss of `weights`. By weak duality V(f) lies
      between the two. The gap is of the size of rounding in the dtype of the losses.
    """

    value: Array
    eta: Array
    mu: Array
    weights: Array
    gap: Array
    __repr__ = one_line


def constrained_worst_case(
    losses: Array, budget: float | Array, divergence: Divergence, *, p: Array | None = None
) -> ConstrainedWorstCase:
    r"""Find the worst distribution within a divergence budget of the reference, and its expected loss.

    $$V(f) = \max_{\gamma \in \Delta_m} \sum_i \gamma_i f_i \quad \text{subject to} \quad
    \sum_i p_i \phi(\gamma_i / p_i) \le r$$

    Arguments:
    - `losses`, `divergence`, `p`: as in `worst_case`.
    - `budget`: r, a number that is not negative, or an array that broadcasts to losses.shape[:-1].

    Returns `value` (...), `eta` (...), `mu` (...), `weights` (..., m) and `gap` (...). The gap certifies the
    solution: the weights have an expected loss of value minus gap, and no weights within the budget have more
    than the value. By duality V is the minimum over eta of eta r + R_eta, with R_eta the value of
    `worst_case`. refimpl/INNER.md covers budgets of zero, budgets that do not bind, and rounding.

    >>> import numpy as np
    >>> from phiball.refimpl import QUADRATIC
    >>> from phiball.inner import constrained_worst_case
    >>> solution = constrained_worst_case(np.array([0.0, 1.0, 2.0]), 0.1, QUADRATIC)
    >>> print(f"{solution.value:.4f}", np.round(solution.weights, 4))  # mean + sqrt(2 r Var f)
    1.3651 [0.1508 0.3333 0.5159]
    >>> bool(abs(solution.gap) < 1e-15)
    True
    """
    if is_half(losses):
        solution = constrained_worst_case(single(losses), single(budget), divergence, p=single(p))
        return halved(solution, losses.dtype)
    if tracks_derivatives(losses, budget, p):
        return ConstrainedWorstCase(*differentiable_solve(_Rule, (divergence,), losses, budget, p))
    return ConstrainedWorstCase(*_solve(losses, budget, divergence, p))


def _solve(losses: Array, radius: float | Array, divergence: Divergence, p: Array | None) -> Solution:
    valid_divergence(divergence)
    arrays: tuple[Array, ...] = detach(losses), detach(radius), detach(p)
    back: Callable[[Array], Array] = _same
    if divergence.family is not None:  # else its functions expect the library of the losses
        arrays, back = kernel_memory(*arrays)
    f, radius, p = arrays
    valid_losses(f)
    radius, p = valid_radius(radius, f), valid_p(p, f)
    if p is not None:
        valid_finite("losses", f)  # also where p is zero
    value, eta, mu, weights, gap = solve_constrained(f, radius, p, divergence)
    check_value(value, f, divergence, "radius")
    check_value(gap, f, divergence, "radius", "a gap")
    xp = array_namespace(f)
    check_value(xp.where(radius > 0, eta, xp.zeros_like(eta)), f, divergence, "radius", "a multiplier")
    return back(value), back(eta), back(mu), back(weights), back(gap)


def _same(x: Array) -> Array:
    return x


@dataclass(frozen=True)
class _Rule:
    """How a library that differentiates solves the problem, and differentiates the solution."""

    divergence: Divergence
    outputs: ClassVar[int] = 5

    def validate(self, losses: Array, radius: float | Array, p: Array | None) -> None:
        valid_divergence(self.divergence)
        valid_losses(losses)
        check_radius(radius, losses)
        if p is not None:
            check_p(p, losses)

    def solve(self, losses: Array, radius: Array, p: Array | None) -> Solution:
        return _solve(losses, radius, self.divergence, p)

    def jvp(
        self, inputs: tuple[Array, ...], outputs: tuple[Array, ...], tangents: tuple[Array, ...]
    ) -> tuple[Array, Array, Array, Array]:
        return SolvedConstrained(self.divergence, *inputs, *outputs).jvp(*tangents)

    def vjp(
        self,
        inputs: tuple[Array, ...],
        outputs: tuple[Array, ...],
        factors: tuple[Array, ...],
        wanted: list[bool],
    ) -> Triple:
        value, eta, mu, weights = factors
        return SolvedConstrained(self.divergence, *inputs, *outputs).vjp(value, eta, mu, weights, wanted)


def solve_constrained(f: Array, budget: Array, p: Array | None, d: Divergence) -> Solution:
    """The fields of `ConstrainedWorstCase`, for valid input: radius (...), and p (..., m) or None."""
    xp, dtype = array_namespace(f), f.dtype
    f, budget, p = to_double(f), to_double(budget), None if p is None else to_double(p)
    top = largest(f)
    # Something on the way would leave the range of the numbers.
    unit = 2.0**100 if top > 1e280 else 2.0**-600 if 0 < top < 1e-200 else 1.0
    f = f / unit
    with ignore_float_warnings():
        if d.family in FAMILIES:
            value, eta, mu, weights, gap = _on_the_curve(f, budget, p, d)
        elif d.family == "indicator":
            value, mu, weights, gap = solve(f, xp.ones_like(budget), p, d)
            eta = xp.zeros_like(budget)
        elif d.family in ("absolute", "hinge"):
            value, eta, mu, weights, gap = _transport(f, budget, p, d)
        else:
            value, eta, mu, weights, gap = _by_search(f, budget, p, d)
        value, eta, mu, gap = (
            (unit * v for v in (value, eta, mu, gap)) if unit != 1 else (value, eta, mu, gap)
        )
        tiny = float(xp.finfo(dtype).smallest_normal)
        eta = xp.where((eta > 0) & (eta < tiny), xp.full_like(eta, tiny), eta)  # 0 would say that it is idle
        value, eta, weights, gap = (xp.astype(v, dtype, copy=False) for v in (value, eta, weights, gap))
        return value, eta, cast_up(mu, dtype), weights, gap


def _on_the_curve(f: Array, radius: Array, p: Array | None, d: Divergence) -> Solution:
    """A smooth divergence: the worst case at the price that uses up the budget."""
    xp = array_namespace(f)
    c = centred(d)
    eta, cost = multiplier(f, radius, p, c)
    inner = (eta > 0) & (eta < xp.inf)
    some = xp.where(inner, eta, xp.ones_like(eta))
    # The certificate is that of the centred phi, for whose mu no digit goes to a large eta.
    value, mu, weights, gap = solve(f, some, p, c)
    spent = eta * (radius - cost)
    if xp.all(inner & (2 * cost > radius) & (cost <= radius * _MET)):
        mu = mu - eta * d.slope1 if d.slope1 else mu
        return value + eta * radius, eta, mu, weights, gap + spent
    distribution = xp.full_like(f, 1 / f.shape[-1]) if p is None else p
    top, g = shifted(f, distribution)
    zero = xp.zeros_like(top)
    # Where the dtype has no weights that are small enough, the largest loss is a better bound.
    gain = total(weights * g)
    bound = xp.minimum(gain + gap + spent, zero)
    # Weights that cost too much are mixed with the reference distribution: within the budget, as phi is convex.
    share = xp.where(inner & (cost > radius * _MET), radius / cost, xp.ones_like(cost))[..., None]
    weights = xp.where(share < 1, distribution + share * (weights - distribution), weights)
    gain = total(weights * g)
    # Without a budget the reference distribution is left, and with one that does not bind that on the largest losses.
    at_top = xp.where(g == 0, distribution, xp.zeros_like(distribution))
    at_top = at_top / total(at_top, keepdims=True)
    mean, idle = total(distribution * g), eta == 0
    bound = xp.where(inner, bound, xp.where(idle, zero, mean))
    gap = xp.where(inner, bound - gain, zero)
    mu = xp.where(inner, mu, top + xp.where(idle, zero, mean))
    mu = mu - eta * d.slope1 if d.slope1 else mu
    weights = xp.where(inner[..., None], weights, xp.where(idle[..., None], at_top, distribution))
    return top + bound, eta, mu, weights, gap


def _transport(f: Array, radius: Array, p: Array | None, d: Divergence) -> Solution:
    """The absolute value and the hinge: mass moves from the smallest losses to the largest."""
    xp = array_namespace(f)
    distribution = xp.full_like(f, 1 / f.shape[-1]) if p is None else p
    top, g = shifted(f, distribution)
    unit = 1 / (1 - d.slope0)  # the mass that a unit of divergence moves
    moved = unit * radius
    level = lowest_kept(g, distribution, moved)[..., None]
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
    # As in `solve`: with mu rounded down, the largest loss would lie beyond the domain of phi*.
    mu = add_up(top, -eta * (1 - tolerance(f)))
    bound = dual_shifted(f, top, mu, xp.where(idle, xp.ones_like(eta), eta), distribution, d) + eta * radius
    bound = xp.where(idle, zero[..., 0], bound)
    return top + bound, eta, mu, weights, bound - total(weights * g)


def lowest_kept(g: Array, p: Array, moved: Array) -> Array:
    """The smallest loss that keeps some mass when the mass `moved` is taken from the smallest ones."""
    xp = array_namespace(g)
    order = xp.argsort(g, axis=-1, stable=True)
    ranked = xp.take_along_axis(g, order, axis=-1)
    mass = xp.cumulative_sum(xp.take_along_axis(p, order, axis=-1), axis=-1)
    kept = mass > (moved * (1 + tolerance(g)))[..., None]
    return xp.min(xp.where(kept, ranked, xp.zeros_like(g)), axis=-1)


def _by_search(f: Array, radius: Array, p: Array | None, d: Divergence) -> Solution:
    """A divergence known by its functions: by solutions at many prices."""
    xp = array_namespace(f)
    m = f.shape[-1]
    uniform = xp.full_like(f, 1 / m)
    top, g = shifted(f, uniform if p is None else p)
    distribution = None if p is None else xp.reshape(p, (-1, 1, m))
    found = spend(xp.reshape(g, (-1, 1, m)), xp.reshape(radius, (-1,)), distribution, centred(d))
    eta, upper, lower, idle = (
        xp.reshape(x, radius.shape) for x in (found.eta, found.upper, found.lower, found.idle)
    )
    _, mu, _, gap = solve(f, eta, p, centred(d))
    upper = xp.minimum(upper, xp.zeros_like(upper))
    value, gap = top + upper, gap + (upper - lower)
    weights = xp.reshape(found.weights, f.shape)
    if 0 < d.curvature1 < inf:  # then no other distribution costs nothing, and no price reaches it
        none = radius == 0
        mean = top + total((uniform if p is None else p) * g)
        value, gap = xp.where(none, mean, value), xp.where(none, xp.zeros_like(gap), gap)
        eta = xp.where(none, xp.full_like(eta, inf), eta)
        mu = xp.where(none, mean, mu)
    mu = mu - eta * d.slope1 if d.slope1 else mu
    return value, xp.where(idle, xp.zeros_like(eta), eta), mu, weights, gap

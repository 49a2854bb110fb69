"""The price at which worst cases use up a common budget, for any divergence, by solving for many prices."""

from __future__ import annotations

from math import inf
from typing import NamedTuple

from phiball.backends import Array, array_namespace, ignore_float_warnings
from phiball.refimpl.inner.divergences import Divergence
from phiball.refimpl.inner.solvers import solve
from phiball.refimpl.numerics import tolerance

_STEPS = 300  # far above the 30 or so that are needed; bounds the loop on NaN
_POLISH = 8  # steps for eta after the value is exact, which is flat in eta
_CLOSE = 1e-6  # a cost this close to the radius, relatively, is that of the root and not of a jump beside it


class Budgeted(NamedTuple):
    """The optimum of each problem under a budget for the mean divergence of its rows.

    - `eta` (problems,): the multiplier; `upper` and `lower` bound the mean expected loss.
    - `weights` (problems, rows, m): a distribution within the budget, whose expected loss is `lower`.
    - `idle` (problems,): whether the budget does not bind.
    """

    eta: Array
    upper: Array
    lower: Array
    weights: Array
    idle: Array


class _Side(NamedTuple):
    """The worst cases at a price: their mean expected loss and divergence, its slope in log eta, weights."""

    eta: Array
    gain: Array
    cost: Array
    slope: Array
    weights: Array


def spend(f: Array, radius: Array, p: Array | None, c: Divergence) -> Budgeted:
    """Maximise the mean expected loss under a budget, with f of shape (problems, rows, m), for a centred phi.

    The optimum lies between a price whose worst case is too far and one whose worst case is near enough.
    Their mixture that just meets the budget bounds the value from below. That bound is where the tangents of
    the convex function eta radius + R_eta at the two meet, which is exact where the function is piecewise
    linear. Newton's method in log eta, that crossing, and halving between the two give the next price.
    """
    xp = array_namespace(f)
    distribution = xp.full_like(f, 1 / f.shape[-1]) if p is None else p
    top = xp.max(xp.where(distribution > 0, f, xp.full_like(f, -inf)), axis=(1, 2))
    bottom = xp.min(xp.where(distribution > 0, f, xp.full_like(f, inf)), axis=(1, 2))
    eps = float(xp.finfo(f.dtype).eps)
    with ignore_float_warnings():
        spread = xp.where(top > bottom, top - bottom, xp.ones_like(top))
        target = tolerance(f) * (spread + xp.where(top > -bottom, xp.abs(top), xp.abs(bottom)))
        far = _at(f, spread * (eps / (1 + radius)), p, distribution, c)
        near = _at(f, spread / eps, p, distribution, c)
        idle = far.cost <= radius
        eta, upper = _smaller(far.eta, far.gain + far.eta * (radius - far.cost), near, radius)
        # A budget too small for both: only the reference distribution is sure to meet it.
        zero, mean = xp.zeros_like(eta), xp.mean(xp.sum(distribution * f, axis=-1), axis=-1)
        reference = _Side(near.eta, mean, zero, zero, distribution)
        short = near.cost > radius
        far, near = _choose(short, near, far), _choose(short, reference, near)
        rest = _POLISH
        for step in range(_STEPS):
            share = _share(far, near, radius)
            lower = near.gain + share * (far.gain - near.gain)
            miss = xp.minimum(xp.abs(far.cost - radius), xp.abs(near.cost - radius))
            ended = (near.eta <= far.eta * (1 + 4 * eps)) | (miss <= 4 * eps * radius) | idle
            rest = rest - 1 if xp.all(ended | (upper - lower <= target)) else _POLISH
            if rest == 0 or xp.all(ended):
                break
            jump = far.cost - near.cost
            crossing = (far.gain - near.gain) / xp.where(jump > 0, jump, xp.ones_like(jump))
            halfway = xp.sqrt(far.eta) * xp.sqrt(near.eta)
            best = _choose(xp.abs(far.cost - radius) < xp.abs(near.cost - radius), far, near)
            newton = best.eta * xp.exp(xp.log(radius / best.cost) * best.cost / best.slope)
            new = _inside(newton, far, near, _inside(crossing, far, near, halfway))
            new = halfway if step % 3 == 2 and rest == _POLISH else new
            tried = _at(f, xp.where(ended, eta, new), p, distribution, c)
            eta, upper = _smaller(eta, upper, tried, radius)
            far = _choose(~ended & (tried.cost > radius), tried, far)
            near = _choose(~ended & (tried.cost <= radius), tried, near)
        # Where one of the two is the root, it is a better multiplier than the flat bottom of the value shows,
        # and its weights are what belongs to that.
        weights = near.weights + share[:, None, None] * (far.weights - near.weights)
        miss = _CLOSE * radius
        for side in (far, near):
            closer = xp.abs(side.cost - radius) <= miss
            eta, miss = xp.where(closer, side.eta, eta), xp.where(closer, xp.abs(side.cost - radius), miss)
            exact = closer & (miss <= 16 * eps * radius)
            lower = xp.where(exact, side.gain, lower)
            weights = xp.where(exact[:, None, None], side.weights, weights)
    return Budgeted(eta, upper, lower, weights, idle)


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
    """phi, where a ratio at the end of its domain may have fallen outside by rounding."""
    xp = array_namespace(ratio)
    phi, tol = c.phi(ratio), tolerance(ratio)
    if xp.all(phi < inf):
        return phi
    return xp.minimum(phi, xp.minimum(c.phi(ratio * (1 - tol)), c.phi(ratio * (1 + tol))))


def _smaller(eta: Array, upper: Array, side: _Side, radius: Array) -> tuple[Array, Array]:
    xp = array_namespace(eta)
    new = side.gain + side.eta * (radius - side.cost)
    return xp.where(new < upper, side.eta, eta), xp.where(new < upper, new, upper)


def _choose(where: Array, a: _Side, b: _Side) -> _Side:
    xp = array_namespace(a.eta)
    return _Side(
        *(xp.where(xp.reshape(where, (-1,) + (1,) * (x.ndim - 1)), x, y) for x, y in zip(a, b, strict=True))
    )


def _inside(new: Array, far: _Side, near: _Side, otherwise: Array) -> Array:
    return array_namespace(new).where((new > far.eta) & (new < near.eta), new, otherwise)


def _share(far: _Side, near: _Side, radius: Array) -> Array:
    """How much of `far` the mixture with `near` holds: all if it is near enough itself."""
    xp = array_namespace(far.eta)
    jump = far.cost - near.cost
    share = (radius - near.cost) / xp.where(jump > 0, jump, xp.ones_like(jump))
    return xp.where(jump > 0, xp.clip(share, 0.0, 1.0), xp.ones_like(share))

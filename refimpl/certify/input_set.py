"""The points that an adversary may choose, and the smallest values of linear functions on them."""

from __future__ import annotations

from copy import copy
from math import inf, prod

from phiball.backends import Array, array_namespace
from phiball.refimpl.distributions.balls import Ball
from phiball.refimpl.distributions.norms import dual, length
from phiball.refimpl.numerics import to_double

HALVINGS = 50  # of the interval of the multiplier


class InputSet:
    """All points of a ball around each x (N,) + event that are in the box `clip`, in double precision.

    The radius is increased by the rounding of points in the dtype of x, so that the set contains every point
    of the box that `Ball.contains` accepts.
    """

    def __init__(self, x: Array, ball: Ball) -> None:
        ball.check_centres(x)
        xp = array_namespace(x)
        eps, event_ndim = float(xp.finfo(x.dtype).eps), x.ndim - 1
        d = prod(x.shape[1:])
        wide = to_double(x)
        self.ball = ball
        self.x = xp.reshape(wide, (-1, d))
        scale = xp.ones_like(self.x[:1, :])
        if ball.feature_scale is not None:
            scale = xp.reshape(ball.feature_scale.like(wide, event_ndim), (-1, d))
        self.scale = scale
        free = xp.where(scale > 0, scale, xp.ones_like(scale))
        rounding = xp.where(scale > 0, 2 * (xp.abs(self.x) + ball.radius * scale) / free, 0 * scale)
        slack = length(rounding, ball.norm) + ball.radius * (8 + d**0.5)
        self.radius = (ball.radius + 2 * eps * slack)[:, None]
        self.low, self.high = self.x - self.radius * scale, self.x + self.radius * scale
        if ball.clip is not None:
            self.low, self.high = (xp.clip(end, *ball.clip) for end in (self.low, self.high))

    def crop(self, box: tuple[slice, ...], shape: tuple[int, ...]) -> InputSet:
        """The same set for a box of the coordinates, of inputs of the given shape."""
        part = copy(self)
        for name in ("x", "scale", "low", "high"):
            a = getattr(self, name)
            xp = array_namespace(a)
            part_of_a = xp.reshape(a, (a.shape[0], *shape))[(..., *box)]
            setattr(part, name, xp.reshape(part_of_a, (a.shape[0], -1)))
        return part

    def minimum(self, rows: Array, index: Array | None = None, *, exact: bool = False) -> Array:
        """A lower bound on the smallest rows.z over the set, for each row and point.

        Arguments:
        - `rows` (n, k, d): coefficients for each of n points, or for all points if n = 1.
        - `index` (n,): the points; all by default.
        - `exact`: False ignores that the ball and the box must hold for the same z. The bound is then the
          larger of two; it is exact for norm inf, and without a box.

        Returns shape (N or n, k).
        """
        xp = array_namespace(rows)

        def take(a: Array) -> Array:
            return a if index is None or a.shape[0] == 1 else xp.take(a, index, axis=0)

        p = self.ball.norm
        up, down = xp.clip(rows, min=0.0), xp.clip(rows, max=0.0)
        bound = products(up, take(self.low)) + products(down, take(self.high))
        if p < inf:
            centre, radius, scale = take(self.x), take(self.radius), take(self.scale)[:, None, :]
            at_centre = products(rows, centre)
            reached = radius * length(rows * scale, dual(p))
            bound = xp.maximum(bound, at_centre - reached)
            if exact and self.ball.clip is not None:
                free = xp.where(scale > 0, scale, xp.ones_like(scale))
                room = [xp.abs(end - self.x)[:, None, :] / free for end in (self.low, self.high)]
                limit = xp.where(rows > 0, take(room[0]), take(room[1]))
                bound = xp.maximum(bound, at_centre - _largest(xp.abs(rows) * scale, limit, radius, p))
        return bound


def products(rows: Array, v: Array) -> Array:
    """rows.v for rows (n or 1, k, d) and v (n, d), as an array (n, k)."""
    return v @ rows[0, ...].T if rows.shape[0] == 1 else (rows @ v[..., None])[..., 0]


def _largest(c: Array, limit: Array, radius: Array, p: float) -> Array:
    """An upper bound on the largest c.t over 0 <= t <= limit with |t|_p <= radius, sharp up to rounding.

    For every nu > 0, nu radius^p/p + max over t <= limit of (c.t - nu |t|_p^p/p) is such a bound. Bisection
    finds the nu for which the maximizer t has norm `radius`.
    """
    xp = array_namespace(c)

    def maximizer(nu: Array) -> Array:
        if p == 1:
            return xp.where(c > nu, limit, xp.zeros_like(c))
        return xp.minimum((c / nu) ** (1 / (p - 1)), limit)

    safe = xp.where(radius > 0, radius, xp.ones_like(radius))
    top = length(c, dual(p)) / safe ** (p - 1)
    high = xp.where(top > 0, top, xp.ones_like(top))[..., None]
    low = xp.zeros_like(high)
    for _ in range(HALVINGS):
        nu = (low + high) / 2
        outside = length(maximizer(nu), p)[..., None] > radius[..., None]
        low, high = xp.where(outside, nu, low), xp.where(outside, high, nu)
    t = maximizer(high)
    gain = xp.sum(c * t - high * t**p / p, axis=-1)
    return gain + high[..., 0] * radius**p / p

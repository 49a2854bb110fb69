"""Norms, projections, linear maximizers and moments of balls."""

from __future__ import annotations

from math import inf, isnan, prod
from typing import Any

from phiball.backends import Array, array_namespace, detach, device, ignore_float_warnings, is_half, to_single
from phiball.refimpl.distributions.feature_scale import FeatureScale
from phiball.refimpl.distributions.moments import coordinate_variance, log_mgf, log_volume
from phiball.refimpl.distributions.norms import (
    check_overflow,
    check_pair,
    dual,
    flat,
    length,
    soft_threshold,
    split,
)
from phiball.refimpl.distributions.tilting import TILTABLE
from phiball.refimpl.numerics import largest
from phiball.refimpl.validation import all_finite, check_finite, valid_count


class Geometry:
    """The methods of `Ball` that do not sample; `Ball` documents the attributes."""

    norm: float
    radius: float
    clip: tuple[float, float] | None
    feature_scale: FeatureScale | None

    @property
    def reach(self) -> float:
        """The largest change of a coordinate within the ball: the radius times the largest scale."""
        return self.radius * (1.0 if self.feature_scale is None else self.feature_scale.largest)

    def dimension(self, shape: tuple[int, ...], *, event_ndim: int) -> int:
        """The number of free coordinates of each point in an array of this shape; raise if it varies."""
        if self.feature_scale is None:
            return prod(shape[len(shape) - event_ndim :])
        counts = {int(m) for m in self.feature_scale.moving(tuple(shape), event_ndim)}
        if len(counts) > 1:
            raise ValueError(
                f"ball is {self!r}; expected the same number of free coordinates at every data point"
            )
        return counts.pop()

    def length(self, v: Array, *, event_ndim: int = 1) -> Array:
        """The norm of each v/feature_scale; inf where v is nonzero at a fixed coordinate.

        Arguments:
        - `v`, batch + event. Returns shape batch.

        >>> import numpy as np
        >>> from phiball import Ball
        >>> float(Ball(1, 0.5).length(np.asarray([3.0, -4.0])))
        7.0
        """
        split(v, event_ndim, "v")
        xp = array_namespace(v)
        with ignore_float_warnings():  # overflow gives inf
            if self.feature_scale is None:
                return length(flat(v, event_ndim, "v"), self.norm)
            ratio, moves_fixed = self.feature_scale.divide(v, event_ndim)
            size = length(flat(ratio, event_ndim, "v"), self.norm)
        return xp.where(moves_fixed, xp.full_like(size, inf), size)

    def dual_norm(self, g: Array, *, event_ndim: int = 1) -> Array:
        """The dual norm of each g, with exponent norm/(norm - 1): the largest g.b over the unit ball.

        Arguments:
        - `g`, batch + event. Returns shape batch.

        >>> import numpy as np
        >>> from phiball import Ball
        >>> float(Ball(np.inf, 0.5).dual_norm(np.asarray([3.0, -4.0])))
        7.0
        """
        with ignore_float_warnings():  # overflow gives inf
            return length(flat(self._scaled(g, event_ndim), event_ndim, "g"), dual(self.norm))

    def _scaled(self, g: Array, event_ndim: int) -> Array:
        """feature_scale times g."""
        split(g, event_ndim, "g")
        return g if self.feature_scale is None else g * self.feature_scale.like(g, event_ndim)

    def contains(self, points: Array, x: Array, *, event_ndim: int = 1) -> Array:
        """Whether each point lies in the ball around x, up to rounding.

        Arguments:
        - `points`, `x`, batch + event: points and centres; their batches broadcast.

        Returns booleans of shape batch.
        """
        dtype = getattr(points, "dtype", None)
        points, x = to_single(points), to_single(x)
        check_pair(points, x, event_ndim)
        xp = array_namespace(points)
        eps = float(xp.finfo(dtype).eps)
        d = prod(points.shape[points.ndim - event_ndim :])
        with ignore_float_warnings():  # a point that overflows is outside
            # `slack` allows for the rounding of `points`, of points - x and of the norm.
            size = eps * xp.abs(points) + eps * xp.abs(x)
            if self.feature_scale is not None:
                size, _ = self.feature_scale.divide(size, event_ndim)
            slack = length(flat(size, event_ndim, "points"), self.norm) + eps * self.radius * (8 + d**0.5)
            moved = self.length(points - x, event_ndim=event_ndim)
            return xp.isfinite(moved) & (moved <= self.radius + slack)

    def project(self, points: Array, x: Array, *, event_ndim: int = 1) -> Array:
        """The Euclidean projection of each point onto the ball around x.

        Arguments:
        - `points`, `x`, batch + event: points and centres; their batches broadcast.

        The norm must be 1, 2 or inf. With `feature_scale`, distances are measured in points/feature_scale,
        and fixed coordinates are set to x. With `clip`, the projected point is then clipped to the box. It
        stays in the ball, but only for norm inf is it the projection onto the intersection of ball and box.

        >>> import numpy as np
        >>> from phiball import Ball
        >>> print(Ball(1, 1.0).project(np.asarray([2.0, 1.5, -0.2]), np.zeros(3)))
        [0.75 0.25 0.  ]
        """
        if is_half(points):
            nearest = self.project(to_single(points), to_single(x), event_ndim=event_ndim)
            return array_namespace(points).astype(nearest, points.dtype)
        check_pair(points, x, event_ndim)
        xp = array_namespace(points)
        if self.feature_scale is not None:
            v, _ = self.feature_scale.divide(points - x, event_ndim)
            plain: Any = type(self)
            b = plain(self.norm, self.radius).project(v, xp.zeros_like(v), event_ndim=event_ndim)
            scales = self.feature_scale.like(b, event_ndim)
            points = xp.where((b == v) & (scales > 0), points + 0 * v, x + b * scales)
            return points if self.clip is None else xp.clip(points, *self.clip)
        with ignore_float_warnings():
            moved = points - x
            v = flat(moved, event_ndim, "points")
            size = length(v, self.norm)[..., None]
        if not all_finite(size):
            raise ValueError(
                f"points - x contains NaN or infinity, or its norm overflows {points.dtype}; expected finite "
                "points"
            )
        radius = min(self.radius, float(xp.finfo(points.dtype).max))  # a larger radius contains every point
        if self.norm == inf:
            b = xp.clip(v, -radius, radius)
        elif self.norm == 2:
            b = radius * (v / xp.where(size > 0, size, xp.ones_like(size)))
        elif self.norm == 1:
            b = soft_threshold(v, radius, xp=xp)
        else:
            raise ValueError(f"norm is {self.norm!r}; expected 1, 2 or inf for project")
        # Points inside are returned unchanged, not as x + (points - x).
        inside = xp.reshape(size <= radius, (*v.shape[:-1], *([1] * event_ndim)))
        with ignore_float_warnings():  # the branch that is not selected may overflow
            points = xp.where(inside, points + xp.zeros_like(moved), x + xp.reshape(b, moved.shape))
        return points if self.clip is None else xp.clip(points, *self.clip)

    def steepest(self, g: Array, *, event_ndim: int = 1) -> Array:
        """The point b of the ball around 0 that maximizes g.b; the maximum is radius times the dual norm.

        Arguments:
        - `g`, batch + event. Returns points of the same shape, 0 where g = 0.

        For norm 1, b has one nonzero coordinate, the first where |g_j| is largest. For norm inf, b is nonzero
        wherever g is.

        >>> import numpy as np
        >>> from phiball import Ball
        >>> print(Ball(2, 0.5).steepest(np.asarray([3.0, -4.0])))
        [ 0.3 -0.4]
        """
        with ignore_float_warnings():
            v = flat(self._scaled(g, event_ndim), event_ndim, "g")
        xp = array_namespace(g)
        check_finite("g" if self.feature_scale is None else "feature_scale times g", v)
        check_overflow("radius", self.radius, self.reach, v[..., :0])
        if self.norm == inf:
            b = xp.sign(v)
        elif self.norm == 1:
            first = xp.argmax(xp.abs(v), axis=-1, keepdims=True)
            place = xp.arange(v.shape[-1], dtype=first.dtype, device=device(v))
            b = xp.where(place == first, xp.sign(v), xp.zeros_like(v))
        else:
            top = xp.max(xp.abs(v), axis=-1, keepdims=True)
            share = xp.abs(v) / xp.where(top > 0, top, xp.ones_like(top))
            b = xp.sign(v) * share ** (dual(self.norm) - 1)
            size = length(b, self.norm)[..., None]
            b = b / xp.where(size > 0, size, xp.ones_like(size))
        return self._scaled(xp.reshape(self.radius * b, g.shape), event_ndim)

    def variance(self, g: Array, *, event_ndim: int = 1) -> Array:
        """The variance of g.b for b uniform on the ball around 0: v radius^2 |feature_scale g|_2^2.

        Arguments:
        - `g`, batch + event. Returns shape batch.

        v is the variance of one coordinate in the unit ball of d dimensions, one per free coordinate:
        2/((d+1)(d+2)) for norm 1, 1/(d+2) for norm 2, 1/3 for norm inf.

        >>> import numpy as np
        >>> from phiball import Ball
        >>> float(Ball(2, 1.0).variance(np.asarray([3.0, 4.0])))
        6.25
        """
        v = flat(self._scaled(g, event_ndim), event_ndim, "g")
        xp = array_namespace(g)
        moment: Any = coordinate_variance(self.norm, v.shape[-1])
        if self.feature_scale is not None:
            counts = self.feature_scale.moving(tuple(g.shape), event_ndim)
            moment = [coordinate_variance(self.norm, int(m)) for m in counts]
            moment = xp.asarray(moment, dtype=g.dtype, device=device(g))
            moment = moment[0] if len(counts) == 1 else xp.reshape(moment, v.shape[:-1])
        check_overflow("radius", self.radius, self.reach, v[..., :0])
        with ignore_float_warnings():  # overflow gives inf
            v = self.radius * v
            return moment * xp.sum(v * v, axis=-1)

    def log_mgf(self, s: Array, *, event_ndim: int = 1) -> Array:
        """The log of E exp(s.b) for b uniform on the ball around 0.

        Arguments:
        - `s`, batch + event. The norm must be 1, 2 or inf. Returns shape batch.

        The relative error is about 1e-13 for all s, from tiny to huge, and the result is twice
        differentiable. eta log_mgf(g/eta) is the entropic risk of the linear loss g.b.

        >>> import numpy as np
        >>> from phiball import Ball
        >>> print(round(float(Ball(np.inf, 1.0).log_mgf(np.asarray([1.0]))), 12))
        0.161439361571
        """
        if self.norm not in TILTABLE:
            raise ValueError(
                f"norm is {self.norm!r}; expected 1, 2 or inf, for which log_mgf has a closed form"
            )
        v = flat(s, event_ndim, "s")
        xp = array_namespace(s)
        top = largest(s)
        if isnan(top):
            raise ValueError("s contains NaN; expected finite numbers")
        self.check_tilt(detach(s), top, event_ndim=event_ndim)
        v = self.radius * xp.astype(v, xp.float64, copy=False)
        if self.feature_scale is None:
            return xp.astype(log_mgf(v, self.norm), s.dtype, copy=False)
        value = self.feature_scale.reduce(xp.reshape(v, s.shape), event_ndim, lambda t: log_mgf(t, self.norm))
        return xp.astype(value, s.dtype, copy=False)

    def log_volume(self, d: int) -> float:
        """The log of the volume in d dimensions.

        Arguments:
        - `d`: the dimension.

        Returns d log(2 Gamma(1 + 1/p) rho) - log Gamma(1 + d/p), with p the norm and rho the radius, plus the
        sum of the logs of `feature_scale` over the coordinates.

        >>> import math
        >>> from phiball import Ball
        >>> abs(Ball(2, 1.0).log_volume(2) - math.log(math.pi)) < 1e-15
        True
        """
        d = valid_count("d", d)
        scales = [1.0] if self.feature_scale is None else self.feature_scale.flattened
        if len(scales) not in (1, d):
            raise ValueError(
                f"d is {d}, but feature_scale has {len(scales)} entries; expected one per dimension"
            )
        return log_volume(self.norm, self.radius, d, scales * (d // len(scales)))

    def check_tilt(self, s: Array, top: float, *, event_ndim: int) -> None:
        """Raise if radius * s or its dual norm overflows; `top` is the largest |s_j|."""
        xp = array_namespace(s)
        bound = self.reach * top
        if bound * prod(s.shape[s.ndim - event_ndim :]) == inf:  # rare: compute the norms themselves
            with ignore_float_warnings():
                sizes = self.dual_norm(xp.astype(s, xp.float64, copy=False), event_ndim=event_ndim)
            bound = self.radius * largest(sizes)
        if not bound <= float(xp.finfo(s.dtype).max):
            raise ValueError(
                f"radius times s overflows {s.dtype} for entries of s up to {top:g}: reduce s (in a risk, "
                "increase eta)"
            )

"""Balls of a norm: uniform and tilted samples, projections, moments.

The reference law nu_z of the paper is uniform on the ball B_rho(z), Eq. (def:nu:z). Its volume does not
depend on z here, because the ball is taken in all of R^d. The paper takes a subset of the domain of the data,
which loses that property at the border of the domain (see `Ball.clip`).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, inf, isnan, lgamma, log, prod
from typing import Any

from phiball.backends import Array, Rng, array_namespace, detach, ignore_float_warnings
from phiball.refimpl.laws.moments import log_mgf
from phiball.refimpl.laws.norms import (
    check_overflow,
    dual,
    flat,
    largest,
    length,
    soft_threshold,
    split,
    valid_pair,
)
from phiball.refimpl.laws.tilting import TILTABLE, tilted, valid_tilt
from phiball.refimpl.laws.uniform import quasi, uniform
from phiball.refimpl.validation import all_finite, valid_count, valid_number, valid_rng


@dataclass(frozen=True)
class Ball:
    r"""The ball of a norm, $\{b : \Vert b \Vert_p \le \rho\}$, around each data point.

    Arguments:
    - `norm`: $p$, which is 1, 2, inf, or any number of at least 1.
    - `radius`: $\rho$, a number that is not negative.
    - `clip`: None, or (lo, hi) for data that lives in the box [lo, hi]^d. Samples are then drawn in the whole
      ball and moved to the nearest point of the box, coordinate by coordinate. They stay in the ball. Their
      law is uniform inside the box, and has the mass that would lie outside on its faces; it is not the
      uniform law on the intersection. `sample` and `project` respect the box. The moments, the volume and
      `steepest` are those of the whole ball.

    Every method takes `event_ndim`, the number of trailing axes that make up one point: 1 for vectors, 3 for
    images (channels, height, width), 0 for numbers. The axes before them are a batch.

    Reference: Eq. (def:nu:z) of Section 2.

    >>> import numpy as np
    >>> from phiball.backends import rng
    >>> from phiball.refimpl import Ball
    >>> ball = Ball(2, 0.5)
    >>> points = ball.sample(np.zeros((3, 4)), 1000, rng(0))
    >>> points.shape, bool(np.all(ball.contains(points, np.zeros(4))))
    ((3, 1000, 4), True)
    """

    norm: float
    radius: float
    clip: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        """Validate the norm, the radius and the box."""
        if isinstance(self.norm, str):
            raise TypeError(f"norm is {self.norm!r}; expected a number of at least 1, or math.inf for linf")
        norm = inf if self.norm == inf else valid_number("norm", self.norm, least=1.0)
        radius = valid_number("radius", self.radius, least=0.0)
        if self.clip is not None:
            box = tuple(self.clip) if isinstance(self.clip, (tuple, list)) else ()
            if len(box) != 2 or not valid_number("clip", box[0]) <= valid_number("clip", box[1]):
                raise ValueError(f"clip is {self.clip!r}; expected (lo, hi) with lo <= hi, or None")
            object.__setattr__(self, "clip", (float(box[0]), float(box[1])))
        object.__setattr__(self, "norm", norm)
        object.__setattr__(self, "radius", radius)

    def sample(
        self,
        z: Array,
        n: int,
        rng: Rng,
        *,
        event_ndim: int = 1,
        antithetic: bool = False,
        qmc: bool = False,
    ) -> Array:
        """Draw `n` points uniformly in the ball around each z.

        Arguments:
        - `z`, batch + event: the centres.
        - `n`: the number of points per centre.
        - `rng`: from `phiball.backends.rng`.
        - `antithetic`: True draws pairs z + b, z - b, next to each other.
        - `qmc`: True makes the points of each z a scrambled Sobol set, independent from z to z. It needs
          scipy and at most 21,200 dimensions, and is best with n a power of two.

        Returns points of shape batch + (n,) + event. Each has the uniform law in all four cases; what changes
        is how the n points of one z depend on each other, and so the variance of their mean. The draws are
        exact in any dimension (see refimpl/laws/uniform.py).
        """
        split(z, event_ndim, "z")
        n = self._valid_draw(z, n, rng)
        return self.draw(z, n, rng, event_ndim=event_ndim, antithetic=antithetic, qmc=qmc)

    def draw(
        self, z: Array, n: int, rng: Rng, *, event_ndim: int, antithetic: bool = False, qmc: bool = False
    ) -> Array:
        """What `sample` does, without the checks of its arguments, for callers that have made them."""
        xp = array_namespace(z)
        batch = z.shape[: z.ndim - event_ndim]
        centres = _flat(detach(z), event_ndim, xp=xp)
        draw = quasi if qmc else uniform
        if antithetic:
            b = draw(xp.zeros_like(centres), (n + 1) // 2, self.norm, self.radius, rng)
            b = xp.stack([b, -b], axis=-2)  # batch + (draws, 2, d)
            b = xp.reshape(b, (*batch, -1, centres.shape[-1]))[..., :n, :]
            x = xp.expand_dims(centres, axis=-2) + b
        else:
            x = draw(centres, n, self.norm, self.radius, rng)
        return self._around(z, x, event_ndim)

    def _around(self, z: Array, x: Array, event_ndim: int) -> Array:
        """Points x (..., n, d) as they are returned: in the shape of z, with its gradient, in the box."""
        xp = array_namespace(z)
        cut = z.ndim - event_ndim
        if event_ndim != 1:
            x = xp.reshape(x, (*x.shape[:-1], *z.shape[cut:]))
        if detach(z) is not z:
            x = x + xp.expand_dims(z - detach(z), axis=cut)  # adds 0
        return x if self.clip is None else xp.clip(x, *self.clip)

    def _valid_draw(self, z: Array, n: int, rng: Rng) -> int:
        n = valid_count("n", n)
        valid_rng(rng)
        if not all_finite(z):
            raise ValueError("z contains NaN or infinity; expected finite numbers")
        self.check_centres(z)
        return n

    def check_centres(self, z: Array) -> None:
        """Raise if points of the ball around z overflow, or centres lie outside the box, if there is one."""
        check_overflow("radius", self.radius, 2 * self.radius, z)
        if self.clip is not None:
            xp = array_namespace(z)
            if not xp.all((z >= self.clip[0]) & (z <= self.clip[1])):
                raise ValueError(f"z leaves the box clip = {self.clip}; expected data inside it")

    def sample_tilted(
        self, z: Array, s: Array, n: int, rng: Rng, *, event_ndim: int = 1
    ) -> tuple[Array, Array]:
        """Draw `n` points z + b around each z, where b has density proportional to exp(s.b) on the ball.

        Arguments:
        - `z`, batch + event: the centres.
        - `s`, of the shape of z: the tilt.
        - `n`, `rng`: as in `sample`. The norm is 1, 2 or inf.

        Returns the points, batch + (n,) + event, and log(nu/q), batch + (n,): the log of the uniform density
        over the tilted one, which is log E_nu exp(s.b) - s.b. So for any h the mean of h(z + b) nu/q is an
        unbiased estimate of the mean of h(z + b) under the uniform law. s = 0 gives the uniform law and
        zeros; a huge s gives `steepest(s)`.

        With `clip` the points are moved to the box as in `sample`. log(nu/q) stays that of b, which is the
        right weight for the moved points.

        The draws are exact in any dimension (see refimpl/laws/tilting.py). A sample of norm 1 costs about
        2 sqrt(d) candidates, too many for training in hundreds of dimensions. Under a strong tilt few points
        carry all the weight, and a mean over them converges slowly. This is not in the paper.

        >>> import numpy as np
        >>> from phiball.backends import rng
        >>> from phiball.refimpl import Ball
        >>> z, s = np.zeros((1, 3)), np.asarray([[2.0, 0.0, -2.0]])
        >>> points, log_w = Ball(np.inf, 1.0).sample_tilted(z, s, 10_000, rng(0))
        >>> print(np.round(np.mean(points[0], axis=0), 1))  # coth 2 - 1/2 = 0.54
        [ 0.5  0.  -0.5]
        >>> square = np.mean(np.exp(log_w) * points[:, :, 0] ** 2)
        >>> print(round(float(square), 1))  # 1/3 under the uniform law
        0.3
        """
        if self.norm not in TILTABLE:
            raise ValueError(f"norm is {self.norm!r}; expected 1, 2 or inf, for which exp(s.b) can be drawn")
        split(z, event_ndim, "z")
        n = self._valid_draw(z, n, rng)
        s, top = valid_tilt(s, z)
        self.check_reach(s, top, event_ndim=event_ndim)
        return self.draw_tilted(z, s, n, rng, event_ndim=event_ndim)

    def draw_tilted(self, z: Array, s: Array, n: int, rng: Rng, *, event_ndim: int) -> tuple[Array, Array]:
        """What `sample_tilted` does, without the checks of its arguments, for callers that have made them."""
        xp = array_namespace(z)
        centres, tilts = (_flat(a, event_ndim, xp=xp) for a in (detach(z), s))
        x, log_w = tilted(centres, tilts, n, self.norm, self.radius, rng)
        return self._around(z, x, event_ndim), log_w

    def check_reach(self, s: Array, top: float, *, event_ndim: int) -> None:
        """Raise if radius s overflows, or radius times its dual norm; `top` is the largest |s_j| of all."""
        xp = array_namespace(s)
        bound = self.radius * top
        if bound * prod(s.shape[s.ndim - event_ndim :]) == inf:  # rarely: then the norms themselves are taken
            with ignore_float_warnings():
                sizes = self.dual_norm(xp.astype(s, xp.float64, copy=False), event_ndim=event_ndim)
            bound = self.radius * largest(sizes)
        if not bound <= float(xp.finfo(s.dtype).max):
            raise ValueError(
                f"radius times s overflows {s.dtype}, with entries of s up to {top:g}; expected a smaller s, "
                "which for a risk is a larger eta"
            )

    def length(self, v: Array, *, event_ndim: int = 1) -> Array:
        """The norm of each v.

        Arguments:
        - `v`, batch + event. Returns shape batch.

        >>> import numpy as np
        >>> from phiball.refimpl import Ball
        >>> float(Ball(1, 0.5).length(np.asarray([3.0, -4.0])))
        7.0
        """
        return length(flat(v, event_ndim, "v"), self.norm)

    def dual_norm(self, g: Array, *, event_ndim: int = 1) -> Array:
        """The dual norm of each g: the largest g.b over the unit ball, a norm of exponent norm/(norm - 1).

        Arguments:
        - `g`, batch + event. Returns shape batch.

        >>> import numpy as np
        >>> from phiball.refimpl import Ball
        >>> float(Ball(np.inf, 0.5).dual_norm(np.asarray([3.0, -4.0])))
        7.0
        """
        return length(flat(g, event_ndim, "g"), dual(self.norm))

    def contains(self, x: Array, z: Array, *, event_ndim: int = 1) -> Array:
        """Whether each x lies in the ball around z, up to the rounding of x and z.

        Arguments:
        - `x`, `z`, batch + event: points and centres, which broadcast. Returns booleans of shape batch.
        """
        valid_pair(x, z, event_ndim)
        xp = array_namespace(x)
        eps = float(xp.finfo(x.dtype).eps)
        d = prod(x.shape[x.ndim - event_ndim :])
        with ignore_float_warnings():  # what overflows is outside
            # Each coordinate of x and of x - z is rounded once, and the norm as often as it has terms.
            size = length(flat(eps * xp.abs(x) + eps * xp.abs(z), event_ndim, "x"), self.norm)
            moved = length(flat(x - z, event_ndim, "x"), self.norm)
            return xp.isfinite(moved) & (moved <= self.radius + size + eps * self.radius * (8 + d**0.5))

    def project(self, x: Array, z: Array, *, event_ndim: int = 1) -> Array:
        """The point of the ball around z that is nearest to x in the Euclidean distance.

        Arguments:
        - `x`, `z`, batch + event: points and centres, which broadcast. The norm is 1, 2 or inf.

        With `clip` the result is then moved to the nearest point of the box, which keeps it in the ball. For
        norm inf it is the nearest point of the intersection, for the others a point of it.

        >>> import numpy as np
        >>> from phiball.refimpl import Ball
        >>> print(Ball(1, 1.0).project(np.asarray([2.0, 1.5, -0.2]), np.zeros(3)))
        [0.75 0.25 0.  ]
        """
        valid_pair(x, z, event_ndim)
        xp = array_namespace(x)
        with ignore_float_warnings():
            moved = x - z
            v = flat(moved, event_ndim, "x")
            size = length(v, self.norm)[..., None]
        if not all_finite(size):
            raise ValueError(
                f"x - z contains NaN or infinity, or its norm overflows {x.dtype}; expected finite points"
            )
        if self.norm == inf:
            b = xp.clip(v, -self.radius, self.radius)
        elif self.norm == 2:
            b = self.radius * (v / xp.where(size > 0, size, xp.ones_like(size)))
        elif self.norm == 1:
            b = soft_threshold(v, self.radius, xp=xp)
        else:
            raise ValueError(f"norm is {self.norm!r}; expected 1, 2 or inf, for which project is exact")
        # What lies inside is returned as it came, not as z + (x - z).
        inside = xp.reshape(size <= self.radius, (*v.shape[:-1], *([1] * event_ndim)))
        x = xp.where(inside, x + xp.zeros_like(moved), z + xp.reshape(b, moved.shape))
        return x if self.clip is None else xp.clip(x, *self.clip)

    def steepest(self, g: Array, *, event_ndim: int = 1) -> Array:
        """The point b of the ball around 0 with the largest g.b, which is radius times the dual norm of g.

        Arguments:
        - `g`, batch + event. Returns points of the same shape, 0 where g = 0.

        Norm 1 moves one coordinate, the first of the largest ones; norm inf moves all where g is not 0.

        >>> import numpy as np
        >>> from phiball.refimpl import Ball
        >>> print(Ball(2, 0.5).steepest(np.asarray([3.0, -4.0])))
        [ 0.3 -0.4]
        """
        v = flat(g, event_ndim, "g")
        xp = array_namespace(g)
        check_overflow("radius", self.radius, self.radius, v[..., :0])
        if self.norm == inf:
            b = xp.sign(v)
        elif self.norm == 1:
            first = xp.argmax(xp.abs(v), axis=-1, keepdims=True)
            place = xp.arange(v.shape[-1], dtype=first.dtype, device=v.device)
            b = xp.where(place == first, xp.sign(v), xp.zeros_like(v))
        else:
            top = xp.max(xp.abs(v), axis=-1, keepdims=True)
            share = xp.abs(v) / xp.where(top > 0, top, xp.ones_like(top))
            b = xp.sign(v) * share ** (dual(self.norm) - 1)
            size = length(b, self.norm)[..., None]
            b = b / xp.where(size > 0, size, xp.ones_like(size))
        return xp.reshape(self.radius * b, g.shape)

    def variance(self, g: Array, *, event_ndim: int = 1) -> Array:
        """The variance of g.b for b uniform on the ball around 0: radius^2 E[b_1^2] |g|^2, |g| Euclidean.

        Arguments:
        - `g`, batch + event. Returns shape batch.

        E[b_1^2] in the unit ball is 2/((d+1)(d+2)) for norm 1, 1/(d+2) for norm 2, 1/3 for norm inf.

        >>> import numpy as np
        >>> from phiball.refimpl import Ball
        >>> float(Ball(2, 1.0).variance(np.asarray([3.0, 4.0])))
        6.25
        """
        v = flat(g, event_ndim, "g")
        xp = array_namespace(g)
        check_overflow("radius", self.radius, self.radius, v[..., :0])
        with ignore_float_warnings():  # it is infinite where it overflows
            v = (self.radius * self._second_moment(v.shape[-1]) ** 0.5) * v
            return xp.sum(v * v, axis=-1)

    def _second_moment(self, d: int) -> float:
        p = self.norm
        known = {1.0: 2 / ((d + 1) * (d + 2)), 2.0: 1 / (d + 2), inf: 1 / 3}
        if p in known:
            return known[p]
        return exp(lgamma(3 / p) - lgamma(1 / p) + lgamma(d / p + 1) - lgamma((d + 2) / p + 1))

    def log_mgf(self, s: Array, *, event_ndim: int = 1) -> Array:
        """The log of E exp(s.b) for b uniform on the ball around 0.

        Arguments:
        - `s`, batch + event. The norm is 1, 2 or inf. Returns shape batch.

        It is computed in double precision, to about 1e-13 relative, from tiny to huge s, and can be
        differentiated twice. eta log_mgf(g/eta) is the entropic risk of the linear loss g.b.

        >>> import numpy as np
        >>> from phiball.refimpl import Ball
        >>> print(round(float(Ball(np.inf, 1.0).log_mgf(np.asarray([1.0]))), 12))
        0.161439361571
        """
        if self.norm not in TILTABLE:
            raise ValueError(f"norm is {self.norm!r}; expected 1, 2 or inf, for which E exp(s.b) is known")
        v = flat(s, event_ndim, "s")
        xp = array_namespace(s)
        top = largest(s)
        if isnan(top):
            raise ValueError("s contains nan; expected finite numbers")
        self.check_reach(detach(s), top, event_ndim=event_ndim)
        v = self.radius * xp.astype(v, xp.float64, copy=False)
        return xp.astype(log_mgf(v, self.norm), s.dtype, copy=False)

    def log_volume(self, d: int) -> float:
        """The log of the volume in d dimensions, d log(2 Gamma(1 + 1/p) rho) - log Gamma(1 + d/p).

        Arguments:
        - `d`: the dimension. Returns a float.

        >>> import math
        >>> from phiball.refimpl import Ball
        >>> abs(Ball(2, 1.0).log_volume(2) - math.log(math.pi)) < 1e-15
        True
        """
        d = valid_count("d", d)
        if self.radius == 0:
            return -inf
        if self.norm == inf:
            return d * log(2 * self.radius)
        side = log(2 * self.radius) + lgamma(1 + 1 / self.norm)
        return d * side - lgamma(1 + d / self.norm)


def _flat(x: Array, event_ndim: int, *, xp: Any) -> Array:
    """x with the axes of a point made one, without checks."""
    cut = x.ndim - event_ndim
    return x if event_ndim == 1 else xp.reshape(x, (*x.shape[:cut], prod(x.shape[cut:])))

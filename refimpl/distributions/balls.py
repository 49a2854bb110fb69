"""Balls of a norm: uniform and tilted samples.

The reference distribution nu_z of the paper is uniform on the ball B_rho(z), Eq. (def:nu:z). Its volume does not
depend on z here, because the ball is taken in all of R^d. The paper takes a subset of the domain of the data,
which loses that property at the border of the domain (see `Ball.clip`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import Any

from phiball.backends import Array, Rng, array_namespace, detach, is_half, to_single
from phiball.refimpl.distributions.feature_scale import FeatureScale
from phiball.refimpl.distributions.geometry import Geometry
from phiball.refimpl.distributions.norms import check_overflow, split
from phiball.refimpl.distributions.tilting import TILTABLE, tilted, valid_tilt
from phiball.refimpl.distributions.uniform import quasi, uniform
from phiball.refimpl.validation import all_finite, valid_count, valid_number, valid_rng


@dataclass(frozen=True, repr=False)
class Ball(Geometry):
    r"""The ball of a norm, $\{b : \Vert b \Vert_p \le \rho\}$, around each data point.

    Arguments:
    - `norm`: $p$, which is 1, 2, inf, or any number of at least 1.
    - `radius`: $\rho$, a number that is not negative.
    - `clip`: None, or (lo, hi) for data that lives in the box [lo, hi]^d. Samples are then drawn in the whole
      ball and moved to the nearest point of the box, coordinate by coordinate. They stay in the ball. Their
      distribution is uniform inside the box, and has the mass that would lie outside on its faces; it is not the
      uniform distribution on the intersection. `sample` and `project` respect the box. The moments, the volume and
      `steepest` are those of the whole ball.
    - `feature_scale`: None, or the sizes sigma of the coordinates, which broadcast to a point: the ball is then
      {sigma b : |b|_p <= radius}. A coordinate of size 0 never moves, and does not count as a dimension: the
      distribution is uniform in those that move. Sizes of shape (N,) + event belong to N data points; see `masked`.

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
    >>> ages = Ball(2, 0.5, feature_scale=[10.0, 1.0, 0.0])  # years, a score, and a category that must not move
    >>> print(ages.steepest(np.asarray([0.3, 4.0, 9.0])))
    [3.  0.4 0. ]
    """

    norm: float
    radius: float
    clip: tuple[float, float] | None = None
    feature_scale: Any = None
    # Named here so that the pages of the reference show them among the methods of a ball.
    length = Geometry.length
    dual_norm = Geometry.dual_norm
    contains = Geometry.contains
    project = Geometry.project
    steepest = Geometry.steepest
    variance = Geometry.variance
    log_mgf = Geometry.log_mgf
    log_volume = Geometry.log_volume

    def __post_init__(self) -> None:
        """Validate the norm, the radius, the box and the sizes."""
        if isinstance(self.norm, str):
            raise TypeError(f"norm is {self.norm!r}; expected a number of at least 1, or math.inf for linf")
        norm = valid_number("norm", self.norm, least=1.0, infinite=True)
        radius = valid_number("radius", self.radius, least=0.0)
        if self.clip is not None:
            box = tuple(self.clip) if isinstance(self.clip, (tuple, list)) else ()
            if len(box) != 2 or not valid_number("clip", box[0]) <= valid_number("clip", box[1]):
                raise ValueError(f"clip is {self.clip!r}; expected (lo, hi) with lo <= hi, or None")
            object.__setattr__(self, "clip", (float(box[0]), float(box[1])))
        if self.feature_scale is not None and not isinstance(self.feature_scale, FeatureScale):
            object.__setattr__(self, "feature_scale", FeatureScale(self.feature_scale))
        object.__setattr__(self, "norm", norm)
        object.__setattr__(self, "radius", radius)

    def __repr__(self) -> str:
        """The arguments; of the last two, those that are given."""
        more = {"clip": self.clip, "feature_scale": self.feature_scale}
        shown = [f"{name}={value!r}" for name, value in more.items() if value is not None]
        return f"Ball({', '.join([f'norm={self.norm}', f'radius={self.radius}', *shown])})"

    def masked(self, mask: Any) -> Ball:
        """The ball that moves only the coordinates where `mask` is True, or not 0.

        Arguments:
        - `mask`: booleans or numbers that broadcast to a point, or to the data points (N,) + event: for
          padded sequences, one mask per data point. The radius stays that of the whole point.

        >>> import numpy as np
        >>> from phiball.backends import rng
        >>> from phiball.refimpl import Ball
        >>> mask = np.asarray([[True, True, False], [True, False, False]])  # two sequences, padded to 3 words
        >>> ball = Ball(2, 0.5).masked(mask[:, :, None])
        >>> x = ball.sample(np.zeros((2, 3, 4)), 10, rng(0), event_ndim=2)  # words of 4 numbers
        >>> bool(np.all(x[1, :, 1:] == 0)), bool(np.all(x[1, :, 0] != 0))
        (True, True)
        """
        return replace(
            self,
            feature_scale=(FeatureScale(1.0) if self.feature_scale is None else self.feature_scale).masked(
                mask
            ),
        )

    def rows(self, index: Array, *, event_ndim: int) -> Ball:
        """The ball for the data points `index` (k,): itself, unless its sizes differ from point to point."""
        if self.feature_scale is None or not self.feature_scale.per_point(event_ndim):
            return self
        return replace(self, feature_scale=self.feature_scale.rows(index))

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

        Returns points of shape batch + (n,) + event. Each has the uniform distribution in all four cases; what changes
        is how the n points of one z depend on each other, and so the variance of their mean. The draws are
        exact in any dimension (see refimpl/distributions/uniform.py). Those of a z in half precision are drawn in
        single, and rounded.
        """
        if is_half(z):
            kind: dict[str, Any] = {"event_ndim": event_ndim, "antithetic": antithetic, "qmc": qmc}
            x = self.sample(to_single(z), n, rng, **kind)
            check_overflow("radius", self.radius, 2 * self.reach, z)
            return array_namespace(z).astype(x, z.dtype)
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
        if self.feature_scale is not None:
            kind: dict[str, Any] = {"event_ndim": 1, "antithetic": antithetic, "qmc": qmc}
            (b,) = self.feature_scale.spread(
                detach(z), event_ndim, lambda o: (self._plain.draw(o, n, rng, **kind),)
            )
            return self._around(z, xp.expand_dims(centres, axis=-2) + b, event_ndim)
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

    @property
    def _plain(self) -> Ball:
        """The ball whose image this one is, if it has sizes."""
        return Ball(self.norm, self.radius)

    def _valid_draw(self, z: Array, n: int, rng: Rng) -> int:
        n = valid_count("n", n)
        valid_rng(rng)
        if not all_finite(z):
            raise ValueError("z contains NaN or infinity; expected finite numbers")
        self.check_centres(z)
        return n

    def check_centres(self, z: Array) -> None:
        """Raise if points of the ball around z overflow, or centres lie outside the box, if there is one."""
        check_overflow("radius", self.radius, 2 * self.reach, z)
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

        Returns the points, batch + (n,) + event, and log(nu/q), batch + (n,), the log of the uniform density
        over the tilted one: the mean of h(z + b) nu/q is an unbiased estimate of the uniform mean of h. With
        `clip` the points are moved to the box as in `sample`, and the weights stay right. The draws are exact
        in any dimension; norm 1 costs about 2 sqrt(d) candidates per point. This is not in the paper.

        >>> import numpy as np
        >>> from phiball.backends import rng
        >>> from phiball.refimpl import Ball
        >>> z, s = np.zeros((1, 3)), np.asarray([[2.0, 0.0, -2.0]])
        >>> points, log_w = Ball(np.inf, 1.0).sample_tilted(z, s, 10_000, rng(0))
        >>> print(np.round(np.mean(points[0], axis=0), 1))  # coth 2 - 1/2 = 0.54
        [ 0.5  0.  -0.5]
        >>> print(round(float(np.mean(np.exp(log_w) * points[:, :, 0] ** 2)), 1))  # 1/3 under the uniform distribution
        0.3
        """
        if self.norm not in TILTABLE:
            raise ValueError(f"norm is {self.norm!r}; expected 1, 2 or inf, for which exp(s.b) can be drawn")
        if is_half(z):
            x, log_w = self.sample_tilted(to_single(z), to_single(s), n, rng, event_ndim=event_ndim)
            check_overflow("radius", self.radius, 2 * self.reach, z)
            return array_namespace(z).astype(x, z.dtype), log_w
        split(z, event_ndim, "z")
        n = self._valid_draw(z, n, rng)
        s, top = valid_tilt(s, z)
        self.check_reach(s, top, event_ndim=event_ndim)
        return self.draw_tilted(z, s, n, rng, event_ndim=event_ndim)

    def draw_tilted(self, z: Array, s: Array, n: int, rng: Rng, *, event_ndim: int) -> tuple[Array, Array]:
        """What `sample_tilted` does, without the checks of its arguments, for callers that have made them."""
        xp = array_namespace(z)
        centres, tilts = (_flat(a, event_ndim, xp=xp) for a in (detach(z), s))
        if self.feature_scale is not None:
            b, log_w = self.feature_scale.spread(
                detach(z), event_ndim, lambda o, t: self._plain.draw_tilted(o, t, n, rng, event_ndim=1), s
            )
            return self._around(z, xp.expand_dims(centres, axis=-2) + b, event_ndim), log_w
        x, log_w = tilted(centres, tilts, n, self.norm, self.radius, rng)
        return self._around(z, x, event_ndim), log_w


def _flat(x: Array, event_ndim: int, *, xp: Any) -> Array:
    """x with the axes of a point made one, without checks."""
    cut = x.ndim - event_ndim
    return x if event_ndim == 1 else xp.reshape(x, (*x.shape[:cut], prod(x.shape[cut:])))

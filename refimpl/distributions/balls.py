"""Norm balls around data points, with uniform and tilted sampling.

The reference distribution nu_z of the paper is uniform on the ball B_rho(z) of radius rho around z, Eq.
(def:nu:z). The paper intersects the ball with the domain of the data, so that its volume depends on z near
the boundary. Here nu_z is uniform on the whole ball in R^d (see `Ball.clip`). s.b denotes an inner product.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import Any

from phiball.backends import Array, Rng, array_namespace, as_rng, detach, is_half, to_single
from phiball.refimpl.distributions.feature_scale import FeatureScale
from phiball.refimpl.distributions.geometry import Geometry
from phiball.refimpl.distributions.norms import as_norm, check_overflow, split
from phiball.refimpl.distributions.tilting import TILTABLE, tilted, valid_tilt
from phiball.refimpl.distributions.uniform import quasi, uniform
from phiball.refimpl.validation import all_finite, holds, valid_count, valid_number


@dataclass(frozen=True, repr=False)
class Ball(Geometry):
    r"""The ball of a norm, $\{b : \Vert b \Vert_p \le \rho\}$, around each data point.

    Arguments:
    - `norm`: $p$, a number of at least 1 or inf, or "l1", "l2", "linf".
    - `radius`: $\rho$, a nonnegative number.
    - `clip`: None, or (lo, hi) for data in the box [lo, hi]^d. Samples are drawn in the whole ball and then
      clipped to the box, which keeps them in the ball. Mass from outside the box ends up on its faces, so the
      samples are not uniform on the intersection. `sample` and `project` respect the box; the moments, the
      volume and `steepest` refer to the whole ball.
    - `feature_scale`: None, or scales sigma that broadcast to a point: the ball is then
      {sigma b : |b|_p <= radius}. A coordinate of scale 0 is fixed, and is not counted as a dimension. An
      array (N,) + event has different scales for each of N data points; see `masked`.

    Arrays of points have shape batch + event, where event is the shape of one point. Methods take the number
    of its axes as `event_ndim`: 1 for vectors, 3 for images (channels, height, width), 0 for numbers.

    Reference: Eq. (def:nu:z) of Section 2.

    >>> import numpy as np
    >>> from phiball import Ball
    >>> ball = Ball("l2", 0.5)
    >>> points = ball.sample(np.zeros((3, 4)), 1000, rng=0)
    >>> points.shape, bool(np.all(ball.contains(points, np.zeros(4))))
    ((3, 1000, 4), True)
    >>> ages = Ball(2, 0.5, feature_scale=[10.0, 1.0, 0.0])  # years, a score, and a category that is fixed
    >>> print(ages.steepest(np.asarray([0.3, 4.0, 9.0])))
    [3.  0.4 0. ]
    """

    norm: Any  # converted to float
    radius: float
    clip: tuple[float, float] | None = None
    feature_scale: Any = None
    # Listed so that the API pages show them as methods of Ball.
    length = Geometry.length
    dual_norm = Geometry.dual_norm
    contains = Geometry.contains
    project = Geometry.project
    steepest = Geometry.steepest
    variance = Geometry.variance
    log_mgf = Geometry.log_mgf
    log_volume = Geometry.log_volume

    def __post_init__(self) -> None:
        """Validate the arguments and convert the norm."""
        norm = as_norm(self.norm)
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
        """The arguments, without defaults."""
        more = {"clip": self.clip, "feature_scale": self.feature_scale}
        shown = [f"{name}={value!r}" for name, value in more.items() if value is not None]
        return f"Ball({', '.join([f'norm={self.norm}', f'radius={self.radius}', *shown])})"

    def masked(self, mask: Any) -> Ball:
        """The same ball, with the coordinates where `mask` is zero or False fixed.

        Arguments:
        - `mask`: booleans or numbers that broadcast to a point, or to all data points (N,) + event, for
          example for padded sequences. The radius applies to the whole point.

        >>> import numpy as np
        >>> from phiball import Ball
        >>> mask = np.asarray([[True, True, False], [True, False, False]])  # two sequences, padded to 3 words
        >>> ball = Ball(2, 0.5).masked(mask[:, :, None])
        >>> points = ball.sample(np.zeros((2, 3, 4)), 10, rng=0, event_ndim=2)  # words of 4 numbers
        >>> bool(np.all(points[1, :, 1:] == 0)), bool(np.all(points[1, :, 0] != 0))
        (True, True)
        """
        scale = FeatureScale(1.0) if self.feature_scale is None else self.feature_scale
        return replace(self, feature_scale=scale.masked(mask))

    def rows(self, index: Array, *, event_ndim: int) -> Ball:
        """The ball for the data points `index` (k,): it selects their scales if these differ."""
        if self.feature_scale is None or not self.feature_scale.per_point(event_ndim):
            return self
        return replace(self, feature_scale=self.feature_scale.rows(index))

    def sample(
        self,
        x: Array,
        n_samples: int,
        *,
        rng: Any = None,
        event_ndim: int = 1,
        antithetic: bool = False,
        qmc: bool = False,
    ) -> Array:
        """Draw `n_samples` uniform points in the ball around each x.

        Arguments:
        - `x`, batch + event: the centres.
        - `n_samples`: the number of points per centre.
        - `rng`: a seed, a generator of NumPy or torch, an `Rng`, or None for fresh entropy.
        - `antithetic`: True draws pairs x + b, x - b, next to each other.
        - `qmc`: True draws an independent scrambled Sobol set for each x. It needs scipy and at most 21,200
          dimensions, and works best if `n_samples` is a power of two.

        Returns points of shape batch + (n_samples,) + event. Every point is exactly uniform, in any
        dimension; with `antithetic` or `qmc`, the points around one x are dependent, which reduces the
        variance of means. For x in half precision, points are drawn in float32 and rounded.
        """
        rng = as_rng(rng)
        if is_half(x):
            options: dict[str, Any] = {"event_ndim": event_ndim, "antithetic": antithetic, "qmc": qmc}
            points = self.sample(to_single(x), n_samples, rng=rng, **options)
            check_overflow("radius", self.radius, 2 * self.reach, x)
            return array_namespace(x).astype(points, x.dtype)
        split(x, event_ndim, "x")
        n = self._valid_n_samples(x, n_samples)
        return self.draw(x, n, rng=rng, event_ndim=event_ndim, antithetic=antithetic, qmc=qmc)

    def draw(
        self, x: Array, n: int, *, rng: Rng, event_ndim: int, antithetic: bool = False, qmc: bool = False
    ) -> Array:
        """`sample` without argument validation."""
        xp = array_namespace(x)
        batch = x.shape[: x.ndim - event_ndim]
        centres = _flat(detach(x), event_ndim, xp=xp)
        if self.feature_scale is not None:
            options: dict[str, Any] = {"rng": rng, "event_ndim": 1, "antithetic": antithetic, "qmc": qmc}
            (b,) = self.feature_scale.spread(
                detach(x), event_ndim, lambda o: (self._plain.draw(o, n, **options),)
            )
            return self._around(x, xp.expand_dims(centres, axis=-2) + b, event_ndim)
        draw = quasi if qmc else uniform
        if antithetic:
            b = draw(xp.zeros_like(centres), (n + 1) // 2, self.norm, self.radius, rng)
            b = xp.stack([b, -b], axis=-2)  # batch + (draws, 2, d)
            b = xp.reshape(b, (*batch, -1, centres.shape[-1]))[..., :n, :]
            points = xp.expand_dims(centres, axis=-2) + b
        else:
            points = draw(centres, n, self.norm, self.radius, rng)
        return self._around(x, points, event_ndim)

    def _around(self, x: Array, points: Array, event_ndim: int) -> Array:
        """Reshape points (..., n, d) to events like x, clip them to the box, and attach the gradient of x."""
        xp = array_namespace(x)
        cut = x.ndim - event_ndim
        if event_ndim != 1:
            points = xp.reshape(points, (*points.shape[:-1], *x.shape[cut:]))
        if detach(x) is not x:
            points = points + xp.expand_dims(x - detach(x), axis=cut)  # adds 0
        return points if self.clip is None else xp.clip(points, *self.clip)

    @property
    def _plain(self) -> Ball:
        """The ball without `feature_scale` and `clip`."""
        return Ball(self.norm, self.radius)

    def _valid_n_samples(self, x: Array, n_samples: int) -> int:
        """`n_samples` as an int, after checking it and the centres x."""
        n = valid_count("n_samples", n_samples)
        if not all_finite(x):
            raise ValueError("x contains NaN or infinity; expected finite numbers")
        self.check_centres(x)
        return n

    def check_centres(self, x: Array) -> None:
        """Raise if points of the ball around x overflow, or if x lies outside the box `clip`."""
        check_overflow("radius", self.radius, 2 * self.reach, x)
        if self.clip is not None and not holds((x >= self.clip[0]) & (x <= self.clip[1])):
            raise ValueError(f"x is outside the box clip = {self.clip}; expected data inside it")

    def sample_tilted(
        self, x: Array, s: Array, n_samples: int, *, rng: Any = None, event_ndim: int = 1
    ) -> tuple[Array, Array]:
        """Draw `n_samples` points x + b around each x, where b has a density proportional to exp(s.b).

        Arguments:
        - `x`, batch + event: the centres.
        - `s`, of the shape of x: the tilt of each x.
        - `n_samples`, `rng`: as in `sample`. The norm must be 1, 2 or inf.

        Returns the points, batch + (n_samples,) + event, and log(nu/q), batch + (n_samples,), where nu is the
        uniform and q the tilted density: the mean of h(x + b) nu/q is an unbiased estimate of the uniform
        mean of h. With `clip`, points are clipped as in `sample`, and the weights remain valid. Sampling is
        exact in any dimension; norm 1 needs about 2 sqrt(d) candidates per point. This method is not in the
        paper.

        >>> import numpy as np
        >>> from phiball import Ball
        >>> x, s = np.zeros((1, 3)), np.asarray([[2.0, 0.0, -2.0]])
        >>> points, log_w = Ball("linf", 1.0).sample_tilted(x, s, 10_000, rng=0)
        >>> print(np.round(np.mean(points[0], axis=0), 1))  # coth 2 - 1/2 = 0.54
        [ 0.5  0.  -0.5]
        >>> print(round(float(np.mean(np.exp(log_w) * points[:, :, 0] ** 2)), 1))  # 1/3 for uniform points
        0.3
        """
        rng = as_rng(rng)
        if self.norm not in TILTABLE:
            raise ValueError(f"norm is {self.norm!r}; expected 1, 2 or inf for tilted samples")
        if is_half(x):
            points, log_w = self.sample_tilted(
                to_single(x), to_single(s), n_samples, rng=rng, event_ndim=event_ndim
            )
            check_overflow("radius", self.radius, 2 * self.reach, x)
            return array_namespace(x).astype(points, x.dtype), log_w
        split(x, event_ndim, "x")
        n = self._valid_n_samples(x, n_samples)
        s, top = valid_tilt(s, x)
        self.check_tilt(s, top, event_ndim=event_ndim)
        return self.draw_tilted(x, s, n, rng=rng, event_ndim=event_ndim)

    def draw_tilted(self, x: Array, s: Array, n: int, *, rng: Rng, event_ndim: int) -> tuple[Array, Array]:
        """`sample_tilted` without argument validation."""
        xp = array_namespace(x)
        centres, tilts = (_flat(a, event_ndim, xp=xp) for a in (detach(x), s))
        if self.feature_scale is not None:
            b, log_w = self.feature_scale.spread(
                detach(x),
                event_ndim,
                lambda o, t: self._plain.draw_tilted(o, t, n, rng=rng, event_ndim=1),
                s,
            )
            return self._around(x, xp.expand_dims(centres, axis=-2) + b, event_ndim), log_w
        points, log_w = tilted(centres, tilts, n, self.norm, self.radius, rng)
        return self._around(x, points, event_ndim), log_w


def _flat(x: Array, event_ndim: int, *, xp: Any) -> Array:
    """x with its event axes flattened, without argument validation."""
    cut = x.ndim - event_ndim
    return x if event_ndim == 1 else xp.reshape(x, (*x.shape[:cut], prod(x.shape[cut:])))

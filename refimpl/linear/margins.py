"""The distribution of the margin theta.b = r t of a linear model, t in [-1, 1], and rules to integrate it.

For b uniform on the unit ball of R^d, r = |theta|, and t has a density proportional to (1 - t^2)^((d-1)/2).
For b standard normal, theta.b is normal with standard deviation |theta|. It is truncated at T standard
deviations, so that r = T |theta|, and t has a density proportional to exp(-(T t)^2/2); `truncation` chooses
T. Smooth functions are integrated by a Gauss rule on the ball, and by the trapezoidal rule for a Gaussian.
Functions with kinks are integrated piece by piece with Gauss-Legendre rules in u = arcsin t.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import asin, exp, inf, lgamma, log, pi, sqrt
from statistics import NormalDist

from phiball.backends import Array, array_namespace, device, ignore_float_warnings
from phiball.refimpl.inner.divergences import Divergence
from phiball.refimpl.linear.gauss_rules import finish_rule, gauss_rule
from phiball.refimpl.linear.losses import LinearLoss

MASS = 1e-20  # tails end where the density of t is this fraction of the density at their start
BASE = 10.0  # the smallest truncation of a Gaussian; beyond sqrt(-2 log MASS) = 9.6 the mass is below 1e-20
TRUNCATIONS = tuple(BASE * 2**k for k in range(7))
_DEVIATIONS = (2.0, 6.0)  # always cut at these standard deviations of t, as its peak is narrow for large d
_FAR = 1e30  # the limit of the slope of a loss is evaluated here
_STEEP = 1e6  # if the limit is larger, the slope is taken to be unbounded


@dataclass(frozen=True)
class BallMargin:
    """The distribution of t for b uniform on the unit ball of dimension `d`."""

    d: int
    wide = False

    @property
    def peak(self) -> float:
        """The density of t at 0."""
        return exp(lgamma((self.d + 2) / 2) - lgamma((self.d + 1) / 2)) / sqrt(pi)

    def density(self, u: Array) -> Array:
        """The density of u = arcsin t, divided by its value at 0."""
        xp = array_namespace(u)
        return xp.exp(self.d * xp.log(xp.clip(xp.cos(u), 1e-300, 1.0)))

    def tail_end(self, u: Array) -> Array:
        """The angle at which the density is MASS times the density at u >= 0."""
        xp = array_namespace(u)
        return xp.acos(xp.clip(MASS ** (1 / self.d) * xp.cos(u), 0.0, 1.0))

    @property
    def breaks(self) -> list[float]:
        """Angles u > 0 at which integrals are always split."""
        angles = [k / sqrt(self.d + 2) for k in _DEVIATIONS]
        return [u for u in angles if u < 0.8 * asin(1.0)]

    def rule(self, n_nodes: int, like: Array, *, ends: bool = False) -> tuple[Array, Array]:
        """Nodes and weights (t, p) for smooth functions, both (K,); `ends` as in `gauss_rule`."""
        return gauss_rule(n_nodes, self.d, like, ends=ends)

    def upper_quantile(self, alpha: float, like: Array) -> float:
        """The t that is exceeded with probability `alpha`.

        >>> import numpy as np
        >>> from phiball.refimpl.linear.margins import BallMargin
        >>> round(BallMargin(1).upper_quantile(0.25, np.zeros(1)), 12)
        0.5
        """
        xp = array_namespace(like)
        low, high = -1.0, 1.0
        for _ in range(60):
            middle = (low + high) / 2
            cut = xp.asarray([[middle]], dtype=xp.float64, device=device(like))
            t, p = piecewise_rule(cut, 24, self)
            above = float(xp.sum(xp.where(t > middle, p, xp.zeros_like(p))))
            low, high = (middle, high) if above > alpha else (low, middle)
        return (low + high) / 2


@dataclass(frozen=True)
class GaussianMargin:
    """The distribution of t = g/T for a standard normal g, truncated at T.

    With `flat`, rules use the uniform distribution of t, and `log_ratio` has the density relative to it: far
    out the normal density underflows, but the worst case may lie there.
    """

    T: float = BASE
    flat: bool = False

    @property
    def wide(self) -> bool:
        """Whether the worst case may lie beyond `tail_end`."""
        return self.T > BASE

    @property
    def peak(self) -> float:
        """The density of t at 0."""
        return self.T / sqrt(2 * pi)

    def density(self, u: Array) -> Array:
        """The density of u = arcsin t, divided by its value at 0."""
        xp = array_namespace(u)
        return xp.cos(u) if self.flat else xp.cos(u) * xp.exp(-((self.T * xp.sin(u)) ** 2) / 2)

    def log_ratio(self, t: Array, p: Array) -> Array:
        """The logarithm of the normal density at t relative to the weights p of a flat rule."""
        xp = array_namespace(t)
        exponent = -((self.T * t) ** 2) / 2
        return exponent - xp.log(xp.sum(p * xp.exp(exponent), axis=-1, keepdims=True))

    def tail_end(self, u: Array) -> Array:
        """The angle at which the density is MASS times the density at u >= 0."""
        xp = array_namespace(u)
        return xp.asin(xp.sqrt(xp.clip(xp.sin(u) ** 2 - 2 * log(MASS) / self.T**2, 0.0, 1.0)))

    @property
    def breaks(self) -> list[float]:
        """Angles u > 0 at which integrals are always split."""
        return [asin(g / self.T) for g in (*_DEVIATIONS, *(BASE * k for k in range(1, int(self.T / BASE))))]

    def rule(self, n_nodes: int, like: Array, *, ends: bool = False) -> tuple[Array, Array]:
        """The trapezoidal rule (t, p), both (K,), which converges exponentially; it includes the ends."""
        xp = array_namespace(like)
        K = int(n_nodes * self.T / BASE) + 1
        t = xp.linspace(-1.0, 1.0, K, dtype=xp.float64, device=device(like))
        return finish_rule(t, xp.ones_like(t) if self.flat else xp.exp(-((self.T * t) ** 2) / 2))

    def upper_quantile(self, alpha: float, like: Array) -> float:
        """The t that is exceeded with probability `alpha`."""
        return -NormalDist().inv_cdf(alpha) / self.T


Margin = BallMargin | GaussianMargin


def piecewise_rule(cuts: Array, n_nodes: int, margin: Margin, *, ends: bool = False) -> tuple[Array, Array]:
    """Rules (t, p), both (n, K), for the distribution of t, with `n_nodes` nodes per piece.

    - `cuts` (n, s): where to cut [-1, 1] into pieces, for each row; cuts outside have no effect.
    - `ends`: as in `gauss_rule`.

    >>> import numpy as np
    >>> from phiball.refimpl.linear.margins import BallMargin, piecewise_rule
    >>> t, p = piecewise_rule(np.array([[0.3]]), 8, BallMargin(1))
    >>> print(np.round(np.sum(p * np.abs(t - 0.3)), 12))  # (1.3^2 + 0.7^2)/4
    0.545
    """
    xp = array_namespace(cuts)
    n = cuts.shape[0]
    x, w = gauss_rule(n_nodes, 1, cuts)
    fixed = [-pi / 2, *(-u for u in reversed(margin.breaks)), *margin.breaks, pi / 2]
    base = xp.broadcast_to(xp.asarray(fixed, dtype=cuts.dtype, device=device(cuts)), (n, len(fixed)))
    breaks = xp.sort(xp.concat([base, xp.asin(xp.clip(cuts, -1.0, 1.0))], axis=1), axis=1)
    half = (breaks[:, 1:] - breaks[:, :-1]) / 2
    u = (breaks[:, :-1] + half)[:, :, None] + half[:, :, None] * x
    p = xp.reshape(half[:, :, None] * w * margin.density(u), (n, -1))
    return finish_rule(xp.reshape(xp.sin(u), (n, -1)), p, ends=ends)


def truncation(loss: LinearLoss, phi: Divergence, eta: float, m: Array, r: float, y: Array) -> float:
    """The number of standard deviations, 10, 20, ..., 640, at which to truncate a Gaussian; inf if too few.

    The predictions are m (k,) + r g for labels y (k,). Let D(g) be the derivative in g of the logarithm of
    the worst-case ratio. For a convex loss and the entropic divergence it increases in g, up to a limit if
    the slope of the loss is bounded. If this limit is at most T - 9.6, the worst-case density beyond T is
    below exp(-9.6^2/2) = 1e-20 times its maximum. For other losses, D(g) is compared with g at T, 2 T, 4 T,
    ...: if it is larger, the risk is infinite. Other divergences have ratios of polynomial growth, for which
    D is an estimate.
    """
    xp = array_namespace(m)
    order = growth(phi, eta, m)

    def slope(g: float) -> float:
        largest = 0.0
        for side in (1.0, -1.0):
            _, d1, d2 = loss.jet(m + side * r * g, y)
            steep, bend = float(xp.max(side * d1)), float(xp.max(xp.abs(d2)))
            if steep > 0:
                largest = max(largest, r * (steep / eta if order == inf else order * bend / steep))
        return largest

    def enough(T: float) -> bool:
        room = T - sqrt(-2 * log(MASS))
        if order < inf:
            return max(slope(T), slope(2 * T)) <= room
        if limit <= room:
            return True
        return limit > _STEEP and slope(T) <= room and all(slope(g) < g for g in further(T))

    def further(T: float) -> Iterator[float]:
        while (T := 2 * T) < _FAR:
            yield T

    with ignore_float_warnings():
        limit = slope(_FAR) if order == inf else 0.0
        return next((T for T in TRUNCATIONS if enough(T)), inf)


def growth(phi: Divergence, eta: float, like: Array) -> float:
    """The power of the loss with which the worst case grows; inf if it grows exponentially."""
    if eta == inf or phi.family == "indicator":
        return 1.0
    if phi.family == "entropic":
        return inf
    s = array_namespace(like).full_like(like[:1], 50.0)
    order = 50.0 * float((phi.dconj(s) / phi.conj(s))[0])
    return order if order < 40 else inf

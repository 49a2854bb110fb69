"""phi with a smaller domain: abs(x - 1) and (x - 1)^2/2 on [a, b], infinite elsewhere."""

from __future__ import annotations

from math import inf, isfinite

from phiball.backends import Array, array_namespace
from phiball.refimpl import Divergence


def _between(x: Array, value: Array, a: float, b: float) -> Array:
    xp = array_namespace(x)
    # A density at the end of the domain must not fall outside by rounding.
    inside = (x >= a * (1 - 2.0**-48)) & (x <= b * (1 + 2.0**-48))
    return xp.where(inside, value, xp.full_like(x, inf))


def absolute_on(a: float, b: float = inf) -> Divergence:
    """abs(x - 1) on [a, b], for 0 <= a < 1 < b."""

    def conj(s: Array) -> Array:
        xp = array_namespace(s)
        above = b * s - (b - 1) if isfinite(b) else xp.full_like(s, inf)
        return xp.where(s > 1, above, xp.where(s < -1, a * s - (1 - a), s))

    def dconj(s: Array) -> Array:
        xp = array_namespace(s)
        return xp.where(s > 1, xp.full_like(s, b), xp.where(s < -1, xp.full_like(s, a), xp.full_like(s, 1.0)))

    return Divergence(
        f"abs(x - 1) on [{a:g}, {b:g}]",
        phi=lambda x: _between(x, array_namespace(x).abs(x - 1), a, b),
        conj=conj,
        dconj=dconj,
        d2conj=lambda s: array_namespace(s).zeros_like(s),
        slope0=-inf if a else -1.0,
        slope1=0.0,
        recession=inf if isfinite(b) else 1.0,
        curvature1=inf,
    )


def square_on(a: float, b: float = inf) -> Divergence:
    """(x - 1)^2/2 on [a, b], for 0 <= a < 1 < b."""

    def dconj(s: Array) -> Array:
        xp = array_namespace(s)
        low = xp.where(1 + s < a, xp.full_like(s, a), 1 + s)
        return xp.where(low > b, xp.full_like(s, b), low)

    def conj(s: Array) -> Array:
        x = dconj(s)
        return s * x - (x - 1) ** 2 / 2

    def d2conj(s: Array) -> Array:
        xp = array_namespace(s)
        return xp.where((1 + s > a) & (1 + s < b), xp.ones_like(s), xp.zeros_like(s))

    return Divergence(
        f"(x - 1)^2/2 on [{a:g}, {b:g}]",
        phi=lambda x: _between(x, (x - 1) ** 2 / 2, a, b),
        conj=conj,
        dconj=dconj,
        d2conj=d2conj,
        slope0=-inf if a else -1.0,
        slope1=0.0,
        recession=inf,
        curvature1=1.0,
    )

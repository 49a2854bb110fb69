"""Rounding, in one place: the tolerance, exact sums of two numbers, and sums rounded upwards."""

from __future__ import annotations

from phiball.backends import Array, array_namespace


def tolerance(x: Array, scale: float = 1.0) -> float:
    """What counts as rounding for the dtype of `x`, for quantities of size `scale`."""
    xp = array_namespace(x)
    return 8.0 * float(xp.finfo(x.dtype).eps) * scale


def two_sum(a: Array, b: Array) -> tuple[Array, Array]:
    """(s, e) with s = fl(a + b) and s + e = a + b exactly."""
    s = a + b
    c = s - a
    return s, (a - (s - c)) + (b - c)


def add_up(a: Array, b: Array) -> Array:
    """a + b, rounded upwards."""
    xp = array_namespace(a)
    s, e = two_sum(a, b)
    return xp.where(e > 0, xp.nextafter(s, xp.full_like(s, xp.inf)), s)

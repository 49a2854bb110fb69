"""Rounding: tolerances, accurate sums and directed rounding."""

from __future__ import annotations

from math import log2, prod

from phiball.backends import Array, array_namespace, detach, is_abstract

_BLOCK = 32  # numbers that the library's own sum adds, in any order


def tolerance(x: Array, scale: float = 1.0) -> float:
    """The rounding error to expect in the dtype of `x`, for quantities of size `scale`: 8 eps scale."""
    xp = array_namespace(x)
    return 8.0 * float(xp.finfo(x.dtype).eps) * scale


def rounding(losses: Array, scale: float = 1.0) -> float:
    """The error of a solution's value beyond its gap, for losses (..., m): at most 8 eps (8 + log2 m) scale.

    eps is the machine epsilon of their dtype, `scale` is max abs f, times 1 + abs(k) for `cressie_read(k)`.
    """
    return tolerance(losses, (8.0 + log2(losses.shape[-1])) * scale)


def total(x: Array, *, keepdims: bool = False) -> Array:
    """The sum along the last axis, with an error of log2(m) roundings for every memory layout.

    A library's own sum of m numbers may have m roundings along a strided axis.
    """
    xp = array_namespace(x)
    single = []
    while x.shape[-1] > _BLOCK:
        half = x.shape[-1] // 2
        single += [x[..., 2 * half :]] if x.shape[-1] % 2 else []
        x = x[..., :half] + x[..., half : 2 * half]
    return xp.sum(xp.concat([x, *single], axis=-1) if single else x, axis=-1, keepdims=keepdims)


def to_double(x: Array) -> Array:
    """`x` in double precision."""
    xp = array_namespace(x)
    return xp.astype(x, xp.float64, copy=False)


def two_sum(a: Array, b: Array) -> tuple[Array, Array]:
    """(s, e) with s = fl(a + b) and s + e = a + b exactly."""
    s = a + b
    c = s - a
    return s, (a - (s - c)) + (b - c)


def add_up(a: Array, b: Array) -> Array:
    """a + b, rounded up."""
    xp = array_namespace(a)
    s, e = two_sum(a, b)
    return xp.where(e > 0, xp.nextafter(s, xp.full_like(s, xp.inf)), s)


def cast_up(x: Array, dtype: object) -> Array:
    """`x` in another dtype, rounded up."""
    xp = array_namespace(x)
    y = xp.astype(x, dtype, copy=False)
    return xp.where(y < x, xp.nextafter(y, xp.full_like(y, xp.inf)), y)


def largest(v: Array) -> float:
    """The largest |v_j|; NaN if v contains NaN, 0 if v is empty, or inside jax.jit, where it is unknown."""
    if is_abstract(v):  # the caller's check passes
        return 0.0
    xp = array_namespace(v)
    v = detach(v)
    return max(abs(float(xp.max(v))), abs(float(xp.min(v)))) if prod(v.shape) else 0.0

"""Rounding errors: tolerances, accurate sums and rounding up."""

from __future__ import annotations

from math import log2, prod

from phiball.backends import Array, array_namespace, detach, is_abstract, is_jax, to_numpy

_BLOCK = 32  # `total` leaves sums of up to this many numbers to the library


def tolerance(x: Array, scale: float = 1.0) -> float:
    """8 eps scale: a tolerance for rounding errors of numbers of size `scale` in the dtype of `x`."""
    xp = array_namespace(x)
    return 8.0 * float(xp.finfo(x.dtype).eps) * scale


def rounding(losses: Array, scale: float = 1.0) -> float:
    """8 eps (8 + log2 m) scale: the value of a solution is within |gap| plus this number of the optimum.

    The losses f have shape (..., m), and eps is the machine epsilon of their dtype. `scale` is max |f|, times
    1 + |k| for `cressie_read(k)`.
    """
    return tolerance(losses, (8.0 + log2(losses.shape[-1])) * scale)


def total(x: Array, *, keepdims: bool = False) -> Array:
    """The sum along the last axis, by pairwise summation: the rounding error grows with log2(m).

    The error of the library's sum may grow with m, depending on the memory layout.
    """
    xp = array_namespace(x)
    unpaired = []
    while x.shape[-1] > _BLOCK:
        half = x.shape[-1] // 2
        unpaired += [x[..., 2 * half :]] if x.shape[-1] % 2 else []
        x = x[..., :half] + x[..., half : 2 * half]
    return xp.sum(xp.concat([x, *unpaired], axis=-1) if unpaired else x, axis=-1, keepdims=keepdims)


def to_double(x: Array) -> Array:
    """`x` in double precision."""
    xp = array_namespace(x)
    return xp.astype(x, xp.float64, copy=False)


def two_sum(a: Array, b: Array) -> tuple[Array, Array]:
    """(s, e): s is a + b rounded, and s + e = a + b exactly."""
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
    """The largest |v_j|: NaN if v contains NaN, 0 if v is empty, and 0 inside jax.jit, where v is unknown."""
    if is_abstract(v):  # the caller's check passes
        return 0.0
    v = to_numpy(v) if is_jax(v) else detach(v)  # inside jax.jit, operations on constants are traced as well
    xp = array_namespace(v)
    return max(abs(float(xp.max(v))), abs(float(xp.min(v)))) if prod(v.shape) else 0.0

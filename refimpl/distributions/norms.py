"""Norms along the last axis, and the split of array axes into batch and event (one point)."""

from __future__ import annotations

from math import inf, prod
from typing import Any

from phiball.backends import Array, array_namespace, device, ignore_float_warnings
from phiball.refimpl.numerics import largest
from phiball.refimpl.validation import broadcasts, check_array, check_same_array_type, valid_number

NORMS = {"l1": 1.0, "l2": 2.0, "linf": inf}
"""Exponents of the norms by name."""


def as_norm(norm: str | float) -> float:
    """Convert "l1", "l2", "linf" or a number of at least 1 to the exponent p of the norm.

    >>> as_norm("linf"), as_norm(2)
    (inf, 2.0)
    """
    if isinstance(norm, str):
        if norm not in NORMS:
            raise ValueError(f"norm is {norm!r}; expected 'l1', 'l2', 'linf' or a number of at least 1")
        return NORMS[norm]
    return valid_number("norm", norm, least=1.0, infinite=True)


def norm_name(norm: str | float) -> str:
    """The name of a norm: "l1", "l2", "linf", or "l3" for the exponent 3.

    >>> norm_name(float("inf"))
    'linf'
    """
    return f"l{as_norm(norm):g}"


def split(x: Array, event_ndim: int, name: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The batch and event shapes of x, whose last `event_ndim` axes make up one point."""
    check_array(name, x)
    if isinstance(event_ndim, bool) or not isinstance(event_ndim, int) or not 0 <= event_ndim <= x.ndim:
        raise ValueError(
            f"event_ndim is {event_ndim!r}; expected a whole number from 0 to {x.ndim}, because {name} has "
            f"shape {tuple(x.shape)}"
        )
    cut = x.ndim - event_ndim
    batch, event = tuple(x.shape[:cut]), tuple(x.shape[cut:])
    if prod(event) == 0:
        raise ValueError(f"{name} has shape {tuple(x.shape)}; expected points with at least one coordinate")
    return batch, event


def flat(x: Array, event_ndim: int, name: str) -> Array:
    """x with its event axes flattened: batch + (d,)."""
    batch, event = split(x, event_ndim, name)
    return array_namespace(x).reshape(x, (*batch, prod(event)))


def check_pair(points: Array, x: Array, event_ndim: int) -> None:
    """Raise unless points and centres x have the same event shape, and their batches broadcast."""
    _, event = split(points, event_ndim, "points")
    _, centre = split(x, event_ndim, "x")
    check_same_array_type("x", x, points, other="points")
    shape, other = tuple(points.shape), tuple(x.shape)
    if event != centre or not (broadcasts(shape, other) or broadcasts(other, shape)):
        raise ValueError(
            f"points has shape {shape} and x {other}; expected one event shape, and batches that broadcast"
        )


def dual(p: float) -> float:
    """The exponent q with 1/p + 1/q = 1."""
    return inf if p == 1 else 1.0 if p == inf else p / (p - 1)


def length(v: Array, p: float) -> Array:
    """|v|_p along the last axis, without overflow."""
    xp = array_namespace(v)
    size = xp.abs(v)
    if p == inf:
        return xp.max(size, axis=-1)
    if p == 1:
        return xp.sum(size, axis=-1)
    top = xp.max(size, axis=-1, keepdims=True)
    positive = top != 0  # True for NaN, which must propagate
    # The gradient through `top` cancels up to rounding. The last line makes the gradient 0 where v is 0.
    # XLA multiplies by 1/top, which would underflow for a huge top; 1/4 of it has a normal reciprocal.
    shrink = xp.where(top > 1, xp.full_like(top, 0.25), xp.ones_like(top))
    scaled = (size * shrink) / xp.where(positive & (top < inf), top * shrink, xp.ones_like(top))
    total = xp.sum(scaled * scaled if p == 2 else scaled**p, axis=-1)
    positive = positive[..., 0]
    root = xp.where(positive, total, xp.ones_like(total))
    root = xp.sqrt(root) if p == 2 else root ** (1 / p)
    return xp.where(positive, top[..., 0] * root, xp.zeros_like(root))


def check_overflow(name: str, value: float, reach: float, x: Array) -> None:
    """Raise if x plus or minus `reach` overflows the dtype of x; the message shows `name` and `value`."""
    limits = array_namespace(x).finfo(x.dtype)
    limit = float(limits.max)
    if reach > float(limits.eps) * limit and not reach + (top := largest(x)) <= limit:
        around = f" around entries of up to {top:.2g}" if top > 0 else ""
        raise ValueError(
            f"{name} is {value!r}{around}; expected points within the range of {x.dtype}, up to {limit:.2g}"
        )


def soft_threshold(v: Array, radius: float, *, xp: Any) -> Array:
    """The projection sign(v) (|v| - t)_+ of v onto the l1 ball of this radius, for v outside the ball."""
    size = xp.abs(v)
    # Subtract the largest entry: beside a huge entry the radius would be lost to rounding.
    size = size - xp.max(size, axis=-1, keepdims=True)
    ordered = xp.flip(xp.sort(size, axis=-1), axis=-1)
    d = v.shape[-1]
    count = xp.astype(xp.arange(1, d + 1, device=device(v)), v.dtype)
    with ignore_float_warnings():  # an overflow gives -inf, which is not the maximum
        excess = (xp.cumulative_sum(ordered, axis=-1) - radius) / count
    # t is the largest excess: over the ordered coordinates, the excesses increase while |v_j| > t.
    t = xp.max(excess, axis=-1, keepdims=True)
    kept = size - t
    return xp.where(kept > 0, xp.sign(v) * kept, xp.zeros_like(v))

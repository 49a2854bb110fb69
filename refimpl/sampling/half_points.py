"""Data in half precision: perturbed in single, and handed to the loss in the precision that it came in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from phiball.backends import Array, array_namespace, is_half, is_traced, to_single
from phiball.refimpl.numerics import largest


def in_single(x: Array, *functions: Callable[..., Array] | None) -> tuple[Any, ...]:
    """`x` in single precision, and functions f(x, i) that take points in single and call those given in half.

    Everything stays as it is if `x` is not in half precision, and so does what is no function.
    """
    if not is_half(x):
        return (x, *functions)
    return (to_single(x), *(_rounding(function, x.dtype) for function in functions))


def rounded(points: Array, like: Array) -> Array:
    """`points` in the precision of `like`, if that is half."""
    return _cast(points, like.dtype) if is_half(like) else points


def _rounding(function: Callable[..., Array] | None, dtype: Any) -> Callable[..., Array] | None:
    if not callable(function):
        return function

    def call(x: Array, *rest: Array) -> Array:
        return to_single(function(_cast(x, dtype), *rest))

    return call


def _cast(x: Array, dtype: Any) -> Array:
    """x in half precision; raises where that cannot hold it."""
    xp = array_namespace(x)
    most = float(xp.finfo(dtype).max)
    if not is_traced(x) and most < 1e30:  # bfloat16 has the range of float32
        top = largest(x)
        if top > most:
            raise ValueError(
                f"points reach {top:.2g}; expected points within the range of {dtype}, up to {most:.2g}"
            )
    return xp.astype(x, dtype)

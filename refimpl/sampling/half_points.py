"""Data in half precision: perturbed in single, and handed to the loss in the precision that it came in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from phiball.backends import Array, array_namespace
from phiball.refimpl.inner.half import is_half, single


def in_single(x: Array, *functions: Callable[..., Array] | None) -> tuple[Any, ...]:
    """`x` in single precision, and functions f(x, i) that take points in single and call those given in half.

    Everything stays as it is if `x` is not in half precision, and so does what is no function.
    """
    if not is_half(x):
        return (x, *functions)
    return (single(x), *(_rounding(function, x.dtype) for function in functions))


def rounded(points: Array, like: Array) -> Array:
    """`points` in the precision of `like`, if that is half."""
    return array_namespace(points).astype(points, like.dtype) if is_half(like) else points


def _rounding(function: Callable[..., Array] | None, dtype: Any) -> Callable[..., Array] | None:
    if not callable(function):
        return function

    def call(x: Array, *rest: Array) -> Array:
        return single(function(array_namespace(x).astype(x, dtype), *rest))

    return call

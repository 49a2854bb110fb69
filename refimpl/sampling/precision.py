"""Data in half precision: points are perturbed in float32, and passed to the loss in half precision."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from phiball.backends import Array, array_namespace, is_half, is_traced, to_single
from phiball.refimpl.numerics import largest


def half_to_single(x: Array, *functions: Callable[..., Array] | None) -> tuple[Any, ...]:
    """Convert `x` from half precision to float32, and wrap functions f(x, i) to round x back before a call.

    Everything is returned unchanged if `x` is not in half precision. None stays None.
    """
    if not is_half(x):
        return (x, *functions)
    return (to_single(x), *(_with_half_points(function, x.dtype) for function in functions))


def half_gradient_to_single(proposal: Any, x: Array) -> Any:
    """`half_to_single` for the `gradient` of a proposal, if it has one."""
    gradient = getattr(proposal, "gradient", None)
    if gradient is None or not is_half(x):
        return proposal
    return replace(proposal, gradient=_with_half_points(gradient, x.dtype))


def to_half_like(points: Array, like: Array) -> Array:
    """Convert `points` to the dtype of `like` if that is half precision."""
    return _cast(points, like.dtype) if is_half(like) else points


def _with_half_points(function: Callable[..., Array] | None, dtype: Any) -> Callable[..., Array] | None:
    if not callable(function):
        return function

    def call(x: Array, *rest: Array) -> Array:
        return to_single(function(_cast(x, dtype), *rest))

    return call


def _cast(x: Array, dtype: Any) -> Array:
    """Convert x to half precision, or raise if it overflows."""
    xp = array_namespace(x)
    limit = float(xp.finfo(dtype).max)
    if not is_traced(x) and limit < 1e30:  # bfloat16 has the range of float32
        top = largest(x)
        if top > limit:
            raise ValueError(
                f"points reach {top:.2g}, which overflows {dtype} (at most {limit:.2g}): rescale the data"
            )
    return xp.astype(x, dtype)

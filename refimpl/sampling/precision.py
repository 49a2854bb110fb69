"""Data in half precision: perturbed in float32, passed to the loss in their own dtype."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from phiball.backends import Array, array_namespace, is_half, is_traced, to_single
from phiball.refimpl.numerics import largest


def half_to_single(x: Array, *functions: Callable[..., Array] | None) -> tuple[Any, ...]:
    """Convert half-precision `x` to float32, and functions f(x, i) to round their points to half.

    Everything is returned unchanged if `x` is not in half precision. None stays None.
    """
    if not is_half(x):
        return (x, *functions)
    return (to_single(x), *(_rounding(function, x.dtype) for function in functions))


def half_gradient_to_single(proposal: Any, x: Array) -> Any:
    """Return a proposal whose `gradient`, if there is one, rounds its points to the half precision of `x`."""
    gradient = getattr(proposal, "gradient", None)
    if gradient is None or not is_half(x):
        return proposal
    return replace(proposal, gradient=_rounding(gradient, x.dtype))


def to_half_like(points: Array, like: Array) -> Array:
    """Convert `points` to the dtype of `like` if that is half precision."""
    return _cast(points, like.dtype) if is_half(like) else points


def _rounding(function: Callable[..., Array] | None, dtype: Any) -> Callable[..., Array] | None:
    if not callable(function):
        return function

    def call(x: Array, *rest: Array) -> Array:
        return to_single(function(_cast(x, dtype), *rest))

    return call


def _cast(x: Array, dtype: Any) -> Array:
    """Convert x to half precision, or raise if it overflows."""
    xp = array_namespace(x)
    most = float(xp.finfo(dtype).max)
    if not is_traced(x) and most < 1e30:  # bfloat16 has the range of float32
        top = largest(x)
        if top > most:
            raise ValueError(
                f"points reach {top:.2g}, which overflows {dtype} (at most {most:.2g}): rescale the data"
            )
    return xp.astype(x, dtype)

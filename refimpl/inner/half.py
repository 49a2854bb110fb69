"""Losses in half precision: solved in single, and returned in half."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, TypeVar

from phiball.backends import Array, array_namespace, detach, ignore_float_warnings, is_traced

Solution = TypeVar("Solution")


def is_half(x: object) -> bool:
    """Whether `x` is an array of float16 or bfloat16."""
    if getattr(getattr(x, "dtype", None), "itemsize", 0) != 2:
        return False
    return bool(array_namespace(x).isdtype(x.dtype, "real floating"))  # type: ignore[attr-defined]


def single(x: Array) -> Array:
    """`x` in single precision if it is an array in half, and as it is otherwise."""
    if not is_half(x):
        return x
    xp = array_namespace(x)
    return xp.astype(x, xp.float32)


def halved(solution: Solution, dtype: Any) -> Solution:
    """A solution in single precision rounded to half, with the rounding of its value in its gap."""
    numbers = {field.name: getattr(solution, field.name) for field in fields(solution)}  # type: ignore[arg-type]
    value = numbers["value"]
    rounded = _rounded(value, dtype)
    xp = array_namespace(value)
    error = xp.abs(detach(xp.astype(rounded, value.dtype)) - detach(value))
    # The factor and the smallest float16 outweigh the rounding of the gap itself.
    numbers["gap"] = (numbers["gap"] + error) * (1 + 2**-7) + 2**-24
    return type(solution)(**{name: _rounded(x, dtype) for name, x in numbers.items()})


def _rounded(x: Array, dtype: Any) -> Array:
    if is_traced(x):  # torch has no warnings to ignore, and its compiler takes no such context
        return array_namespace(x).astype(x, dtype)
    with ignore_float_warnings():
        return array_namespace(x).astype(x, dtype)

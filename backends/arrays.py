"""The few operations on arrays that lie outside the Array API standard."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager
from typing import Any, TypeAlias

import array_api_compat
import array_api_compat.numpy
import numpy as np
from array_api_compat import device, is_array_api_obj

Array: TypeAlias = Any
"""An array of any supported library; the Array API has no type of its own for it."""

__all__ = [
    "Array",
    "array_namespace",
    "detach",
    "device",
    "ignore_float_warnings",
    "is_array_api_obj",
    "library",
    "to_numpy",
]


def array_namespace(*arrays: Array) -> Any:
    """The Array API namespace of the arrays, which must all belong to one library."""
    if all(type(a) is np.ndarray for a in arrays) and arrays:
        return array_api_compat.numpy  # the common case, without the search through all libraries
    try:
        return array_api_compat.array_namespace(*arrays)
    except TypeError as error:
        kinds = ", ".join(f"{type(a).__module__}.{type(a).__qualname__}" for a in arrays)
        raise TypeError(f"expected arrays of one supported library, got {kinds}") from error


def library(x: Array) -> str:
    """The name of the library that `x` belongs to: numpy, torch, cupy or array_api_strict."""
    return type(x).__module__.partition(".")[0]


def _is_torch(x: Array) -> bool:
    torch = sys.modules.get("torch")  # never import torch only to find that x is not a tensor
    return torch is not None and isinstance(x, torch.Tensor)


def detach(x: Array) -> Array:
    """`x` without its gradient history: `x` itself where there is none."""
    return x.detach() if _is_torch(x) and x.requires_grad else x


def to_numpy(x: Array) -> Any:
    """A NumPy array with the values of `x`, from any library and device."""
    if _is_torch(x):
        return x.detach().cpu().numpy()
    if library(x) == "cupy":
        return x.get()
    return np.asarray(x)


def ignore_float_warnings() -> AbstractContextManager[Any]:
    """Silence NumPy's warnings of overflow and division by zero, where infinities are meant."""
    return np.errstate(all="ignore")

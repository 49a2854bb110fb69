"""Array operations outside the Array API standard."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager
from typing import Any, TypeAlias

import array_api_compat
import numpy as np

Array: TypeAlias = Any
"""An array of any supported library: NumPy, torch, CuPy or array-api-strict. Equal to `typing.Any`.

>>> def double(x: Array) -> Array:
...     return 2 * x
"""

__all__ = [
    "Array",
    "array_namespace",
    "detach",
    "device",
    "ignore_float_warnings",
    "is_array_api_obj",
    "is_half",
    "is_torch",
    "library",
    "to_numpy",
    "to_single",
]


def array_namespace(*arrays: Array) -> Any:
    """The module with the Array API functions for `arrays`: NumPy, or a module of array-api-compat.

    Raises TypeError unless all arrays are of one library.

    >>> import numpy as np
    >>> xp = array_namespace(np.zeros(3))
    >>> float(xp.sum(xp.ones(3)))
    3.0
    """
    # Fast path: array-api-compat is slow, and most calls are for NumPy arrays or plain torch tensors.
    known = _NAMESPACES.get(type(arrays[0])) if arrays else None
    if known is not None and (len(arrays) == 1 or len(set(map(type, arrays))) == 1):
        return known
    if arrays and all(isinstance(x, (np.ndarray, np.generic)) for x in arrays):
        return np
    try:
        namespace = array_api_compat.array_namespace(*arrays)
    except TypeError as error:
        names = ", ".join(f"{type(a).__module__}.{type(a).__qualname__}" for a in arrays)
        raise TypeError(f"expected arrays of one supported library, got {names}") from error

    if type(arrays[0]) is getattr(loaded_torch(), "Tensor", None):
        _NAMESPACES[type(arrays[0])] = namespace
    # NumPy arrays mixed with Python numbers reach this line: return the same module as for arrays alone.
    return np if namespace.__name__ == "array_api_compat.numpy" else namespace


_NAMESPACES: dict[type, Any] = {np.ndarray: np}  # the namespaces of array types seen before


def is_array_api_obj(x: object) -> bool:
    """Whether `x` is an array of a library that follows the Array API standard.

    >>> import numpy as np
    >>> is_array_api_obj(np.zeros(3)), is_array_api_obj([0.0, 0.0, 0.0])
    (True, False)
    """
    try:
        return type(x) is np.ndarray or is_torch(x) or bool(array_api_compat.is_array_api_obj(x))
    except AttributeError:  # array-api-compat uses torch while another thread is still importing it
        return hasattr(x, "__array_namespace__")


def device(x: Array) -> Any:
    """The device of the array `x`, in the type that its library uses for devices.

    >>> import numpy as np
    >>> device(np.zeros(3))
    'cpu'
    """
    return x.device if is_torch(x) else array_api_compat.device(x)


def library(x: Array) -> str:
    """The name of the library of `x`: numpy, torch, cupy or array_api_strict.

    >>> import numpy as np
    >>> library(np.zeros(3))
    'numpy'
    """
    return type(x).__module__.partition(".")[0]


def is_torch(x: Array) -> bool:
    """Whether `x` is a torch tensor.

    >>> import numpy as np
    >>> is_torch(np.zeros(3))
    False
    """
    torch = loaded_torch()
    return torch is not None and isinstance(x, torch.Tensor)


def loaded_torch() -> Any:
    """The module torch if it is imported completely, otherwise None: no tensor can exist yet."""
    torch = sys.modules.get("torch")
    return None if getattr(getattr(torch, "__spec__", None), "_initializing", False) else torch


def is_recording() -> bool:
    """Whether torch.compile, torch.export or make_fx is recording a graph; torch must be imported."""
    torch = loaded_torch()
    if torch.compiler.is_compiling():
        return True
    return torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.PROXY) is not None


def is_half(x: object) -> bool:
    """Whether `x` is an array of float16 or bfloat16.

    >>> import numpy as np
    >>> is_half(np.zeros(3, dtype=np.float16)), is_half(0.5)
    (True, False)
    """
    if getattr(getattr(x, "dtype", None), "itemsize", 0) != 2:
        return False
    return bool(array_namespace(x).isdtype(x.dtype, "real floating"))  # type: ignore[attr-defined]


def to_single(x: Array) -> Array:
    """`x` in single precision if it is an array in half precision, unchanged otherwise.

    >>> import numpy as np
    >>> to_single(np.zeros(3, dtype=np.float16)).dtype, to_single(0.5)
    (dtype('float32'), 0.5)
    """
    if not is_half(x):
        return x
    xp = array_namespace(x)
    return xp.astype(x, xp.float32)


def detach(x: Array) -> Array:
    """`x` without its gradient history; `x` itself if it has none.

    >>> import torch
    >>> detach(torch.ones(2, requires_grad=True)).requires_grad
    False
    """
    return x.detach() if is_torch(x) and x.requires_grad else x


def to_numpy(x: Array) -> Any:
    """A NumPy array with the values of `x`, from any library and device.

    >>> import torch
    >>> to_numpy(torch.ones(2, requires_grad=True))
    array([1., 1.], dtype=float32)
    """
    if is_torch(x):
        return x.detach().cpu().resolve_conj().resolve_neg().numpy()
    if library(x) == "cupy":
        return x.get()
    if library(x) == "array_api_strict":
        x = x.to_device(type(x.device)("CPU_DEVICE"))
    return np.asarray(x)


def ignore_float_warnings() -> AbstractContextManager[Any]:
    """A context that silences NumPy's warnings about overflow, division by zero and NaN.

    >>> import numpy as np
    >>> with ignore_float_warnings():
    ...     1 / np.zeros(1)
    array([inf])
    """
    return np.errstate(all="ignore")

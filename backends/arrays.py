"""Array operations outside the Array API standard."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from importlib import import_module
from typing import Any, TypeAlias

import array_api_compat
import numpy as np

Array: TypeAlias = Any
"""An array of any supported library: NumPy, torch, JAX, CuPy or array-api-strict. Equal to `typing.Any`.

>>> def double(x: Array) -> Array:
...     return 2 * x
"""

__all__ = [
    "Array",
    "array_namespace",
    "detach",
    "device",
    "ignore_float_warnings",
    "is_abstract",
    "is_array_api_obj",
    "is_half",
    "is_jax",
    "is_torch",
    "iterate",
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
    if arrays and all(map(is_jax, arrays)):
        return JAX
    try:
        namespace = array_api_compat.array_namespace(*arrays)
    except TypeError as error:
        names = ", ".join(f"{type(a).__module__}.{type(a).__qualname__}" for a in arrays)
        raise TypeError(f"expected arrays of one supported library, got {names}") from error

    if type(arrays[0]) is getattr(loaded_torch(), "Tensor", None):
        _NAMESPACES[type(arrays[0])] = namespace
    # NumPy arrays mixed with Python numbers reach this line: as for arrays alone, return NumPy.
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
    """The device of the array `x`, in the type that its library uses for devices; None inside jax.jit.

    >>> import numpy as np
    >>> device(np.zeros(3))
    'cpu'
    """
    if is_torch(x):
        return x.device
    return None if is_abstract(x) else array_api_compat.device(x)


def library(x: Array) -> str:
    """The name of the library of `x`: numpy, torch, jax, cupy or array_api_strict.

    >>> import numpy as np
    >>> library(np.zeros(3))
    'numpy'
    """
    if is_jax(x):
        return "jax"
    return type(x).__module__.partition(".")[0]


def is_torch(x: Array) -> bool:
    """Whether `x` is a torch tensor.

    >>> import numpy as np
    >>> is_torch(np.zeros(3))
    False
    """
    torch = loaded_torch()
    return torch is not None and isinstance(x, torch.Tensor)


def is_jax(x: Array) -> bool:
    """Whether `x` is a JAX array, or a tracer.

    >>> import numpy as np
    >>> is_jax(np.zeros(3))
    False
    """
    jax = _loaded("jax")
    return jax is not None and isinstance(x, jax.Array)


def is_abstract(x: Array) -> bool:
    """Whether `x` is a tracer: the stand-in for an array, without values, inside jax.jit, grad or vmap.

    >>> import numpy as np
    >>> is_abstract(np.zeros(3))
    False
    """
    jax = _loaded("jax")
    return jax is not None and isinstance(x, jax.core.Tracer)


def loaded_torch() -> Any:
    """The module torch; None if it is not completely imported, in which case no tensor exists yet."""
    return _loaded("torch")


def _loaded(name: str) -> Any:
    """The module with this name; None unless its import has finished."""
    module = sys.modules.get(name)
    return None if getattr(getattr(module, "__spec__", None), "_initializing", False) else module


class _JaxNamespace:
    """jax.numpy, except that float64 and int64 mean float32 and int32 unless jax_enable_x64 is set."""

    def __getattr__(self, name: str) -> Any:
        value = getattr(import_module("jax.numpy"), name)
        wide = name in ("float64", "int64")
        return import_module("jax").dtypes.canonicalize_dtype(value) if wide else value


JAX = _JaxNamespace()


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
    if is_torch(x):
        return x.detach() if x.requires_grad else x
    return import_module("jax").lax.stop_gradient(x) if is_abstract(x) else x


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


def iterate(step: Callable[..., tuple[Any, Array]], state: tuple[Any, ...], max_iter: int) -> tuple[Any, ...]:
    """Repeat `state, done = step(*state)` until `done` holds everywhere, at most `max_iter` times.

    Arguments:
    - `step`: a function of the state that returns the next state, of equal shapes, and a bool array `done`.
    - `state`: a tuple of arrays, or of tuples of arrays.

    Inside jax.jit the loop becomes a `lax.while_loop`.

    >>> import numpy as np
    >>> iterate(lambda x: ((x / 2,), x < 1), (np.asarray([8.0, 2.0]),), 100)
    (array([0.25  , 0.0625]),)
    """
    if not any(map(is_abstract, state)):
        for _ in range(max_iter):
            state, done = step(*state)
            if array_namespace(done).all(done):
                break
        return state
    lax, xp = import_module("jax").lax, array_namespace(state[0])

    def body(carry: tuple[Any, ...]) -> tuple[Any, ...]:
        n, _, state = carry
        state, done = step(*state)
        return n + 1, xp.all(done), state

    start = (0, False, state)
    _, _, state = lax.while_loop(lambda carry: ~carry[1] & (carry[0] < max_iter), body, start)
    return state


def ignore_float_warnings() -> AbstractContextManager[Any]:
    """A context that silences NumPy's warnings about overflow, division by zero and NaN.

    >>> import numpy as np
    >>> with ignore_float_warnings():
    ...     1 / np.zeros(1)
    array([inf])
    """
    return np.errstate(all="ignore")

"""The active backend, and `@kernel`, which marks functions that a backend may replace by faster ones."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import wraps
from importlib import import_module
from typing import Any, ParamSpec, TypeVar, cast

import numpy as np

from phiball.backends.arrays import JAX, Array, detach, is_abstract, is_jax, is_torch

P = ParamSpec("P")
R = TypeVar("R")
BACKEND_VARIABLE = "PHIBALL_BACKEND"
DEFAULT_NAME = "numba"


@dataclass(frozen=True)
class Backend:
    """A named backend: an Array API namespace and its fast kernels.

    - `name`: the name for PHIBALL_BACKEND, `set_backend` and `backend`.
    - `module`: the name of the Array API namespace.
    - `package`: the name of the library that must be installed; `install`: the pip command that installs it.
    - `kernels`: maps reference functions to fast kernels, both as "module:name"; imported on first use.

    >>> float(BACKENDS["numpy"].namespace.sum(BACKENDS["numpy"].namespace.ones(3)))
    3.0
    """

    name: str
    module: str
    package: str
    install: str
    kernels: Mapping[str, str] = field(default_factory=dict)

    @property
    def namespace(self) -> Any:
        """The Array API namespace in which this backend creates arrays."""
        try:
            module = import_module(self.module)
        except ImportError as error:
            raise self.missing() from error
        return JAX if self.name == "jax" else module

    def missing(self) -> ImportError:
        """The error for a library that is not installed."""
        return ImportError(
            f"the backend {self.name!r} needs {self.package}, which is not installed: {self.install}"
        )

    def kernel(self, reference: str) -> Callable[..., Any] | None:
        """The fast kernel for the function `reference`, given as "module:name", or None."""
        target = self.kernels.get(reference) if _kernels_enabled else None
        return None if target is None else _import_function(target, self)


_kernels_enabled = True


def disable_kernels() -> None:
    """Use the reference implementations in this process from now on."""
    global _kernels_enabled
    _kernels_enabled = False


_functions: dict[str, Callable[..., Any]] = {}  # kernels that are already imported


def _import_function(target: str, backend: Backend) -> Callable[..., Any]:
    """The function with the name "module:function", imported on first use."""
    function = _functions.get(target)
    if function is None:
        module, name = target.split(":")
        try:
            function = getattr(import_module(module), name)
        except ImportError as error:
            raise backend.missing() from error
        _functions[target] = function
    return function


def _numba_kernels(reference: str, module: str, *names: str) -> dict[str, str]:
    """Entries of `Backend.kernels` for functions of refimpl.`reference`, with kernels of the same names."""
    return {f"phiball.refimpl.{reference}:{n}": f"phiball.backends.numba.{module}:{n}" for n in names}


_NUMPY = "numpy"
_NUMBA = (
    _numba_kernels("distributions.tilting", "balls", "first_accepted", "tilt_norms")
    | _numba_kernels("distributions.tilting", "balls", "tilted_points_2", "tilted_points_inf")
    | _numba_kernels("distributions.uniform", "balls", "ball_points")
    | _numba_kernels("inner.multiplier", "multiplier", "multiplier")
    | _numba_kernels("inner.solvers", "solve", "solve", "solve_ragged")
    | _numba_kernels("qlearning.q_learning", "qlearning", "q_run")
    | _numba_kernels("validation", "solve", "all_finite")
)
BACKENDS: dict[str, Backend] = {
    backend.name: backend
    for backend in (
        Backend("numpy", _NUMPY, "numpy", "pip install numpy"),
        Backend("numba", _NUMPY, "numba", "pip install numba", _NUMBA),
        Backend("torch", "array_api_compat.torch", "torch", "pip install 'phiball[torch]'"),
        Backend("jax", "jax.numpy", "jax", "pip install 'phiball[jax]'", _NUMBA),
        Backend("cupy", "array_api_compat.cupy", "cupy", "pip install 'phiball[cupy]'"),
        Backend("strict", "array_api_strict", "array-api-strict", "pip install 'phiball[dev]'"),
    )
}
"""The backends by name.

>>> list(BACKENDS)
['numpy', 'numba', 'torch', 'jax', 'cupy', 'strict']
"""

_installed: set[str] = set()  # backends whose library is known to be installed
_process_backend: Backend | None = None  # set by `set_backend`
_block_backend: ContextVar[Backend | None] = ContextVar("phiball_backend", default=None)


def _find_backend(name: str, source: str) -> Backend:
    try:
        return BACKENDS[name]
    except (KeyError, TypeError):
        valid = ", ".join(BACKENDS)
        raise ValueError(f"{source} is {name!r}; the backends are {valid}") from None


def active() -> Backend:
    """The active backend, selected by `backend`, else `set_backend`, else PHIBALL_BACKEND, else numba.

    >>> with backend("numpy"):
    ...     active().name
    'numpy'
    """
    chosen = _block_backend.get() or _process_backend
    if chosen is not None:
        return chosen
    name = os.environ.get(BACKEND_VARIABLE) or DEFAULT_NAME
    backend = _find_backend(name, f"the environment variable {BACKEND_VARIABLE}")
    if backend.name not in _installed:
        _ = backend.namespace  # raise now if the library is missing, even if no array is created
        _installed.add(backend.name)
    return backend


def set_backend(name: str) -> None:
    """Select the backend of this process, for all threads. It overrides PHIBALL_BACKEND.

    Arguments:
    - `name`: one of `BACKENDS`.

    The backend determines where new arrays are created and which kernels run; arguments keep their library.

    >>> set_backend("abacus")
    Traceback (most recent call last):
    ValueError: the backend is 'abacus'; the backends are numpy, numba, torch, jax, cupy, strict
    """
    global _process_backend
    backend = _find_backend(name, "the backend")
    _ = backend.namespace  # raise now if the library is missing, not at the first array
    _process_backend = backend


@contextmanager
def backend(name: str) -> Iterator[Backend]:
    """Select a backend in a `with` block, for the current thread or asyncio task only.

    Arguments:
    - `name`: one of `BACKENDS`.

    It overrides `set_backend` and PHIBALL_BACKEND.

    >>> with backend("numpy"):
    ...     active().name
    'numpy'
    """
    chosen = _find_backend(name, "the backend")
    _ = chosen.namespace
    token = _block_backend.set(chosen)
    try:
        yield chosen
    finally:
        with suppress(ValueError):  # web frameworks may leave the block in another context: nothing to reset
            _block_backend.reset(token)


def kernel(reference: Callable[P, R]) -> Callable[P, R]:
    """Decorate a reference function that a kernel of the active backend may replace.

    A kernel takes the same arguments and returns the same result, or returns `NotImplemented` to decline;
    then the reference runs. The decorated function has the original as its attribute `reference`.
    `Backend.kernels` lists the kernels.

    >>> @kernel
    ... def total(x):
    ...     return sum(x)
    >>> total([1, 2]), total.reference([1, 2])  # no backend has a kernel for it
    (3, 3)
    """
    key = f"{reference.__module__}:{reference.__qualname__}"

    @wraps(reference)
    def dispatch(*args: P.args, **kwargs: P.kwargs) -> R:
        fast = active().kernel(key)
        if fast is not None:
            result = fast(*args, **kwargs)
            if result is not NotImplemented:
                return cast(R, result)
        return reference(*args, **kwargs)

    cast(Any, dispatch).reference = reference
    return dispatch


def kernel_memory(
    *arrays: Array | float | None, convert: bool = True
) -> tuple[tuple[Any, ...], Callable[[tuple[Array, ...]], tuple[Array, ...]]]:
    """Convert torch and JAX arrays to NumPy arrays for kernels; also return the inverse conversion.

    Arrays are converted if `convert` is true and the active backend has kernels. In addition, torch tensors
    must all be in main memory (they are not copied), and JAX arrays must not be traced. Otherwise tensors are
    only detached, and other arguments are returned as they are. The second result is a function that converts
    a tuple of kernel results back to the library of the arguments, if the arguments were converted.

    >>> import torch
    >>> (x, eta), back = kernel_memory(torch.ones(2), 0.5)
    >>> [type(y).__name__ for y in (x, *back((x,)))], eta
    (['ndarray', 'Tensor'], 0.5)
    """
    if is_jax(arrays[0]) and convert and active().kernels and not any(map(is_abstract, arrays)):
        return tuple(np.asarray(x) if is_jax(x) else x for x in arrays), _to_jax
    if not is_torch(arrays[0]):
        return arrays, _identity
    values: list[Any] = [x for x in arrays if hasattr(x, "shape")]
    readable = all(is_torch(x) and _in_main_memory(x) for x in values)
    if not (convert and readable and active().kernels):
        return tuple(map(detach, arrays)), _identity
    return tuple(cast(Any, x).detach().resolve_neg().numpy() if is_torch(x) else x for x in arrays), _to_torch


def _identity(results: tuple[Array, ...]) -> tuple[Array, ...]:
    return results


def _to_torch(results: tuple[Any, ...]) -> tuple[Array, ...]:
    from_numpy = import_module("torch").from_numpy
    arrays = map(np.asarray, results)  # NumPy operations return scalars instead of arrays without axes
    return tuple(from_numpy(x if x.flags.writeable else x.copy()) for x in arrays)


def _to_jax(results: tuple[Any, ...]) -> tuple[Array, ...]:
    return tuple(map(import_module("jax.numpy").asarray, results))


def _in_main_memory(x: Array) -> bool:
    return bool(x.device.type == "cpu" and x.layout == import_module("torch").strided)

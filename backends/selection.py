"""The active backend, which creates new arrays, and `@kernel`, a function that a backend may replace."""

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

from phiball.backends.arrays import Array, detach, is_torch

P = ParamSpec("P")
R = TypeVar("R")
VARIABLE = "PHIBALL_BACKEND"
DEFAULT = "numba"


@dataclass(frozen=True)
class Backend:
    """A named backend: an Array API namespace and its fast kernels.

    - `name`: as in PHIBALL_BACKEND, `set_backend` and `backend`.
    - `module`: the Array API namespace; `package`: the library behind it; `install`: how to install it.
    - `kernels`: maps reference functions to fast kernels, both as "module:name", imported on first use.

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
            return import_module(self.module)
        except ImportError as error:
            raise self.missing() from error

    def missing(self) -> ImportError:
        """The error to raise if the library is not installed."""
        return ImportError(
            f"the backend {self.name!r} needs {self.package}, which is not installed: {self.install}"
        )

    def kernel(self, reference: str) -> Callable[..., Any] | None:
        """The fast kernel registered for the reference function "module:name", or None."""
        target = self.kernels.get(reference)
        return None if target is None else _load(target, self)


_loaded: dict[str, Callable[..., Any]] = {}


def _load(target: str, backend: Backend) -> Callable[..., Any]:
    """The function named by "module:function", imported on first use."""
    function = _loaded.get(target)
    if function is None:
        module, name = target.split(":")
        try:
            function = getattr(import_module(module), name)
        except ImportError as error:
            raise backend.missing() from error
        _loaded[target] = function
    return function


def _numba_kernels(reference: str, module: str, *names: str) -> dict[str, str]:
    """The entries of `kernels` for functions of a module of refimpl, and of the same names in numba/."""
    return {f"phiball.refimpl.{reference}:{n}": f"phiball.backends.numba.{module}:{n}" for n in names}


_NUMPY = "numpy"
BACKENDS: dict[str, Backend] = {
    backend.name: backend
    for backend in (
        Backend("numpy", _NUMPY, "numpy", "pip install numpy"),
        Backend(
            "numba",
            _NUMPY,
            "numba",
            "pip install numba",
            _numba_kernels("distributions.tilting", "balls", "first_accepted", "tilt_norms")
            | _numba_kernels("distributions.tilting", "balls", "tilted_points_2", "tilted_points_inf")
            | _numba_kernels("distributions.uniform", "balls", "ball_points")
            | _numba_kernels("inner.multiplier", "multiplier", "multiplier")
            | _numba_kernels("inner.solvers", "solve", "solve", "solve_ragged")
            | _numba_kernels("qlearning.q_learning", "qlearning", "q_run")
            | _numba_kernels("validation", "solve", "all_finite"),
        ),
        Backend("torch", "array_api_compat.torch", "torch", "pip install 'phiball[torch]'"),
        Backend("cupy", "array_api_compat.cupy", "cupy", "pip install 'phiball[cupy]'"),
        Backend("strict", "array_api_strict", "array-api-strict", "pip install 'phiball[dev]'"),
    )
}
"""The backends by name.

>>> list(BACKENDS)
['numpy', 'numba', 'torch', 'cupy', 'strict']
"""

_seen: set[str] = set()  # backends from the environment variable whose library is installed
_default: Backend | None = None  # set by `set_backend`
_chosen: ContextVar[Backend | None] = ContextVar("phiball_backend", default=None)


def _find(name: str, source: str) -> Backend:
    try:
        return BACKENDS[name]
    except (KeyError, TypeError):
        valid = ", ".join(BACKENDS)
        raise ValueError(f"{source} is {name!r}; the backends are {valid}") from None


def active() -> Backend:
    """The active backend: that of `backend`, `set_backend` or PHIBALL_BACKEND, in this order, or numba.

    >>> with backend("numpy"):
    ...     active().name
    'numpy'
    """
    chosen = _chosen.get() or _default
    if chosen is not None:
        return chosen
    backend = _find(os.environ.get(VARIABLE) or DEFAULT, f"the environment variable {VARIABLE}")
    if backend.name not in _seen:
        _ = backend.namespace  # report a missing library even if no array is created in it
        _seen.add(backend.name)
    return backend


def set_backend(name: str) -> None:
    """Select the backend of this process, for all threads. It overrides PHIBALL_BACKEND.

    Arguments:
    - `name`: one of `BACKENDS`.

    The backend determines where new arrays are created and which kernels run; arguments keep their library.

    >>> set_backend("abacus")
    Traceback (most recent call last):
    ValueError: the backend is 'abacus'; the backends are numpy, numba, torch, cupy, strict
    """
    global _default
    backend = _find(name, "the backend")
    _ = backend.namespace  # report a missing library here, not at the first array
    _default = backend


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
    chosen = _find(name, "the backend")
    _ = chosen.namespace
    token = _chosen.set(chosen)
    try:
        yield chosen
    finally:
        with suppress(ValueError):  # another context, as in web frameworks: the choice ends with its own
            _chosen.reset(token)


def kernel(reference: Callable[P, R]) -> Callable[P, R]:
    """Mark a reference function, which a kernel of the active backend may replace.

    A kernel takes the same arguments and returns the same result, or declines with `NotImplemented`: then the
    reference runs. The attribute `reference` of the decorated function is the reference. `Backend.kernels`
    identifies it by module and qualified name, so that another function of the same name is not replaced.

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
    """Tensors without gradient history, as kernels read them, and a function that converts results back.

    If the first array is a torch tensor and the active backend has kernels, tensors in main memory become
    NumPy arrays on the same memory, unless `convert` is false: a call costs less in NumPy than in torch.
    Other values stay as they are.

    >>> import torch
    >>> (x, eta), back = kernel_memory(torch.ones(2), 0.5)
    >>> [type(y).__name__ for y in (x, *back((x,)))], eta
    (['ndarray', 'Tensor'], 0.5)
    """
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
    arrays = map(np.asarray, results)  # NumPy turns arrays without axes into numbers
    return tuple(from_numpy(x if x.flags.writeable else x.copy()) for x in arrays)


def _in_main_memory(x: Array) -> bool:
    return bool(x.device.type == "cpu" and x.layout == import_module("torch").strided)

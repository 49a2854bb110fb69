"""Which backend is active: where new arrays are made, and which kernels are consulted."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextvars import ContextVar, Token
from dataclasses import dataclass, field
from importlib import import_module
from types import TracebackType
from typing import Any

from phiball.backends.interrupts import finish

VARIABLE = "PHIBALL_BACKEND"
DEFAULT = "numba"


@dataclass(frozen=True)
class Backend:
    """A named place for arrays: an Array API namespace, and the fast kernels that go with it.

    - `name`: as in PHIBALL_BACKEND and in `use`.
    - `module`: the Array API namespace; `package`: the library behind it; `install`: how to install that.
    - `kernels`: maps the name of a reference function to "module:function", imported on first use.

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
        """The Array API namespace in which this backend makes new arrays."""
        try:
            return _import(self.module)
        except ImportError as error:
            raise self.missing() from error

    def missing(self) -> ImportError:
        """The error to raise if the library is not installed."""
        return ImportError(
            f"the backend {self.name!r} needs {self.package}, which is not installed: {self.install}"
        )

    def kernel(self, name: str) -> Callable[..., Any] | None:
        """The fast kernel registered for the reference function `name`, or None."""
        target = self.kernels.get(name)
        return None if target is None else _load(target, self)


_imported: set[str] = set()  # modules, to their end


def _import(name: str) -> Any:
    """The module; an interrupt that comes while a library is imported would leave it unusable for good."""
    if name not in _imported:
        finish(lambda: import_module(name))
        _imported.add(name)
    return import_module(name)


_loaded: dict[str, Callable[..., Any]] = {}


def _load(target: str, backend: Backend) -> Callable[..., Any]:
    """The function that "module:function" names, imported on first use."""
    function = _loaded.get(target)
    if function is None:
        module, name = target.split(":")
        try:
            function = getattr(_import(module), name)
        except ImportError as error:
            raise backend.missing() from error
        _loaded[target] = function
    return function


_NUMPY = "array_api_compat.numpy"
BACKENDS: dict[str, Backend] = {
    backend.name: backend
    for backend in (
        Backend("numpy", _NUMPY, "numpy", "pip install numpy"),
        Backend(
            "numba",
            _NUMPY,
            "numba",
            "pip install numba",
            {
                "aimed_2": "phiball.backends.numba.balls:aimed_2",
                "all_finite": "phiball.backends.numba.solve:all_finite",
                "first_kept": "phiball.backends.numba.balls:first_kept",
                "multiplier": "phiball.backends.numba.multiplier:multiplier",
                "placed": "phiball.backends.numba.balls:placed",
                "q_run": "phiball.backends.numba.qlearning:q_run",
                "solve": "phiball.backends.numba.solve:solve",
                "solve_ragged": "phiball.backends.numba.solve:solve_ragged",
                "tilt_sizes": "phiball.backends.numba.balls:tilt_sizes",
                "tilted_inf": "phiball.backends.numba.balls:tilted_inf",
            },
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

_seen: set[str] = set()  # backends of the environment variable whose library is installed
_calls: list[use] = []  # plain calls of `use`, the last of which is in force for every thread
_block: ContextVar[Backend | None] = ContextVar("phiball_backend", default=None)


def _find(name: str, source: str) -> Backend:
    try:
        return BACKENDS[name]
    except (KeyError, TypeError):
        valid = ", ".join(BACKENDS)
        raise ValueError(f"{source} is {name!r}; the backends are {valid}") from None


def active() -> Backend:
    """The backend in force: what `use` chose, else the environment variable PHIBALL_BACKEND, else numba.

    >>> with use("numpy"):
    ...     active().name
    'numpy'
    """
    chosen = _block.get()
    if chosen is not None:
        return chosen
    if _calls:
        return _calls[-1].backend
    backend = _find(os.environ.get(VARIABLE) or DEFAULT, f"the environment variable {VARIABLE}")
    if backend.name not in _seen:
        _ = backend.namespace  # a missing library is reported, even if no array is made in it
        _seen.add(backend.name)
    return backend


class use:
    """Select a backend: by a call from now on, or as a context manager for one block of one thread.

    Arguments:
    - `name`: one of `BACKENDS`.

    It overrides PHIBALL_BACKEND. The backend says where new arrays are made and which kernels are consulted;
    arrays that you pass in keep their library.

    >>> with use("numpy"):
    ...     active().name
    'numpy'
    """

    def __init__(self, name: str) -> None:
        self.backend = _find(name, "the backend")
        _ = self.backend.namespace  # a missing library is reported here, not at the first array
        _calls.append(self)  # until it turns out to be the head of a block

    def __enter__(self) -> Backend:
        if self in _calls:
            _calls.remove(self)
        self._token: Token[Backend | None] = _block.set(self.backend)
        return self.backend

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        _block.reset(self._token)

"""Decorators that compile functions with Numba on first use, and cache them on disk if possible.

Numba recompiles a function when its own source file changes, but not when a function that it calls changes in
another file. The name of a cache file therefore contains a hash of all sources in this folder.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from functools import cache
from hashlib import sha256
from importlib.resources import files
from typing import Any, ParamSpec, TypeVar, cast

import numba
from numba.core.compiler_lock import global_compiler_lock

from phiball.backends.selection import disable_kernels

P = ParamSpec("P")
R = TypeVar("R")
Flags = set[str] | bool


def compiled(fastmath: Flags = False) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Compile a function that Python calls. It releases the GIL, and 1/0 is infinite, as in NumPy."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        function.__qualname__ += f"-{_sources_hash()}"  # Numba names the cache file after it
        options: dict[str, Any] = {"fastmath": fastmath, "nogil": True, "error_model": "numpy"}
        try:
            dispatcher = numba.njit(cache=True, **options)(function)
        except RuntimeError:  # no cache folder is writable
            _warn_cache_disabled()
            dispatcher = numba.njit(**options)(function)
        return cast("Callable[P, R]", dispatcher)

    return decorate


def subroutine(fastmath: Flags = False, inline: bool = False) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Compile a function that only compiled functions call: a call from Python would crash.

    It has no wrapper for Python, which is slow to compile. Set `inline` for calls in vectorised loops.
    """
    options: dict[str, Any] = {"fastmath": fastmath, "nogil": True, "error_model": "numpy"}
    options |= {"forceinline": inline, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    return cast("Callable[[Callable[P, R]], Callable[P, R]]", numba.njit(**options))


@cache
def _sources_hash() -> str:
    digest = sha256()
    for source in sorted(files(__package__).iterdir(), key=lambda file: file.name):
        if source.name.endswith(".py"):
            digest.update(source.read_bytes())
    return digest.hexdigest()[:12]


@cache  # warn once
def _warn_cache_disabled() -> None:
    logging.getLogger("phiball").warning(
        "no cache folder for compiled kernels is writable: every process compiles them; set NUMBA_CACHE_DIR"
    )


def _after_fork_in_child() -> None:
    """Do without kernels if another thread was compiling: its lock is never released in this process."""
    if global_compiler_lock._lock.acquire(blocking=False):
        global_compiler_lock._lock.release()
    else:
        disable_kernels()


if hasattr(os, "register_at_fork"):  # not on Windows, which does not fork
    os.register_at_fork(after_in_child=_after_fork_in_child)

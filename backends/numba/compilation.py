"""Functions compiled on first use: kept in a folder where there is one, else in memory.

This is Numba's `cache=True` with three differences. A file is checked before it is used, since damaged
machine code would crash or give wrong numbers, and a file of another user could run anything. Where no
file can be written the function still works. And a change of any kernel's source is noticed, also of a
function that is compiled into another.
"""

from __future__ import annotations

import logging
import os
import pickle
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from hashlib import sha256
from pathlib import Path
from stat import S_IWOTH
from threading import Timer
from typing import Any, BinaryIO, ParamSpec, TypeVar, cast

import llvmlite
import numba
from numba.core.caching import CompileResultCacheImpl, NullCache
from numba.core.serialize import dumps

from phiball.backends.files import atomic_write

P = ParamSpec("P")
R = TypeVar("R")
SUFFIX = ".kernel"
_log = logging.getLogger("phiball")


def compiled(fastmath: set[str] | bool = False) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Compile a function without the interpreter's lock, cached on disk; 1/0 is infinite, as in NumPy."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        # Inlined into its callers: else the process that compiles would run a copy of its own, not vectorised
        # and with other bits, in place of the one in the kernel that later processes load.
        options: dict[str, Any] = {"fastmath": fastmath, "nogil": True, "forceinline": True}
        dispatcher = numba.njit(error_model="numpy", **options)(function)
        try:
            dispatcher._cache = KernelCache(function)
        except (RuntimeError, OSError):  # Numba finds no folder, or the source is not to be read
            _say_that_nothing_is_kept("no folder for them can be written to")
        return cast("Callable[P, R]", dispatcher)

    return decorate


_prepared: set[tuple[Any, Any]] = set()


def prepare(kernel: Any, dtype: Any, call: Callable[[], None]) -> None:
    """Make the first call of a kernel for a dtype, which loads it from the disk or else compiles it.

    A notice is logged if it compiles for more than a second.
    """
    if (kernel, dtype) in _prepared or numba.config.DISABLE_JIT:  # then it is a function of Python
        return
    misses = kernel.stats.cache_misses.total()

    def announce() -> None:
        if kernel.stats.cache_misses.total() > misses and kernel.stats.cache_path:
            message = "compiling the Numba kernel %r, once: later it is loaded from a cache"
            _log.warning(message, kernel.__name__)

    notice = Timer(1.0, announce)
    notice.daemon = True

    def make() -> None:
        with suppress(RuntimeError):  # no thread to be had, or the interpreter is shutting down
            notice.start()
        try:
            call()
        finally:
            notice.cancel()

    make()
    _prepared.add((kernel, dtype))


class KernelCache(NullCache):  # type: ignore[misc]
    """The compiled forms of a function, each in a file of its own with a checksum; a dispatcher asks it.

    RuntimeError if there is no folder for them.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._forms = CompileResultCacheImpl(function)  # it also finds the folder, by Numba's rules
        self._folder = Path(self._forms.locator.get_cache_path())
        python = f"{sys.implementation.cache_tag}{sys.abiflags if hasattr(sys, 'abiflags') else ''}"
        self._name = f"{function.__module__}.{function.__qualname__}.{python}-".replace("<locals>.", "")
        self._state = _digest(function.__code__.co_filename)

    @property
    def cache_path(self) -> str:
        """The folder."""
        return str(self._folder)

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """The form for the types `sig`, or None: then it is compiled, and given to `save_overload`."""
        target_context.refresh()
        file = self._file(sig, target_context.codegen())
        try:
            with file.open("rb") as stream:
                others = _others_can_have_written(stream)
                content = stream.read()
        except OSError:  # it is not there, or not to be read
            return None
        if others:
            _log.warning("%s is of another user; it is compiled again", file)
            return None
        try:
            checksum, body = content[:32], content[32:]
            if sha256(body).digest() != checksum:
                raise ValueError("its checksum is wrong")
            return self._forms.rebuild(target_context, pickle.loads(body))
        except Exception as error:  # almost anything comes of a damaged file
            _log.warning("%s is damaged (%s); it is compiled again", file, error)
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Keep the form for the types `sig`, and drop those of an earlier source."""
        if not self._forms.check_cachable(data):
            return
        file = self._file(sig, data.codegen)
        body = dumps(self._forms.reduce(data))
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with atomic_write(file) as stream:
                stream.write(sha256(body).digest() + body)
            for other in self._folder.glob(f"{self._name}*{SUFFIX}"):
                if not other.name.startswith(self._name + self._state):
                    other.unlink(missing_ok=True)
        except OSError as error:
            _say_that_nothing_is_kept(f"{self._folder}: {error.strerror}")

    def _file(self, sig: Any, codegen: Any) -> Path:
        key = sha256(repr((str(sig), codegen.magic_tuple())).encode()).hexdigest()[:16]
        return self._folder / f"{self._name}{self._state}-{key}{SUFFIX}"


def _others_can_have_written(stream: BinaryIO) -> bool:
    """Whether a file is of a user who could not change these sources: a pickle runs what it says."""
    if not hasattr(os, "geteuid"):
        return False
    status = os.fstat(stream.fileno())
    trusted = {0, os.geteuid(), Path(__file__).stat().st_uid}
    return status.st_uid not in trusted or bool(status.st_mode & S_IWOTH)


@cache
def _digest(file: str) -> str:
    """A hash of the versions and of the sources that a function in `file` is compiled from."""
    sources = sorted({Path(file), *Path(__file__).parent.glob("*.py")})
    digest = sha256(repr((numba.__version__, llvmlite.__version__)).encode())
    for source in sources:
        digest.update(source.read_bytes())
    return digest.hexdigest()[:16]


@cache  # once is enough
def _say_that_nothing_is_kept(why: str) -> None:
    _log.warning("kernels are compiled again in each process (%s): let NUMBA_CACHE_DIR name a folder", why)

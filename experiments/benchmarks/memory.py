"""How much memory work takes at its peak, seen in a process of its own."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from ctypes import CDLL
from importlib import import_module
from multiprocessing import get_all_start_methods, get_context, parent_process
from pathlib import Path
from threading import Thread
from typing import Any

MEASURABLE = "forkserver" in get_all_start_methods()  # not on Windows
_PRELOADED = ("numpy", "torch")  # imported once, for all processes


def in_own_process(function: Callable[..., Any], *arguments: Any) -> Any:
    """Return function(*arguments), computed by a new process, which is gone when this returns or raises.

    The function must be importable by name.
    """
    context = get_context("forkserver")
    context.set_forkserver_preload([*_PRELOADED, function.__module__])
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_answer, args=(there, function, arguments), daemon=True)
    process.start()
    there.close()
    try:
        error, result = here.recv()
    except EOFError:
        process.join()
        raise RuntimeError(f"the process of {function.__name__} ended with {process.exitcode}") from None
    finally:
        process.kill()
        process.join()
        here.close()
    if error is not None:
        raise error
    return result


def _answer(connection: Any, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to all processes
    Thread(target=_end_with_parent, daemon=True).start()
    answer: tuple[Exception | None, Any]
    try:
        answer = (None, function(*arguments))
    except Exception as error:
        answer = (error, None)
    connection.send(answer)


def _end_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        parent.join()  # not the server of processes, which outlives it as long as one of them lives
    os._exit(1)


def peak_memory(work: Callable[[], Any]) -> float:
    """Return the MB that `work` adds at its peak to what is in use before; in a process that did no more.

    This is memory in use; freed memory that an allocator keeps comes on top, up to twice as much.
    """
    with suppress(AttributeError, OSError):  # glibc: freed blocks of 64 kB and more go back to the system
        CDLL(None).mallopt(-3, 1 << 16)  # M_MMAP_THRESHOLD
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # the high-water mark is now what is in use
    before = _high_water_mark()
    kept = work()
    after = _high_water_mark()
    del kept
    return max(0.0, after - before)


def _high_water_mark() -> float:
    """The largest resident memory of this process so far, in MB."""
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM"):
                return int(line.split()[1]) / 1024
    unit = 1 << (20 if sys.platform == "darwin" else 10)
    resource = import_module("resource")
    return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss) / unit


def resident_memory() -> float:
    """Return the memory of this process that is in use now, in MB; its high-water mark where that is all."""
    with suppress(OSError):
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 2**20
    return _high_water_mark()

"""How much memory work takes at its peak, and how much is in use."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from ctypes import CDLL
from importlib import import_module
from pathlib import Path
from typing import Any


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

"""Time as a multiple of a unit that is measured beside it, so that a busy machine slows both."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any


def ratio(work: Callable[[], Any], unit: Callable[[], Any], seconds: float) -> float:
    """Return the time of `work` over the time of `unit`: lower quartiles, the unit measured before and after.

    Each is timed in a block of its own, since work in between would evict the unit's data from the cache.
    """
    work(), unit()  # warm up
    before = _lower_quartile(unit, seconds / 4)
    spent = _lower_quartile(work, seconds)
    return 2 * spent / (before + _lower_quartile(unit, seconds / 4))


def _lower_quartile(work: Callable[[], Any], seconds: float) -> float:
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < 5 or (time.perf_counter() < end and len(times) < 400):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return sorted(times)[len(times) // 4]

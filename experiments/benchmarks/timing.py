"""Time as a multiple of a unit that is measured beside it, so that a busy machine slows both.

Work on one thread is best timed by the clock `thread_time`, which stands still while others have the core;
work on several needs `perf_counter`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any, TypeAlias

Clock: TypeAlias = Callable[[], float]
ROUNDS = 5
BLOCK = 0.02  # seconds of calls that are timed together, where totals are compared
SHORT = 2e-4  # seconds below which calls are timed together, as a look at the clock takes a part of that


@dataclass(frozen=True)
class Ratio:
    """The time of one thing over that of another: the median of several rounds, and their extremes."""

    middle: float
    low: float
    high: float

    def __str__(self) -> str:
        """As the tables show it."""
        return f"{self.middle:.2f} ({self.low:.2f}-{self.high:.2f})"


def clock_for(threads: int) -> Clock:
    """Return the clock for work on so many threads."""
    return time.thread_time if threads == 1 else time.perf_counter


def ratio(
    work: Callable[[], Any], unit: Callable[[], Any], seconds: float, clock: Clock = time.perf_counter
) -> float:
    """Return the time of `work` over the time of `unit`: lower quartiles, the unit measured before and after.

    Each is timed in a block of its own, since work in between would evict the unit's data from the cache.
    """
    work(), unit()  # warm up
    before = lower_quartile(unit, seconds / 4, clock)
    spent = lower_quartile(work, seconds, clock)
    return 2 * spent / (before + lower_quartile(unit, seconds / 4, clock))


def ratio_of_rounds(
    work: Callable[[], Any],
    unit: Callable[[], Any],
    seconds: float,
    rounds: int = ROUNDS,
    clock: Clock = time.perf_counter,
) -> Ratio:
    """Return `ratio` of several rounds, in which the two take turns; all rounds together take `seconds`."""
    ratios = [ratio(work, unit, seconds / (1.5 * rounds), clock) for _ in range(rounds)]
    return Ratio(median(ratios), min(ratios), max(ratios))


def ratio_of_totals(
    work: Callable[[], Any], unit: Callable[[], Any], seconds: float, rounds: int = ROUNDS
) -> Ratio:
    """Return the total time of `work` over that of `unit`, of as many calls, with every interruption counted.

    On a busy machine a call is now and then interrupted for long, and that is a part of what it costs. The
    two take turns in blocks of about BLOCK seconds; the rounds are consecutive stretches of the whole.
    """
    work(), unit()  # warm up
    calls = max(1, round(BLOCK / max(_time(unit, 3, time.perf_counter) / 3, 1e-9)))
    parts = []
    for _ in range(rounds):
        end, spent, units = time.perf_counter() + seconds / rounds, 0.0, 0.0
        while not units or time.perf_counter() < end:
            spent += _time(work, calls, time.perf_counter)
            units += _time(unit, calls, time.perf_counter)
        parts.append((spent, units))
    ratios = [spent / units for spent, units in parts]
    total = sum(spent for spent, _ in parts) / sum(units for _, units in parts)
    return Ratio(total, min(ratios), max(ratios))


def _time(work: Callable[[], Any], calls: int, clock: Clock) -> float:
    start = clock()
    for _ in range(calls):
        work()
    return clock() - start


def mean_time(work: Callable[[], Any], seconds: float, clock: Clock = time.perf_counter) -> float:
    """Return the mean time of as many calls as fit into `seconds`, and at least ten: where it is random."""
    end, calls, spent = time.perf_counter() + seconds, 0, 0.0
    while calls < 10 or time.perf_counter() < end:
        spent, calls = spent + _time(work, 1, clock), calls + 1
    return spent / calls


def lower_quartile(work: Callable[[], Any], seconds: float, clock: Clock = time.perf_counter) -> float:
    """Return the lower quartile of the times of as many calls as fit into `seconds`, up to 400 times.

    If fewer than five fit, it takes up to three times as long, and calls at least twice.
    """
    times: list[float] = []
    began = time.perf_counter()
    first = _time(work, 1, clock)
    calls = 1 if first >= SHORT else min(100, max(1, round(SHORT / max(first, 1e-9))))

    def over() -> bool:
        spent, count = time.perf_counter() - began, len(times)
        return count >= 400 or (count >= 2 and spent > 3 * seconds) or (count >= 5 and spent > seconds)

    while not over():
        times.append(_time(work, calls, clock) / calls)
    return sorted(times)[len(times) // 4]

"""Threads of the inner solver: the default number, and two, against one, on the machine as it is and busy.

The default is what a user gets who sets nothing. Busy means that this benchmark starts a process per core
that does nothing but count.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from phiball.backends import threads as cores
from phiball.backends.progress import Progress
from phiball.experiments.benchmarks.inner.problems import DIVERGENCES, ETA, losses_of, thread_limit
from phiball.experiments.benchmarks.timing import Ratio, ratio_of_totals
from phiball.experiments.framework.tables import ReportTable
from phiball.refimpl import Divergence, worst_case

SHAPES = ((1024, 128), (64, 4096), (8192, 128), (1024, 4096))
PROBLEMS = ("entropic", "quadratic", "indicator", "Cressie-Read 1.5")
SLOWER_BAR = 1.15  # time of the default over that of one thread, on a busy machine
FASTER_BAR, FASTER_FROM = 1.5, 1 << 20  # speed of two threads over that of one, from so many entries
AT_WORK = 0.3  # cores that something else may use on a machine that is called idle
LONGEST = 1800.0  # seconds after which a process that keeps a core busy ends in any case
# It counts as long as its parent lives: a parent that is killed leaves nothing behind.
_COUNT = """
import os, sys, time
parent, end = int(sys.argv[1]), time.monotonic() + float(sys.argv[2])
while os.getppid() == parent and time.monotonic() < end:
    for _ in range(100_000):
        pass
"""


@dataclass(frozen=True)
class Row:
    """Times on one shape, over those of one thread; `used` is how many cores others used before."""

    problem: str
    shape: tuple[int, int]
    busy: bool
    used: float | None
    load: float
    default: Ratio
    two: Ratio | None

    @property
    def verdict(self) -> str:
        """Whether the bar of its kind is kept; "" where there is none."""
        if self.busy:
            return "within" if round(self.default.middle, 2) <= SLOWER_BAR else "ABOVE"
        if self.two is None or self.shape[0] * self.shape[1] < FASTER_FROM:
            return ""
        word = "within" if round(1 / self.two.middle, 2) >= FASTER_BAR else "BELOW"
        return word if (self.used or 0.0) <= AT_WORK else f"{word} (not idle)"


@contextmanager
def busy_cores(count: int) -> Iterator[list[int]]:
    """Keep so many cores busy with other processes inside the block; yield their ids.

    They end with the block, on an interrupt, and when this process dies in any way.
    """
    command = [sys.executable, "-I", "-S", "-c", _COUNT, str(os.getpid()), str(LONGEST)]
    children: list[subprocess.Popen[bytes]] = []
    try:
        children.extend(subprocess.Popen(command, stderr=subprocess.DEVNULL) for _ in range(count))
        yield [child.pid for child in children]
    finally:
        for child in children:
            child.kill()
        for child in children:
            child.wait()


def cores_in_use(seconds: float = 0.5) -> float | None:
    """Return how many cores are at work, from the counts of the system; None where it has none."""

    def counts() -> tuple[int, int]:
        numbers = list(map(int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]))
        return sum(numbers), numbers[3] + numbers[4]  # all, and idle or waiting for a disk

    with suppress(OSError, ValueError, IndexError):
        total, idle = counts()
        time.sleep(seconds)
        total_after, idle_after = counts()
        if total_after > total:
            return (os.cpu_count() or 1) * (1 - (idle_after - idle) / (total_after - total))
    return None


def measure(console: Console, *, quick: bool = False) -> list[Row]:
    """Time the solver on every shape, first on the machine as it is, then with every core kept busy."""
    problems, span = (PROBLEMS[1:2], 0.8) if quick else (PROBLEMS, 2.5)
    cases = [(busy, problem, shape) for busy in (False, True) for problem in problems for shape in SHAPES]
    rows = []
    with Progress("bench inner --busy", console) as progress:
        for busy, problem, shape in progress.each(cases, lambda case: f"{case[1]} {case[2]}"):
            used, load = cores_in_use(), os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
            with busy_cores(cores() if busy else 0):
                if busy:
                    time.sleep(0.3)  # until all of them count
                default, two = _times(problem, shape, span, two=cores() > 1 and not busy)
            rows.append(Row(problem, shape, busy, used, load, default, two))
    return rows


def _times(problem: str, shape: tuple[int, int], seconds: float, two: bool) -> tuple[Ratio, Ratio | None]:
    f, divergence = losses_of(shape), DIVERGENCES[problem]

    def on(n: int | None) -> Callable[[], None]:
        def solve(divergence: Divergence = divergence) -> None:
            if n is None:
                os.environ.pop("PHIBALL_THREADS", None)
            else:
                os.environ["PHIBALL_THREADS"] = str(n)
            worst_case(f, ETA, divergence)

        return solve

    with thread_limit(None):
        default = ratio_of_totals(on(None), on(1), seconds)
        return default, ratio_of_totals(on(2), on(1), seconds) if two else None


def table(rows: list[Row]) -> ReportTable:
    """Return the times beside the bars, and the load of the machine before each of them."""
    cells = [
        (
            row.problem,
            str(row.shape),
            "every core busy" if row.busy else "as it is",
            "?" if row.used is None else f"{row.used:.1f}",
            f"{row.load:.1f}",
            str(row.default),
            "" if row.two is None else f"{1 / row.two.middle:.2f}",
            row.verdict,
        )
        for row in rows
    ]
    bars = (
        f"bars: on a busy machine the default takes at most {SLOWER_BAR} times as long as one thread; on an "
        f"idle one two threads are at least {FASTER_BAR} times as fast from 2^20 entries on"
    )
    return ReportTable(
        f"Threads, {cores()} core(s): time over that of PHIBALL_THREADS=1",
        (
            "problem", "shape", "machine", "cores in use before", "load", "default (stretches)",
            "two threads: times as fast", "verdict",
        ),
        cells,
        f"total time of all calls, with its extremes in five stretches of the measurement; {bars}",
        left=3,
    )  # fmt: skip

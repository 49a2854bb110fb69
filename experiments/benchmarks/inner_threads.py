"""Time the inner solver with the default number of threads, and with two, relative to one thread.

The solver is timed on the machine as it is, and with every core kept busy by other processes.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import joblib

from phiball.backends.progress import Update, silent
from phiball.experiments.benchmarks.harness import (
    BenchmarkReport,
    BenchmarkTable,
    Contestant,
    bar_verdict,
    compare,
    thread_limit,
)
from phiball.experiments.benchmarks.inner_problems import DIVERGENCES, ETA, THREE_HALVES, losses_of
from phiball.refimpl import worst_case

SHAPES = ((1024, 128), (64, 4096), (8192, 128), (1024, 4096))
PROBLEMS = ("entropic", "quadratic", "indicator", THREE_HALVES)
DEFAULT_BAR = 1.15  # default number of threads relative to one, on a busy machine
TWO_THREADS_BAR, MIN_LOSSES = 0.67, 1 << 20  # two threads relative to one, from MIN_LOSSES losses on
# The loop ends with its parent process, so that a killed parent leaves no processes behind.
_BUSY_LOOP = """
import os, sys
while os.getppid() == int(sys.argv[1]):
    for _ in range(100_000):
        pass
"""


@contextmanager
def busy_cores(count: int) -> Iterator[list[int]]:
    """Keep `count` cores busy inside the block; yield the ids of the processes."""
    command = [sys.executable, "-I", "-S", "-c", _BUSY_LOOP, str(os.getpid())]
    children: list[subprocess.Popen[bytes]] = []
    try:
        children.extend(subprocess.Popen(command, stderr=subprocess.DEVNULL) for _ in range(count))
        if children:
            time.sleep(0.3)  # let all of them start
        yield [child.pid for child in children]
    finally:
        for child in children:
            child.kill()
        for child in children:
            child.wait()


def _solve(f: Any, problem: str, threads: int | None) -> None:
    """Solve a problem on the losses f with a number of threads; None is the default number."""
    os.environ.pop("PHIBALL_THREADS", None)
    if threads is not None:
        os.environ["PHIBALL_THREADS"] = str(threads)
    worst_case(f, eta=ETA, divergence=DIVERGENCES[problem])


def busy_report(*, quick: bool = False, update: Update = silent) -> BenchmarkReport:
    """Time the default number of threads and two threads, relative to one thread.

    `varies=True` makes `compare` use total times, because interruptions by other processes count here.
    """
    problems, rounds = (PROBLEMS[1:2], 10) if quick else (PROBLEMS, 25)
    cases = [(busy, problem, shape) for busy in (False, True) for problem in problems for shape in SHAPES]
    rows = []
    for number, (busy, problem, shape) in enumerate(cases):
        update(number / len(cases), f"{problem} {shape}, {'busy' if busy else 'as it is'}")
        f, load = losses_of(shape), os.getloadavg()[0] if hasattr(os, "getloadavg") else None
        players = [Contestant(str(n), partial(_solve, f, problem, n), varies=True) for n in (None, 2)]
        with thread_limit(None), busy_cores(joblib.cpu_count() if busy else 0):
            one = partial(_solve, f, problem, 1)
            times = compare(one, players, seconds=0.05, rounds=rounds, clock=time.perf_counter)
        default, two = times["None"].ratio, times["2"].ratio
        verdict = bar_verdict(default, DEFAULT_BAR) if busy else ""
        if not busy and f.size >= MIN_LOSSES and joblib.cpu_count() > 1:
            verdict = bar_verdict(two, TWO_THREADS_BAR)
        where = {"problem": problem, "shape": str(shape), "machine": "busy" if busy else "as it is"}
        rows.append({**where, "verdict": verdict, "load": load, "default": default, "two threads": two})
    note = (
        f"bars: on a busy machine the default takes at most {DEFAULT_BAR} times as long as one thread; on an "
        f"idle machine (low load), two threads take at most {TWO_THREADS_BAR} times as long as one, for 2^20 "
        "losses or more"
    )
    title = f"Threads: time relative to PHIBALL_THREADS=1, {joblib.cpu_count()} cores"
    return BenchmarkReport([BenchmarkTable(title, rows, note)])

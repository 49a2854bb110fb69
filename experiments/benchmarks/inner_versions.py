"""Compare the speed of the kernels of two versions of phiball.

Each version runs in its own process, which reads problems from stdin until stdin is closed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import TypeAlias

from phiball.backends.progress import Update, silent
from phiball.experiments.benchmarks.harness import (
    ROUNDS,
    BenchmarkReport,
    BenchmarkTable,
    Timing,
    bar_verdict,
)
from phiball.experiments.benchmarks.inner_problems import ALPHA, ETA, SHAPES, Shape

BAR = 1.25  # largest accepted time relative to the other version
PROBLEMS = ("ENTROPIC", "QUADRATIC", f"indicator({ALPHA})", "cressie_read(1.5)")
BACKEND = "numba"
Timer: TypeAlias = Callable[[str, Shape, float], float]  # (problem, shape, seconds) -> time
_WORKER = """
import json, sys, time
# Without this, an editable install could provide modules that this version lacks.
sys.meta_path = [finder for finder in sys.meta_path if "editable" not in str(finder).lower()]
import numpy as np
from phiball.refimpl import ENTROPIC, QUADRATIC, cressie_read, indicator, worst_case

def quartile(work, seconds):
    work()
    times, end = [], time.perf_counter() + seconds
    while len(times) < 5 or time.perf_counter() < end:
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return sorted(times)[len(times) // 4]

for line in sys.stdin:
    problem, shape, eta, seconds = json.loads(line)
    f = np.random.default_rng(0).exponential(size=shape)
    divergence = eval(problem)
    flat = f.reshape(-1)
    before = quartile(flat.max, seconds / 4)
    spent = quartile(lambda: worst_case(f, eta=eta, divergence=divergence), seconds)
    print(json.dumps(2 * spent / (before + quartile(flat.max, seconds / 4))), flush=True)
"""


@contextmanager
def _version_timer(folder: Path) -> Iterator[Timer]:
    """Start a process that imports phiball from `folder`; yield a function that times a problem there.

    Times are in units of np.max over the same losses.
    """
    with TemporaryDirectory() as place:
        (Path(place) / "phiball").symlink_to(folder.resolve(), target_is_directory=True)
        settings = {**os.environ, "PYTHONPATH": place, "PHIBALL_THREADS": "1", "PHIBALL_BACKEND": BACKEND}
        worker = subprocess.Popen(
            [sys.executable, "-c", _WORKER],
            env=settings,
            cwd=place,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            process_group=0,  # Ctrl-C must not reach the process, which is killed below
        )

        def time_of(problem: str, shape: Shape, seconds: float) -> float:
            assert worker.stdout is not None
            with suppress(BrokenPipeError):  # the worker has ended
                print(json.dumps([problem, shape, ETA, seconds]), file=worker.stdin, flush=True)
            answer = worker.stdout.readline()
            if not answer:
                raise ValueError(
                    f"phiball in {folder} failed to solve an inner problem; see the message above"
                )
            return float(json.loads(answer))

        try:
            yield time_of
        finally:
            worker.kill()
            worker.communicate()


def against_report(folder: Path, *, seconds: float, update: Update = silent) -> BenchmarkReport:
    """Time the kernels relative to another version, cloned to `folder`, for the uniform distribution."""
    if not (folder / "__init__.py").is_file():
        raise ValueError(f"against is {folder}; expected a clone of phiball")
    cases = [(problem, shape) for problem in PROBLEMS for shape in SHAPES]
    rows = []
    with _version_timer(Path(__file__).parents[2]) as new, _version_timer(folder) as old:
        for number, (problem, shape) in enumerate(cases):
            update(number / len(cases), f"{problem} {shape}")
            new(problem, shape, 0.0), old(problem, shape, 0.0)  # compile and warm up
            rounds = [(new(problem, shape, seconds), old(problem, shape, seconds)) for _ in range(ROUNDS)]
            this, other = (Timing(median(times), times) for times in zip(*rounds, strict=True))
            quotient = this.relative_to(other)
            where = {"problem": problem, "shape": str(shape), "verdict": bar_verdict(quotient.ratio, BAR)}
            times = {"this, x np.max": this.ratio, "other, x np.max": other.ratio}
            rows.append({**where, **times, **quotient.columns("other")})
    title = f"Kernels of this version and of {folder}, one thread"
    note = f"bar: at most {BAR} times the other version; medians of {ROUNDS} alternating rounds"
    return BenchmarkReport([BenchmarkTable(title, rows, note)])

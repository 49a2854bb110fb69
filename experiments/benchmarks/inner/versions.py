"""Two versions of phiball, timed in turn: whether the kernels have become slower.

Each runs in a process of its own, so that both can be loaded; it waits for the next problem on its input,
and ends when that is closed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from rich.console import Console

from phiball.backends.progress import Progress
from phiball.experiments.benchmarks.inner.problems import ALPHA, ETA, SHAPES
from phiball.experiments.benchmarks.timing import ROUNDS, Ratio
from phiball.experiments.framework.tables import ReportTable

BAR = 1.05  # the time of a kernel over that of the other version: what two equal versions may differ by
PROBLEMS = ("ENTROPIC", "QUADRATIC", f"indicator({ALPHA})", "cressie_read(1.5)")
BACKEND = "numba"
_WORKER = """
import json, sys, time
# An editable install would lend what this version lacks.
sys.meta_path = [finder for finder in sys.meta_path if "editable" not in str(finder).lower()]
import numpy as np
from phiball.refimpl import ENTROPIC, QUADRATIC, cressie_read, indicator, worst_case
for line in sys.stdin:
    problem, shape, eta, seconds = json.loads(line)
    f = np.random.default_rng(0).exponential(size=shape)
    divergence, times = eval(problem), []
    worst_case(f, eta, divergence)
    end = time.perf_counter() + seconds
    while len(times) < 5 or time.perf_counter() < end:
        start = time.perf_counter()
        worst_case(f, eta, divergence)
        times.append(time.perf_counter() - start)
    print(json.dumps(sorted(times)[len(times) // 4]), flush=True)
"""


@contextmanager
def _version(folder: Path) -> Iterator[Any]:
    """Start a process with the phiball of that folder; yield a function of (problem, shape, seconds)."""
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
            process_group=0,  # out of reach of Ctrl-C on the terminal: it is ended below
        )
        assert worker.stdin is not None
        assert worker.stdout is not None

        def time_of(problem: str, shape: tuple[int, int], seconds: float) -> float:
            with suppress(BrokenPipeError):  # it has ended, and its output is closed too
                print(json.dumps([problem, shape, ETA, seconds]), file=worker.stdin, flush=True)
            answer = worker.stdout.readline()  # type: ignore[union-attr]
            if not answer:
                raise ValueError(f"the phiball of {folder} solves no inner problem; see the message above")
            return float(json.loads(answer))

        try:
            yield time_of
        finally:
            worker.kill()
            worker.communicate()


def compare(console: Console, folder: Path, *, seconds: float) -> ReportTable:
    """Return the time of every kernel under the uniform law over that of the version in `folder`."""
    if not (folder / "__init__.py").is_file():
        raise ValueError(f"against is {folder}; expected the folder of a clone of phiball")
    cells = []
    cases = [(problem, shape) for problem in PROBLEMS for shape in SHAPES]
    here = Path(__file__).parents[3]
    with (
        Progress("bench inner --against", console) as progress,
        _version(here) as new,
        _version(folder) as old,
    ):
        for problem, shape in progress.each(cases, lambda case: f"{case[0]} {case[1]}"):
            new(problem, shape, 0.0), old(problem, shape, 0.0)  # compile and warm up
            span = seconds / (2 * ROUNDS)
            times = [(new(problem, shape, span), old(problem, shape, span)) for _ in range(ROUNDS)]
            ratios = [mine / theirs for mine, theirs in times]
            ratio = Ratio(median(ratios), min(ratios), max(ratios))
            word = "within" if round(ratio.middle, 2) <= BAR else "ABOVE"
            cells.append((problem, str(shape), str(ratio), word))
    return ReportTable(
        f"Kernels of this version: time over that of {folder}, one thread; at most {BAR}",
        ("problem", "shape", "ratio (rounds)", "verdict"),
        cells,
        "ratio: the median of five rounds, in which the two versions take turns, and their extremes",
        left=2,
    )

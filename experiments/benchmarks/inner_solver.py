"""`phiball bench inner`: time and accuracy of the inner solver beside the systems people use today.

Time is a multiple of `np.max` over the same flat array, one streaming pass over the losses; the two are
measured in turn within one run, so that a busy machine slows both. phiball returns value, mu, weights and
gap; the others return what their row says.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from rich.console import Console

from phiball.backends import threads as thread_count
from phiball.backends import use
from phiball.backends.progress import Part, Progress, Update, silent
from phiball.experiments.benchmarks.inner import bars as kernel_bars
from phiball.experiments.benchmarks.inner import threads as thread_bars
from phiball.experiments.benchmarks.inner import versions
from phiball.experiments.benchmarks.inner.problems import (
    BAR_SHAPES,
    DIVERGENCES,
    SHAPES,
    VALUE_ONLY,
    compile_from_the_end,
    first_solves,
    law_of,
    losses_of,
    solvers,
    thread_limit,
    truth,
)
from phiball.experiments.benchmarks.output import open_console, print_lines, run_details, write_results
from phiball.experiments.benchmarks.own_process import AVAILABLE, own_process
from phiball.experiments.benchmarks.third_party import optional_module
from phiball.experiments.benchmarks.timing import ROUNDS, Clock, clock_for, ratio
from phiball.experiments.framework.requirements import missing_package_message
from phiball.experiments.framework.tables import ReportTable

JUDGED_ROWS = 2  # of each batch, whose weights are compared with an oracle


@dataclass(frozen=True)
class Row:
    """One solver on one shape: its time over that of np.max, and m times its worst weight error.

    The error is None where only a value is returned, or where the rows are too long for an oracle.
    """

    problem: str
    solver: str
    shape: tuple[int, int]
    ratio: float
    error: float | None


def rows(
    *,
    seconds: float,
    shapes: tuple[tuple[int, int], ...] = SHAPES,
    clock: Clock = perf_counter,
    update: Update = silent,
    quick: bool = False,
) -> Iterator[Row]:
    """Yield the measurement of every solver of every problem on every shape; if `quick`, no slow solvers."""
    losses = {shape: losses_of(shape) for shape in shapes}
    known: dict[tuple[str, str, tuple[int, int]], list[Any]] = {}
    for number, problem in enumerate(DIVERGENCES):
        for shape, f in losses.items():
            for solver, (law, solve) in solvers(problem, shape, slow=not quick).items():
                update(number / len(DIVERGENCES), f"{problem} {shape}: {solver}")
                if (problem, law, shape) not in known:
                    p = law_of(law, shape)
                    known[problem, law, shape] = [
                        truth(problem, f[i], p if p is None or p.ndim == 1 else p[i])
                        for i in range(1 if quick else min(shape[0], JUDGED_ROWS))
                    ]
                weights, error = solve(f), None
                if VALUE_ONLY not in solver:
                    errors = [
                        float(np.max(np.abs(weights[i] - exact))) * shape[1]
                        for i, exact in enumerate(known[problem, law, shape])
                        if exact is not None
                    ]
                    error = max(errors, default=None)
                spent = ratio(partial(solve, f), f.reshape(-1).max, seconds, clock)
                yield Row(problem, solver, shape, spent, error)


def table(measured: list[Row], threads: int) -> ReportTable:
    """Return the time of every solver on every shape, and its worst error."""
    shapes = list(dict.fromkeys(row.shape for row in measured))
    cells = []
    for problem, solver in dict.fromkeys((row.problem, row.solver) for row in measured):
        mine = {row.shape: row for row in measured if (row.problem, row.solver) == (problem, solver)}
        errors = [row.error for row in mine.values() if row.error is not None]
        worst = f"{max(errors):.0e}" if errors else ""
        cells.append((problem, solver, *(f"{mine[shape].ratio:.1f}" for shape in shapes), worst))
    return ReportTable(
        f"The inner problem, {threads} thread(s): time as a multiple of np.max, "
        "losses Exp(1), eta 0.1, alpha 0.25, float64",
        ("problem", "solver", *map(str, shapes), "worst m·error of gamma"),
        cells,
        "errors are those of rows that an oracle can solve: up to 128 points, under the uniform law more",
        left=2,
    )


def main(
    threads: int = 1,
    quick: bool = False,
    busy: bool = False,
    against: Path | None = None,
    out: Path | None = None,
) -> None:
    """Print the tables, and write them as JSON and Markdown to the folder `out`, if one is named.

    With `busy` only the threads are measured, alone and beside processes that keep every core busy. With
    `against`, the folder of another version of phiball, its kernels are timed beside ours, and nothing else.
    """
    console = open_console(out)
    if against is not None:
        pages = [versions.compare(console, against, seconds=0.2 if quick else 2.0)]
        record: dict[str, Any] = run_details(quick=quick, against=str(against))
        name = "inner-against"
    elif busy:
        with use("numba"):
            measured = thread_bars.measure(console, quick=quick)
        pages = [thread_bars.table(measured)]
        record = {**run_details(quick=quick), "rows": [asdict(row) for row in measured]}
        name = "inner-busy"
    else:
        pages, record = _solvers_and_bars(console, threads, quick)
        name = "inner"
    facts = [f"{key}: {value}" for key, value in run_details().items()]
    for page in pages:
        console.print(page.table())
    if not (busy or against or optional_module("entmax")):
        print_lines(console, [missing_package_message("the comparison with entmax", "entmax", "bench")])
    write_results(console, out, name, record, title="The inner solver", facts=facts, tables=pages)


def _compile(progress: Part, lengths: tuple[int, ...]) -> None:
    """Load every kernel; those that are on no disk yet are compiled by two processes."""
    kernels = first_solves(lengths)
    helper = own_process(compile_from_the_end, lengths) if AVAILABLE else nullcontext()
    with helper:
        for name in progress.each(list(kernels), lambda name: f"loading {name}"):
            kernels[name]()


def _solvers_and_bars(
    console: Console, threads: int, quick: bool
) -> tuple[list[ReportTable], dict[str, Any]]:
    shapes = BAR_SHAPES if quick else SHAPES
    with use("numba"), thread_limit(threads), Progress("bench inner", console) as progress:
        _compile(progress.part(0.0, 0.3), tuple(sorted({min(shape[1], 128) for shape in shapes})))
        update = progress.part(0.3, 0.7).update
        seconds, clock = 0.02 if quick else 0.6, clock_for(threads)
        measured = list(rows(seconds=seconds, shapes=shapes, clock=clock, update=update, quick=quick))
        pairs = list(kernel_bars.comparisons(BAR_SHAPES, quick=quick))
        effort = (0.06, 3, clock) if quick else (1.5, ROUNDS, clock)
        verdicts = [kernel_bars.judge(pair, *effort) for pair in progress.part(0.7, 1.0).each(pairs, str)]
        pages = [table(measured, thread_count()), kernel_bars.table(verdicts, thread_count())]
    return pages, {
        **run_details(threads=threads, quick=quick),
        "rows": [asdict(row) for row in measured],
        "bars": [{**asdict(verdict), "verdict": verdict.word} for verdict in verdicts],
    }

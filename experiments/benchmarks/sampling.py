"""`phiball bench sampling`: what points of a ball cost, and the noise of a mean over n of them.

The cost is in times that random numbers take (see `sampling_cost`). The noise depends on the way points are
drawn. Plain points are independent; antithetic ones come in pairs z + b, z - b; Sobol points are scrambled.
The functions are built from ten random linear ones of unit variance: the loss of a linear classifier
(smooth), a step of one of them away from the centre (rough), and the square of one (even, so that a pair says
no more than one of its points). Noise is the standard deviation of the mean over repetitions, as a multiple
of that of n independent points.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from math import inf, sqrt
from pathlib import Path
from typing import Any

import numpy as np

from phiball.backends import rng, use
from phiball.backends.progress import Progress, Update, silent
from phiball.experiments.benchmarks import sampling_cost
from phiball.experiments.benchmarks.output import open_console, print_lines, write_results
from phiball.experiments.benchmarks.schemes import SCHEMES
from phiball.experiments.framework.tables import ReportTable
from phiball.refimpl import Ball

NORMS = {1.0: "l1", 2.0: "l2", inf: "linf"}
DIMENSIONS = (2, 10, 784)
COUNTS = (2, 8, 32, 128)
FUNCTIONS: dict[str, Callable[[Any], Any]] = {  # of the ten linear functions, on the last axis
    "loss": lambda s: np.log(np.sum(np.exp(s), axis=-1)) - s[..., 0],
    "step": lambda s: np.asarray(s[..., 0] > 0.5, dtype=float),
    "square": lambda s: s[..., 0] ** 2,
}
DIRECTIONS = 10
CALLS = 16  # the sets of one call share a part of their scramble
HELPS = 0.9  # a larger ratio is not worth its cost


@dataclass(frozen=True)
class Row:
    """The noise of one mean as a multiple of the plain one's."""

    function: str
    norm: str
    d: int
    scheme: str
    n: int
    ratio: float


def measure(norm: float, d: int, n: int, repetitions: int, seed: int = 0) -> dict[tuple[str, str], float]:
    """Return (function, scheme) to the ratio of noise, for one ball and one n."""
    ball, source = Ball(norm, 1.0), rng(seed)
    g = np.random.default_rng(seed).normal(size=(DIRECTIONS, d))
    g = (g / np.sqrt(ball.variance(g))[:, None]).T
    means: dict[tuple[str, str], list[Any]] = {(f, s): [] for f in FUNCTIONS for s in SCHEMES}
    plain: dict[str, list[Any]] = {f: [] for f in FUNCTIONS}
    z = np.zeros((-(-repetitions // CALLS), d))
    for _ in range(CALLS):
        for scheme, options in SCHEMES.items():
            s = ball.sample(z, n, source, **options) @ g
            for name, function in FUNCTIONS.items():
                values = function(s)
                means[name, scheme].append(np.mean(values, axis=-1))
                if scheme == "plain":
                    plain[name].append(values)
    return {
        (name, scheme): float(np.std(np.concatenate(values), ddof=1) / np.std(plain[name])) * sqrt(n)
        for (name, scheme), values in means.items()
    }


def repetitions(d: int, quick: bool) -> int:
    """Return how often a mean is drawn: less often where a point has many coordinates."""
    return 256 if quick else 1024 if d <= 10 else 128


def rows(
    *,
    quick: bool = False,
    dimensions: tuple[int, ...] = DIMENSIONS,
    counts: tuple[int, ...] = COUNTS,
    update: Update = silent,
) -> Iterator[Row]:
    """Yield the measurement of every scheme on every function, ball and n."""
    cases = [(norm, d, n) for norm in NORMS for d in dimensions for n in counts]
    total, done = sum(_numbers(d, n, quick) for _, d, n in cases), 0
    for norm, d, n in cases:
        update(done / total, f"{NORMS[norm]}, d = {d}, n = {n}")
        for (function, scheme), ratio in measure(norm, d, n, repetitions(d, quick)).items():
            yield Row(function, NORMS[norm], d, scheme, n, ratio)
        done += _numbers(d, n, quick)


def _numbers(d: int, n: int, quick: bool) -> int:
    """Return how many random numbers a measurement takes, which is what takes the time."""
    return repetitions(d, quick) * n * d


def no_help(measured: list[Row]) -> list[str]:
    """Return a line per function and scheme: at which balls it gains nothing at the largest n."""
    last = max(row.n for row in measured)
    lines = []
    for function in FUNCTIONS:
        for scheme in list(SCHEMES)[1:]:
            rows = [r for r in measured if (r.function, r.scheme, r.n) == (function, scheme, last)]
            useless = [f"{r.norm} d={r.d} ({r.ratio:.2f})" for r in rows if r.ratio > HELPS]
            where = f"do not help at {', '.join(useless)}" if useless else "help at every ball"
            lines.append(f"{function}, n = {last}: {scheme} points {where}")
    return lines


def tables(measured: list[Row], quick: bool) -> list[ReportTable]:
    """Return the table of each function."""
    error = f"standard error about {100 / sqrt(2 * repetitions(2, quick)):.0f} %"
    if not quick:
        error += f", {100 / sqrt(2 * repetitions(784, quick)):.0f} % in 784 dimensions"
    pages = []
    for function in FUNCTIONS:
        ratios: dict[tuple[str, ...], list[str]] = {}
        for row in measured:
            if row.function == function:
                ratios.setdefault((row.norm, str(row.d), row.scheme), []).append(f"{row.ratio:.2f}")
        cells = [(*key, *values) for key, values in ratios.items()]
        headings = ("ball", "d", "points", *(f"n = {n}" for n in COUNTS))
        title = f"Noise of the mean of the {function}, over that of n plain points ({error})"
        pages.append(ReportTable(title, headings, cells, left=3))
    return pages


def main(quick: bool = False, out: Path | None = None) -> None:
    """Print the tables, and write them as JSON to the folder `out`, if one is named."""
    console = open_console(out, 100)
    dimensions = DIMENSIONS[:2] if quick else DIMENSIONS
    measured: list[Row] = []
    with Progress("bench sampling", console) as progress:
        with use("numpy"):
            drawing = progress.part(0.0, 0.8)
            measured.extend(rows(quick=quick, dimensions=dimensions, update=drawing.update))
        timing, cost = progress.part(0.8, 1.0), []
        for timed in sampling_cost.rows(seconds=0.05 if quick else 0.5):
            cost.append(timed)
            timing.update(len(cost) / sampling_cost.count(), f"time of {timed.points}, d = {timed.d}")
    pages = [sampling_cost.table(cost), *tables(measured, quick)]
    lines = [*sampling_cost.verdicts(cost), *no_help(measured)]
    for page in pages:
        console.print(page.table())
    print_lines(console, lines)
    record = {"rows": [asdict(row) for row in measured], "cost": [asdict(row) for row in cost]}
    write_results(console, out, "sampling", record, title="Points of balls", facts=lines, tables=pages)

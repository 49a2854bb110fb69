"""`phiball bench endurance`: thousands of training steps in one process, and whether anything grows.

A network 64-128-10 is trained on random data, batches of 64, by several methods. After every hundred steps
the memory in use, Python's objects, threads and open files are read, and the time of these steps is taken in
plain steps that are timed beside them. What grows in proportion to the steps shows as a slope.
"""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib import import_module
from math import inf, sqrt
from pathlib import Path
from typing import Any

import numpy as np

from phiball.backends import rng, use
from phiball.backends.progress import Progress, Update, silent
from phiball.experiments.benchmarks.inner.problems import thread_limit
from phiball.experiments.benchmarks.memory import resident_memory
from phiball.experiments.benchmarks.output import open_console, print_lines, run_details, write_results
from phiball.experiments.benchmarks.timing import clock_for
from phiball.experiments.framework.requirements import require
from phiball.experiments.framework.tables import ReportTable
from phiball.experiments.training.networks import torch_seed
from phiball.refimpl import (
    ENTROPIC,
    QUADRATIC,
    RTMLMC,
    SG,
    Ball,
    RegularizedLoss,
    Tilted,
    Uniform,
    indicator,
)

STEPS, WINDOW, BATCH = 10_000, 100, 64
WARM = 0.2  # the share of the run in which caches and pools fill; growth is measured after it
TURN = 5  # steps, after which a plain one is timed
GROWTH_BAR, DRIFT_BAR = 1.0, 0.05  # MB, and the share by which the time of a step changes, over the run
METHODS: dict[str, RegularizedLoss] = {
    "entropic, SG(2), l2": RegularizedLoss(Ball(2, 0.5), 0.5, ENTROPIC, SG(2)),
    "quadratic, RTMLMC(7), linf": RegularizedLoss(Ball(inf, 0.1), 0.1, QUADRATIC, RTMLMC(7)),
    "CVaR, SG(3), antithetic": RegularizedLoss(
        Ball(2, 0.5), 0.5, indicator(0.5), SG(3), Uniform(antithetic=True)
    ),
    "tilted, SG(0), l2": RegularizedLoss(Ball(2, 0.5), 0.5, ENTROPIC, SG(0), Tilted()),
}


@dataclass(frozen=True)
class Window:
    """What was read after a hundred steps: MB in use, counts, and the time of a step in plain steps."""

    step: int
    memory: float
    objects: int
    threads: int
    files: int
    time: float


@dataclass(frozen=True)
class Trend:
    """The change over the measured part of the run that least squares give, and half of a 95 % interval."""

    change: float
    half_width: float

    def __format__(self, kind: str) -> str:
        return f"{self.change:+{kind}} ± {self.half_width:{kind}}"


@dataclass(frozen=True)
class Run:
    """One method: its windows, and what they show."""

    method: str
    windows: list[Window]

    @property
    def measured(self) -> list[Window]:
        """The windows after the warm-up."""
        return self.windows[int(WARM * len(self.windows)) :]

    @property
    def growth(self) -> Trend:
        """The growth of memory, in MB."""
        return trend([w.memory for w in self.measured])

    @property
    def drift(self) -> Trend:
        """The change of the time of a step, as a share."""
        return trend([float(np.log(w.time)) for w in self.measured])

    def grown(self, name: str) -> int:
        """Return by how much a count grew."""
        return int(getattr(self.measured[-1], name) - getattr(self.measured[0], name))

    @property
    def verdict(self) -> str:
        """What grew, in words: memory, threads or files, or a slower step, each beyond its interval."""
        grew = [name for name in ("threads", "files") if self.grown(name) > 0]
        if self.growth.change - self.growth.half_width > GROWTH_BAR:
            grew.insert(0, "memory")
        if self.drift.change - self.drift.half_width > DRIFT_BAR:
            grew.append("time")
        if grew:
            return f"GREW: {', '.join(grew)}"
        return "steady" if self.drift.half_width <= 2 * DRIFT_BAR else "steady, but times are too noisy"


def trend(values: list[float]) -> Trend:
    """Fit a straight line, and return its rise from the first value to the last."""
    n = len(values)
    x, y = np.arange(n) - (n - 1) / 2, np.asarray(values)
    spread = float(x @ x)
    slope = float(x @ y) / spread
    left = y - y.mean() - slope * x
    quantile = float(require("scipy.stats", user="bench endurance", extra="bench").t.ppf(0.975, n - 2))
    error = quantile * sqrt(float(left @ left) / (n - 2) / spread)
    return Trend(slope * (n - 1), error * (n - 1))


def run(method: str, objective: RegularizedLoss, steps: int, seed: int, update: Update = silent) -> Run:
    """Train for so many steps, and read what may grow."""
    torch = import_module("torch")
    source = torch.Generator().manual_seed(seed)
    x = torch.rand((1024, 64), generator=source)
    y = torch.randint(10, (len(x),), generator=source)
    draws, windows, clock = rng(seed), [], clock_for(1)
    cross_entropy = torch.nn.functional.cross_entropy
    with torch_seed(seed):
        models = [_network(torch) for _ in range(2)]

    def robust(b: Any) -> Any:
        return objective(
            lambda z, i: cross_entropy(models[0][0](z), y[b][i], reduction="none"), x[b], rng=draws
        )

    def plain(b: Any) -> Any:
        return cross_entropy(models[1][0](x[b]), y[b])

    def timed(loss: Callable[[Any], Any], optimizer: Any, count: int) -> float:
        start = clock()
        for _ in range(count):
            b = torch.randint(len(x), (BATCH,), generator=source)
            optimizer.zero_grad()
            loss(b).backward()
            optimizer.step()
        return clock() - start

    gc.collect()
    gc.freeze()  # what was there before is not looked at again and again
    for done in range(0, steps, WINDOW):
        update(done / steps, f"{method}: step {done:,} of {steps:,}")
        spent = unit = 0.0
        for _ in range(WINDOW // TURN):  # the two take turns, so that what slows one slows the other
            spent += timed(robust, models[0][1], TURN) / TURN
            unit += timed(plain, models[1][1], 1)
        gc.collect()
        counts = (len(gc.get_objects()), threading.active_count(), _open_files())
        windows.append(Window(done + WINDOW, resident_memory(), *counts, spent / unit))
    gc.unfreeze()
    return Run(method, windows)


def _network(torch: Any) -> tuple[Any, Any]:
    layers = torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10)
    model = torch.nn.Sequential(*layers)
    return model, torch.optim.Adam(model.parameters(), lr=1e-3)


def _open_files() -> int:
    with suppress(OSError):
        return len(os.listdir("/proc/self/fd"))
    return 0


def table(runs: list[Run], steps: int) -> ReportTable:
    """Return what each method shows."""
    cells = []
    for one in runs:
        first, last = one.measured[0], one.measured[-1]
        drift = Trend(100 * one.drift.change, 100 * one.drift.half_width)
        counts = [f"{one.grown(name):+d}" for name in ("objects", "threads", "files")]
        times = f"{first.time:.2f} to {last.time:.2f}"
        memory = f"{last.memory:.0f}", f"{one.growth:.2f}"
        cells.append((one.method, *memory, *counts, times, f"{drift:.1f}", one.verdict))
    return ReportTable(
        f"{steps:,} training steps of each method in one process, one thread",
        (
            "method", "MB in use", "growth, MB", "objects", "threads", "files", "time of a step, plain steps",
            "drift, %", "verdict",
        ),
        cells,
        f"after the first {100 * WARM:.0f} % of the steps; growth and drift: rise of a straight line from "
        f"there to the end, ± half of a 95 % interval; GREW: surely more than {GROWTH_BAR:g} MB, "
        f"{100 * DRIFT_BAR:.0f} % slower, or any more threads or open files",
    )  # fmt: skip


def main(steps: int = STEPS, quick: bool = False, seed: int = 0, out: Path | None = None) -> None:
    """Print the table, and write it as JSON and Markdown to the folder `out`, if one is named."""
    require("torch", user="bench endurance", extra="bench")
    require("scipy.stats", user="bench endurance", extra="bench")
    steps = min(steps, 2_000) if quick else steps
    steps -= steps % WINDOW
    if steps < 10 * WINDOW:
        raise ValueError(f"steps is {steps}; expected at least {10 * WINDOW}, to see a trend")
    console = open_console(out)
    details = run_details(seed=seed, steps=steps)
    runs = []
    with use("numba"), thread_limit(1), Progress("bench endurance", console) as progress:
        for number, (method, objective) in enumerate(METHODS.items()):
            part = progress.part(number / len(METHODS), (number + 1) / len(METHODS))
            runs.append(run(method, objective, steps, seed, part.update))
    page = table(runs, steps)
    console.print(page.table())
    grew = [f"{one.method}: {one.verdict}" for one in runs if one.verdict != "steady"]
    print_lines(console, grew)
    record = {**details, "runs": [asdict(one) for one in runs]}
    facts = [f"{key}: {value}" for key, value in details.items()]
    write_results(console, out, "endurance", record, title="Endurance", facts=facts, tables=[page])

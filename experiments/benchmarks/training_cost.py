"""What a training step costs: time and memory of every method, beside a plain step.

The network of Section 6.1 on a batch of 64 random images. Time is a multiple of a plain step (ERM) that is
measured beside it. An evaluation is an image that passes through the network; a plain step has one per data
point.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import fmean, median

from phiball.backends import rng
from phiball.backends.progress import Update, silent
from phiball.experiments.benchmarks.memory import peak_memory
from phiball.experiments.benchmarks.own_process import AVAILABLE, in_own_process
from phiball.experiments.benchmarks.training_steps import (
    BALL,
    BATCH,
    ETA,
    FAST,
    TrainingStep,
    Workload,
    require_torch,
    training_steps,
    workload,
)
from phiball.experiments.framework.tables import ReportTable
from phiball.refimpl import ENTROPIC, SG, RegularizedLoss

BAR = 1.10  # plain steps per evaluation
TILTED_BAR = 2.3  # plain steps with one tilted point; FGM takes 1.8
NOTE = (
    "x ERM: medians, or means where the cost is random; peak: memory that a step uses in addition to the "
    "network, MB; chunk: objective.backward in pieces of so many evaluations; ERM on more images shows what "
    "the network alone costs at that size; fast network: the same weights in the form that the studies train"
)


@dataclass(frozen=True)
class Row:
    """One method: its time over that of a plain step, evaluations per data point, and peak memory in MB."""

    method: str
    ratio: float
    evaluations: float
    steps: int
    peak: float | None

    @property
    def per_evaluation(self) -> float:
        """Plain steps per evaluation."""
        return self.ratio / self.evaluations


def measure(
    work: Workload,
    steps: dict[str, TrainingStep],
    seconds: float,
    *,
    clock: Callable[[], float],
    seed: int = 0,
    update: Update = silent,
) -> dict[str, tuple[float, float, int]]:
    """Return method to (time over that of ERM, evaluations per data point, number of steps measured).

    In each round every method takes one step, in random order, right after a plain step; the first round is
    a warm-up. A method that has used its `seconds` drops out after two rounds.
    """
    plain = next(iter(steps.values())).gradient
    order = random.Random(seed)
    names = list(steps)
    times: dict[str, list[tuple[float, float, float]]] = {name: [] for name in names}

    def timed(gradient: Callable[[], None]) -> float:
        start = clock()
        work.step(gradient)
        return clock() - start

    for round_number in range(1 + 400):
        left = [n for n in names if len(times[n]) < 2 or sum(t for t, _, _ in times[n]) < seconds]
        if not left:
            break
        used = sum(min(seconds, sum(t for t, _, _ in rows)) for rows in times.values())
        update(used / (seconds * len(names)) if seconds else 0.0, f"the time of steps, round {round_number}")
        for name in order.sample(left, len(left)):
            work.step(plain)  # the method before may have emptied the cache
            unit = timed(plain)
            work.seen.clear()
            spent = timed(steps[name].gradient)
            if round_number:
                times[name].append((spent, unit, sum(work.seen) / BATCH))
    results = {}
    for name, rows in times.items():
        average = fmean if steps[name].varies else median
        total, units, counts = zip(*rows, strict=True)
        results[name] = (average(total) / average(units), fmean(counts), len(rows))
    return results


def peak(name: str, width: int, quick: bool, full: bool, seed: int, threads: int) -> float:
    """Return the memory in MB that a step of a method adds: the high-water mark of a process of its own.

    This is memory in use; freed memory that an allocator keeps comes on top, up to twice as much.
    """
    require_torch().set_num_threads(threads)
    work = workload(width, seed)
    method = training_steps(work, quick=quick, full=full, seed=seed)[name]
    warm = RegularizedLoss(BALL, ETA, ENTROPIC, SG(1), check_index=False)  # loads what the first step loads
    work.step(lambda: warm(work.loss, work.x[:1], rng=rng(seed)).backward())

    def all_steps() -> None:
        for _ in range(8 if method.varies else 1):  # the largest of eight draws
            work.step(method.gradient)

    return peak_memory(all_steps)


def rows(
    *,
    seconds: float,
    width: int = 64,
    quick: bool = False,
    full: bool = False,
    seed: int = 0,
    threads: int = 1,
    memory: bool = True,
    update: Update = silent,
) -> Iterator[Row]:
    """Measure the memory of every method, each in a new process, then the time of all in turn."""
    require_torch().set_num_threads(threads)
    work = workload(width, seed)
    steps = training_steps(work, quick=quick, full=full, seed=seed)
    peaks: dict[str, float | None] = dict.fromkeys(steps)
    if memory and AVAILABLE:
        for number, name in enumerate(steps):
            update(0.3 * number / len(steps), f"the memory of {name}")
            peaks[name] = in_own_process(peak, name, width, quick, full, seed, threads)

    def time_update(share: float, text: str) -> None:
        update(0.3 + 0.7 * share, text)

    measured = measure(work, steps, seconds, clock=clock(threads), seed=seed, update=time_update)
    for name, (ratio, evaluations, count) in measured.items():
        yield Row(name, ratio, evaluations, count, peaks[name])


def clock(threads: int) -> Callable[[], float]:
    """Return the clock: on one thread processor time, which leaves out most of what else the machine does."""
    return time.process_time if threads == 1 else time.perf_counter


def table(measured: list[Row], width: int, threads: int) -> ReportTable:
    """Return the table of all methods."""
    cells = [
        (
            row.method,
            f"{row.ratio:.2f}",
            f"{row.evaluations:.2f}",
            f"{row.per_evaluation:.2f}",
            "" if row.peak is None else f"{row.peak:.0f}",
            str(row.steps),
        )
        for row in measured
    ]
    return ReportTable(
        f"A training step, batch {BATCH}, width {width}, {threads} thread(s), as a multiple of ERM",
        ("method", "x ERM", "evaluations", "x ERM per evaluation", "peak", "steps"),
        cells,
        NOTE,
    )


def verdicts(measured: list[Row]) -> list[str]:
    """Say whether RT-MLMC and SG in one graph keep to 1.10 plain steps per evaluation, a tilted point to 2.3.

    The last line says what the fast network costs, if both networks were measured.
    """
    lines = []
    for row in measured:
        if row.method.startswith(("RT-MLMC, ", "SG, ")) and "chunk" not in row.method:
            word = "within" if row.per_evaluation <= BAR else "ABOVE"
            lines.append(
                f"{row.method}: {row.per_evaluation:.3f} plain steps per evaluation, {word} {BAR:.2f}"
            )
        if row.method.startswith("tilted") and row.method.endswith("SG(0)"):
            word = "within" if row.ratio <= TILTED_BAR else "ABOVE"
            lines.append(f"{row.method}: {row.ratio:.2f} plain steps, {word} {TILTED_BAR:.2f}")
    ratios = {row.method: row.ratio for row in measured}
    attack = next((name for name in ratios if name.startswith("IFGM")), "")
    if {"ERM", attack, FAST + "ERM", FAST + attack} <= ratios.keys():
        # IFGM is a training step after many input gradients.
        spent = [ratios[form + attack] - ratios[form + "ERM"] for form in (FAST, "")]
        lines.append(
            f"{FAST}a training step takes {ratios[FAST + 'ERM']:.2f} of the plain network's time, "
            f"an input gradient {spent[0] / spent[1]:.2f}"
        )
    return lines

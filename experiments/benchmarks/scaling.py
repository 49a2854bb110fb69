"""`phiball bench scaling`: how time and memory grow, with fitted exponents beside theory and other systems.

Time is in passes of np.max over 2^16 numbers, measured beside it; memory is the high-water mark of a process
of its own. Exponents are least squares of logarithms on the largest sizes.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import numpy as np

from phiball.backends import use
from phiball.backends.progress import Progress, Update, silent
from phiball.experiments.benchmarks.growth.curves import Axis, Curve, axes, curves
from phiball.experiments.benchmarks.growth.fits import (
    Measured,
    draw,
    fit_power,
    table,
    theoretical_exponent,
    write_figure,
)
from phiball.experiments.benchmarks.inner.problems import thread_limit
from phiball.experiments.benchmarks.memory import peak_memory
from phiball.experiments.benchmarks.output import open_console, print_lines, run_details, write_results
from phiball.experiments.benchmarks.own_process import AVAILABLE, in_own_process
from phiball.experiments.benchmarks.timing import clock_for, lower_quartile, mean_time, ratio
from phiball.experiments.framework.requirements import require

UNIT = 1 << 16  # numbers
QUICK_AXES = ("m", "level", "dimension", "threads")
QUICK_CURVES = (
    "entropic", "quadratic", "torch.softmax", "torch.topk", "entmax.sparsemax", "NumPy sort", "SG(L)",
    "RTMLMC(L)", "l2 ball", "NumPy normals",
)  # fmt: skip
SMALLEST = 0.25  # MB that can be told from nothing


def chosen(axis: str | None, quick: bool) -> list[Curve]:
    """Return the curves to be measured."""
    every = [curve for curve in curves() if axis in (None, curve.axis)]
    if quick:
        every = [c for c in every if c.name in QUICK_CURVES and (axis or c.axis in QUICK_AXES)]
    return every


def sizes_of(quantity: str, axis: Axis, quick: bool) -> tuple[int, ...]:
    """Return the sizes at which a quantity is measured: with `quick` every second, and not the largest."""
    sizes: tuple[int, ...] = getattr(axis, quantity)
    return sizes[-2::-2][::-1] if quick and len(sizes) > 3 else sizes


def time_of(curve: Curve, size: int, seconds: float) -> float:
    """Return the time of one call, in passes."""
    work = curve.make(size)
    unit = np.ones(UNIT).max
    clock = clock_for(size if curve.axis == "threads" else 1)
    if not curve.varies:
        return ratio(work, unit, seconds, clock)
    work(), unit()
    before = lower_quartile(unit, seconds / 4, clock)
    return 2 * mean_time(work, 4 * seconds, clock) / (before + lower_quartile(unit, seconds / 4, clock))


def memory_of(axis: str, name: str, size: int) -> float:
    """Return the peak memory of one call, in MB; to be run in a process of its own."""
    curve = next(c for c in curves() if (c.axis, c.name) == (axis, name))
    with use("numba"), thread_limit(1):
        curve.make(min(size, 64))()  # loads what the first call loads
        return max(SMALLEST, peak_memory(curve.make(size)))


def measure(
    chosen_curves: list[Curve], *, quick: bool, seconds: float, update: Update = silent
) -> list[Measured]:
    """Measure the time of all curves, then the memory."""
    known = axes()
    jobs = [(c, "time", c.time) for c in chosen_curves if c.time is not None]
    if AVAILABLE:
        jobs += [(c, "memory", c.memory) for c in chosen_curves if c.memory is not None]
    measured = []
    for number, (curve, quantity, theory) in enumerate(jobs):
        sizes, values = sizes_of(quantity, known[curve.axis], quick), []
        for place, size in enumerate(sizes):
            words = f"{quantity} of {curve.name}, {known[curve.axis].name}: {size}"
            update((number + place / len(sizes)) / len(jobs), words)
            if quantity == "time":
                values.append(time_of(curve, size, seconds))
            else:
                values.append(in_own_process(memory_of, curve.axis, curve.name, size))
        fit = fit_power(sizes, values)
        exponent = theoretical_exponent(sizes, theory)
        measured.append(
            Measured(quantity, curve.axis, curve.name, curve.ours, sizes, tuple(values), fit, exponent)
        )
    return measured


def main(axis: str | None = None, quick: bool = False, out: Path | None = None) -> None:
    """Print the table of exponents; write it, and the plot, to the folder `out`, if one is named."""
    known = axes()
    if axis is not None and axis not in known:
        raise ValueError(f"axis is {axis!r}; expected one of {', '.join(known)}")
    console = open_console(out)
    require("scipy.stats", user="bench scaling", extra="bench")
    if out is not None:
        require("matplotlib.figure", user="the plot of bench scaling", extra="bench")
    details = run_details(quick=quick, axis=axis or "all")
    with use("numba"), thread_limit(1), Progress("bench scaling", console) as progress:
        update, seconds = progress.update, 0.02 if quick else 0.3
        measured = measure(chosen(axis, quick), quick=quick, seconds=seconds, update=update)
    page = table(measured, known)
    console.print(page.table())
    if out is not None:
        files = write_figure(draw(measured, known), out)
        print_lines(console, [f"wrote {' and '.join(map(str, files))}"])
    record = {**details, "curves": [asdict(one) for one in measured]}
    facts = [f"{key}: {value}" for key, value in details.items()] + ["![the plot](scaling.png)"]
    write_results(console, out, "scaling", record, title="Scaling", facts=facts, tables=[page])

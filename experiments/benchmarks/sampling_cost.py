"""What points of a ball cost beside the random numbers that they are made of.

The unit is drawing those numbers by the generator of the same library, in the same precision. Each coordinate
takes one: uniform for norm inf, normal for norm 2, exponential for norm 1, gamma for other norms. But for
norm inf, each point takes one uniform number more. Time is processor time, which leaves out most of what else
the machine does.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from math import inf
from statistics import median
from typing import Any

import numpy as np

from phiball.backends import rng
from phiball.experiments.framework.tables import ReportTable
from phiball.refimpl import Ball

LABELS = {1.0: "l1", 2.0: "l2", 3.0: "l3", inf: "linf"}
BARS = {"l1": 2.0, "l2": 1.3, "l3": 2.0, "linf": 1.3, "tilted l2": 3.0, "tilted linf": 3.0}
DIMENSIONS = (10, 784, 3072)
POINTS = 16  # around each centre
NUMBERS = 1 << 19  # coordinates that are drawn at a time


@dataclass(frozen=True)
class Row:
    """The time of one kind of points, in times that their random numbers take."""

    points: str
    d: int
    library: str
    dtype: str
    ratio: float
    bar: float


def numpy_numbers(shape: tuple[int, ...], norm: float, dtype: str) -> Callable[[], Any]:
    """Return a function that draws the numbers of points of that shape by NumPy's generator."""
    source, kind = np.random.default_rng(0), np.dtype(dtype)
    laws: dict[float, Callable[..., Any]] = {
        inf: source.random,
        1.0: source.standard_exponential,
        2.0: source.standard_normal,
        3.0: lambda shape, dtype: source.standard_gamma(1 / 3, shape, dtype=dtype),
    }
    draw = laws[norm]
    if norm == inf:
        return lambda: draw(shape, dtype=kind)
    return lambda: (draw(shape, dtype=kind), source.random(shape[:-1], dtype=kind))


def torch_numbers(shape: tuple[int, ...], norm: float, dtype: str) -> Callable[[], Any]:
    """Return the same for torch, whose gamma numbers have no generator of their own."""
    torch = import_module("torch")
    how = {"dtype": getattr(torch, dtype), "generator": torch.Generator().manual_seed(0)}
    gamma = torch.distributions.Gamma(torch.tensor(1 / 3, dtype=how["dtype"]), 1.0)
    draw: Callable[[], Any] = {
        inf: lambda: torch.rand(shape, **how),
        1.0: lambda: torch.empty(shape, dtype=how["dtype"]).exponential_(generator=how["generator"]),
        2.0: lambda: torch.randn(shape, **how),
        3.0: lambda: gamma.sample(shape),
    }[norm]
    return draw if norm == inf else lambda: (draw(), torch.rand(shape[:-1], **how))


def paired_ratio(
    work: Callable[[], Any], unit: Callable[[], Any], seconds: float, clock: Callable[[], float]
) -> float:
    """Return the median of time over time, of calls in turn, so that both meet the machine at one speed."""
    work(), unit()
    ratios: list[float] = []
    end = clock() + seconds
    while clock() < end or len(ratios) < 5:
        start = clock()
        work()
        middle = clock()
        unit()
        ratios.append((middle - start) / max(clock() - middle, 1e-12))
    return median(ratios)


def rows(
    *,
    seconds: float,
    dimensions: tuple[int, ...] = DIMENSIONS,
    numbers: int = NUMBERS,
    clock: Callable[[], float] = time.process_time,
) -> Iterator[Row]:
    """Yield the cost of all kinds of points, in each dimension, library and precision."""
    makers: dict[str, tuple[Callable[[Any, str], Any], Callable[..., Any]]] = {
        "numpy": (lambda x, dtype: x.astype(dtype), numpy_numbers)
    }
    if find_spec("torch"):
        torch = import_module("torch")
        makers["torch"] = (lambda x, dtype: torch.asarray(x, dtype=getattr(torch, dtype)), torch_numbers)
    for d in dimensions:
        centres = np.random.default_rng(0).random((max(1, numbers // (d * POINTS)), d))
        shape = (len(centres), POINTS, d)
        # A tilt that is felt: s.b has a spread of about one under the uniform law.
        tilts = np.random.default_rng(1).normal(size=centres.shape)
        for library, (make, draws) in makers.items():
            for dtype in ("float32", "float64"):
                z, source = make(centres, dtype), rng(0)
                for norm, label in LABELS.items():
                    ball, unit = Ball(norm, 0.5), draws(shape, norm, dtype)
                    kinds: dict[str, Callable[[], Any]] = {label: partial(ball.sample, z, POINTS, source)}
                    if f"tilted {label}" in BARS:
                        s = make(tilts / float(np.sqrt(ball.variance(tilts)).mean()), dtype)
                        kinds[f"tilted {label}"] = partial(ball.sample_tilted, z, s, POINTS, source)
                    for name, work in kinds.items():
                        ratio = paired_ratio(work, unit, seconds, clock)
                        yield Row(name, d, library, dtype, ratio, BARS[name])


def count() -> int:
    """Return how many rows there are."""
    return len(BARS) * len(DIMENSIONS) * (1 + (find_spec("torch") is not None)) * 2


def table(measured: list[Row]) -> ReportTable:
    """Return the table: a row per kind of points and dimension, a column per library and precision."""
    columns = list(dict.fromkeys((row.library, row.dtype) for row in measured))
    cells: dict[tuple[str, int], dict[tuple[str, str], str]] = {}
    for row in measured:
        cells.setdefault((row.points, row.d), {})[row.library, row.dtype] = f"{row.ratio:.2f}"
    return ReportTable(
        f"{POINTS} points around each centre: time over that of drawing their random numbers",
        ("points", "d", "bar", *(" ".join(column) for column in columns)),
        [
            (points, str(d), f"{BARS[points]:.1f}", *(found.get(column, "") for column in columns))
            for (points, d), found in sorted(cells.items(), key=lambda item: (item[0][0], item[0][1]))
        ],
        left=1,
    )


def verdicts(measured: list[Row]) -> list[str]:
    """Return the line that says which are above their bars."""
    above = [row for row in measured if row.ratio > row.bar]
    if not above:
        return ["points of balls: all within their bars"]
    found = ", ".join(f"{row.points} d={row.d} {row.library} {row.dtype} {row.ratio:.2f}" for row in above)
    return [f"points of balls: ABOVE their bars at {found}"]

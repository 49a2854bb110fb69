"""`phiball bench scaling`: growth of time and memory, with a fitted exponent per code path.

The unit of time is np.max over 2^16 numbers; memory is the peak of a new process. An exponent is the slope of
a least-squares line through the logarithms of size and cost.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from math import log2
from typing import Any

import numpy as np
from scipy.stats import linregress

from phiball.backends import backend, rng
from phiball.backends.progress import Update, silent
from phiball.experiments.benchmarks.harness import (
    MEMORY,
    BenchmarkReport,
    BenchmarkTable,
    Clock,
    Contestant,
    Work,
    compare,
    in_new_process,
    optional_module,
    peak_memory,
)
from phiball.experiments.benchmarks.inner_problems import ETA, losses_of
from phiball.refimpl import (
    ENTROPIC,
    QUADRATIC,
    SG,
    Ball,
    Divergence,
    RegularizedLoss,
    cressie_read,
    worst_case,
)
from phiball.refimpl.linear import LinearProblem, fit_linear_model

UNIT = 1 << 16  # numbers in the array whose np.max is the unit of time
BATCH, N_SAMPLES, FEATURES = 64, 16, 50
MANY, FEW = 10_000, 200  # examples
MIN_MEMORY = 0.25  # smallest memory that can be measured, in MB


@dataclass(frozen=True)
class GrowthPath:
    """A code path: `make(size)` prepares work whose cost grows as a power of `size`."""

    name: str
    quantity: str  # time or memory
    grows_with: str  # what `size` counts
    sizes: tuple[int, ...]
    make: Callable[[int], Work]


def _solve(divergence: Divergence, size: int) -> Work:
    f = losses_of((BATCH, size))
    return lambda: worst_case(f, eta=ETA, divergence=divergence)


def _draw(norm: float, size: int) -> Work:
    ball, z, source = Ball(norm, 1.0), np.zeros((BATCH, size)), rng(0)
    return lambda: ball.sample(z, N_SAMPLES, rng=source)


def _fit(n: int, features: int = FEATURES) -> Work:
    source = np.random.default_rng(0)
    X = source.normal(size=(n, features))
    y = np.where(X @ source.normal(size=features) + source.logistic(size=n) > 0, 1.0, -1.0)
    problem = LinearProblem("logistic", Ball(2, 0.5), 0.1, ENTROPIC, ridge=1 / n)
    return lambda: fit_linear_model(problem, X, y)


def _step(size: int) -> Work:
    torch = import_module("torch")
    nn, source = torch.nn, torch.Generator().manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    x, y = torch.rand((BATCH, 64), generator=source), torch.randint(10, (BATCH,), generator=source)
    objective = RegularizedLoss(Ball(2, 0.5), 0.5, ENTROPIC, SG(round(log2(size))))
    draws = rng(0)

    def loss(z: Any, i: Any) -> Any:
        return nn.functional.cross_entropy(model(z), y[i], reduction="none")

    def work() -> None:
        model.zero_grad()
        objective(loss, x, rng=draws).backward()

    return work


def paths() -> list[GrowthPath]:
    """The main code paths; training only if torch is installed."""
    divergences = {"entropic": ENTROPIC, "quadratic": QUADRATIC, "Cressie-Read 3": cressie_read(3)}
    lengths, points, draw = tuple(4**k for k in range(4, 9)), "points of an estimate", partial(_draw, 2.0)
    quadratic = partial(_solve, QUADRATIC)
    found = [
        GrowthPath(f"worst_case, {name}", "time", "points of a row", lengths, partial(_solve, divergence))
        for name, divergence in divergences.items()
    ]
    found += [
        GrowthPath("Ball.sample, l2", "time", "dimension", tuple(4**k for k in range(3, 8)), draw),
        GrowthPath("fit_linear_model", "time", "examples", (12_500, 25_000, 50_000, 100_000), _fit),
        GrowthPath(
            "fit_linear_model", "time", "features, tall", (50, 100, 200, 400, 800), partial(_fit, MANY)
        ),
        GrowthPath("fit_linear_model", "time", "features, wide", (1000, 4000, 16_000), partial(_fit, FEW)),
        GrowthPath("worst_case, quadratic", "memory", "points of a row", lengths[2:], quadratic),
        GrowthPath("Ball.sample, l2", "memory", "dimension", (1024, 4096, 16_384), draw),
        GrowthPath("fit_linear_model", "memory", "examples", (25_000, 50_000, 100_000), _fit),
    ]
    if optional_module("torch"):
        sizes = tuple(1 << k for k in range(2, 9))
        found.append(GrowthPath("training, SG", "time", points, sizes, _step))
        found.append(GrowthPath("training, SG", "memory", points, sizes[4:], _step))
    return found


def fit_exponent(sizes: Sequence[int], values: Sequence[float]) -> tuple[float, float | None]:
    """Return the exponent of a fitted power law, and its standard error (None for two sizes)."""
    fit = linregress(np.log(sizes), np.log(values))
    return float(fit.slope), float(fit.stderr) if len(sizes) > 2 else None


def path_memory(name: str, size: int) -> float:
    """The peak memory of one call, in MB; call it in a new process."""
    path = next(p for p in paths() if (p.name, p.quantity) == (name, "memory"))
    with backend("numba"):
        path.make(path.sizes[0] // 4)()  # warm up: imports and compilation
        return max(MIN_MEMORY, peak_memory(path.make(size)))


def bench_scaling(
    *, clock: Clock, quick: bool = False, only: Sequence[GrowthPath] | None = None, update: Update = silent
) -> BenchmarkReport:
    """Fit an exponent for each code path of `only`, by default all `paths()`; `quick` uses two sizes."""
    rows = []
    chosen = [p for p in only or paths() if p.quantity == "time" or MEMORY]
    for number, path in enumerate(chosen):
        sizes, values = path.sizes[:2] if quick else path.sizes, []
        for place, size in enumerate(sizes):
            text = f"{path.quantity} of {path.name}, {path.grows_with}: {size}"
            update((number + place / len(sizes)) / len(chosen), text)
            if path.quantity == "memory":
                values.append(in_new_process(path_memory, path.name, size))
                continue
            seconds, rounds = (0.02, 2) if quick else (0.1, 3)
            with backend("numba"):
                players, unit = [Contestant(path.name, path.make(size))], np.ones(UNIT).max
                times = compare(unit, players, seconds=seconds, rounds=rounds, clock=clock)
            values.append(times[path.name].ratio)
        exponent, error = fit_exponent(sizes, values)
        where = {"path": path.name, "quantity": path.quantity, "grows with": path.grows_with}
        where["sizes"] = f"{sizes[0]} to {sizes[-1]}"
        rows.append({**where, "exponent": exponent, "±": error, "at the largest": values[-1]})
    note = (
        f"±: one standard error. at the largest: cost at the largest size, time in units of np.max over "
        f"{UNIT:,} numbers, memory in MB. "
        f"worst_case: {BATCH} rows; Ball.sample: {BATCH} x {N_SAMPLES} points; fit_linear_model: {FEATURES} "
        f"features; {MANY:,} examples if tall, {FEW} if wide; training: network 64-128-10, batch {BATCH}"
    )
    return BenchmarkReport(
        [BenchmarkTable("Fitted growth exponents; in theory 2 for tall data, else 1", rows, note)]
    )

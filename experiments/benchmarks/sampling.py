"""`phiball bench sampling`: the cost of sampling a ball, and the noise of sample means.

The unit of cost is drawing the underlying random numbers, with the same library and precision: one per
coordinate (uniform for norm inf, normal for norm 2, exponential for norm 1), and, except for norm inf, one
uniform number per point. The noise depends on how points are drawn: independently, in antithetic pairs x + b
and x - b around a centre x, or as scrambled Sobol points. It is measured for three functions of ten random
linear forms of the point, each of unit variance:

- loss: the loss of a linear classifier, which is smooth;
- step: an indicator function of the first form;
- square: the square of the first form, which is even, so that the second point of a pair adds no information.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from itertools import product
from math import inf, sqrt
from typing import Any

import numpy as np

from phiball.backends import backend, rng
from phiball.backends.progress import Update, silent
from phiball.experiments.benchmarks.harness import (
    BenchmarkReport,
    BenchmarkTable,
    Clock,
    Contestant,
    Row,
    bar_verdict,
    compare,
    optional_module,
    part_of,
)
from phiball.refimpl import Ball
from phiball.refimpl.distributions.norms import NORMS

# The largest accepted costs, by kind of points.
BARS = {"l1": 2.0, "l2": 1.3, "linf": 1.3, "tilted l2": 3.0, "tilted linf": 3.0}
COST_DIMENSIONS = (10, 784, 3072)
POINTS, COORDINATES = 16, 1 << 19  # points per centre, and coordinates of all points together
NOISE_DIMENSIONS, COUNTS = (2, 10, 784), (2, 8, 32, 128)
FUNCTIONS: dict[str, Callable[[Any], Any]] = {  # of the ten linear forms on the last axis
    "loss": lambda s: np.log(np.sum(np.exp(s), axis=-1)) - s[..., 0],
    "step": lambda s: np.asarray(s[..., 0] > 0.5, dtype=float),
    "square": lambda s: s[..., 0] ** 2,
}
SCHEMES = {  # options of `Ball.sample`
    "plain": {"antithetic": False, "qmc": False},
    "antithetic": {"antithetic": True, "qmc": False},
    "Sobol": {"antithetic": False, "qmc": True},
    "antithetic Sobol": {"antithetic": True, "qmc": True},
}
LINEAR_FORMS = 10
CALLS = 16  # of `Ball.sample` per scheme: the Sobol sets of one call share part of their scrambling


def _numpy_numbers(shape: tuple[int, ...], norm: float, dtype: str) -> Callable[[], Any]:
    """A function that draws the random numbers behind points of this shape (..., d), with NumPy."""
    generator, kind = np.random.default_rng(0), np.dtype(dtype)
    if norm == inf:
        return lambda: generator.random(shape, dtype=kind)
    draw: Any = generator.standard_exponential if norm == 1 else generator.standard_normal
    return lambda: (draw(size=shape, dtype=kind), generator.random(shape[:-1], dtype=kind))


def _torch_numbers(shape: tuple[int, ...], norm: float, dtype: str) -> Callable[[], Any]:
    """A function that draws the random numbers behind points of this shape (..., d), with torch."""
    torch = import_module("torch")
    kind, generator = getattr(torch, dtype), torch.Generator().manual_seed(0)
    draw: Callable[[], Any] = {
        inf: lambda: torch.rand(shape, dtype=kind, generator=generator),
        1.0: lambda: torch.empty(shape, dtype=kind).exponential_(generator=generator),
        2.0: lambda: torch.randn(shape, dtype=kind, generator=generator),
    }[norm]
    if norm == inf:
        return draw
    return lambda: (draw(), torch.rand(shape[:-1], dtype=kind, generator=generator))


def _distance_outside(ball: Ball, centres: Any, points: Any) -> float:
    """The largest distance of a point outside its ball, in radii."""
    if isinstance(points, tuple):  # tilted points come with log-densities
        points = points[0]
    offsets = np.asarray(points, dtype=np.float64) - np.asarray(centres, dtype=np.float64)[:, None, :]
    return float(np.max(np.linalg.norm(offsets, ord=ball.norm, axis=-1))) / ball.radius - 1


def cost_rows(
    *,
    seconds: float,
    clock: Clock,
    dimensions: tuple[int, ...] = COST_DIMENSIONS,
    coordinates: int = COORDINATES,
    update: Update = silent,
) -> list[Row]:
    """The cost of each kind of points of BARS, for each dimension, library and precision."""
    libraries: dict[str, tuple[Any, Any]] = {"numpy": (lambda x, dtype: x.astype(dtype), _numpy_numbers)}
    torch = optional_module("torch")
    if torch:
        libraries["torch"] = (lambda x, dtype: torch.asarray(x, dtype=getattr(torch, dtype)), _torch_numbers)
    rows, cases = [], list(product(dimensions, libraries, ("float32", "float64"), BARS))
    for number, (d, library, dtype, points) in enumerate(cases):
        update(number / len(cases), f"cost of {points}, d = {d}, {library} {dtype}")
        convert, random_numbers = libraries[library]
        raw = np.random.default_rng(0).random((max(1, coordinates // (d * POINTS)), d))
        ball, centres, source = Ball(points.removeprefix("tilted "), 0.5), convert(raw, dtype), rng(0)
        run = partial(ball.sample, centres, POINTS, rng=source)
        if points.startswith("tilted"):
            # Scale the tilt s so that s.b has a standard deviation of about one, with b uniform on the ball.
            s = np.random.default_rng(1).normal(size=raw.shape)
            s = convert(s / float(np.sqrt(ball.variance(s)).mean()), dtype)
            run = partial(ball.sample_tilted, centres, s, POINTS, rng=source)
        player = Contestant(points, run, partial(_distance_outside, ball, centres), 1e-5)
        unit = random_numbers((len(raw), POINTS, d), ball.norm, dtype)
        timing = compare(unit, [player], seconds=seconds, rounds=3, clock=clock)[points]
        verdict = bar_verdict(timing.ratio, BARS[points])
        where = {"points": points, "library": library, "dtype": dtype, "verdict": verdict, "d": d}
        rows.append(
            {**where, **timing.columns("numbers"), "at most": BARS[points], "inside": timing.accurate}
        )
    return rows


def noise_ratios(norm: str, d: int, n: int, repetitions: int, seed: int = 0) -> dict[tuple[str, str], float]:
    """The standard deviation of a mean over n points, relative to independent points.

    The keys are (function, scheme); d is the dimension.
    """
    ball, source = Ball(norm, 1.0), rng(seed)
    g = np.random.default_rng(seed).normal(size=(LINEAR_FORMS, d))
    g = (g / np.sqrt(ball.variance(g))[:, None]).T
    means: dict[tuple[str, str], list[Any]] = {(f, s): [] for f in FUNCTIONS for s in SCHEMES}
    plain: dict[str, list[Any]] = {f: [] for f in FUNCTIONS}
    z = np.zeros((-(-repetitions // CALLS), d))
    for _ in range(CALLS):
        for scheme, options in SCHEMES.items():
            s = ball.sample(z, n, rng=source, **options) @ g
            for name, function in FUNCTIONS.items():
                values = function(s)
                means[name, scheme].append(np.mean(values, axis=-1))
                if scheme == "plain":
                    plain[name].append(values)
    return {
        (name, scheme): float(np.std(np.concatenate(values), ddof=1) / np.std(plain[name])) * sqrt(n)
        for (name, scheme), values in means.items()
    }


def noise_rows(
    *,
    quick: bool,
    dimensions: tuple[int, ...] = NOISE_DIMENSIONS,
    counts: tuple[int, ...] = COUNTS,
    update: Update = silent,
) -> list[Row]:
    """A row per function, ball and scheme, with a column per number n of points."""
    places = [(norm, d) for norm in NORMS for d in dimensions]
    rows: list[Row] = []
    for number, (norm, d) in enumerate(places):
        update(number / len(places), f"noise, {norm}, d = {d}")
        repetitions = 256 if quick else 1024 if d <= 10 else 128
        found = {n: noise_ratios(norm, d, n, repetitions) for n in counts}
        for function, scheme in found[counts[0]]:
            where = {"function": function, "ball": norm, "scheme": scheme, "d": d}
            rows.append({**where, **{f"n = {n}": found[n][function, scheme] for n in counts}})
    return sorted(rows, key=lambda row: list(FUNCTIONS).index(row["function"]))


def bench_sampling(*, clock: Clock, quick: bool = False, update: Update = silent) -> BenchmarkReport:
    """The tables of cost and of noise."""
    with backend("numpy"):
        noise = noise_rows(
            quick=quick,
            dimensions=NOISE_DIMENSIONS[:2] if quick else NOISE_DIMENSIONS,
            update=part_of(update, 0.0, 0.8),
        )
    cost = cost_rows(seconds=0.01 if quick else 0.1, clock=clock, update=part_of(update, 0.8, 1.0))
    title = f"{POINTS} points per centre: time relative to drawing their random numbers"
    note = "standard error: 5 % with --quick, else 2 % (784 dimensions: 6 %)"
    noise_table = BenchmarkTable("Noise of a mean relative to n independent points", noise, note)
    return BenchmarkReport([BenchmarkTable(title, cost), noise_table])

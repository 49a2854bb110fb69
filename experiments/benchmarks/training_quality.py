"""How good the estimators are: bias, noise and cost of SG and RT-MLMC where the risk is known exactly.

The risk of a fixed batch is estimated repeatedly, so that all noise is that of the estimator; what drawing
the data adds is known. No training library is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import inf, sqrt

import numpy as np

from phiball.backends import Array, Rng, rng
from phiball.backends.progress import Update, silent
from phiball.experiments.benchmarks.exact_problems import BATCH, Problem
from phiball.experiments.benchmarks.schemes import SCHEMES, installed_schemes
from phiball.experiments.framework.tables import ReportTable
from phiball.refimpl import RTMLMC, SG, RegularizedLoss, Uniform

LEVELS = tuple(range(11))
ESTIMATORS: dict[str, Callable[[int], SG | RTMLMC]] = {
    "SG": SG,
    "RT-MLMC random": RTMLMC,
    "RT-MLMC stratified": lambda level: RTMLMC(level, "stratified"),
}
TOLERANCES = (0.3, 0.1, 0.03)  # of the length; the bias is known to a sixth of the smallest, at worst
NOTE = (
    "bias and noise of the mean over a batch of 64 fixed data points, +- one standard error of the bias; "
    "cost: evaluations per data point; MSE x cost: mean squared error times cost, the smallest of each kind "
    "marked *; the gradient's bias and noise are Euclidean lengths"
)
OTHER_POINTS = (
    "with antithetic and Sobol points the points of one level depend on each other: this changes the "
    "objective F^L, hence the bias, as well as the noise; F, its limit, is the same"
)
CHOICE = (
    "batches are averaged, as training steps do; each is drawn afresh from the data, or, where the data are "
    "fixed, is all of them: then SG gains, which spends its evaluations on few data points; "
    f"{OTHER_POINTS}"
)


@dataclass(frozen=True)
class Replicates:
    """Repeated estimates of one risk: values (R,), gradients (R, k), and evaluations per data point (R,)."""

    values: Array
    gradients: Array
    evaluations: Array


@dataclass(frozen=True)
class Row:
    """Bias with its standard error, noise, and mean squared error times cost, of value and gradient."""

    problem: str
    points: str
    estimator: str
    level: int
    replications: int
    evaluations: float
    bias: float
    bias_error: float
    noise: float
    mse_cost: float
    gradient_bias: float
    gradient_bias_error: float
    gradient_noise: float
    gradient_mse_cost: float


def replicate(
    problem: Problem, estimator: SG | RTMLMC, points: str, replications: int, source: Rng
) -> Replicates:
    """Estimate the risk and its gradient repeatedly; `points` is a key of SCHEMES."""
    objective = RegularizedLoss(
        problem.ball, problem.eta, problem.divergence, estimator, Uniform(**SCHEMES[points])
    )
    values, gradients, evaluations = [], [], []
    for _ in range(replications):
        drawn = objective.points(lambda x, i: problem.loss(problem.theta, x, i), problem.z, rng=source)
        values.append(drawn.value)
        slopes = problem.gradient(problem.theta, drawn.points, drawn.index)
        gradients.append(drawn.weights @ slopes)  # sum_i w_i grad f(z'_i)
        evaluations.append(len(drawn.losses) / len(problem.z))
    return Replicates(np.asarray(values), np.asarray(gradients), np.asarray(evaluations))


def quality(replicates: Replicates, value: float, slope: Array) -> dict[str, float]:
    """Return bias, noise and mean squared error times cost, given the true value and gradient."""
    count, cost = len(replicates.values), float(np.mean(replicates.evaluations))
    result: dict[str, float] = {"evaluations": cost}
    errors = {"": replicates.values[:, None] - value, "gradient_": replicates.gradients - slope}
    for name, error in errors.items():
        mean = np.mean(error, axis=0)
        noise = sqrt(np.sum(np.var(error, axis=0, ddof=1)))
        result[name + "bias"] = float(mean[0] if name == "" else np.linalg.norm(mean))
        result[name + "bias_error"] = noise / sqrt(count)
        result[name + "noise"] = noise
        result[name + "mse_cost"] = cost * float(np.mean(np.sum(error**2, axis=-1)))
    return result


def replications(estimator: SG | RTMLMC, work: int) -> int:
    """Return as many as `work` perturbed points allow, but at least 16 and at most 200."""
    return max(16, min(200, int(work / (BATCH * estimator.evaluations))))


def rows(
    problems: list[Problem],
    *,
    work: int,
    levels: tuple[int, ...] = LEVELS,
    seed: int = 0,
    update: Update = silent,
) -> Iterator[Row]:
    """Yield every estimator at every level, on every problem and for every way to draw points."""
    cases = [
        (problem, points, name, level)
        for problem in problems
        for points in installed_schemes()
        for name in ESTIMATORS
        for level in levels
    ]
    for number, (problem, points, name, level) in enumerate(cases):
        update(number / len(cases), f"{problem.name}, {points} points: {name}, L = {level}")
        estimator = ESTIMATORS[name](level)
        count = replications(estimator, work)
        replicates = replicate(problem, estimator, points, count, rng(seed))
        measured = quality(replicates, problem.value, problem.slope)
        yield Row(problem.name, points, name, level, count, **measured)


def _cells(row: Row, best: dict[str, float]) -> tuple[str, ...]:
    def marked(kind: str) -> str:
        value = getattr(row, kind)
        return f"{value:.2e}" + ("*" if value == best[kind] else " ")

    return (
        f"{row.evaluations:.2f}",
        f"{row.bias:+.1e} +- {row.bias_error:.0e}",
        f"{row.noise:.1e}",
        marked("mse_cost"),
        f"{row.gradient_bias:.1e} +- {row.gradient_bias_error:.0e}",
        f"{row.gradient_noise:.1e}",
        marked("gradient_mse_cost"),
    )


_NUMBERS = ("cost", "bias", "noise", "MSE x cost", "grad bias", "grad noise", "grad MSE x cost")
_KINDS = ("mse_cost", "gradient_mse_cost")


def _smallest(measured: list[Row]) -> dict[str, float]:
    return {kind: min(getattr(row, kind) for row in measured) for kind in _KINDS}


def tables(measured: list[Row]) -> list[ReportTable]:
    """Return a full table for each problem and way to draw points."""
    pages = []
    for problem, points in dict.fromkeys((row.problem, row.points) for row in measured):
        mine = [row for row in measured if (row.problem, row.points) == (problem, points)]
        cells = [(row.estimator, str(row.level), *_cells(row, _smallest(mine))) for row in mine]
        note = NOTE if points == "plain" else f"{NOTE}; {OTHER_POINTS}"
        headings = ("estimator", "L", *_NUMBERS)
        pages.append(ReportTable(f"{problem}: {points} points", headings, cells, note))
    return pages


def work(row: Row, tolerance: float, bias: float, spread: float) -> float:
    """Return the evaluations, in batches, for a gradient error of `tolerance`, by averaging enough batches.

    Averaging lowers the noise and not the bias: cost (noise^2 + spread^2)/(tolerance^2 - bias^2); inf for a
    larger bias. `spread` is the noise of drawing the data, and 0 where they are fixed.
    """
    room = tolerance**2 - bias**2
    if room <= 0:
        return inf
    return row.evaluations * max(1.0, (row.gradient_noise**2 + spread**2) / room)


def choice(measured: list[Row], problems: list[Problem]) -> ReportTable:
    """Return the level with the least work for a gradient error, in percent of its length, and that work.

    The bias is that of SG at the same level, since RT-MLMC has the same and shows it through more noise; what
    the noise adds to its square is subtracted.
    """
    known = {problem.name: problem for problem in problems}
    biases = {
        (row.problem, row.points, row.level): sqrt(
            max(0.0, row.gradient_bias**2 - row.gradient_bias_error**2)
        )
        for row in measured
        if row.estimator == "SG"
    }
    cells = []
    for name, points, estimator in dict.fromkeys((r.problem, r.points, r.estimator) for r in measured):
        mine = [r for r in measured if (r.problem, r.points, r.estimator) == (name, points, estimator)]
        length = float(np.linalg.norm(known[name].slope))
        efforts = []
        for spread in (known[name].spread, 0.0):
            for share in TOLERANCES:
                least, level = min(
                    (work(r, share * length, biases[name, points, r.level], spread), r.level) for r in mine
                )
                efforts.append("none" if least == inf else f"{least:,.0f} (L = {level})")
        cells.append((name, points, estimator, *efforts))
    percents = [f"{100 * share:g} %" for share in TOLERANCES]
    return ReportTable(
        "Evaluations, in batches of 64, for a gradient error of so many percent, at the best L",
        ("problem", "points", "estimator", *percents, *(f"{share}, data fixed" for share in percents)),
        cells,
        CHOICE,
        left=3,
    )

"""Bias, noise and cost of SG and RT-MLMC on a problem with a known robust risk.

The loss is linear, theta.x, with the entropic divergence on an l2 ball: the risk at z is
theta.z + eta log E exp(theta.b/eta), with b uniform on the ball around 0. The risk of a fixed batch is
estimated repeatedly, so that all noise comes from the estimator. The noise of drawing the data is computed
from the exact gradients (`ExactProblem.spread`). torch is not needed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf, sqrt

import numpy as np

from phiball.backends import Array, Rng, backend, rng
from phiball.backends.progress import Update, silent
from phiball.experiments.benchmarks.harness import BenchmarkTable, Row
from phiball.refimpl import ENTROPIC, RTMLMC, SG, Ball, RegularizedLoss

BATCH, DIMENSION = 64, 10
BALL, ETA = Ball(2, 1.0), 0.1
LEVELS = tuple(range(11))
ESTIMATORS: dict[str, Callable[[int], SG | RTMLMC]] = {
    "SG": SG,
    "RT-MLMC random": RTMLMC,
    "RT-MLMC stratified": lambda level: RTMLMC(level, "stratified"),
}
TOLERANCES = (0.3, 0.1, 0.03)  # relative to the length of the gradient
NOTE = (
    "errors of the mean over a batch of 64 fixed data points; ±: standard error of the bias; cost: "
    "evaluations per data point; bias and noise of the gradient are Euclidean lengths"
)
CHOICE_NOTE = (
    "estimates are averaged over batches, as in training. Each batch is drawn anew, or (data fixed) contains "
    "all data. SG spends its evaluations on fewer data points, a drawback only if data are drawn anew"
)


@dataclass(frozen=True)
class ExactProblem:
    """Data z (n, d), theta, the mean risk `value`, and the gradients in theta of the n risks (n, d)."""

    z: Array
    theta: Array
    value: float
    gradients: Array

    @property
    def gradient(self) -> Array:
        """The gradient of the mean risk."""
        return np.mean(self.gradients, axis=0)

    @property
    def spread(self) -> float:
        """The noise of drawing a batch: the root mean squared error of the batch's mean gradient."""
        return sqrt(np.sum(np.var(self.gradients, axis=0)) / BATCH)


def linear_problem() -> ExactProblem:
    """A random theta and batch of points, with their exact risks and gradients."""
    source = np.random.default_rng(0)
    z = source.normal(size=(BATCH, DIMENSION)) / sqrt(DIMENSION)
    theta = source.normal(size=DIMENSION)
    theta /= np.linalg.norm(theta)

    def risk(theta: Array) -> Array:  # at each data point
        return z @ theta + ETA * BALL.log_mgf(theta / ETA)

    h = 1e-5  # the third derivative is below 1/eta^2: truncation and rounding stay below 1e-7
    partials = [(risk(theta + h * e) - risk(theta - h * e)) / (2 * h) for e in np.eye(DIMENSION)]
    return ExactProblem(z, theta, float(np.mean(risk(theta))), np.stack(partials, axis=-1))


def quality_row(problem: ExactProblem, name: str, level: int, replications: int, source: Rng) -> Row:
    """A row for one estimator and level: bias, noise, and mean squared error (MSE) times cost.

    Risk and gradient are estimated `replications` times.
    """
    objective = RegularizedLoss(BALL, ETA, ENTROPIC, ESTIMATORS[name](level))
    values, gradients, evaluations = [], [], []
    for _ in range(replications):
        drawn = objective.points(lambda x, i: x @ problem.theta, problem.z, rng=source)
        values.append([drawn.value - problem.value])
        gradients.append(drawn.weights @ drawn.points - problem.gradient)  # the gradient of theta.x is x
        evaluations.append(len(drawn.losses) / len(problem.z))
    cost = float(np.mean(evaluations))
    row: Row = {"estimator": name, "L": level, "cost": cost}
    for prefix, found in (("", values), ("gradient ", gradients)):
        errors = np.asarray(found, dtype=float)
        mean, noise = np.mean(errors, axis=0), sqrt(np.sum(np.var(errors, axis=0, ddof=1)))
        row[f"{prefix}bias"] = float(np.linalg.norm(mean) if prefix else mean[0])
        row[f"{prefix}±"] = noise / sqrt(replications)
        row[f"{prefix}noise"] = noise
        row[f"{prefix}MSE x cost"] = cost * float(np.mean(np.sum(errors**2, axis=-1)))
    return row


def averaging_cost(row: Row, tol: float, bias: float, spread: float) -> float:
    """The evaluations, in units of a batch, for a gradient error of `tol` after averaging over batches.

    Averaging reduces the noise but not the bias, so (noise^2 + spread^2)/(tol^2 - bias^2) batches are needed,
    at least one. The result is this number times the cost of a batch, or inf if the bias is at least `tol`.
    `spread` is the noise of drawing the data, 0 for fixed data.
    """
    room = tol**2 - bias**2
    if room <= 0:
        return inf
    return float(row["cost"] * max(1.0, (row["gradient noise"] ** 2 + spread**2) / room))


def choice_row(problem: ExactProblem, rows: list[Row], estimator: str) -> Row:
    """The least cost of an estimator for each gradient error, and the level L that attains it.

    The bias is taken from SG at the same level, because RT-MLMC has the same bias but more noise. The square
    of the estimated bias is reduced by its expected noise.
    """
    biases = {
        row["L"]: sqrt(max(0.0, row["gradient bias"] ** 2 - row["gradient ±"] ** 2))
        for row in rows
        if row["estimator"] == "SG"
    }
    levels = [row for row in rows if row["estimator"] == estimator]
    found: Row = {"estimator": estimator}
    for label, spread in (("", problem.spread), (", data fixed", 0.0)):
        for share in TOLERANCES:
            tol = share * float(np.linalg.norm(problem.gradient))
            least, level = min((averaging_cost(r, tol, biases[r["L"]], spread), r["L"]) for r in levels)
            text = "none" if least == inf else f"{least:,.0f} (L = {level})"
            found[f"{100 * share:g} %{label}"] = text
    return found


def quality_tables(
    *, work: int, seed: int, levels: tuple[int, ...] = LEVELS, update: Update = silent
) -> list[BenchmarkTable]:
    """A table of all estimators and levels, and a table of the best levels.

    `work` is the number of perturbed points per row, which determines the number of replications (16 to 200).
    """
    problem, rows = linear_problem(), list[Row]()
    cases = [(name, level) for name in ESTIMATORS for level in levels]
    with backend("numpy"):
        for number, (name, level) in enumerate(cases):
            update(number / len(cases), f"{name}, level {level}")
            count = int(work / (BATCH * ESTIMATORS[name](level).evaluations))
            rows.append(quality_row(problem, name, level, max(16, min(200, count)), rng(seed)))
    choices = [choice_row(problem, rows, name) for name in ESTIMATORS]
    title = "Evaluations, in units of a batch of 64, for a relative gradient error, at the best L"
    return [
        BenchmarkTable(f"Linear loss, d = {DIMENSION}, entropic", rows, NOTE),
        BenchmarkTable(title, choices, CHOICE_NOTE),
    ]

"""Bias, noise and cost of SG and RT-MLMC on problems whose regularised risk is known exactly.

A logistic loss in the plane with the quadratic divergence, whose risk and gradient are integrals over the
disc, and a linear loss in many dimensions with the entropic one, whose risk is eta log E exp(theta.b/eta).
The risk of a fixed batch is estimated repeatedly, so that all noise is the estimator's; the noise that
drawing the data adds is known. No training library is needed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from math import inf, sqrt

import numpy as np

from phiball.backends import Array, Rng, rng, use
from phiball.backends.progress import Update, silent
from phiball.experiments.benchmarks.harness import SCHEMES, Row, Table
from phiball.refimpl import (
    ENTROPIC,
    QUADRATIC,
    RTMLMC,
    SG,
    Ball,
    Divergence,
    RegularizedLoss,
    Uniform,
    integrated_risk,
    quadrature,
    worst_case,
)

BATCH = 64
LEVELS = tuple(range(11))
ESTIMATORS: dict[str, Callable[[int], SG | RTMLMC]] = {
    "SG": SG,
    "RT-MLMC random": RTMLMC,
    "RT-MLMC stratified": lambda level: RTMLMC(level, "stratified"),
}
TOLERANCES = (0.3, 0.1, 0.03)  # of the gradient's length
NOTE = (
    "mean over a batch of 64 fixed data points; bias ± its standard error; cost: evaluations per data point; "
    "bias and noise of the gradient are Euclidean lengths. Antithetic and Sobol points of one level depend "
    "on each other, which changes the objective F^L, and so its bias and noise; its limit F is the same"
)
CHOICE_NOTE = (
    "batches are averaged, as training steps do; each is drawn afresh, or, where the data are fixed, is all "
    "of them: then SG gains, which spends its evaluations on few data points"
)


@dataclass(frozen=True)
class ExactProblem:
    """A loss(theta, x, i) around data z whose regularised risk is known.

    `value` is the mean risk over the data; `slopes` (n, k) are the gradients in theta of the risk of each
    data point.
    """

    name: str
    z: Array
    theta: Array
    ball: Ball
    eta: float
    divergence: Divergence
    loss: Callable[[Array, Array, Array], Array]
    gradient: Callable[[Array, Array, Array], Array]
    value: float
    slopes: Array

    @property
    def slope(self) -> Array:
        """The gradient of the mean risk."""
        return np.mean(self.slopes, axis=0)

    @property
    def spread(self) -> float:
        """The noise that drawing a batch adds: the distance of its mean slope from that of all data."""
        return sqrt(np.sum(np.var(self.slopes, axis=0)) / BATCH)


def logistic_problem(n: int = BATCH) -> ExactProblem:
    """Return the problem of log(1 + exp(-y theta.x)) around n points of the plane, on a disc."""
    source = np.random.default_rng(0)
    z = source.normal(size=(n, 2))
    y = np.where(source.random(n) < 0.5, -1.0, 1.0)
    theta = np.array([2.0, -1.0])
    ball, eta, divergence = Ball(2, 1.0), 0.2, QUADRATIC

    def loss(theta: Array, x: Array, i: Array) -> Array:
        return np.logaddexp(0.0, -y[i] * (x @ theta))

    def gradient(theta: Array, x: Array, i: Array) -> Array:
        return (-y[i] / (1 + np.exp(y[i] * (x @ theta))))[:, None] * x

    risk = integrated_risk(lambda x, i: loss(theta, x, i), z, ball, eta, divergence, panels=2)
    rule = quadrature(ball, z, panels=2)
    slopes = np.empty_like(z)
    for i, x in enumerate(rule.points):  # by Danskin's theorem, with the weights of the inner problem
        index = np.full(len(x), i)
        gamma = worst_case(loss(theta, x, index), eta, divergence, p=rule.weights).weights
        slopes[i] = gamma @ gradient(theta, x, index)
    name, value = "logistic, d = 2, quadratic", float(risk.value)
    return ExactProblem(name, z, theta, ball, eta, divergence, loss, gradient, value, slopes)


def linear_problem(n: int = BATCH, d: int = 10) -> ExactProblem:
    """Return the problem of theta.x around n points in d dimensions, on an l2 ball."""
    source = np.random.default_rng(0)
    z = source.normal(size=(n, d)) / sqrt(d)
    theta = source.normal(size=d)
    theta /= np.linalg.norm(theta)
    ball, eta = Ball(2, 1.0), 0.1

    def risk(theta: Array) -> Array:  # of each data point
        return z @ theta + eta * ball.log_mgf(theta / eta)

    h = 1e-5  # the third derivative of the risk is below 1/eta^2, so that both errors stay below 1e-7
    slopes = np.stack([(risk(theta + h * e) - risk(theta - h * e)) / (2 * h) for e in np.eye(d)], axis=-1)
    name, value = f"linear, d = {d}, entropic", float(np.mean(risk(theta)))
    return ExactProblem(
        name, z, theta, ball, eta, ENTROPIC, lambda t, x, i: x @ t, lambda t, x, i: x, value, slopes
    )


def quality_row(
    problem: ExactProblem, points: str, name: str, level: int, replications: int, source: Rng
) -> Row:
    """Estimate the risk and its gradient repeatedly; return bias, noise and mean squared error times cost."""
    estimator, proposal = ESTIMATORS[name](level), Uniform(**SCHEMES[points])
    objective = RegularizedLoss(problem.ball, problem.eta, problem.divergence, estimator, proposal)
    values, gradients, evaluations = [], [], []
    for _ in range(replications):
        drawn = objective.points(lambda x, i: problem.loss(problem.theta, x, i), problem.z, rng=source)
        values.append([drawn.value - problem.value])
        slopes = problem.gradient(problem.theta, drawn.points, drawn.index)
        gradients.append(drawn.weights @ slopes - problem.slope)  # sum_i w_i grad f(z'_i)
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
    """Return the evaluations, in batches, for a gradient error of `tol` by averaging batches.

    Averaging lowers the noise but not the bias: cost (noise^2 + spread^2)/(tol^2 - bias^2); inf for a larger
    bias. `spread` is the noise of drawing the data, 0 if they are fixed.
    """
    room = tol**2 - bias**2
    if room <= 0:
        return inf
    return float(row["cost"] * max(1.0, (row["gradient noise"] ** 2 + spread**2) / room))


def choice_row(problem: ExactProblem, points: str, rows: list[Row], estimator: str) -> Row:
    """Return the least cost of an estimator for each gradient error, and the level that has it.

    The bias is that of SG at the same level, which RT-MLMC shares but shows through more noise; the part of
    its square that is due to noise is subtracted.
    """
    biases = {
        row["L"]: sqrt(max(0.0, row["gradient bias"] ** 2 - row["gradient ±"] ** 2))
        for row in rows
        if row["estimator"] == "SG"
    }
    mine = [row for row in rows if row["estimator"] == estimator]
    found: Row = {"problem": problem.name.partition(",")[0], "points": points, "estimator": estimator}
    for label, spread in (("", problem.spread), (", data fixed", 0.0)):
        for share in TOLERANCES:
            tol = share * float(np.linalg.norm(problem.slope))
            least, level = min((averaging_cost(r, tol, biases[r["L"]], spread), r["L"]) for r in mine)
            text = "none" if least == inf else f"{least:,.0f} (L = {level})"
            found[f"{100 * share:g} %{label}"] = text
    return found


def quality_tables(
    *, work: int, seed: int, levels: tuple[int, ...] = LEVELS, update: Update = silent
) -> list[Table]:
    """Return a table per problem and scheme of points, and the level to choose.

    `work` is the number of perturbed points per estimator, which sets the number of replications.
    """
    schemes = [s for s, options in SCHEMES.items() if find_spec("scipy") or not options["qmc"]]
    tables, choices = [], []
    with use("numpy"):
        cases = [(p, s) for p in (logistic_problem(), linear_problem()) for s in schemes]
        for number, (problem, points) in enumerate(cases):
            rows: list[Row] = []
            for name in ESTIMATORS:
                update((number + len(rows) / 33) / len(cases), f"{problem.name}, {points} points: {name}")
                for level in levels:
                    count = int(work / (BATCH * ESTIMATORS[name](level).evaluations))
                    count = max(16, min(200, count))
                    rows.append(quality_row(problem, points, name, level, count, rng(seed)))
            tables.append(Table(f"{problem.name}: {points} points", rows, NOTE))
            choices += [choice_row(problem, points, rows, name) for name in ESTIMATORS]
    title = "Evaluations, in batches of 64, for a gradient error in percent of its length, at the best L"
    return [*tables, Table(title, choices, CHOICE_NOTE)]

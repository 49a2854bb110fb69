"""The plans keep what they promise, on problems whose optimum is known."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import log, sqrt
from typing import Any

import numpy as np
import pytest
from scipy.stats import t as student

from phiball.backends import rng
from phiball.refimpl import (
    ENTROPIC,
    QUADRATIC,
    RTMLMC,
    SG,
    Ball,
    Divergence,
    RegularizedLoss,
    chi_square_bound,
    convex_plan,
    gradient_mapping,
    mirror_descent,
    nonconvex_plan,
    onto_ball,
    onto_box,
    onto_simplex,
    projected_sgd,
)
from phiball.refimpl.training.plans import Plan

RUNS = 40
ESTIMATORS = (SG, RTMLMC)


def upper(values: Any) -> float:
    """What the mean of independent values lies below, at an error of one in a million."""
    n = len(values)
    return float(np.mean(values) + student.isf(1e-6, n - 1) * np.std(values, ddof=1) / sqrt(n))


@dataclass(frozen=True)
class Loss:
    """f(c, x) with c = theta.a, of the perturbed label x = y + b, b uniform on [-1, 1]; its slope in c."""

    value: Callable[[Any, Any], Any]
    slope: Callable[[Any, Any], Any]
    divergence: Divergence


def stacked(loss: Loss, plan: Plan, a: Any, y: Any, seed: int) -> Any:
    """V(theta) of independent runs, theta (runs, d), each with a batch of its own drawn from the rows (a, y).

    Data point number r batch + k belongs to run r, and depends on row r of theta alone.
    """
    objective = RegularizedLoss(Ball(np.inf, 1.0), 1.0, loss.divergence, plan.estimator)
    draws, chance = rng(seed), np.random.default_rng(seed)

    def gradient(theta: Any) -> Any:
        runs = theta.shape[0]
        drawn = chance.integers(len(y), size=runs * plan.batch)

        def score(theta: Any, i: Any) -> Any:
            return np.sum(theta[i // plan.batch] * a[drawn[i]], axis=-1)

        def value(theta: Any, x: Any, i: Any) -> Any:
            return loss.value(score(theta, i), x[:, 0])

        def each(theta: Any, x: Any, i: Any) -> Any:
            out = np.zeros((len(i), *theta.shape))
            out[np.arange(len(i)), i // plan.batch] = (
                loss.slope(score(theta, i), x[:, 0])[:, None] * a[drawn[i]]
            )
            return out

        # The estimate is the mean over all data points, of which one in `runs` belongs to a run.
        return runs * objective.gradient(theta, value, each, y[drawn][:, None], rng=draws)

    return gradient


# --- convex: f = |theta.a - y - b|, quadratic divergence, eta = 1 ------------------------------------

DISTANCE = Loss(lambda c, x: np.abs(c - x), lambda c, x: np.sign(c - x), QUADRATIC)


def quadratic_risk(c: Any, eta: float = 1.0, points: int = 2001) -> Any:
    """The risk of |c - b| for each c, by sorting and filling on a grid of b."""
    b = (np.arange(points) + 0.5) / points * 2 - 1
    f = -np.sort(-np.abs(c[:, None] - b), axis=-1)
    # E(f - mu)_+ = eta with the k largest: mu = (sum f - points eta)/k, for the largest k with f_k > mu.
    mu = (np.cumsum(f, axis=-1) - points * eta) / np.arange(1, points + 1)
    mu = np.take_along_axis(mu, np.sum(f > mu, axis=-1, keepdims=True) - 1, axis=-1)
    return mu[:, 0] + eta / 2 + np.mean(np.maximum(f - mu, 0) ** 2, axis=-1) / (2 * eta)


CS = np.linspace(-4, 4, 801)
RISKS = quadratic_risk(CS)


def test_the_oracle_is_right() -> None:
    """At c = 0 the loss is uniform on [0, 1], and the risk at eta = 1 is 13/24."""
    assert abs(np.interp(0, CS, RISKS) - 13 / 24) < 1e-6


@dataclass(frozen=True)
class Problem:
    """Rows (a, y) with |a| <= 1, Theta as a projection and as points with no hole above `mesh`."""

    a: Any
    y: Any
    start: Any
    diameter: float
    project: Callable[[Any], Any]
    points: Any
    mesh: float
    delta: float

    def f(self, theta: Any) -> Any:
        return np.mean(np.interp(theta @ self.a.T - self.y, CS, RISKS), axis=-1)

    def gaps(self, theta: Any) -> Any:
        """F(theta) minus a lower bound on F*: F has slope at most 1."""
        return self.f(theta) - (np.min(self.f(self.points)) - self.mesh)


GRID = np.linspace(-1, 1, 401)  # steps of 0.005
PLANE = np.stack(np.meshgrid(GRID, GRID), axis=-1).reshape(-1, 2)
CORNER = (PLANE + 1) / 2
CORNER = CORNER[np.sum(CORNER, axis=-1) <= 1]

PROBLEMS = {
    "line": Problem(
        np.ones((1, 1)), np.zeros(1), np.ones(1), 1.0, onto_box(-1.0, 1.0), GRID[:, None], 0.0025, 0.2
    ),
    "disc": Problem(
        np.array([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0], [0.8, -0.6]]),
        np.array([1.0, 1.5, 0.9, 0.2]),
        np.array([-0.6, -0.6]),
        1 + 0.6 * sqrt(2),
        onto_ball(Ball(2, 1.0)),
        PLANE[np.linalg.norm(PLANE, axis=-1) <= 1],
        0.01,
        0.4,
    ),
    "simplex": Problem(
        np.array([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.6, 0.8]]),
        np.array([1.2, 0.5, 0.1]),
        np.array([0.0, 0.0, 1.0]),
        sqrt(2),
        onto_simplex,
        np.column_stack([CORNER, 1 - np.sum(CORNER, axis=-1)]),
        0.01,
        0.35,
    ),
}


def planned(problem: Problem, estimator: Any, diameter: float) -> Plan:
    largest = 1 + float(np.max(np.abs(problem.y))) + 1  # of |theta.a - y - b| where |theta| <= 1
    return convex_plan(
        problem.delta,
        lipschitz=1.0,
        diameter=diameter,
        idf=2.0,  # |c - b| has a density of at least 1/2 on an interval
        chi_square=chi_square_bound(QUADRATIC, largest, 1.0),
        estimator=estimator,
    )


def follow(problem: Problem, plan: Plan) -> Any:
    gradient = stacked(DISTANCE, plan, problem.a, problem.y, seed=0)
    start = np.tile(problem.start, (RUNS, 1))
    how = {"step_size": plan.step_size, "steps": plan.steps, "project": problem.project}
    return projected_sgd(gradient, start, **how).theta


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("name", PROBLEMS)
def test_the_mean_gap_is_below_delta(name: str, estimator: Any) -> None:
    problem = PROBLEMS[name]
    plan = planned(problem, estimator, problem.diameter)
    theta = follow(problem, plan)
    assert plan.bound <= problem.delta
    np.testing.assert_allclose(problem.project(theta), theta, atol=1e-12)  # Theta is convex
    assert upper(problem.gaps(theta)) <= problem.delta


@pytest.mark.parametrize("slower", [1, 30])
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_mirror_descent_has_the_gap_of_its_bound(estimator: Any, slower: int) -> None:
    """M sqrt(2 log(d)/T) is D M/sqrt T with D = sqrt(2 log d), where every |a_j| <= 1; theta* = (1, 0, 0).

    A step that is too small is seen.
    """
    problem = replace(PROBLEMS["simplex"], a=np.array([[1.0, 0.0, -1.0]]), y=np.array([2.0]), delta=0.5)
    plan = planned(problem, estimator, sqrt(2 * log(3)))
    gradient = stacked(DISTANCE, plan, problem.a, problem.y, seed=1)
    how = {"step_size": plan.step_size / slower, "steps": plan.steps}
    theta = mirror_descent(gradient, np.full((RUNS, 3), 1 / 3), **how).theta
    assert (upper(problem.f(theta) - problem.f(np.array([1.0, 0.0, 0.0]))) <= problem.delta) == (slower == 1)


@pytest.mark.parametrize("name", PROBLEMS)
def test_a_wrong_step_is_seen(name: str) -> None:
    problem = PROBLEMS[name]
    plan = planned(problem, SG, problem.diameter)
    theta = follow(problem, replace(plan, step_size=plan.step_size / 30))
    assert upper(problem.gaps(theta)) > problem.delta


def test_a_missing_projection_is_seen() -> None:
    problem = PROBLEMS["simplex"]
    free = replace(problem, project=lambda theta: theta)
    theta = follow(free, planned(problem, SG, problem.diameter))
    assert np.max(np.abs(problem.project(theta) - theta)) > 0.1


# --- nonconvex: f = B (1 - cos(theta - b))/2 with B = 1/2, entropic divergence, eta = 1 ----------------

B = 0.5
WAVE = Loss(lambda c, x: B * (1 - np.cos(c - x)) / 2, lambda c, x: B * np.sin(c - x) / 2, ENTROPIC)


def entropic_gradient(theta: Any, points: int = 201) -> Any:
    """grad F on a grid of b, for each theta."""
    b = (np.arange(points) + 0.5) / points * 2 - 1
    weights = np.exp(WAVE.value(theta[..., None], b))
    return np.sum(weights * WAVE.slope(theta[..., None], b), axis=-1) / np.sum(weights, axis=-1)


def stationarity(plan: Plan, project: Any, runs: int) -> Any:
    """The mean of |gradient mapping|^2 over all iterates of each run, hence over the choice of one."""
    gradient, seen = stacked(WAVE, plan, np.ones((1, 1)), np.zeros(1), seed=2), []

    def recorded(theta: Any) -> Any:
        seen.append(theta)
        return gradient(theta)

    start = np.full((runs, 1), 2.0)
    how = {"step_size": plan.step_size, "steps": plan.steps, "project": project, "average": False}
    run = projected_sgd(recorded, start, rng=rng(3), **how)
    theta = np.stack([*seen, run.last])
    assert theta.shape == (plan.steps, runs, 1)
    mapping = gradient_mapping(entropic_gradient(theta), theta, step_size=plan.step_size, project=project)
    return np.mean(mapping**2, axis=(0, 2))


def wave_plan(constrained: bool, estimator: Any) -> tuple[Plan, float]:
    epsilon = 0.15 if constrained else 0.12
    how = {"lipschitz": B / 2, "smoothness": B / 2, "bound": B, "eta": 1.0}
    return nonconvex_plan(epsilon, **how, constrained=constrained, estimator=estimator), epsilon


@pytest.mark.slow
@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("constrained", [False, True])
def test_a_random_iterate_is_stationary(constrained: bool, estimator: Any) -> None:
    plan, epsilon = wave_plan(constrained, estimator)
    project = onto_box(0.5, 3.0) if constrained else lambda theta: theta
    values = stationarity(plan, project, 10 if constrained else RUNS)
    assert plan.bound <= epsilon**2
    assert upper(values) <= epsilon**2


@pytest.mark.parametrize("constrained", [False, True])
def test_a_wrong_step_is_not_stationary(constrained: bool) -> None:
    plan, epsilon = wave_plan(constrained, SG)
    project = onto_box(0.5, 3.0) if constrained else lambda theta: theta
    wrong = replace(plan, step_size=plan.step_size / 300)
    assert upper(stationarity(wrong, project, 10)) > epsilon**2

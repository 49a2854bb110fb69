"""The pricing study: exact risks and minimisers, training of stacked trials, and runs."""

from dataclasses import replace
from math import inf, sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from phiball.backends import rng
from phiball.refimpl import ENTROPIC, RTMLMC, SG, Ball, RegularizedLoss

pytest.importorskip("rich", reason="the tables of a study need rich")

from phiball.experiments.framework.study_runs import run_study
from phiball.experiments.studies.pricing import study as pricing
from phiball.experiments.studies.pricing.model import (
    Cost,
    Market,
    Quadratic,
    draw_data,
    draw_market,
    empirical_risk,
    least_in_ball,
    true_risk,
)
from phiball.experiments.studies.pricing.study import STUDY
from phiball.experiments.studies.pricing.training import (
    METHODS,
    PricingProblem,
    TrainingSettings,
    regularized_gradient,
    train_rule,
)

LINF = Ball(inf, 0.45)
BOUNDED = Cost(0.0, 2.0)
TINY = replace(
    pricing.SCALES["smoke"],
    covariates=(6, 9),
    draws=(5, 8),
    trials=3,
    features=12,
    levels=(0, 1),
    level=2,
    attack_steps=3,
    steps=8,
    batch=4,
    test_points=50,
)


def markets(trials: int = 3, features: int = 12) -> Market:
    return draw_market(trials, 10, features, 0.1, rng(1))


def problems(cost: Cost, trials: int = 3) -> tuple[PricingProblem, Any]:
    market = markets(trials)
    x, z = draw_data(market, 7, 5, rng(2))
    return PricingProblem(market, cost, x, z), np.random.default_rng(3).normal(size=(trials, 12)) / 3


def test_true_risk_agrees_with_gauss_hermite_quadrature() -> None:
    draw = np.random.default_rng(5)
    market = Market(*(draw.normal(size=shape) / 2 for shape in ((1, 2), (1, 2), (1, 3, 2), (1, 3))))
    risk = true_risk(market)
    nodes, weights = np.polynomial.hermite_e.hermegauss(150)
    weights = np.outer(weights, weights).ravel() / weights.sum() ** 2
    x = np.stack(np.meshgrid(nodes, nodes, indexing="ij"), axis=-1).reshape(-1, 2)
    g = np.cos(x @ market.omega[0].T + market.b[0])
    a, b = np.tanh(3 * x @ market.beta1[0]), np.exp(-2 * x @ market.beta2[0])
    # The tolerance is the accuracy of the quadrature for this tanh.
    np.testing.assert_allclose(risk.H[0], -(g.T * (weights * a)) @ g, atol=1e-6)
    np.testing.assert_allclose(risk.q[0], -(weights * b) @ g, atol=1e-12)
    assert np.abs(risk.H[0]).min() > 1e-3


def assert_minimiser(H: Any, q: Any, theta: Any, radius: float) -> None:
    """Assert the sufficient conditions for a minimiser of theta.H theta + q.theta over the ball."""
    multiplier_theta = -(q / 2 + H @ theta)
    length = np.linalg.norm(theta)
    scale = np.abs(H).max() * radius + np.abs(q).max()
    assert length <= radius * (1 + 1e-9)
    multiplier = multiplier_theta @ theta / max(length**2, 1e-300) if length > 1e-9 else 0.0
    np.testing.assert_allclose(multiplier_theta, multiplier * theta, atol=1e-8 * scale)
    assert multiplier >= -1e-8 * scale
    assert np.linalg.eigvalsh(H)[0] + multiplier >= -1e-8 * scale
    if length < radius * (1 - 1e-9):
        assert abs(multiplier) <= 1e-8 * scale


def test_least_in_ball_satisfies_the_optimality_conditions() -> None:
    draw = np.random.default_rng(7)
    H = draw.normal(size=(20, 6, 6))
    H = H + H.swapaxes(1, 2)
    q = draw.normal(size=(20, 6))
    H[5:10] = H[5:10] @ H[5:10]  # positive definite, with the minimum inside a large ball
    H[10:15, 3:, :] = H[10:15, :, 3:] = 0  # a null space, with and without a gradient in it
    q[12:15, 3:] = 0
    H[15], q[15] = np.diag([-1.0, 2, 2, 2, 2, 2]), np.eye(6)[1]  # no gradient along the negative eigenvector
    H[16:18], q[16] = 0, 0
    H[18], q[18] = -np.eye(6), 0
    for radius in (0.05, 1.0, 50.0):
        theta = least_in_ball(Quadratic(H, q), radius)
        for t in range(20):
            assert_minimiser(H[t], q[t], theta[t], radius)


@pytest.mark.parametrize("cost", [Cost(), BOUNDED])
def test_gradients_agree_with_finite_differences(cost: Cost) -> None:
    problem, theta = problems(cost)
    h = 1e-6
    numeric = np.empty_like(theta)
    for f in range(theta.shape[1]):
        step = h * np.eye(theta.shape[1])[f]
        up, down = problem.values(theta + step, problem.x), problem.values(theta - step, problem.x)
        numeric[:, f] = ((up - down) / (2 * h)).mean(axis=1)
    np.testing.assert_allclose(problem.gradient(theta, problem.x), numeric, atol=1e-7)
    found = problem.input_gradient(theta, problem.x)
    for j in range(10):
        step = h * np.eye(10)[j]
        up, down = problem.values(theta, problem.x + step), problem.values(theta, problem.x - step)
        np.testing.assert_allclose(found[:, :, j], (up - down) / (2 * h), atol=1e-7)


@pytest.mark.parametrize("cost", [Cost(), BOUNDED])
@pytest.mark.parametrize("estimator", [SG(3), RTMLMC(4)])
def test_stacked_gradient_of_one_trial_agrees_with_regularized_loss(cost: Cost, estimator: Any) -> None:
    market, theta = markets(1), problems(cost, 1)[1]
    x, z = draw_data(market, 7, 5, rng(2))
    problem = PricingProblem(market, cost, x, z)
    objective = RegularizedLoss(LINF, eta=0.9, divergence=ENTROPIC, estimator=estimator)

    def prices(theta: Any, x: Any) -> Any:
        return np.cos(x @ market.omega[0].T + market.b[0]) @ theta

    expected = objective.gradient(
        theta[0],
        lambda theta, x, i: cost.value(prices(theta, x), z[0, i]),
        lambda theta, x, i: (
            cost.slope(prices(theta, x), z[0, i])[:, None] * np.cos(x @ market.omega[0].T + market.b[0])
        ),
        x[0],
        rng=rng(11),
    )
    found = regularized_gradient(problem, theta, LINF, 0.9, estimator, rng(11))
    np.testing.assert_allclose(found[0], expected, atol=1e-11)
    assert np.linalg.norm(expected) > 0.01


def test_gradients_of_stacked_trials_are_independent() -> None:
    """The mean of RT-MLMC agrees with SG in every trial, although its numbers of points per trial differ."""
    problem, theta = problems(Cost())
    draw = rng(12)

    def copies(n: int) -> PricingProblem:
        return replace(problem, x=np.repeat(problem.x, n, axis=1), z=np.repeat(problem.z, n, axis=1))

    sg = regularized_gradient(copies(1500), theta, LINF, 0.9, SG(2), draw)
    rt = [regularized_gradient(copies(150), theta, LINF, 0.9, RTMLMC(2), draw) for _ in range(30)]
    error = np.std(rt, axis=0, ddof=1) / sqrt(len(rt))
    assert np.all(np.abs(np.mean(rt, axis=0) - sg) < 6 * error + 0.02 * np.abs(sg).max())
    assert np.abs(sg[0] - sg[1]).max() > 0.05


def test_descent_converges_to_the_exact_erm() -> None:
    problem, _ = problems(Cost())
    risk = empirical_risk(problem.market, problem.x, problem.z)
    least = risk(least_in_ball(risk, 3.0))
    found = risk(train_rule("erm", problem, TrainingSettings(LINF, 0.9, 3.0, 2, 3, 300, 100, 0.1), rng(0)))
    assert np.all(found >= least - 1e-5 * np.abs(least))
    assert np.all(found <= least + 0.01 * np.abs(least))


@pytest.mark.parametrize(("reading", "norm"), [("ball", "linf"), ("prices", "l2")])
def test_run_writes_improvements_over_erm(tmp_path: Path, reading: str, norm: str) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib: not installed")
    table, files = run_study(STUDY, replace(TINY, reading=reading, norm=norm), tmp_path, seed=0)
    assert {"table.csv", "report.md", "improvement.png"} <= {file.name for file in files}
    assert len(table.rows) == 6
    for row in table.rows:
        assert np.all(np.isfinite([value for value in row.values() if isinstance(value, float)]))
        assert row["best"] < 0 < row["erm_gap"]
        for name in METHODS if row["part"] == "methods" else ("L0", "L1"):
            assert row[name] == pytest.approx(np.mean(row[f"{name}_trials"]))
            assert len(row[f"{name}_trials"]) == 3


def test_excess_risk_with_bounded_prices_agrees_with_monte_carlo() -> None:
    market = markets(2)
    theta = np.random.default_rng(3).normal(size=(1, 2, 12))
    config = replace(TINY, reading="prices", test_points=60_000)
    best, gaps = pricing.excess(config, market, theta, rng(0))
    draw, n = np.random.default_rng(1), 60_000
    for t in range(2):
        x = draw.normal(size=(n, 10))
        a, b = np.tanh(3 * x @ market.beta1[t]), np.exp(-2 * x @ market.beta2[t])
        w = np.clip(np.cos(x @ market.omega[t].T + market.b[t]) @ theta[0, t], 0, 2)
        top = np.where(a >= -b / 4, 4 * a + 2 * b, -(b**2) / np.minimum(4 * a, -1e-9))
        z = 4.9 * sqrt(2 / n)  # exceeded with probability 1e-6
        assert abs(best[t] + top.mean()) < z * top.std()
        lost = top - (a * w + b) * w
        assert abs(gaps[0, t] - lost.mean()) < z * lost.std()

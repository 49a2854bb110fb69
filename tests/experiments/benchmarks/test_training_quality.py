"""The benchmark of training: the quality of estimators where the risk is exact."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import Any

import numpy as np
import pytest

from phiball.backends import rng, use
from phiball.refimpl import RTMLMC, SG

torch = pytest.importorskip("torch", reason="torch: not installed")
special = pytest.importorskip("scipy.special", reason="scipy: not installed")

from phiball.experiments.benchmarks import exact_problems as exact  # noqa: E402
from phiball.experiments.benchmarks import schemes  # noqa: E402
from phiball.experiments.benchmarks import training_quality as quality  # noqa: E402

Z = 4.75  # one in a million


pytestmark = pytest.mark.usefixtures("one_thread")


def test_the_linear_risk_is_exact() -> None:
    """log E exp(s.b) on the ball has the derivative I_(d/2+1)(t)/I_(d/2)(t) in t = |s|."""
    problem = exact.linear(5, 6)
    t = np.linalg.norm(problem.theta) / problem.eta
    log_mgf = special.gammaln(4) + 3 * np.log(2 / t) + np.log(special.ive(3, t)) + t
    centre = np.mean(problem.z, axis=0)
    assert problem.value == pytest.approx(centre @ problem.theta + problem.eta * log_mgf, abs=1e-12)
    length = special.ive(4, t) / special.ive(3, t)
    slope = centre + length * problem.theta / np.linalg.norm(problem.theta)
    np.testing.assert_allclose(problem.slope, slope, rtol=0, atol=1e-7)


def test_the_logistic_risk_is_exact() -> None:
    """The dual of Example 3 on a midpoint grid of the disc, minimised by scipy; error about 1/300^2."""
    from scipy.optimize import minimize_scalar

    problem = exact.logistic(3)
    side = (np.arange(300) + 0.5) / 300
    r, angle = np.sqrt(side)[:, None], 2 * np.pi * side
    b = np.stack([r * np.cos(angle), r * np.sin(angle)], axis=-1).reshape(-1, 2)

    def risk(theta: Any) -> float:
        values = []
        for i, z in enumerate(problem.z):
            f = problem.loss(theta, z + b, np.full(len(b), i))

            def dual(mu: float, f: Any = f) -> float:
                eta = problem.eta
                return mu + eta / 2 + float(np.mean(np.maximum(f - mu, 0) ** 2)) / (2 * eta)

            ends = (f.min() - problem.eta, f.max())
            values.append(minimize_scalar(dual, bounds=ends, method="bounded", options={"xatol": 1e-9}).fun)
        return float(np.mean(values))

    assert problem.value == pytest.approx(risk(problem.theta), abs=1e-4)
    h = 1e-2
    slope = [(risk(problem.theta + h * e) - risk(problem.theta - h * e)) / (2 * h) for e in np.eye(2)]
    np.testing.assert_allclose(problem.slope, slope, rtol=0, atol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("points", "allocation"),
    [("plain", "random"), ("plain", "stratified"), ("antithetic", "random"), ("Sobol", "random")],
)
@pytest.mark.parametrize("make", [exact.logistic, exact.linear])
def test_rtmlmc_has_the_bias_of_sg(make: Any, points: str, allocation: str) -> None:
    """The means of 200 batches agree within 4.75 standard errors, in the value and every slope."""
    problem, level, count = make(8), 2, 200
    with use("numpy"):
        replicates = [
            quality.replicate(problem, estimator, points, count, rng(seed))
            for seed, estimator in enumerate([SG(level), RTMLMC(level, allocation), SG(0)])
        ]
    sg, rt, single = (np.column_stack([f.values, f.gradients]) for f in replicates)

    def z(a: Any, b: Any) -> Any:
        return np.abs(a.mean(0) - b.mean(0)) / np.sqrt((a.var(0, ddof=1) + b.var(0, ddof=1)) / count)

    assert np.all(z(sg, rt) <= Z)
    assert np.max(z(single, rt)) > Z  # level 0 has another bias, and that is seen
    for estimates, estimator in zip(replicates, (SG(level), RTMLMC(level), SG(0)), strict=True):
        error = np.std(estimates.evaluations, ddof=1) / np.sqrt(count)
        assert abs(np.mean(estimates.evaluations) - estimator.evaluations) <= Z * error


def test_points_are_drawn_as_they_are_called() -> None:
    """At a huge eta the risk of a linear loss is its mean, which pairs give without noise."""
    problem = replace(exact.linear(4, 3), eta=1e6)
    with use("numpy"):
        noise = {
            points: float(np.std(quality.replicate(problem, SG(4), points, 40, rng(0)).values))
            for points in schemes.installed_schemes()
        }
    # 16 points of 4 data points, Var[theta.b] = 1/5; the deviation of 40 draws is good to 11 %, so z = 4.75
    # allows 0.53.
    assert noise["plain"] == pytest.approx((1 / 5 / 64) ** 0.5, rel=0.53)
    assert noise["Sobol"] < noise["plain"] / 2
    assert noise["Sobol"] > 1e-4
    assert max(noise["antithetic"], noise["antithetic Sobol"]) < 1e-6  # what is left is (theta.b)^2/(2 eta)


def test_quality_of_known_estimates() -> None:
    """Values 1, 3 and slopes (0, 0), (2, 2) about the truth 1, (1, 0), at 4 evaluations."""
    replicates = quality.Replicates(
        np.array([1.0, 3.0]), np.array([[0.0, 0.0], [2.0, 2.0]]), np.array([3.0, 5.0])
    )
    result = quality.quality(replicates, 1.0, np.array([1.0, 0.0]))
    assert result == {
        "evaluations": 4.0,
        "bias": 1.0,
        "noise": pytest.approx(2**0.5),
        "bias_error": pytest.approx(1.0),
        "mse_cost": pytest.approx(8.0),
        "gradient_bias": pytest.approx(1.0),
        "gradient_noise": pytest.approx(2.0),
        "gradient_bias_error": pytest.approx(2**0.5),
        "gradient_mse_cost": pytest.approx(4 * 3.0),
    }


def example(estimator: str, level: int, bias: float, noise: float, evaluations: float) -> quality.Row:
    return quality.Row(
        "linear, d = 3, entropic", "plain", estimator, level, 16, evaluations, 0.0, 0.1, 1.0, 1.0, bias, 0.0,
        noise, 2.0,
    )  # fmt: skip


def test_work_for_a_gradient_error() -> None:
    row = example("SG", 1, 0.3, 2.0, 8.0)
    assert quality.work(row, 0.5, 0.3, 0.0) == pytest.approx(8 * 4 / 0.16)
    assert quality.work(row, 0.5, 0.3, 3.0) == pytest.approx(8 * 13 / 0.16)
    assert quality.work(row, 0.3, 0.3, 0.0) == inf
    assert quality.work(row, 100.0, 0.3, 0.0) == 8.0  # one batch at least


def test_the_choice_takes_the_bias_of_sg_and_the_best_level() -> None:
    problem = exact.linear(2, 3)
    slopes = np.array([[1.0, 8.0, 0.0], [1.0, -8.0, 0.0]])  # length 1, and spread 1 for a batch of 64
    problem = replace(problem, slopes=slopes)
    assert problem.spread == pytest.approx(1.0)
    rows = [
        example("SG", 0, 0.05, 1.0, 1.0),
        example("SG", 6, 0.0, 0.5, 64.0),
        example("RT-MLMC random", 0, 9.9, 1.0, 1.0),  # a bias that is only noise
        example("RT-MLMC random", 6, 9.9, 1.5, 3.5),
    ]
    table = quality.choice(rows, [problem])
    assert table.headings[3:6] == ("30 %", "10 %", "3 %")
    assert [row[:3] for row in table.rows] == [(problem.name, "plain", rows[k].estimator) for k in (0, 2)]
    assert [row[3:6] for row in table.rows] == [
        ("23 (L = 0)", "267 (L = 0)", "88,889 (L = 6)"),
        ("23 (L = 0)", "267 (L = 0)", "12,639 (L = 6)"),
    ]
    assert [row[6:] for row in table.rows] == [
        ("11 (L = 0)", "133 (L = 0)", "17,778 (L = 6)"),
        ("11 (L = 0)", "133 (L = 0)", "8,750 (L = 6)"),
    ]
    none = quality.choice(rows[:1], [problem])
    assert none.rows[0][3:] == ("23 (L = 0)", "267 (L = 0)", "none", "11 (L = 0)", "133 (L = 0)", "none")


@pytest.mark.slow
def test_drawing_the_data_adds_the_spread() -> None:
    """Batches drawn with replacement have the noise of fixed data and the spread, as squares.

    The standard deviation of 300 variances of one or two components is at most sqrt(2/300) of them: z = 4.75
    allows 0.39. SG(6) stands for the exact slopes, from which it differs by a few percent.
    """
    problem, source = exact.logistic(16), np.random.default_rng(0)
    with use("numpy"):
        fixed = quality.replicate(problem, SG(6), "plain", 300, rng(0)).gradients
        drawn, draws = [], rng(1)
        for _ in range(300):
            who = source.integers(16, size=exact.BATCH)

            def loss(theta: Any, x: Any, i: Any, who: Any = who) -> Any:
                return problem.loss(theta, x, who[i])

            def gradient(theta: Any, x: Any, i: Any, who: Any = who) -> Any:
                return problem.gradient(theta, x, who[i])

            batch = replace(problem, z=problem.z[who], loss=loss, gradient=gradient)
            drawn.append(quality.replicate(batch, SG(6), "plain", 1, draws).gradients[0])
    noise = float(np.sum(np.var(fixed, axis=0))) * 16 / exact.BATCH
    assert float(np.sum(np.var(drawn, axis=0))) == pytest.approx(noise + problem.spread**2, rel=0.39)
    assert problem.spread**2 > 3 * noise  # so that its absence would be seen


def test_replications() -> None:
    assert quality.replications(SG(0), 1 << 20) == 200
    assert quality.replications(SG(10), 1 << 20) == 16
    assert quality.replications(SG(8), 1 << 20) == 64


def test_points_without_scipy(monkeypatch: pytest.MonkeyPatch) -> None:
    assert schemes.installed_schemes() == ["plain", "antithetic", "Sobol", "antithetic Sobol"]
    monkeypatch.setattr(schemes, "find_spec", lambda name: None)
    assert schemes.installed_schemes() == ["plain", "antithetic"]

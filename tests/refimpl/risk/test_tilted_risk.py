"""The risk of a data set from tilted points, and its error estimates.

Every statistical test here has a fixed seed and an error level of one in a million, unless it says so.
"""

from __future__ import annotations

from math import exp, log, sqrt
from typing import Any

import numpy as np
import pytest
from scipy import integrate, optimize, stats

from phiball.backends import rng, use
from phiball.refimpl import (
    ENTROPIC,
    QUADRATIC,
    Ball,
    Divergence,
    Tilted,
    Uniform,
    robust_risk,
)
from tests.support.arrays import Arrays
from tests.support.laws import LAWS
from tests.support.tilting_laws import THETA, Z, in_x, linear_value, model

ETA = 0.3


def loss(x: Any, i: Any) -> Any:
    return model(THETA, x, i)


def test_gradients_are_taken_in_chunks() -> None:
    """The draws do not depend on the chunk."""
    x = np.random.default_rng(6).normal(size=(50, 2))
    out = []
    for chunk in (1, 7, 50, 10**6):
        asked: list[int] = []

        def slope(x: Any, i: Any, asked: list[int] = asked) -> Any:
            asked.append(len(x))
            return in_x(THETA, x, i)

        how: dict[str, Any] = {"chunk": chunk, "proposal": Tilted(retilt=1), "input_gradient": slope}
        risk = robust_risk(loss, x, Ball(1, 0.5), ETA, ENTROPIC, samples=30, rng=rng(12), **how)
        assert max(asked) <= chunk
        assert sum(asked) == 100  # once at the data points, once at the tilted points
        out.append(risk)
    for risk in out[1:]:
        assert np.array_equal(risk.values, out[0].values)
        assert risk.stderr == out[0].stderr
        assert risk.bias == out[0].bias


@pytest.mark.parametrize("law", LAWS, ids=str)
def test_risk_of_linear_losses_is_exact(law: Any, doubles: Arrays) -> None:
    """From a few samples, with an eta for each data point; nothing is left to chance."""
    xp = doubles.xp
    slopes = np.array([[1.0, -2.0, 0.5], [0.0, 0.3, 0.0], [0.0, 0.0, 0.0]])
    etas = np.array([0.5, 0.05, 2.0])
    a = doubles.asarray(slopes)
    risk = robust_risk(
        lambda x, i: xp.sum(x * xp.take(a, i, axis=0), axis=-1),
        doubles.asarray(np.zeros((3, 3))),
        law,
        doubles.asarray(etas),
        ENTROPIC,
        samples=50,
        rng=rng(13),
        chunk=70,  # less than two data points
        proposal=Tilted(),
        input_gradient=lambda x, i: xp.take(a, i, axis=0),
    )
    exact = np.array([linear_value(law, g, eta) for g, eta in zip(slopes, etas, strict=True)])
    slack = 50 * doubles.eps
    assert np.abs(doubles.numpy(risk.values) - exact).max() <= slack
    assert float(risk.bias) <= slack
    assert float(risk.stderr) <= slack
    assert not risk.lower_bound
    assert risk.values.dtype == risk.stderr.dtype == doubles.dtype


def test_tilted_points_reach_the_risk_where_uniform_ones_do_not() -> None:
    """A small eta: uniform points report a lower bound, tilted ones the risk."""
    z = np.zeros((20, 30))

    def f(x: Any, i: Any) -> Any:
        return x[:, 0] + 0.1 * x[:, 0] ** 2

    def slope(x: Any, i: Any) -> Any:
        g = np.zeros_like(x)
        g[:, 0] = 1 + 0.2 * x[:, 0]
        return g

    def law(b: float) -> float:
        return float((1 - b * b) ** 14.5)  # of one coordinate in the ball of 30 dimensions

    eta = 0.02
    top = max(f(np.array([[b]]), None)[0] for b in np.linspace(-1, 1, 9)) / eta
    total = integrate.quad(lambda b: law(b) * exp((b + 0.1 * b * b) / eta - top), -1, 1, points=[0.5, 0.9])[0]
    exact = eta * (top + log(total / integrate.quad(law, -1, 1)[0]))
    plain, tilted = (
        robust_risk(
            f, z, Ball(2, 1.0), eta, ENTROPIC, samples=400, rng=rng(14), proposal=how, input_gradient=slope
        )
        for how in (Uniform(), Tilted())
    )
    assert plain.lower_bound
    assert not tilted.lower_bound
    assert float(plain.value) < exact - 0.05
    assert abs(float(tilted.value + tilted.bias) - exact) < Z * float(tilted.stderr)
    assert float(tilted.stderr) < 0.002
    assert float(tilted.bias) >= 0


@pytest.mark.slow
@pytest.mark.parametrize(("how", "d"), [(Tilted(), ENTROPIC), (Tilted(self_normalised=True), QUADRATIC)])
def test_the_standard_error_covers(how: Tilted, d: Divergence) -> None:
    """value + bias +- 1.96 stderr holds the risk 95 times in 100: a binomial test at level 1e-5.

    And the squares of the standardised errors sum to a chi-square number.
    """
    eta, runs, z = 0.5, 600, np.full((8, 1), 0.1)

    def f(x: Any, i: Any) -> Any:
        return x[:, 0] ** 2 + 2 * x[:, 0]

    b = np.linspace(-0.5, 0.5, 20_001)
    grid = (b[:-1] + b[1:]) / 2  # the midpoint rule: good to 1e-9
    values = f(0.1 + grid[:, None], None)
    if d is ENTROPIC:
        exact = eta * log(np.exp(values / eta).mean())
    else:  # inf over mu of mu + eta E phi*((f - mu)/eta), phi*(t) = (max(t, 0)^2 + 1)/2
        mu = optimize.brentq(lambda m: np.maximum(values - m, 0).mean() / eta - 1, values.min() - eta, 2.0)
        exact = mu + eta * ((np.maximum(values - mu, 0) / eta) ** 2 + 1).mean() / 2
    errors, source = [], rng(15)
    with use("numba"):
        for _ in range(runs):
            tilt: dict[str, Any] = {"proposal": how, "input_gradient": lambda x, i: 2 * x + 2}
            out = robust_risk(f, z, Ball(2, 0.5), eta, d, samples=300, rng=source, **tilt)
            assert out.lower_bound == how.self_normalised
            errors.append(float((out.value + out.bias - exact) / out.stderr))
    covered = int(np.sum(np.abs(errors) <= 1.96))
    assert stats.binomtest(covered, runs, 0.95).pvalue > 1e-5
    assert 1e-5 < stats.chi2(runs).cdf(float(np.sum(np.square(errors)))) < 1 - 1e-5
    assert abs(np.mean(errors)) * sqrt(runs) < Z


def test_self_normalised_weights_are_labelled() -> None:
    """The entropic risk of x_1 in 784 dimensions, where they come out a half too high."""
    slope, ball, z = np.eye(784)[0], Ball(2, 1.0), np.zeros((1, 784))

    def risk(**how: Any) -> Any:
        how = {"proposal": Tilted(**how), "input_gradient": lambda x, i: slope + 0 * x}
        return robust_risk(lambda x, i: x[:, 0], z, ball, 0.001, ENTROPIC, samples=256, rng=rng(0), **how)

    found = risk(self_normalised=True)
    assert found.value > 1.2 * 0.001 * float(ball.log_mgf(1000 * slope))
    assert found.lower_bound
    with pytest.raises(ValueError, match="which sets eta by itself; expected kappa=None"):
        risk(kappa=1.0)

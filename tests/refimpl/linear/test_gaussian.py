"""Linear models with a Gaussian reference agree with 30-digit integrals, product rules and closed forms."""

from dataclasses import replace
from math import inf
from typing import Any

import numpy as np
import pytest
from scipy.optimize import minimize

from phiball.refimpl import ABSOLUTE, ENTROPIC, QUADRATIC, Ball, Gaussian, cressie_read, indicator
from phiball.refimpl.linear import (
    LinearLoss,
    LinearProblem,
    Reweighting,
    fit_linear_model,
    linear_model_risk,
)
from phiball.verification.oracles.prediction_risk import example_risk
from tests.support.arrays import Arrays

EXAMPLES: list[Any] = [
    ("logistic", 0.7, 1.5, 1.0, 0.1, "entropic", ENTROPIC),
    ("logistic", 0.7, 1.5, -1.0, 0.02, "entropic", ENTROPIC),  # the worst case is 75 deviations away
    (
        "logistic",
        20.0,
        1.0,
        1.0,
        0.02,
        "entropic",
        ENTROPIC,
    ),  # and so it is here, where the loss is 0 at first
    ("hinge", 0.8, 0.7, 1.0, 0.1, "entropic", ENTROPIC),
    ("absolute", 0.3, 0.9, 0.5, 0.02, "entropic", ENTROPIC),
    ("squared", 0.3, 0.5, 0.5, 1.0, "entropic", ENTROPIC),
    ("squared", 0.3, 0.9, 0.5, 0.05, "quadratic", QUADRATIC),
    ("hinge", 1.1, 0.5, 1.0, 1.0, "indicator", indicator(0.3)),
    ("squared", 0.3, 0.9, 0.5, 1.0, "indicator", indicator(0.3)),
    ("poisson", 0.3, 0.5, 2.0, 0.1, "quadratic", QUADRATIC),
    ("logistic", 0.4, 2.0, 1.0, 0.1, "power", cressie_read(3.0)),
    ("absolute", 0.3, 0.9, 0.5, 0.3, "power", cressie_read(1.2)),
    ("poisson", 0.3, 0.5, 2.0, inf, "average", ABSOLUTE),
]


@pytest.mark.parametrize(("loss", "m", "r", "y", "eta", "name", "phi"), EXAMPLES)
def test_value_agrees_with_30_digits(
    loss: str, m: float, r: float, y: float, eta: float, name: str, phi: Any
) -> None:
    """Two of three features move, by 0.5 and 1 standard deviations of 0.5."""
    theta, scale = np.asarray([r * 0.6 * 2, 3.0, r * 0.8]), np.asarray([1.0, 0.0, 2.0])
    problem = LinearProblem(loss, Gaussian(0.5), eta, phi, feature_scale=scale)
    x = np.asarray([[0.0, m / 3, 0.0]])
    risk = linear_model_risk(problem, theta, 0.0, x, np.asarray([y]))
    exact = example_risk(loss, m, r, y, inf, min(eta, 1.0), name, phi.parameter or 0.3)
    assert abs(risk.value - exact) <= 1e-10 * (1 + abs(exact))
    assert risk.error <= 1e-9 * (1 + abs(exact))


def _multinomial(W: Any, x: Any, y: int, std: Any, eta: float) -> float:
    """The entropic risk of the cross entropy, by a product Gauss-Hermite rule over the features."""
    t, w = np.polynomial.hermite_e.hermegauss(32)
    d = W.shape[1]
    b = np.stack([g.ravel() for g in np.meshgrid(*[t] * d)], axis=1) * std
    p = np.prod(np.stack([g.ravel() for g in np.meshgrid(*[w] * d)], axis=1), axis=1)
    z = (x + b) @ W.T
    f = np.log(np.exp(z).sum(axis=1)) - z[:, y]
    return float(eta * np.log(np.sum(p * np.exp(f / eta)) / p.sum()))


@pytest.mark.parametrize(("classes", "d"), [(2, 3), (3, 3), (3, 1), (4, 3), (5, 2)])
def test_multinomial_risk_agrees_with_a_product_rule(classes: int, d: int) -> None:
    """Two and three classes use quadrature; more use Sobol points, also with fewer features than classes."""
    source = np.random.default_rng(classes)
    W, x = source.normal(size=(classes, d)) / 2, source.normal(size=(1, d))
    scale = np.asarray([1.0, 2.0, 0.0])[:d]
    problem = LinearProblem("multinomial", Gaussian(0.3), 1.0, feature_scale=scale)
    risk = linear_model_risk(problem, W, np.zeros(classes), x, np.asarray([classes - 1.0]), n_points=1024)
    exact = _multinomial(W, x, classes - 1, 0.3 * scale, 1.0)
    bound = 1e-9 if classes < 4 else 4 * risk.error
    assert abs(risk.value - exact) <= bound <= 0.02


def test_infinite_risks_raise_and_name_the_smallest_eta() -> None:
    X, y, theta = np.zeros((1, 2)), np.zeros(1), np.asarray([3.0, 4.0])
    problem = LinearProblem("squared", Gaussian(0.1), 0.2)
    with pytest.raises(
        ValueError, match=r"eta is 0.2; the risk of these coefficients is finite only for eta >"
    ):
        linear_model_risk(problem, theta, 0.0, X, y)
    with pytest.raises(ValueError, match=r"eta > 0.25"):
        linear_model_risk(replace(problem, eta=0.2499), theta, 0.0, X, y)
    linear_model_risk(replace(problem, eta=0.2501), theta, 0.0, X, y)
    quartic = LinearLoss("quartic", lambda z, y: (z**4, 4 * z**3, 12 * z**2))
    with pytest.raises(ValueError, match="the risk is infinite, or its worst case more than 600"):
        linear_model_risk(LinearProblem(quartic, Gaussian(0.001), 1.0), theta, 0.0, X, y)
    steep = LinearProblem("multinomial", Gaussian(1.0), 0.02)
    with pytest.raises(ValueError, match="the worst case may be more than 15 standard deviations away"):
        linear_model_risk(steep, np.eye(3), 0.0, np.asarray([[40.0, 0.0, 0.0]]), np.asarray([2.0]))
    for message, options in {
        "eta is 0; expected a positive eta": {"eta": 0.0},
        "divergence is absolute, whose risk under a Gaussian is infinite": {"divergence": ABSOLUTE},
        "loss is poisson, whose entropic risk": {"loss": "poisson"},
    }.items():
        with pytest.raises(ValueError, match=message):
            LinearProblem(reference=Gaussian(0.1), **options)
        LinearProblem(reference=Gaussian(0.0), **options)


def test_custom_squared_loss_agrees_with_the_closed_form() -> None:
    """A loss that is not known to be squared is integrated, over up to 80 standard deviations."""
    custom = LinearLoss("mine", lambda z, y: ((z - y) ** 2 / 2, z - y, np.ones_like(z)))
    X, y, theta = np.eye(2), np.asarray([1.0, -2.0]), np.asarray([3.0, 4.0])
    for eta in (0.3, 1.0, 1e6):
        known, found = (
            linear_model_risk(LinearProblem(loss, Gaussian(0.1), eta), theta, 0.5, X, y)
            for loss in ("squared", custom)
        )
        np.testing.assert_allclose(found.values, known.values, rtol=1e-9)
        np.testing.assert_allclose(found.coef_gradient, known.coef_gradient, rtol=1e-8)


def test_closed_form_has_a_certificate_without_a_ridge() -> None:
    """The gap bounds the suboptimality, by comparison with BFGS on the formula of the objective."""
    source = np.random.default_rng(0)
    X, scale = source.normal(size=(50, 3)), np.asarray([1.0, 0.5, 2.0])
    y = X @ np.asarray([2.0, -1.0, 0.5]) + source.normal(size=50)
    problem = LinearProblem("squared", Gaussian(0.3), 1.5, feature_scale=scale)

    def value(v: Any) -> float:
        rest = 1 - np.sum((0.3 * scale * v[:3]) ** 2) / 1.5
        return np.mean((X @ v[:3] + v[3] - y) ** 2) / (2 * rest) - 0.75 * np.log(rest) if rest > 0 else inf

    best = minimize(value, np.zeros(4), method="BFGS", options={"gtol": 1e-9})
    for max_iter in (1, 2, 3, 50):
        model = fit_linear_model(problem, X, y, max_iter=max_iter)
        assert -1e-12 <= model.value - best.fun <= model.gap + 1e-12
    assert model.gap < 1e-9
    assert fit_linear_model(replace(problem, feature_scale=[1.0, 0.0, 1.0]), X, y).gap == inf
    low = fit_linear_model(replace(problem, eta=0.05), X, y, start=model)  # the start has an infinite risk
    assert low.gap < 1e-9
    tiny = fit_linear_model(LinearProblem("squared", Gaussian(1e3), 1e-6), X, y)  # finite for |theta| < 1e-6
    assert tiny.gap < 1e-9


def test_std_zero_is_the_plain_model_and_a_large_ball_approaches_a_gaussian() -> None:
    """In d dimensions, theta.b on a ball of radius std sqrt(d + 2) has standard deviation std |theta|."""
    source = np.random.default_rng(1)
    X, y = source.normal(size=(5, 3)), np.asarray([1.0, -1.0, 1.0, 1.0, -1.0])
    theta = np.asarray([1.0, -0.5, 2.0])
    plain, still = (
        linear_model_risk(LinearProblem("logistic", reference), theta, 0.1, X, y).value
        for reference in (Ball(2, 0.0), Gaussian(0.0))
    )
    assert plain == still
    wide = np.concatenate([X, np.zeros((5, 4000))], axis=1)
    ball = LinearProblem("logistic", Ball(2, 0.3 * 4005**0.5), 0.5)
    many = linear_model_risk(ball, np.concatenate([theta, np.zeros(4000)]), 0.1, wide, y)
    one = linear_model_risk(LinearProblem("logistic", Gaussian(0.3), 0.5), theta, 0.1, X, y)
    assert many.value == pytest.approx(one.value, rel=1e-3)
    assert many.value != pytest.approx(plain, rel=1e-1)


def test_gradient_has_the_array_library_of_the_data(doubles: Arrays) -> None:
    if doubles.backend == "jax":
        pytest.skip("linear models update arrays in place; JAX arrays are immutable")
    source = np.random.default_rng(2)
    X, y = source.normal(size=(6, 3)), np.asarray([1.0, 0.0, 2.0, 1.0, 0.0, 2.0])
    for problem, size in (
        (LinearProblem("absolute", Gaussian(0.5), 0.01), 3),  # truncated beyond 20 standard deviations
        (LinearProblem("squared", Gaussian(0.3), 1.0), 3),
        (LinearProblem("poisson", Gaussian(0.3), 0.1, QUADRATIC), 3),
        (LinearProblem("multinomial", Gaussian(0.3), 0.5), 9),
    ):
        theta = source.normal(size=size) / 2
        expected = linear_model_risk(problem, theta, 0.0, X, y)
        found = linear_model_risk(
            problem, doubles.asarray(theta), 0.0, doubles.asarray(X), doubles.asarray(y)
        )
        assert found.value == pytest.approx(expected.value, rel=1e-12)
        np.testing.assert_allclose(doubles.numpy(found.coef_gradient), expected.coef_gradient, rtol=1e-9)


def test_budget_agrees_with_joint_minimization_over_coefficients_and_price() -> None:
    source = np.random.default_rng(3)
    X = source.normal(size=(40, 2))
    y = X @ np.asarray([2.0, -1.0]) + source.normal(size=40)
    budget, epsilon = 0.3, 0.2

    def value(v: Any) -> float:
        eta = np.exp(v[2])
        rest = 1 - epsilon * np.sum(v[:2] ** 2) / eta
        if rest <= 0:
            return inf
        return eta * budget + np.mean((X @ v[:2] - y) ** 2) / (2 * rest) - eta / 2 * np.log(rest)

    best = minimize(value, np.zeros(3), method="BFGS", options={"gtol": 1e-9})
    problem = LinearProblem.sinkhorn("squared", epsilon=epsilon, budget=budget, intercept=False)
    model = fit_linear_model(problem, X, y)
    assert -1e-11 <= model.value - best.fun <= model.gap + 1e-11
    assert model.gap < 1e-8
    assert model.eta == pytest.approx(np.exp(best.x[2]), rel=1e-3)
    risk = linear_model_risk(problem, model.coef, 0.0, X, y)
    assert risk.value == pytest.approx(model.value, rel=1e-12)
    assert linear_model_risk(problem, 3 * model.coef, 0.0, X, y).value > risk.value
    priced = replace(problem, budget=None, eta=model.eta)
    assert fit_linear_model(priced, X, y).value + model.eta * budget == pytest.approx(model.value, rel=1e-12)


def test_budget_of_other_divergences_bounds_the_mean_divergence() -> None:
    """The derivative of the risk in eta is minus the divergence of the worst case."""
    source = np.random.default_rng(4)
    X, y = source.normal(size=(30, 2)), source.choice([-1.0, 1.0], size=30)
    for reference in (Ball(2, 0.8), Gaussian(0.4)):
        problem = LinearProblem("logistic", reference, 1.0, QUADRATIC, ridge=0.1, budget=0.05)
        model = fit_linear_model(problem, X, y)
        at = model.coef, model.intercept, X, y
        up, down = (
            linear_model_risk(replace(problem, budget=None, eta=model.eta + h), *at) for h in (1e-4, -1e-4)
        )
        assert (down.value - up.value) / 2e-4 == pytest.approx(0.05, rel=1e-3)
        assert model.gap < 1e-8


def test_invalid_budgets_and_multipliers_raise() -> None:
    with pytest.raises(ValueError, match="lam is None and budget is None; expected exactly one"):
        LinearProblem.sinkhorn("squared", epsilon=0.1)
    with pytest.raises(ValueError, match="budget and reweighting are both given"):
        LinearProblem(budget=0.1, reweighting=Reweighting("kl", eta=1.0))
    with pytest.raises(ValueError, match="budget is 0"):
        LinearProblem(budget=0.0)

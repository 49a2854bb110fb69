"""`fit_linear_model`: its gaps bound the suboptimality."""

from dataclasses import replace
from functools import cache
from math import inf
from typing import Any

import numpy as np
import pytest
from scipy.optimize import linprog, minimize
from sklearn.datasets import load_breast_cancer, load_diabetes, load_iris, load_wine
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

from phiball.refimpl import ABSOLUTE, ENTROPIC, HINGE, QUADRATIC, Ball, Gaussian, indicator
from phiball.refimpl.linear import (
    LinearProblem,
    Reweighting,
    fit_linear_model,
    linear_model_risk,
    quantile_loss,
)
from tests.support.arrays import Arrays


@cache
def table(name: str) -> tuple[Any, Any]:
    """Standardised data of scikit-learn, with labels -1 and 1, real numbers or class numbers."""
    load = {"cancer": load_breast_cancer, "diabetes": load_diabetes, "wine": load_wine}[name]
    X, y = load(return_X_y=True)
    X = StandardScaler().fit_transform(X)
    if name == "cancer":
        return X, 2.0 * y - 1
    return X, (y - y.mean()) / y.std() if name == "diabetes" else y.astype(float)


N_EXAMPLES = 60
CASES = {
    "logistic": LinearProblem("logistic", Ball(2, 0.5), 0.1, ridge=0.01),
    "quadratic": LinearProblem("logistic", Ball(2, 0.5), 0.1, QUADRATIC, ridge=0.01),
    "cvar": LinearProblem("squared", Ball(2, 0.5), 0.1, indicator(0.3), ridge=0.01),
    "total variation": LinearProblem("logistic", Ball(2, 0.5), 0.1, ABSOLUTE, ridge=0.01),
    "hinge": LinearProblem("hinge", Ball(2, 0.5), 0.1, ridge=0.01),
    "adversarial": LinearProblem("absolute", Ball(2, 0.3), 0.0, ridge=0.01),
    "linf": LinearProblem("logistic", Ball(inf, 0.1), 0.1, ridge=0.01),
    "no intercept": LinearProblem("squared", Ball(2, 0.5), inf, ridge=0.01, intercept=False),
    "price": LinearProblem("logistic", Ball(2, 0.3), 0.1, ridge=0.01, reweighting=Reweighting(ENTROPIC, 0.2)),
    "budget": LinearProblem(
        "squared", Ball(2, 0.3), 0.1, ridge=0.01, reweighting=Reweighting(QUADRATIC, budget=0.3)
    ),
    "cvar examples": LinearProblem("logistic", ridge=0.01, reweighting=Reweighting(indicator(0.2), eta=1.0)),
    "tv examples": LinearProblem("hinge", Ball(2, 0.3), ridge=0.01, reweighting=Reweighting("tv", eta=0.2)),
    "hinge examples": LinearProblem("squared", ridge=0.01, reweighting=Reweighting("hinge", budget=0.3)),
    "multinomial": LinearProblem("multinomial", Ball(2, 0.5), 0.1, ridge=0.01),
    "adversarial multinomial": LinearProblem("multinomial", Ball(1, 0.3), 0.0, ridge=0.01),
    "gaussian": LinearProblem("logistic", Gaussian(0.3), 0.1, ridge=0.01),
    "gaussian hinge": LinearProblem("hinge", Gaussian(0.3), 0.2, ridge=0.01),
    "gaussian cvar": LinearProblem("squared", Gaussian(0.3), 0.1, indicator(0.3), ridge=0.01),
    "gaussian squared": LinearProblem("squared", Gaussian(0.3), 0.05),
    "gaussian multinomial": LinearProblem("multinomial", Gaussian(0.3), 0.2, ridge=0.01),
}


def data_of(problem: LinearProblem) -> tuple[Any, Any]:
    """Few examples with few features, for the loss of the problem."""
    name = problem.loss if isinstance(problem.loss, str) else problem.loss.name
    source = {"logistic": "cancer", "hinge": "cancer", "multinomial": "wine"}.get(name, "diabetes")
    X, y = table(source)
    step = len(y) // N_EXAMPLES
    return X[::step, :6], y[::step]


@pytest.mark.parametrize("name", CASES)
def test_gap_bounds_the_suboptimality(name: str) -> None:
    """Neither a more accurate fit nor Powell's method is better by more than the gap."""
    problem = CASES[name]
    X, y = data_of(problem)
    fine = fit_linear_model(problem, X, y, tol=1e-8, n_points=64, max_iter=2000)
    assert fine.converged
    assert problem.intercept or fine.intercept == 0
    assert -1e-12 < fine.gap < 1e-7
    for max_iter in (1, 2, 4):
        rough = fit_linear_model(problem, X, y, n_points=64, max_iter=max_iter)
        if rough.n_nodes == fine.n_nodes:  # otherwise the integrals have different errors
            assert rough.value - fine.value <= rough.gap + 1e-13
    # Powell's method uses only values of the objective.
    size = fine.coef.size
    start = np.concatenate([np.ravel(fine.coef), np.ravel(fine.intercept)])

    def value(v: Any) -> float:
        return linear_model_risk(problem, v[:size], v[size], X, y, quadrature_tol=1e-3).value

    if name in ("logistic", "cvar examples", "no intercept"):
        found = minimize(value, start + 0.01, method="Powell", options={"maxfev": 600})
        assert fine.value - float(found.fun) <= fine.gap + fine.error + 1e-12


def test_gap_of_inaccurate_coefficients_is_at_least_their_suboptimality() -> None:
    problem = CASES["logistic"]
    X, y = data_of(problem)
    rough = fit_linear_model(problem, X, y, max_iter=1)
    fine = fit_linear_model(problem, X, y)
    assert rough.gap > rough.value - fine.value > 1e-4
    without = LinearProblem("logistic", Ball(2, 0.5), 0.1)
    assert fit_linear_model(without, X, y).gap == inf
    # A slightly wrong intercept, without an iteration.
    one = np.ones((len(y), 1)) * 1e-3
    for shift in (0.3, 1e-2, 1e-4):
        flat = fit_linear_model(problem, one, y)
        moved = replace(flat, intercept=flat.intercept + shift)
        early = fit_linear_model(problem, one, y, start=moved, tol=1.0)
        assert early.iterations == 0
        assert early.gap + 1e-15 > early.value - flat.value > 1e-10


def test_piecewise_linear_losses_converge_where_the_hessian_is_zero() -> None:
    X, y = load_iris(return_X_y=True)
    X, y = (X[:, :3] - X[:, :3].mean(axis=0))[::3], np.where(y[::3] == 1, 1.0, -1.0)
    problem = LinearProblem("hinge", ridge=1 / len(y))
    ours = fit_linear_model(problem, X, y, tol=1e-4)
    theirs = SVC(kernel="linear", tol=1e-10).fit(X, y)
    bound = linear_model_risk(problem, theirs.coef_[0], float(theirs.intercept_[0]), X, y).value
    assert ours.converged
    assert ours.value <= bound
    assert ours.gap < 1e-6
    source = np.random.default_rng(0)
    X, y = source.normal(size=(60, 2)), source.normal(size=60)
    for radius in (0.0, 0.3):  # the intercept is not unique: the quantile lies between two examples
        problem = LinearProblem(quantile_loss(0.9), Ball(2, radius), 0.1, ridge=0.05)
        assert fit_linear_model(problem, X, y).gap < 1e-6


def test_warm_start_at_the_solution_takes_no_iteration() -> None:
    problem = CASES["logistic"]
    X, y = data_of(problem)
    first = fit_linear_model(problem, X, y, tol=1e-10)
    again = fit_linear_model(problem, X, y, start=first, tol=1e-10)
    assert again.iterations == 0


def test_sample_weights_repeat_or_remove_examples() -> None:
    problem = CASES["logistic"]
    X, y = data_of(problem)
    w = np.ones(len(y))
    w[:5], w[5:8] = 2.0, 0.0
    weighted = fit_linear_model(problem, X, y, sample_weight=w, tol=1e-10)
    index = np.repeat(np.arange(len(y)), w.astype(int))
    repeated = fit_linear_model(problem, X[index], y[index], tol=1e-10)
    np.testing.assert_allclose(weighted.coef, repeated.coef, atol=1e-8)


UNITS = {
    "squared": ("squared", 2),
    "absolute": ("absolute", 1),
    "quantile": (quantile_loss(0.8), 1),
}


@pytest.mark.parametrize("eta", [0.0, 0.2, inf])
@pytest.mark.parametrize("name", UNITS)
@pytest.mark.parametrize("unit", [1e-9, 1e3, 1e9])
def test_fits_do_not_depend_on_the_units_of_the_target(name: str, eta: float, unit: float) -> None:
    """F is homogeneous: the same steps, and coefficients, value and gap that scale with y."""
    loss, degree = UNITS[name]
    X, y = data_of(LinearProblem("squared"))
    reference = fit_linear_model(LinearProblem(loss, Ball(2, 0.3), eta, ridge=0.1), X, 1 + y)
    size = unit**degree
    problem = LinearProblem(loss, Ball(2, 0.3), size * eta if eta < inf else inf, ridge=0.1 * size / unit**2)
    found = fit_linear_model(problem, X, unit * (1 + y))
    assert found.converged
    assert reference.iterations == found.iterations > 1
    np.testing.assert_allclose(found.coef / unit, reference.coef, rtol=1e-9)
    assert found.intercept / unit == pytest.approx(reference.intercept, rel=1e-9)
    assert found.value / size == pytest.approx(reference.value, rel=1e-12)
    assert 0 < found.gap < 1e-5 * found.value


def test_price_of_a_reweighting_is_in_the_units_of_the_loss() -> None:
    """The value of the fit is the risk, which is computed without a change of units."""
    problem = LinearProblem("squared", Ball(2, 0.3), 0.1, ridge=0.01, reweighting=Reweighting(ENTROPIC, 0.2))
    X, y = data_of(problem)
    found = fit_linear_model(problem, X, y)
    risk = linear_model_risk(problem, found.coef, found.intercept, X, y)
    assert found.value == pytest.approx(risk.value, rel=1e-9)


@pytest.mark.parametrize("loss", ["squared", "logistic", "hinge", "multinomial"])
def test_fits_do_not_depend_on_the_units_of_the_features(loss: str) -> None:
    X, y = data_of(LinearProblem(loss))
    X, y = X[:, :3], np.round(y) if loss == "multinomial" else y
    unit, zero = np.array([1e-9, 1e3, 1e9]), np.array([0.0, 5.0, -2.0])
    fits = [
        fit_linear_model(LinearProblem(loss, Ball(2, 0.3), 0.5, feature_scale=size), size * (X + shift), y)
        for size, shift in ((np.ones(3), 0.0), (unit, zero))
    ]
    assert fits[0].converged
    assert fits[0].iterations == fits[1].iterations > 1
    np.testing.assert_allclose(fits[1].coef * unit, fits[0].coef, rtol=1e-7)
    assert fits[1].value == pytest.approx(fits[0].value, rel=1e-12)


def test_fits_of_labels_without_spread_or_with_outliers() -> None:
    """The unit of the labels is their median distance from the median, where it is positive."""
    X, y = data_of(LinearProblem("absolute"))
    for constant in (0.0, 0.1):
        found = fit_linear_model(
            LinearProblem("squared", Ball(2, 0.1), ridge=0.1), X, np.full(len(y), constant)
        )
        assert found.converged
        assert found.intercept == pytest.approx(constant, rel=1e-12)
        np.testing.assert_allclose(found.coef, 0, atol=1e-15)
    plain = fit_linear_model(LinearProblem("absolute"), X, y)
    y = y + 1e6 * (np.arange(len(y)) == np.argmax(y - X @ plain.coef))
    far = fit_linear_model(LinearProblem("absolute"), X, y)
    np.testing.assert_allclose(far.coef, plain.coef, atol=1e-5)


@pytest.mark.parametrize("name", ["logistic", "wide", "hinge examples", "adversarial multinomial"])
def test_coefficients_have_the_array_library_of_the_data(doubles: Arrays, name: str) -> None:
    """Twenty iterations, and one for each width of smoothing, are the same in every library."""
    if doubles.backend == "jax" and name != "logistic":
        pytest.skip("takes minutes on JAX, which compiles every operation")
    problem = CASES["logistic" if name == "wide" else name]
    X, y = data_of(problem)
    X, y = X[::3], y[::3]
    X = np.tile(X, 20) if name == "wide" else X
    reference = fit_linear_model(problem, X, y, max_iter=20)
    model = fit_linear_model(problem, doubles.asarray(X), doubles.asarray(y), max_iter=20)
    assert doubles.numpy(model.coef) == pytest.approx(reference.coef, abs=1e-7)


@pytest.mark.parametrize("norm", [1.0, inf])
def test_adversarial_hinge_is_the_optimum_of_a_linear_program(norm: float) -> None:
    """Minimize the mean of s >= 1 - y (x.w + c) + rho r, where r >= |w|_1 or max |w_j|."""
    X, y = data_of(CASES["hinge"])
    (n, d), rho = X.shape, 0.2
    sizes = d if norm == inf else 1  # the variables are w (d,), c, s (n,), and u >= |w| of this size
    cost = np.r_[np.zeros(d + 1), np.full(n, 1 / n), np.zeros(sizes)]
    hinge = np.hstack([-y[:, None] * X, -y[:, None], -np.eye(n), np.full((n, sizes), rho)])
    u = -np.eye(d) if norm == inf else -np.ones((d, 1))
    rows = [np.hstack([side * np.eye(d), np.zeros((d, 1 + n)), u]) for side in (1, -1)]
    bounds = [(None, None)] * (d + 1) + [(0, None)] * (n + sizes)
    right = np.r_[-np.ones(n), np.zeros(2 * d)]
    oracle = linprog(cost, np.vstack([hinge, *rows]), right, bounds=bounds)
    found = fit_linear_model(LinearProblem("hinge", Ball(norm, rho), 0.0), X, y, max_iter=1000)
    assert found.value == pytest.approx(oracle.fun, abs=1e-7)
    assert found.value >= oracle.fun - 1e-12


@pytest.mark.parametrize("norm", [1.0, 1.5, 2.0, inf])
@pytest.mark.parametrize("radius", [0.1, 10.0])
@pytest.mark.parametrize("loss", ["logistic", "hinge", "squared", "absolute", "huber"])
def test_adversarial_fits_converge_in_every_norm(loss: str, radius: float, norm: float) -> None:
    problem = LinearProblem(loss, Ball(norm, radius), 0.0, ridge=0.01)
    X, y = data_of(problem)
    found = fit_linear_model(problem, X, y, max_iter=1000)
    assert found.converged
    assert found.gap < 1e-7
    risk = linear_model_risk(problem, found.coef, found.intercept, X, y)
    assert found.value == pytest.approx(risk.value, rel=1e-12)


def test_adversarial_linf_logistic_equals_a_bounded_smooth_problem() -> None:
    """The l1 penalty on the margin with w = p - q, p, q >= 0, solved by L-BFGS-B."""
    problem = LinearProblem("logistic", Ball(inf, 0.1), 0.0, ridge=0.01)
    X, y = data_of(problem)
    d = X.shape[1]

    def value(v: Any) -> tuple[float, Any]:
        p, q, c = v[:d], v[d : 2 * d], v[-1]
        w = p - q
        margin = y * (X @ w + c) - 0.1 * (p + q).sum()
        a = -1 / (1 + np.exp(margin)) / len(y)
        slope, shift = X.T @ (a * y) + 0.01 * w, 0.1 * a.sum()
        return np.logaddexp(0, -margin).mean() + 0.005 * w @ w, np.r_[slope - shift, -slope - shift, a @ y]

    bounds = [(0, None)] * (2 * d) + [(None, None)]
    oracle = minimize(value, np.zeros(2 * d + 1), jac=True, bounds=bounds, options={"ftol": 0, "gtol": 1e-10})
    found = fit_linear_model(problem, X, y)
    assert abs(found.value - oracle.fun) < 1e-8
    assert found.value - found.gap <= oracle.fun


@pytest.mark.parametrize("budget", [False, True])
@pytest.mark.parametrize("phi", [ABSOLUTE, HINGE, indicator(0.3)])
def test_kinked_reweighting_is_the_optimum_of_a_linear_program(phi: Any, budget: bool) -> None:
    """Minimize mu + eta B + mean s, where s >= eta phi*((f - mu)/eta) and f >= |y - x.w - c|."""
    X, y = data_of(LinearProblem("absolute"))
    (n, d), size, cap = X.shape, 0.4, getattr(phi, "parameter", None)
    one, eye, zero = np.ones((n, 1)), np.eye(n), np.zeros((n, n))
    plane = np.hstack([X, one])
    # The variables are w, c (d + 1,), mu, eta, f (n,), s (n,).
    rows = [np.hstack([side * plane, 0 * one, 0 * one, -eye, zero]) for side in (1, -1)]
    right = [y, -y]
    rows.append(np.hstack([0 * plane, 0 * one, phi.slope0 * one, zero, -eye]))
    rows.append(np.hstack([0 * plane, -one * (1 / cap if cap else 1), 0 * one, eye / (cap or 1), -eye]))
    right += [np.zeros(n)] * 2
    if cap is None:  # the domain of phi*: f - mu <= eta
        rows.append(np.hstack([0 * plane, -one, -one, eye, zero]))
        right.append(np.zeros(n))
    cost = np.r_[np.zeros(d + 1), 1, size if budget else 0, np.zeros(n), np.full(n, 1 / n)]
    bounds = [(None, None)] * (d + 2) + [(0, None) if budget else (size, size)] + [(None, None)] * (2 * n)
    oracle = linprog(cost, np.vstack(rows), np.concatenate(right), bounds=bounds)
    reweighting = Reweighting(phi, budget=size) if budget else Reweighting(phi, eta=size)
    found = fit_linear_model(LinearProblem("absolute", reweighting=reweighting), X, y, max_iter=1000)
    assert found.value == pytest.approx(oracle.fun, abs=2e-7)
    assert found.value >= oracle.fun - 1e-12


def test_adversarial_multinomial_loss_is_the_largest_at_a_vertex() -> None:
    problem = CASES["adversarial multinomial"]
    X, y = data_of(problem)
    W, c = np.random.default_rng(0).normal(size=(3, 6)), np.arange(3.0)
    losses = []
    for b in 0.3 * np.concatenate([np.eye(6), -np.eye(6)]):
        z = (X + b) @ W.T + c
        losses.append(np.log(np.exp(z).sum(axis=1)) - z[np.arange(len(y)), y.astype(int)])
    risk = linear_model_risk(problem, W, c, X, y)
    np.testing.assert_allclose(risk.values, np.max(losses, axis=0), rtol=1e-12)
    assert risk.error == 0
    with pytest.raises(ValueError, match="a nonconvex problem, except in norm 1; or fit one logistic"):
        fit_linear_model(replace(problem, reference=Ball(2, 0.3)), X, y)


WIDE = {
    "logistic": LinearProblem("logistic", Ball(2, 0.5), 0.1, ridge=0.01),
    "adversarial": LinearProblem("hinge", Ball(2, 0.2), 0.0, ridge=0.01, feature_scale=[2.0] * 120),
    "closed form": LinearProblem("squared", Gaussian(0.3), 0.5, intercept=False),
    "plain": LinearProblem("logistic", Ball(2, 0.0), ridge=0.01, feature_scale=np.arange(120.0)),
    "multinomial": LinearProblem("multinomial", Ball(2, 0.5), 0.1, ridge=0.1),
    "budget": LinearProblem("logistic", Ball(2, 0.5), 0.1, ridge=0.01, budget=0.1),
}


@pytest.mark.parametrize("name", WIDE)
def test_fits_with_more_features_than_examples_equal_fits_with_repeated_examples(name: str) -> None:
    """Each example is repeated until there are as many as features, which changes only the method."""
    source = np.random.default_rng(0)
    X, problem = source.normal(size=(40, 120)) + 3, WIDE[name]
    X[5] = X[4]
    y = np.where(X[:, 0] > 3, 1.0, -1.0)
    y = np.digitize(X[:, 0], [2.5, 3.5]) * 1.0 if name == "multinomial" else y
    wide = fit_linear_model(problem, X, y, tol=1e-9)
    direct = fit_linear_model(problem, np.tile(X, (3, 1)), np.tile(y, 3), tol=1e-9)
    assert wide.value == pytest.approx(direct.value, rel=1e-12)
    assert max(wide.gap, direct.gap) < 1e-8
    np.testing.assert_allclose(wide.coef, direct.coef, atol=1e-7)
    np.testing.assert_allclose(wide.intercept, direct.intercept, atol=1e-6)


def test_fit_with_3000_features_is_optimal() -> None:
    source = np.random.default_rng(0)
    X = source.normal(size=(200, 3000))
    y = np.where(X[:, 0] + source.normal(size=200) > 0, 1.0, -1.0)
    problem = LinearProblem("logistic", Ball(2, 1.0), 0.1, ridge=0.01)
    model = fit_linear_model(problem, X, y)
    risk = linear_model_risk(problem, model.coef, model.intercept, X, y)
    assert risk.value == pytest.approx(model.value, rel=1e-12)
    assert np.linalg.norm(risk.coef_gradient) ** 2 / 0.02 < 1e-9
    assert model.gap < 1e-9

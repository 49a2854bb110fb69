"""`linear_model_risk` agrees with 30-digit solutions and closed forms."""

from dataclasses import replace
from math import inf
from typing import Any

import numpy as np
import pytest

from phiball.refimpl import (
    ABSOLUTE,
    ENTROPIC,
    HINGE,
    QUADRATIC,
    Ball,
    Divergence,
    Gaussian,
    cressie_read,
    indicator,
)
from phiball.refimpl.linear import (
    LinearLoss,
    LinearProblem,
    Reweighting,
    huber_loss,
    linear_model_risk,
    linear_objective,
    multinomial_objective,
    quantile_loss,
    smoothed_hinge_loss,
)
from phiball.refimpl.linear.line_loss import LineLoss
from phiball.refimpl.linear.losses import LOSSES
from phiball.refimpl.linear.risk import LinearData
from phiball.verification.oracles.prediction_risk import class_risk, example_risk
from tests.support.arrays import Arrays

FAMILIES = {
    "entropic": ENTROPIC,
    "quadratic": QUADRATIC,
    "indicator": indicator(0.3),
    "absolute": ABSOLUTE,
    "hinge": HINGE,
}


def one_example(loss: str, m: float, r: float, y: float, d: int, eta: float, phi: Divergence) -> Any:
    """The risk of a model with prediction m at x = 0 and coefficients of length r."""
    theta = np.full(d, r / np.sqrt(d))
    problem = LinearProblem(loss, Ball(2, 1.0), eta, phi)
    return linear_model_risk(problem, theta, m, np.zeros((1, d)), np.asarray([y]))


EXAMPLES: list[Any] = [
    ("logistic", 0.7, 1.5, 1.0, 1, 0.1, "entropic"),
    ("logistic", 0.7, 1.5, -1.0, 30, 0.02, "entropic"),
    ("logistic", -0.4, 2.0, 1.0, 2, 0.3, "quadratic"),
    ("logistic", 0.4, 2.0, 1.0, 3, 1.0, "indicator"),
    ("logistic", 0.4, 2.0, -1.0, 5, 0.2, "absolute"),
    ("hinge", 0.8, 0.7, 1.0, 4, 0.1, "entropic"),
    ("hinge", 0.8, 0.7, 1.0, 2, 0.1, "quadratic"),
    ("hinge", 1.1, 0.5, 1.0, 3, 1.0, "indicator"),
    ("hinge", 0.9, 0.6, 1.0, 4, 0.1, "hinge"),
    ("squared", 0.3, 0.9, 0.5, 3, 0.2, "hinge"),
    ("squared", 0.3, 0.9, 0.5, 10, 1.0, "indicator"),
    ("squared", 0.3, 0.9, 1.0, 2, 0.05, "quadratic"),
    ("absolute", 0.3, 0.9, 0.5, 2, 0.1, "entropic"),
    ("absolute", 0.3, 0.9, 0.2, 3, 1.0, "indicator"),
    ("poisson", 0.3, 0.5, 2.0, 3, 0.1, "entropic"),
    ("absolute", 0.3, 0.9, 0.5, 7, inf, "average"),
]


@pytest.mark.parametrize(("loss", "m", "r", "y", "d", "eta", "divergence"), EXAMPLES)
def test_value_agrees_with_30_digits(
    loss: str, m: float, r: float, y: float, d: int, eta: float, divergence: str
) -> None:
    risk = one_example(loss, m, r, y, d, eta, FAMILIES.get(divergence, ENTROPIC))
    exact = example_risk(loss, m, r, y, d, min(eta, 1.0), divergence)
    assert abs(risk.value - exact) <= 1e-10 * (1 + abs(exact))
    assert risk.error <= 1e-9 * (1 + abs(exact))


def test_crossing_is_where_the_loss_equals_the_level() -> None:
    source = np.random.default_rng(0)
    m, y = 3 * source.normal(size=400), source.choice([-1.0, 1.0], size=400)
    for name, loss in LOSSES.items():
        label = np.abs(y) * 2 if name == "poisson" else y
        for r in (0.01, 1.0, 30.0 if name != "poisson" else 3.0):
            line, one = LineLoss(loss, m, r, label), np.ones(400)
            low = line.lowest()
            bottom, ends = line(low)[0], (line(-one)[0], line(one)[0])
            np.testing.assert_array_less(bottom, np.minimum(*ends) + 1e-9 * (1 + np.abs(bottom)))
            for side, top in zip((-one, one), ends, strict=True):
                level = bottom + source.uniform(size=400) * (top - bottom)
                for start in (side * low, one / 2):
                    cut = line.crossing(level, side, side * low, start)
                    np.testing.assert_allclose(line(side * cut)[0], level, atol=1e-9 * (1 + top.max()))


@pytest.mark.slow
def test_cressie_read_and_custom_divergences_agree_with_30_digits() -> None:
    for loss, m, r, y, d, eta, k in (
        ("logistic", 0.4, 2.0, 1.0, 3, 0.1, 3.0),
        ("hinge", 0.8, 0.7, 1.0, 400, 0.01, 1.2),
        ("logistic", 0.4, 2.0, 1.0, 8, 0.03, 0.5),  # has an atom
        ("hinge", 0.8, 0.7, 1.0, 9, 0.05, 0.0),  # has an atom
        ("squared", 0.3, 0.9, 0.5, 5, 0.1, -1.0),  # has an atom
    ):
        exact = example_risk(loss, m, r, y, d, eta, "power", k)
        risk = one_example(loss, m, r, y, d, eta, cressie_read(k))
        assert abs(risk.value - exact) <= 1e-9 * (1 + abs(exact))
    named = cressie_read(2)
    custom = Divergence("custom", named.phi, named.conj, named.dconj, named.d2conj)
    values = [one_example("squared", 0.3, 0.9, 0.5, 4, 0.1, phi).value for phi in (QUADRATIC, named, custom)]
    np.testing.assert_allclose(values, values[0], rtol=1e-10)


def test_multinomial_risk_agrees_with_quadrature_on_the_ball() -> None:
    """Two and three classes use quadrature, with nine digits; four classes use Sobol points."""
    for classes in (2, 3, 4):
        source = np.random.default_rng(classes)
        W, x, y = source.normal(size=(classes, 3)), source.normal(size=(1, 3)), np.asarray([classes - 1.0])
        scale = np.asarray([1.0, 2.0, 0.5])
        problem = LinearProblem("multinomial", Ball(2, 0.4), 0.3, feature_scale=scale)
        risk = linear_model_risk(problem, W, np.zeros(classes), x, y)
        exact = class_risk(W * scale, x[0] / scale, classes - 1, 0.4, 0.3)
        bound = 1e-9 if classes < 4 else 4 * risk.error
        assert abs(risk.value - exact) <= bound <= 0.05


def test_multinomial_risk_with_many_features_agrees_with_monte_carlo() -> None:
    """With five classes, the integral over forty features is one over a subspace."""
    source = np.random.default_rng(0)
    W, X, y = source.normal(size=(5, 40)) / 4, source.normal(size=(30, 40)), source.integers(0, 5, 30) * 1.0
    y[:5] = np.arange(5)
    problem = LinearProblem("multinomial", Ball(2, 3.0), inf)
    b = source.normal(size=(4000, 40))
    b *= 3 * source.uniform(size=(4000, 1)) ** (1 / 40) / np.linalg.norm(b, axis=1, keepdims=True)
    z = (X @ W.T)[:, None, :] + (b @ W.T)[None, :, :]
    f = np.log(np.exp(z).sum(axis=2)) - np.take_along_axis(z, y[:, None, None].astype(int), axis=2)[..., 0]
    risk = linear_model_risk(problem, W, np.zeros(5), X, y, n_points=64)
    assert abs(risk.value - f.mean()) < 4 * risk.error + 4 * f.mean(axis=0).std() / 4000**0.5
    assert risk.error < 0.01 * f.mean()


def test_steep_losses_and_tight_tolerances_use_more_nodes() -> None:
    flat = one_example("logistic", 0.5, 1.0, 1.0, 4, 10.0, ENTROPIC)
    steep = one_example("logistic", 0.5, 20.0, 1.0, 4, 0.05, ENTROPIC)
    assert flat.n_nodes < steep.n_nodes
    assert abs(steep.value - example_risk("logistic", 0.5, 20.0, 1.0, 4, 0.05, "entropic")) < 1e-7
    problem = LinearProblem("logistic", Ball(2, 1.0), 0.05)
    theta = np.full(4, 10.0)
    loose = linear_model_risk(problem, theta, 0.5, np.zeros((1, 4)), np.ones(1), quadrature_tol=1e-2)
    assert loose.n_nodes < steep.n_nodes


def test_integrals_are_split_at_both_kinks_of_a_loss() -> None:
    risk = one_example("huber", 0.3, 3.8, 0.5, 4, 1.0, cressie_read(1.3))
    assert risk.n_nodes <= 64
    assert risk.error < 1e-12


def data(loss: LinearLoss | str, n: int = 40, d: int = 4) -> tuple[Any, Any, Any]:
    """X, labels for the loss, and coefficients with an intercept."""
    source = np.random.default_rng(3)
    X, theta = source.normal(size=(n, d)), source.normal(size=d + 1) / 2
    y = X @ source.normal(size=d) + source.normal(size=n) / 2
    name = loss if isinstance(loss, str) else loss.name
    if name in ("logistic", "hinge") or "smoothed" in name:
        y = np.where(y > 0, 1.0, -1.0)
    elif name == "poisson":
        y = np.round(np.abs(y))
    elif name == "multinomial":
        y = np.digitize(y, [-0.5, 0.5]).astype(float)
        theta = source.normal(size=3 * (d + 1)) / 2
    return X, y, theta


COSH = LinearLoss("log cosh", lambda z, y: (np.log(np.cosh(z - y)), np.tanh(z - y), np.cosh(z - y) ** -2.0))
PROBLEMS = {
    "logistic": LinearProblem("logistic", Ball(2, 0.6), 0.1, ridge=0.1),
    "quadratic": LinearProblem("squared", Ball(2, 0.6), 0.1, QUADRATIC, feature_scale=[1.0, 0.0, 2.0, 0.5]),
    "indicator": LinearProblem(quantile_loss(0.8), Ball(2, 0.6), 0.1, indicator(0.3)),
    "absolute": LinearProblem("hinge", Ball(2, 0.6), 0.1, ABSOLUTE),
    "hellinger": LinearProblem("huber", Ball(2, 0.6), 0.1, cressie_read(0.5)),
    "linf": LinearProblem("poisson", Ball(inf, 0.3), 0.1),
    "l1": LinearProblem(smoothed_hinge_loss(0.7), Ball(1, 0.8), 0.1, QUADRATIC),
    "adversarial": LinearProblem(COSH, Ball(inf, 0.3), 0.0),
    "average": LinearProblem(huber_loss(0.5), Ball(2, 0.6), inf, intercept=False),
    "price": LinearProblem("logistic", Ball(2, 0.6), 0.1, reweighting=Reweighting(ENTROPIC, eta=0.2)),
    "budget": LinearProblem("squared", Ball(2, 0.0), 0.1, reweighting=Reweighting(QUADRATIC, budget=0.3)),
    "both": LinearProblem("squared", Ball(1, 0.6), 0.1, reweighting=Reweighting(QUADRATIC, eta=1.0)),
    "gaussian": LinearProblem("logistic", Gaussian(0.4), 0.1, ridge=0.1, feature_scale=[1.0, 0.0, 2.0, 0.5]),
    "gaussian squared": LinearProblem(
        "squared", Gaussian(0.3), 0.9, reweighting=Reweighting(ENTROPIC, eta=2)
    ),
    "gaussian quadratic": LinearProblem("poisson", Gaussian(0.3), 0.1, QUADRATIC),
    "gaussian cvar": LinearProblem("absolute", Gaussian(0.6), 0.1, indicator(0.3)),
    "gaussian multinomial": LinearProblem("multinomial", Gaussian(0.3), 0.3, ridge=0.1),
    "multinomial": LinearProblem("multinomial", Ball(2, 0.6), 0.1, ridge=0.1),
    "multinomial, price": LinearProblem(
        "multinomial", Ball(inf, 0.3), 0.1, QUADRATIC, reweighting=Reweighting(ENTROPIC, eta=0.2)
    ),
}


@pytest.mark.parametrize("name", PROBLEMS)
def test_gradient_agrees_with_finite_differences_and_the_value_is_convex(name: str) -> None:
    problem = PROBLEMS[name]
    X, y, theta = data(problem.loss)
    d = X.shape[1]
    w = np.random.default_rng(1).uniform(0.5, 1.5, X.shape[0])

    def risk(params: Any) -> Any:
        cut = params.size - params.size // (d + 1)
        coef, last = params[:cut], params[cut:]
        return linear_model_risk(problem, coef, last if last.size > 1 else last[0], X, y, sample_weight=w)

    here = risk(theta)
    gradient = np.concatenate([np.ravel(here.coef_gradient), np.ravel(here.intercept_gradient)])
    for seed in range(3):
        direction = np.random.default_rng(seed).normal(size=theta.size)
        h = 1e-4
        up, down = (risk(theta + s * h * direction).value for s in (1, -1))
        assert (up - down) / (2 * h) == pytest.approx(gradient @ direction, rel=1e-6, abs=2e-6)
        right, left = (risk(theta + s * direction / 4).value for s in (1, -1))
        assert here.value <= (right + left) / 2 + 1e-10
        assert right >= here.value + gradient @ direction / 4 - 1e-9


@pytest.mark.parametrize("name", ["logistic", "linf", "price", "multinomial", "multinomial, price"])
def test_risk_does_not_depend_on_the_chunks(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = PROBLEMS[name]
    X, y, theta = data(problem.loss)
    cut = theta.size * 4 // 5
    at = theta[:cut], theta[cut:] if cut > 4 else theta[cut]
    whole = linear_model_risk(problem, *at, X, y)
    for module in (linear_objective, multinomial_objective):
        monkeypatch.setattr(module, "_CHUNK", 256)
    chunked = linear_model_risk(problem, *at, X, y)
    for field in ("value", "values", "weights", "coef_gradient", "intercept_gradient"):
        np.testing.assert_allclose(getattr(chunked, field), getattr(whole, field), rtol=1e-11, atol=1e-12)


def test_inverse_hessian_maps_gradient_differences_to_steps() -> None:
    cases = {name: PROBLEMS[name] for name in ("logistic", "hellinger", "price", "linf")}
    cases |= {name: PROBLEMS[name] for name in PROBLEMS if "gaussian" in name and "multi" not in name}
    for loss in ("logistic", "squared", "poisson", "smoothed hinge", "huber"):
        for name, phi in FAMILIES.items():
            cases[f"{loss}, {name}"] = LinearProblem(loss, Ball(2, 0.6), 0.1, phi)
    cases["power"] = LinearProblem("squared", Ball(2, 0.6), 0.1, cressie_read(3), intercept=False)
    cases["atoms"] = LinearProblem("logistic", Ball(2, 0.6), 0.02, cressie_read(-1))
    for name, problem in cases.items():
        X, y, theta = data(problem.loss)
        theta = theta if problem.intercept else theta[:4]
        ridge_problem = replace(problem, ridge=0.3)
        objective = LinearData(ridge_problem, X, y, None, 64).objective(ridge_problem, 64)
        v, h = np.random.default_rng(0).normal(size=theta.size), 1e-5
        change = (objective(theta + h * v).gradient - objective(theta - h * v).gradient) / (2 * h)
        if objective.newton:
            step = objective(theta).inverse(change)
            np.testing.assert_allclose(step, v, rtol=2e-4, atol=2e-4, err_msg=name)
        else:
            assert "squared" in name or "huber" in name or "poisson" in name


@pytest.mark.slow
def test_risk_with_feature_scale_agrees_with_quadrature() -> None:
    """A feature of scale 0 reduces the dimension from 3 to 2."""
    theta, scale = np.asarray([0.8, -1.5, 0.4]), np.asarray([1.0, 0.0, 2.0])
    x, y, spread = np.asarray([[0.3, 0.2, -0.5]]), np.ones(1), 0.7 * np.hypot(0.8, 0.8)
    for name in ("entropic", "indicator", "hinge"):
        problem = LinearProblem("logistic", Ball(2, 0.7), 0.2, FAMILIES[name], feature_scale=scale)
        exact = example_risk("logistic", float(x[0] @ theta), spread, 1.0, 2, 0.2, name)
        assert linear_model_risk(problem, theta, 0.0, x, y).value == pytest.approx(exact, abs=1e-10)
    u, a = np.polynomial.legendre.leggauss(40)
    z = (x @ theta)[0] + 0.7 * (0.8 * u[:, None] + 0.8 * u)
    box = LinearProblem("logistic", Ball(inf, 0.7), 0.2, feature_scale=scale)
    mean_exp = np.sum(a[:, None] * a / 4 * (1 + np.exp(-z)) ** (1 / 0.2))  # E exp(loss/eta)
    found = linear_model_risk(box, theta, 0.0, x, y, n_points=1024)
    assert abs(found.value - 0.2 * np.log(mean_exp)) <= 4 * found.error <= 0.02
    X, y, w = np.concatenate([x, 2 * x, 0 * x]), np.asarray([1.0, -1.0, 1.0]), np.asarray([0.2, 0.5, 0.3])
    risk = linear_model_risk(replace(problem, ridge=0.3), theta, 0.0, X, y, sample_weight=w)
    assert risk.value == pytest.approx(w @ risk.values + 0.15 * theta @ theta, abs=1e-12)


@pytest.mark.parametrize("norm", [1, 2, inf])
def test_eta_zero_is_the_adversarial_loss_and_large_eta_approaches_the_mean(norm: float) -> None:
    X, y, theta = data("logistic")
    dual = {1: np.max(np.abs(theta[:4])), 2: np.linalg.norm(theta[:4]), inf: np.sum(np.abs(theta[:4]))}[norm]
    margin = y * (X @ theta[:4] + theta[4])
    closed = np.mean(np.log1p(np.exp(-margin + 0.5 * dual)))

    def value(eta: float) -> float:
        problem = LinearProblem("logistic", Ball(norm, 0.5), eta)
        return linear_model_risk(problem, theta[:4], theta[4], X, y, n_points=1024).value

    assert value(0.0) == pytest.approx(closed, abs=1e-14)
    assert value(inf) < value(0.3) < value(0.01) < closed
    assert 0 <= value(1e3) - value(inf) <= 1e-5


def test_risk_with_one_free_feature_does_not_depend_on_the_norm() -> None:
    X, y, theta = data("squared")
    scale = [0.0, 1.0, 0.0, 0.0]
    risks = [
        linear_model_risk(
            LinearProblem("squared", Ball(p, 0.5), 0.1, feature_scale=scale), theta[:4], 0.0, X, y
        )
        for p in (1, 2, 3, inf)
    ]
    assert len({risk.value for risk in risks}) == 1
    unperturbed = linear_model_risk(LinearProblem("squared"), theta[:4], 0.0, X, y)
    no_free_feature = LinearProblem("squared", Ball(1, 0.5), 0.1, feature_scale=[0.0] * 4)
    assert linear_model_risk(no_free_feature, theta[:4], 0.0, X, y).value == unperturbed.value


def test_gradient_has_the_dtype_of_the_data(arrays: Arrays) -> None:
    if arrays.backend == "jax":
        pytest.skip("linear models update arrays in place; JAX arrays are immutable")
    X, y, theta = data("logistic", n=10)
    for problem in (PROBLEMS["price"], LinearProblem("hinge", Ball(2, 0.5), 0.1, QUADRATIC)):
        reference = linear_model_risk(problem, theta[:4], theta[4], X, y)
        X_, y_, theta_ = (arrays.asarray(v) for v in (X, y, theta))
        risk = linear_model_risk(problem, theta_[:4], theta_[4], X_, y_)
        assert risk.coef_gradient.dtype == X_.dtype
        assert risk.value == pytest.approx(reference.value, rel=1e-5 if "32" in str(X_.dtype) else 1e-12)


def test_invalid_problems_and_data_raise() -> None:
    X, X_nan = np.zeros((2, 3)), np.full((2, 3), np.nan)
    not_a_function: Any = 3.0
    calls: dict[str, Any] = {
        "loss is 'cubic'; expected": lambda: LinearProblem("cubic"),
        "reference is 0.5; expected a Ball": lambda: LinearProblem(reference=0.5),
        "expected a Ball without clip": lambda: LinearProblem(reference=Ball(2, 0.5, clip=(0, 1))),
        "divergence is 3; expected": lambda: LinearProblem(divergence=3),
        "eta is -1.0": lambda: LinearProblem(eta=-1.0),
        "ridge is -1.0": lambda: LinearProblem(ridge=-1.0),
        "reweighting is 0.1": lambda: LinearProblem(reweighting=0.1),
        "expected exactly one of them": lambda: Reweighting(QUADRATIC),
        "eta is 0.0": lambda: Reweighting(QUADRATIC, eta=0.0),
        "q is 1.0": lambda: quantile_loss(1.0),
        "jet is 3.0": lambda: LinearLoss("mine", not_a_function),
        "X has shape": lambda: _risk(np.zeros(3)),
        "labels other than -1 and 1": lambda: _risk(X, y=np.zeros(2)),
        "coef has 2 entries; expected 3": lambda: _risk(X, coef=np.zeros(2)),
        "sample_weight has a negative entry": lambda: _risk(X, sample_weight=-np.ones(2)),
        "feature_scale is .*inf": lambda: _risk(X, feature_scale=[1.0, 0.0, inf]),
        "X contains NaN": lambda: _risk(X_nan),
        "quadrature_tol is 0.0": lambda: _risk(X, quadrature_tol=0.0),
        "y contains -1": lambda: _risk(X, loss="poisson", y=-np.ones(2)),
        "not class numbers": lambda: _risk(X, loss="multinomial", y=np.full(2, 0.5)),
    }
    for message, call in calls.items():
        with pytest.raises((TypeError, ValueError), match=message):
            call()


def _risk(X: Any, **options: Any) -> Any:
    y, coef = options.pop("y", np.ones(2)), options.pop("coef", np.zeros(3))
    names = ("loss", "feature_scale", "eta")
    problem = LinearProblem(**{k: options.pop(k) for k in names if k in options})
    return linear_model_risk(problem, coef, 0.0, X, y, **options)


def test_huber_loss_has_kinks_at_its_width_from_the_label() -> None:
    y = np.array([0.5, -2.0])
    for loss, width in ((huber_loss(0.25), 0.25), (huber_loss(2.0), 2.0)):
        assert loss.kinks is not None
        np.testing.assert_allclose(np.sort(np.stack(loss.kinks(y)), axis=0), [y - width, y + width])


def test_overflow_raises_only_if_it_affects_the_risk() -> None:
    """Squares of features with coefficient 0, and of coefficients without a ridge, may overflow."""
    X, labels = np.array([[0.0, 1.0], [1e308, 1.0]]), np.array([-1.0, 1.0])
    unused = linear_model_risk(LinearProblem("squared"), np.array([0.0, 2.0]), 0.0, X, np.zeros(2))
    assert float(unused.value) == 2.0  # (2 - 0)^2/2
    huge, problem = np.full(2, 1e308), LinearProblem()
    assert linear_model_risk(problem, huge, 0.0, np.zeros((2, 2)), labels).value == pytest.approx(np.log(2))
    with pytest.raises(ValueError, match="overflows float64"):
        linear_model_risk(problem, huge, 0.0, np.full((2, 2), 2.0), labels)

"""The estimators pass scikit-learn's checks, work with its tools and equal its models at radius 0."""

import os
import pickle
import subprocess
import sys
import warnings
from math import inf
from typing import Any
from unittest.mock import patch

import numpy as np
import pandas as pd
import polars as pl
import pytest
from scipy.sparse import csr_array
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_diabetes, load_wine
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression, PoissonRegressor, QuantileRegressor, Ridge
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

from phiball.refimpl import QUADRATIC, Ball, Gaussian, indicator
from phiball.refimpl.linear import LinearProblem, Reweighting, fit_linear_model
from phiball.refimpl.sklearn import (
    RobustLinearRegression,
    RobustLogisticRegression,
    RobustLogisticRegressionCV,
    RobustPoissonRegressor,
    RobustQuantileRegressor,
    RobustSVC,
    robust_scorer,
)

with patch.dict(os.environ, SCIPY_ARRAY_API="1"):  # scikit-learn 1.6 requires it with array-api-compat
    from sklearn.utils.estimator_checks import check_estimator


@pytest.mark.slow
@pytest.mark.parametrize(
    "estimator",
    [
        RobustLogisticRegression(n_points=8),
        RobustLogisticRegressionCV(radii=(0.0, 0.1), etas=(0.1,), cv=2, n_points=2),
        RobustLinearRegression(),
        RobustPoissonRegressor(),
        RobustQuantileRegressor(radius=0.5, eta=inf),
        RobustSVC(radius=0.5, eta=inf, tol=1e-2),
        RobustLogisticRegression(reference="gaussian", n_points=8),
        RobustLogisticRegressionCV(reference="gaussian", radii=(0.0, 0.1), etas=(0.1,), cv=2, n_points=2),
        RobustLinearRegression(reference="gaussian"),
        RobustPoissonRegressor(reference="gaussian", divergence="chi2"),
        RobustQuantileRegressor(reference="gaussian", radius=0.5, eta=inf),
        RobustSVC(reference="gaussian", radius=0.5, eta=inf, tol=1e-2),
    ],
)
def test_estimators_pass_all_checks_of_scikit_learn(estimator: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the checks misuse estimators deliberately
        results = check_estimator(estimator)
    assert len(results) > 50
    skipped = [result["check_name"] for result in results if result["status"] != "passed"]
    assert skipped in ([], ["check_array_api_input"])  # this check needs a global setting


CANCER, DIABETES = load_breast_cancer(return_X_y=True), load_diabetes(return_X_y=True)
X2, Y2 = StandardScaler().fit_transform(CANCER[0]), CANCER[1]
XD, YD = StandardScaler().fit_transform(DIABETES[0]), DIABETES[1] / 100


@pytest.mark.parametrize(
    ("ours", "theirs", "X", "y", "atol"),
    [
        (RobustLogisticRegression(C=0.5, tol=1e-9), LogisticRegression(C=0.5, tol=1e-12), X2, Y2, 1e-6),
        (RobustSVC(C=0.5, tol=1e-8), SVC(C=0.5, kernel="linear", tol=1e-11), X2, Y2, 5e-6),
        (RobustLinearRegression(alpha=2.0), Ridge(2.0), XD, YD, 1e-6),
        (RobustPoissonRegressor(alpha=0.1), PoissonRegressor(alpha=0.1, tol=1e-12), XD, YD, 1e-6),
        (RobustQuantileRegressor(alpha=0.0, tol=1e-6), QuantileRegressor(alpha=0.0), XD, YD, 1e-6),
    ],
)
def test_radius_zero_agrees_with_scikit_learn_and_positive_radius_shrinks(
    ours: Any, theirs: Any, X: Any, y: Any, atol: float
) -> None:
    if "solver" in theirs.get_params() and not isinstance(theirs, QuantileRegressor):
        theirs = theirs.set_params(solver="newton-cholesky" if not isinstance(theirs, Ridge) else "auto")
    plain, reference = clone(ours).set_params(radius=0.0).fit(X, y), theirs.fit(X, y)
    np.testing.assert_allclose(np.ravel(plain.coef_), np.ravel(reference.coef_), atol=atol)
    np.testing.assert_allclose(plain.intercept_, reference.intercept_, atol=atol)
    np.testing.assert_allclose(plain.predict(X), reference.predict(X), atol=1e-4)
    if not isinstance(ours, RobustQuantileRegressor):
        robust = clone(ours).set_params(radius=0.5).fit(X[::3], y[::3])
        plain_third = clone(ours).set_params(radius=0.0).fit(X[::3], y[::3])
        assert np.linalg.norm(robust.coef_) < np.linalg.norm(plain_third.coef_)
        assert robust.gap_ < 1e-6
        if not isinstance(ours, RobustSVC):  # a small radius gives the same limit
            near = clone(ours).set_params(radius=1e-9).fit(X, y)
            np.testing.assert_allclose(np.ravel(near.coef_), np.ravel(reference.coef_), atol=atol)


def test_data_frames_pipelines_searches_and_pickles_work_but_sparse_data_raise() -> None:
    frame = pd.DataFrame(X2[:150, :3], columns=["a", "b", "c"])
    y = np.where(Y2[:150] == 1, "benign", "malignant")
    model = RobustLogisticRegression(radius=0.2).fit(frame, y)
    assert list(model.feature_names_in_) == ["a", "b", "c"]
    table = pl.DataFrame(X2[:150, :3], schema=["a", "b", "c"])
    from_polars = RobustLogisticRegression(radius=0.2).fit(table, y)
    np.testing.assert_allclose(model.coef_, from_polars.coef_, rtol=1e-13)
    assert list(from_polars.feature_names_in_) == ["a", "b", "c"]
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.predict_proba(frame), model.predict_proba(frame))
    assert model.predict_proba(frame).sum(axis=1) == pytest.approx(1)
    with pytest.raises(TypeError, match="Sparse"):
        model.fit(csr_array(X2[:150, :3]), y)
    pipe = make_pipeline(StandardScaler(), RobustLogisticRegression())
    search = GridSearchCV(pipe, {"robustlogisticregression__radius": [0.0, 0.5]}, cv=3)
    assert search.fit(CANCER[0][::3], Y2[::3]).best_score_ > 0.9
    assert cross_val_score(RobustLinearRegression(), XD, YD, cv=3).mean() > 0.4


def test_gaussian_reference_agrees_with_the_linear_problem_and_works_in_searches() -> None:
    grid = {"reference": ["ball", "gaussian"], "radius": [0.1, 0.5], "divergence": ["kl", "chi2"]}
    search = GridSearchCV(RobustLogisticRegression(), grid, cv=2).fit(X2[::3, :5], Y2[::3])
    assert np.all(search.cv_results_["mean_test_score"] > 0.85)
    model = RobustLinearRegression(reference="gaussian", radius=0.3, alpha=2.0).fit(XD, YD)
    problem = LinearProblem("squared", Gaussian(0.3), 0.1, ridge=2.0 / len(YD))
    assert fit_linear_model(problem, XD, YD).value == pytest.approx(model.objective_, rel=1e-9)
    assert model.gap_ < 1e-9
    with pytest.raises(ValueError, match="reference is 'normal'; expected 'ball' or 'gaussian'"):
        model.set_params(reference="normal").fit(XD, YD)


@pytest.mark.parametrize("class_weight", ["balanced", {0: 3.0, 1: 0.5}])
def test_class_and_sample_weights_agree_with_scikit_learn(class_weight: Any) -> None:
    x, w = X2[:, :5], np.random.default_rng(0).uniform(0.1, 3.0, len(Y2)) * (1 + 4 * Y2)
    options: dict[str, Any] = {"radius": 0.0, "class_weight": class_weight}
    logistic = LogisticRegression(class_weight=class_weight, solver="newton-cholesky", tol=1e-12)
    machine = SVC(kernel="linear", class_weight=class_weight, tol=1e-11)
    for ours, theirs, atol in (
        (RobustLogisticRegression(tol=1e-10, **options), logistic, 1e-6),
        (RobustSVC(**options), machine, 1e-4),  # the weights increase C, so that both fits are less accurate
    ):
        ours.fit(x, Y2, sample_weight=w)
        theirs.fit(x, Y2, sample_weight=w)
        np.testing.assert_allclose(ours.coef_, theirs.coef_, atol=atol)
        np.testing.assert_allclose(ours.intercept_, theirs.intercept_, atol=atol)
    if class_weight == "balanced":  # a class of total weight 0 is allowed
        three = np.arange(90) % 3
        zero_weight = RobustLogisticRegression(class_weight="balanced", n_points=8)
        assert np.all(np.isfinite(zero_weight.fit(x[:90], three, sample_weight=1.0 * (three < 2)).coef_))


@pytest.mark.slow
def test_feature_scale_shrinks_its_feature_and_cvar_lowers_the_largest_losses() -> None:
    scale = np.zeros(XD.shape[1])
    scale[2] = 1.0
    plain = RobustLinearRegression(radius=0.0).fit(XD, YD)
    scaled = RobustLinearRegression(radius=1.0, feature_scale=scale).fit(XD, YD)
    assert abs(scaled.coef_[2]) < 0.9 * abs(plain.coef_[2])
    tail = RobustLinearRegression(radius=0.0, tol=1e-3, reweighting=Reweighting(indicator(0.1), eta=1.0))
    tail.fit(XD, YD)

    def worst(model: Any) -> float:
        return float(np.mean(np.sort((model.predict(XD) - YD) ** 2)[-44:]))

    assert worst(tail) < worst(plain)


def test_cross_validation_with_a_robust_score_selects_a_larger_radius() -> None:
    """The robust score on new data improves."""
    scorer = robust_scorer(Ball(2, 1.0))
    radii, etas = (0.0, 0.3, 1.0), (0.01,)
    train, test = slice(None, None, 2), slice(1, None, 2)
    plain = RobustLogisticRegressionCV(radii=radii, etas=etas, cv=3)
    robust = clone(plain).set_params(scoring=scorer).fit(X2[train], Y2[train])
    plain.fit(X2[train], Y2[train])
    assert robust.radius_ > plain.radius_
    assert scorer(robust, X2[test], Y2[test]) > scorer(plain, X2[test], Y2[test]) + 0.02
    assert robust.scores_.shape == (1, 3)
    chosen = RobustLogisticRegression(radius=robust.radius_, eta=0.01).fit(X2[train], Y2[train])
    np.testing.assert_allclose(robust.coef_, chosen.coef_, atol=1e-6)


def test_three_classes_and_infinite_c_agree_with_scikit_learn() -> None:
    # Without a ridge (C = inf), the gap is infinite.
    y = np.random.default_rng(0).permutation(Y2)
    zero_weight = RobustLogisticRegression(radius=0.0, C=inf).fit(X2[:, :4], y)
    theirs = LogisticRegression(C=inf, tol=1e-10, solver="newton-cholesky").fit(X2[:, :4], y)
    np.testing.assert_allclose(zero_weight.coef_, theirs.coef_, atol=1e-6)
    assert zero_weight.gap_ == inf
    X, y = load_wine(return_X_y=True)
    X = StandardScaler().fit_transform(X)
    plain = RobustLogisticRegression(radius=0.0, tol=1e-9, max_iter=2000).fit(X, y)
    theirs = LogisticRegression(solver="newton-cholesky", tol=1e-12).fit(X, y)
    np.testing.assert_allclose(plain.coef_, theirs.coef_, atol=1e-6)
    # Intercepts are unique up to a common constant.
    shift = plain.intercept_ - theirs.intercept_
    np.testing.assert_allclose(shift, shift.mean(), atol=1e-6)
    assert plain.gap_ < 1e-10
    model = RobustLogisticRegression(radius=0.3, n_points=32).fit(X, y)
    assert model.coef_.shape == (3, 13)
    assert model.score(X, y) > 0.97
    np.testing.assert_allclose(model.predict_proba(X).sum(axis=1), 1)
    assert RobustSVC(radius=0.5, eta=inf, tol=1e-5).fit(X, y).score(X, y) > 0.97


@pytest.mark.parametrize(
    ("module", "missing", "extras"),
    [("", "sklearn", "phiball[sklearn]"), (".networks", "skorch", "phiball[sklearn,torch]")],
)
def test_missing_package_error_says_how_to_install_it(module: str, missing: str, extras: str) -> None:
    """The package is hidden from a subprocess."""
    code = (
        "import importlib.util as u; find = u.find_spec\n"
        f"u.find_spec = lambda name, *more: None if name == {missing!r} else find(name, *more)\n"
        f"import phiball.refimpl.sklearn{module}"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode == 1
    assert f"pip install '{extras}'" in run.stderr.splitlines()[-1]


def test_invalid_parameters_raise_at_fit() -> None:
    """By scikit-learn's convention, constructors do not validate."""
    for parameters, message in (
        ({"divergence": "cubic"}, "divergence is 'cubic'"),
        ({"C": 0.0}, "C is 0.0"),
        ({"radius": -1.0}, "radius is -1.0"),
        ({"eta": -1.0}, "eta is -1.0; expected"),
        ({"norm": 0.5}, "norm is 0.5; expected"),
        ({"tol": -1.0}, "tol is -1.0"),
        ({"max_iter": 0}, "max_iter is 0"),
        ({"feature_scale": [1.0] * 29 + [-1.0]}, "feature_scale is .*; expected finite, nonnegative"),
        ({"feature_scale": [1.0]}, "feature_scale is .*; expected 30 numbers"),
    ):
        with pytest.raises(ValueError, match=message):
            RobustLogisticRegression(**parameters).fit(X2, Y2)
    wrong: Any = "no"
    labels = np.array(["a", 1], dtype=object)[Y2]
    for model, x, y, message in (
        (RobustLinearRegression(alpha=-1.0), XD, YD, "alpha is -1"),
        (RobustLogisticRegressionCV(radii=()), X2, Y2, r"radii is .*; expected numbers to choose from"),
        (RobustLogisticRegressionCV(radii=[0.0, -1.0]), X2, Y2, "an entry of radii is -1"),
        (RobustQuantileRegressor(quantile=1.5), XD, YD, r"quantile is 1\.5"),
        (RobustLogisticRegression(fit_intercept=wrong), X2, Y2, "fit_intercept is 'no'"),
        (RobustLogisticRegression(), X2, 0.0 * Y2, r"y has one class, 0\.0;"),
        (RobustLogisticRegression(), X2, labels, "y has labels of types int, str; expected a single type"),
        (RobustLinearRegression(), 1e200 * XD, YD, r"X has an entry of size .*: rescale it"),
        (RobustLinearRegression(), XD, 1e200 * YD, r"y has an entry of size .*: rescale it"),
    ):
        with pytest.raises((TypeError, ValueError), match=message):
            model.fit(x, y)


def test_warnings_point_at_the_call_of_fit() -> None:
    """Fits warn if they stop early or have too few Sobol points."""
    for model, y in (
        (RobustLogisticRegression(max_iter=1), Y2),
        (RobustLogisticRegressionCV(max_iter=1, radii=(0.1,), etas=(0.1,), cv=2), Y2),
        (RobustPoissonRegressor(max_iter=1), Y2),
    ):
        with pytest.warns(ConvergenceWarning, match="stopped after") as seen:
            model.fit(X2[:, :3], y)
        assert {warning.filename for warning in seen} == {__file__}
    few = RobustLinearRegression(norm=inf, radius=1.0, eta=1e-3, n_points=8)
    with pytest.warns(ConvergenceWarning, match=r"an error of about .* n_points \(now 8\)") as seen:
        few.fit(XD, YD)
    assert seen[0].filename == __file__
    assert few.error_ > 0.01 * few.objective_
    many = clone(few).set_params(n_points=1024, eta=1.0).fit(XD, YD)
    assert many.error_ < 0.01 * many.objective_


def test_features_that_are_not_standardised_warn_at_the_call_of_fit() -> None:
    """The filter of the test suite raises on an unexpected warning."""
    for x, message in (
        (X2[:, :3] * [1, 1, 1001], "to 1e.03, with a median of 1, and radius is 0.1"),
        (1e3 * X2[:, :3], "StandardScaler, or set feature_scale"),
        (0.05 * X2[:, :3], "with a median of 0.05, and radius is 0.1"),
    ):
        for model in (
            RobustLogisticRegression(tol=1e-2),
            RobustLogisticRegressionCV(tol=1e-2, radii=(0.1, 0.0), etas=(0.1,), cv=2),
            RobustLinearRegression(tol=1e-2),
        ):
            with pytest.warns(UserWarning, match=message) as seen:
                model.fit(x, Y2)
            assert {warning.filename for warning in seen} == {__file__}
        RobustLogisticRegression(tol=1e-2, radius=0).fit(x, Y2)
        RobustLogisticRegression(tol=1e-2, feature_scale=x.std(axis=0)).fit(x, Y2)
    RobustLogisticRegression(tol=1e-2).fit(X2[:, :3] * [1, 1, 0] + 0.1, Y2)  # a constant feature


def test_support_vector_machine_says_how_to_get_probabilities() -> None:
    machine = RobustSVC(radius=0.0).fit(X2[:, :3], Y2)
    with pytest.raises(AttributeError, match=r"no predict_proba; use CalibratedClassifierCV\(RobustSVC"):
        machine.predict_proba(X2[:, :3])
    assert not hasattr(make_pipeline(machine), "predict_proba")


def test_divergences_may_be_names() -> None:
    by_name = RobustLogisticRegression(divergence="quadratic", reweighting=Reweighting("quadratic", eta=1.0))
    by_object = RobustLogisticRegression(divergence=QUADRATIC, reweighting=Reweighting(QUADRATIC, eta=1.0))
    x = X2[:, :3]
    np.testing.assert_array_equal(by_name.fit(x, Y2).coef_, clone(by_object).fit(x, Y2).coef_)
    assert "reweighting=Reweighting(quadratic, eta=1.0))" in repr(by_name)
    assert repr(Reweighting(indicator(0.1), budget=0.5)) == "Reweighting(indicator(0.1), budget=0.5)"
    assert Reweighting("chi2", eta=1.0).divergence is QUADRATIC
    with pytest.raises(ValueError, match="divergence is 'kll'; expected one of entropic"):
        Reweighting("kll", eta=1.0)


@pytest.mark.parametrize(("norm", "exponent"), [("linf", inf), ("l2", 2)])
def test_norms_may_be_names(norm: str, exponent: float) -> None:
    x, y, z = X2[:60, :2], Y2[:60], YD[:60]
    for kind, target in ((RobustLogisticRegression, y), (RobustSVC, y), (RobustLinearRegression, z)):
        by_name, by_number = (
            kind(norm=p, divergence="kl", n_points=8, tol=1e-4).fit(x, target) for p in (norm, exponent)
        )
        np.testing.assert_array_equal(by_name.coef_, by_number.coef_)
    grid = {"norm": ["l1", norm], "divergence": ["kl", "tv"], "reweighting": [Reweighting("kl", eta=1.0)]}
    score = robust_scorer(Ball(norm, 0.3))
    search = GridSearchCV(RobustLogisticRegression(n_points=8, tol=1e-2), grid, scoring=score, cv=2).fit(x, y)
    assert np.all(search.cv_results_["mean_test_score"] > 0.5)
    chosen = clone(search.best_estimator_).get_params()
    assert all(chosen[name] == value for name, value in search.best_params_.items())
    with pytest.raises(ValueError, match="norm is 'max'; expected 'l1', 'l2', 'linf'"):
        RobustLogisticRegression(norm="max").fit(x, y)

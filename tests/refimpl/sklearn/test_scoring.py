"""`robust_scorer` agrees with brute force and closed forms; torch networks as estimators."""

import pickle
from math import inf
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
import sklearn
import torch
from scipy.sparse import csr_array
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import TransformedTargetRegressor, make_column_transformer
from sklearn.datasets import load_iris
from sklearn.decomposition import PCA
from sklearn.ensemble import (
    BaggingClassifier,
    RandomForestClassifier,
    RandomForestRegressor,
    StackingClassifier,
    VotingClassifier,
)
from sklearn.feature_selection import SelectKBest
from sklearn.frozen import FrozenEstimator
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LinearRegression, LogisticRegression, QuantileRegressor, RidgeClassifier
from sklearn.metrics import mean_pinball_loss, mean_poisson_deviance
from sklearn.model_selection import FixedThresholdClassifier, GridSearchCV, StratifiedKFold
from sklearn.multiclass import OneVsRestClassifier
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler, Normalizer, OneHotEncoder, StandardScaler
from sklearn.svm import SVC
from skorch.callbacks import EarlyStopping

from phiball.backends import rng
from phiball.refimpl import QUADRATIC, Ball
from phiball.refimpl.sklearn import (
    RobustLogisticRegression,
    RobustLogisticRegressionCV,
    RobustPoissonRegressor,
    RobustQuantileRegressor,
    RobustSVC,
    best_within,
    robust_scorer,
)
from phiball.refimpl.sklearn.affine_models import is_linear
from phiball.refimpl.sklearn.base import by_feature
from phiball.refimpl.sklearn.networks import RobustClassifier, RobustRegressor

X, Y = load_iris(return_X_y=True)
TWO = Y < 2
SAMPLED = pytest.mark.filterwarnings("ignore:.* sampled points per example")


@pytest.mark.parametrize("norm", [1, 2, inf])
@pytest.mark.parametrize("classes", [2, 3])
def test_score_of_linear_classifiers_is_the_exact_worst_case_accuracy(norm: float, classes: int) -> None:
    """The score is the fraction of examples without a misclassified point in their ball."""
    ball = Ball(norm, 0.7)
    keep = 3 - classes <= Y
    x, y = X[keep], Y[keep]
    model = make_pipeline(StandardScaler(), LogisticRegression()).fit(x, y)
    score = robust_scorer(ball)(model, x, y)
    # The worst point minimizes the difference of the scores of two classes.
    W = np.atleast_2d(model[-1].coef_) / model[0].scale_
    pairs = [W[0], -W[0]] if len(W) == 1 else [a - b for a in W for b in W if a is not b]
    right = model.predict(x) == y
    for direction in pairs:
        for size in (1 - 1e-9, 1.0):
            right &= model.predict(x - size * ball.steepest(direction)) == y
    assert score == pytest.approx(np.mean(right))
    assert 0 < score < model.score(x, y)
    noisy = model.predict(ball.sample(x, 1, rng=rng(3))[:, 0, :]) == y
    assert np.mean(noisy) >= score


@SAMPLED
def test_scores_of_regressors_agree_with_closed_forms_and_trees_are_sampled() -> None:
    """As eta grows, the risk decreases to the mean loss over the ball."""
    x, y = X[:, :3], X[:, 3]
    line = LinearRegression().fit(x, y)
    exact = np.mean((np.abs(line.predict(x) - y) + 0.2 * np.linalg.norm(line.coef_)) ** 2)
    assert robust_scorer(Ball(2, 0.2))(line, x, y) == pytest.approx(-exact)
    forest = RandomForestClassifier(10, random_state=0).fit(X, Y)
    assert robust_scorer(Ball(2, 0.5), n_samples=16)(forest, X, Y) < forest.score(X, Y)
    risks = [robust_scorer(Ball(2, 0.2), eta=eta)(line, x, y) for eta in (0.01, 0.1, 1e6)]
    assert risks[0] < risks[1] < risks[2]
    mean_loss = np.mean((line.predict(x) - y) ** 2 / 2) + np.sum(line.coef_**2) * 0.04 / (2 * 5)
    assert -risks[2] == pytest.approx(mean_loss, rel=0.05)
    model = LogisticRegression(max_iter=1000).fit(X, Y)
    assert robust_scorer(Ball(2, 0.2), eta=0.1)(model, X, Y) < 0


@SAMPLED
def test_risk_of_a_linear_model_in_a_clipped_ball_agrees_with_closed_form() -> None:
    """Half of the perturbations are clipped to their data point, where the loss is 0."""
    x, y = np.array([[0.0], [1.0]]), np.array([0.0, 1.0])
    line = LinearRegression().fit(x, y)
    score = robust_scorer(Ball(2, 0.5, clip=(0.0, 1.0)), eta=1e6, n_samples=4000)(line, x, y)
    assert -score == pytest.approx(0.5**2 / 3 / 4, rel=0.05)


@SAMPLED
def test_models_are_scored_by_their_own_loss() -> None:
    """The own loss is the pinball loss, the Poisson deviance or the hinge loss."""
    x, y = (X[:, :3] - X[:, :3].mean(axis=0))[::3], X[::3, 3]
    counts = np.round(3 * y)
    tail = RobustQuantileRegressor(quantile=0.8, radius=0.3, eta=0.5, alpha=0.1, tol=1e-5).fit(x, y)
    poisson = RobustPoissonRegressor(radius=0.3, eta=0.5, alpha=0.1).fit(x, counts)
    plain = make_pipeline(StandardScaler(), QuantileRegressor(quantile=0.8, alpha=0)).fit(x, y)
    plain_score, worst_score = robust_scorer(Ball(2, 0.0)), robust_scorer(Ball(2, 0.3))
    assert plain_score(tail, x, y) == pytest.approx(-mean_pinball_loss(y, tail.predict(x), alpha=0.8))
    assert plain_score(plain, x, y) == pytest.approx(-mean_pinball_loss(y, plain.predict(x), alpha=0.8))
    assert plain_score(poisson, x, counts) == pytest.approx(
        -mean_poisson_deviance(counts, poisson.predict(x))
    )
    largest_change = 0.3 * np.linalg.norm(tail.coef_)
    ends = np.stack([tail.predict(x) - largest_change, tail.predict(x) + largest_change])
    worst = np.maximum(0.8 * (y - ends), 0.2 * (ends - y)).max(axis=0)
    assert worst_score(tail, x, y) == pytest.approx(-worst.mean())
    sampled = max(
        mean_poisson_deviance(counts, poisson.predict(Ball(2, 0.3).sample(x, 1, rng=rng(k))[:, 0]))
        for k in range(9)
    )
    assert worst_score(poisson, x, counts) < -sampled
    squared = robust_scorer(Ball(2, 0.3), loss="squared")(tail, x, y)
    assert squared == pytest.approx(-np.mean((np.abs(tail.predict(x) - y) + largest_change) ** 2))
    # A fit minimizes the risk plus the ridge penalty, and the score is minus the risk.
    labels = Y[::3] == 0
    machine = RobustSVC(radius=0.3, eta=0.5, C=3.0, tol=1e-5).fit(x, labels)
    logistic = RobustLogisticRegression(radius=0.3, eta=0.5, C=3.0).fit(x, Y[::3])
    for model, target, ridge in (
        (tail, y, 0.1),
        (poisson, counts, 0.1),
        (machine, labels, 1 / (3.0 * len(x))),
        (logistic, Y[::3], 1 / (3.0 * len(x))),
    ):
        risk = -robust_scorer(Ball(2, 0.3), eta=0.5)(model, x, target)
        assert risk + ridge / 2 * np.sum(model.coef_**2) == pytest.approx(model.objective_, abs=1e-8)
    trees = RandomForestRegressor(5, random_state=0).fit(x, counts)
    assert robust_scorer(Ball(2, 0.3), loss="poisson", n_samples=4)(trees, x, counts) < -1e-3
    three = RobustSVC(radius=0.0, tol=1e-4).fit(x, Y[::3])
    hinge = sum(
        np.maximum(0, 1 - np.where(Y[::3] == k, 1, -1) * three.decision_function(x)[:, k]) for k in range(3)
    )
    assert robust_scorer(Ball(2, 1e-9), eta=0.5)(three, x, Y[::3]) == pytest.approx(-hinge.mean())


def test_integer_features_are_perturbed() -> None:
    whole = np.round(10 * X).astype(int)
    model = LogisticRegression(max_iter=1000).fit(whole, Y)
    score = robust_scorer(Ball(2, 0.7))
    assert score(model, whole, Y) == score(model, whole.astype(float), Y) < model.score(whole, Y)


@SAMPLED
def test_invalid_losses_models_and_data_raise() -> None:
    model, ball = LogisticRegression(max_iter=1000).fit(X, Y), Ball(2, 0.2)
    near = KNeighborsClassifier().fit(X, Y)
    near.__class__ = type("Bare", (KNeighborsClassifier,), {"predict_proba": property(_missing)})
    pairwise = SVC(kernel="linear", decision_function_shape="ovo").fit(X, Y)
    words = pd.DataFrame({"a": ["north"] * 2})
    cases: dict[str, Any] = {
        r"ball is 0\.5": lambda: robust_scorer(0.5),  # type: ignore[arg-type]
        "loss is 'hinge'": lambda: robust_scorer(ball, loss="hinge"),
        "loss is 'squared'": lambda: robust_scorer(ball, loss="squared")(model, X, Y),
        "expected a ball without clip": lambda: robust_scorer(Ball(2, 0.2, clip=(0.0, 9.0)))(model, X, Y),
        "neither predict_proba nor decision": lambda: robust_scorer(ball, eta=0.1)(near, X, Y),
        "Sparse data was passed": lambda: robust_scorer(ball)(model, csr_array(X), Y),
        r"'north'; .* transformed=True": lambda: robust_scorer(ball)(model, words, Y[:2]),
        "expected a pipeline of two": lambda: robust_scorer(ball, transformed=True)(model, X, Y),
        "expected decision_function_shape": lambda: robust_scorer(ball, eta=0.1)(pairwise, X, Y),
        r"scale is \[1\.0\]": lambda: robust_scorer(ball, feature_scale=[1.0])(model, X, Y),
    }
    for message, call in cases.items():
        with pytest.raises((TypeError, ValueError), match=message):
            call()


def _missing(self: Any) -> Any:
    raise AttributeError


@pytest.mark.filterwarnings("error::UserWarning")
def test_search_with_too_large_a_ball_warns_unless_max_cost_is_set() -> None:
    """The constant model has the best robust score."""
    x = pd.DataFrame(StandardScaler().fit_transform(X[50:]), columns=list("abcd"))
    y = np.where(Y[50:] == 1, "yes", "no")
    keep = np.r_[0:50, 60:100]  # unequal classes, so that a constant model is right more often than not
    x, y = x.iloc[keep], y[keep]
    score = robust_scorer(Ball(2, 3.0), feature_scale={"a": 0.5})
    radii = (0.0, 1.0, 100.0)
    options: dict[str, Any] = {"radii": radii, "etas": (0.1,), "cv": 3, "tol": 1e-4, "scoring": score}
    with pytest.warns(UserWarning, match="of radius 100, predicts one class"):
        constant = RobustLogisticRegressionCV(**options).fit(x, y)
    assert constant.radius_ == 100
    limited = RobustLogisticRegressionCV(max_cost=0.05, feature_scale={"b": 0}, **options).fit(x, y)
    assert limited.radius_ < 100
    near = limited.plain_scores_ >= limited.plain_scores_.max() - 0.05
    assert limited.scores_[0][radii.index(limited.radius_)] == limited.scores_[near].max()
    names = {"plain": "accuracy", "robust": score}
    model, grid = RobustLogisticRegression(tol=1e-4), {"radius": radii}
    found = [
        GridSearchCV(model, grid, scoring=names, refit=refit, cv=3).fit(x, y).best_params_["radius"]
        for refit in ("robust", best_within(0.05))
    ]
    assert found[0] == 100 > found[1]
    with pytest.raises(ValueError, match="lacks the scores 'plain' and 'robust'"):
        best_within(0.1)({"mean_test_score": np.ones(2)})
    for call in (best_within, lambda cost: RobustLogisticRegressionCV(max_cost=cost).fit(x, y)):
        with pytest.raises(ValueError, match="max_cost is -1"):
            call(-1.0)
    for plain in (None, "accuracy"):
        with pytest.raises(ValueError, match=r"expected a score other than accuracy, .*robust_scorer"):
            RobustLogisticRegressionCV(max_cost=0.03, scoring=plain).fit(x, y)


def test_cross_validation_passes_class_and_sample_weights_to_its_fits() -> None:
    x, y = X[TWO][:70, :2], Y[TWO][:70]
    w = np.linspace(0.5, 2.0, 70)
    fold = (np.arange(0, 70, 2), np.arange(1, 70, 2))
    options: dict[str, Any] = {"class_weight": "balanced", "C": 0.1}
    score = robust_scorer(Ball(2, 0.3), eta=1.0)
    search = RobustLogisticRegressionCV(radii=(0.3,), etas=(0.1,), cv=[fold], scoring=score, **options)
    search.fit(x, y, sample_weight=w)
    alone = RobustLogisticRegression(radius=0.3, eta=0.1, **options)
    alone.fit(x[fold[0]], y[fold[0]], sample_weight=w[fold[0]])
    assert search.scores_[0, 0] == pytest.approx(score(alone, x[fold[1]], y[fold[1]]), rel=1e-12)
    np.testing.assert_allclose(search.coef_, alone.fit(x, y, sample_weight=w).coef_, atol=1e-12)


@SAMPLED
def test_scorers_support_sample_weights_pickling_and_repeated_calls() -> None:
    """Integer weights are equivalent to copies of examples."""
    x, y, copies = X[50:], Y[50:], np.arange(100) % 3
    score, w = robust_scorer(Ball(2, 0.4)), copies.astype(float)
    model = LogisticRegression(max_iter=1000).fit(x, y)
    line, forest = LinearRegression().fit(x, y), RandomForestClassifier(5, random_state=0).fit(x, y)
    for scorer, fitted in ((score, model), (score, line), (robust_scorer(Ball(2, 0.4), eta=0.5), model)):
        doubled = scorer(fitted, np.repeat(x, copies, axis=0), np.repeat(y, copies))
        assert scorer(fitted, x, y, sample_weight=w) == pytest.approx(doubled) != scorer(fitted, x, y)
    alone = 1.0 * (np.arange(100) == 70)
    for sampled in (score, robust_scorer(Ball(2, 0.4), eta=0.5)):
        value = sampled(forest, x, y, sample_weight=alone)
        assert value == pytest.approx(sampled(forest, x, y, sample_weight=5 * alone))
        assert value != sampled(forest, x, y)
    scores, refit = {"plain": "accuracy", "robust": score}, best_within(0.1)
    search = GridSearchCV(RobustLogisticRegression(tol=1e-4), {"radius": [0.0, 0.5]}, scoring=scores)
    train, test = np.arange(0, 100, 2), np.arange(1, 100, 2)
    search.set_params(refit=refit, cv=[(train, test)]).fit(x, y, sample_weight=w)
    fitted = RobustLogisticRegression(radius=0.5, tol=1e-4).fit(x[train], y[train], sample_weight=w[train])
    value = search.cv_results_["split0_test_robust"][1]
    # Older versions of scikit-learn pass the weights to the fits only.
    counted = w[test] if tuple(map(int, sklearn.__version__.split(".")[:2])) >= (1, 9) else None
    assert value == pytest.approx(score(fitted, x[test], y[test], sample_weight=counted))
    again = pickle.loads(pickle.dumps(search))
    assert again.best_index_ == again.refit(again.cv_results_) == search.best_index_
    assert again.score(x[test], y[test]) == score(search.best_estimator_, x[test], y[test])
    assert refit == best_within(0.1) != best_within(0.2)
    assert repr(score) == "robust_scorer(Ball(norm=2.0, radius=0.4))"
    full = robust_scorer(Ball(2, 0.4), eta=0.1, divergence=QUADRATIC, feature_scale=X.std(axis=0), rng=3)
    assert repr(full).endswith("eta=0.1, divergence=quadratic, feature_scale=<4 numbers>, rng=3)")
    scorers = [robust_scorer(Ball(2, 0.4), eta=0.5, rng=r) for r in (None, None, np.random.default_rng(0))]
    values = [[scorer(forest, x, y) for _ in range(2)] for scorer in scorers]
    assert all(first == second for first, second in values)  # the same points on every call
    assert values[0] != values[1]


def test_feature_scale_gives_raw_features_the_units_of_a_pipeline() -> None:
    """The data are data frames, whose column names are kept."""
    frames = pd.DataFrame(X, columns=list("abcd")), pl.DataFrame(X, schema=list("abcd"))
    for frame in frames:
        model = make_pipeline(StandardScaler(), LogisticRegression()).fit(frame, Y)
        inner = robust_scorer(Ball(2, 0.7))(model[-1], np.asarray(model[0].transform(frame)), Y)
        assert robust_scorer(Ball(2, 0.7), feature_scale=X.std(axis=0))(model, frame, Y) == inner
        limited = robust_scorer(Ball(2, 0.7), feature_scale=[0.0] * 4)(model, frame, Y)
        assert limited == model.score(frame, Y) > inner
        assert robust_scorer(Ball(2, 0.7), eta=0.1, feature_scale=X.std(axis=0))(model, frame, Y) < 0
        forest = RandomForestClassifier(5, random_state=0).fit(frame, Y)
        fixed = robust_scorer(Ball(2, 0.5), n_samples=4, feature_scale=[0.0] * 4)
        assert fixed(forest, frame, Y) == forest.score(frame, Y)
        fixed = robust_scorer(Ball(2, 0.5), eta=0.1, n_samples=4, feature_scale=[0.0] * 4)(forest, frame, Y)
        assert fixed == pytest.approx(robust_scorer(Ball(2, 0.0), eta=0.1, n_samples=4)(forest, frame, Y))


@pytest.mark.slow
def test_networks_train_robustly_and_follow_scikit_learn() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    x = StandardScaler().fit_transform(X).astype(np.float32)
    module = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    options: dict[str, Any] = {"optimizer": torch.optim.Adam, "lr": 0.03, "verbose": 0}
    stop = [EarlyStopping(patience=5)]
    net = RobustClassifier(module, radius=0.3, max_epochs=25, callbacks=stop, **options)
    net.fit(x, Y)
    epochs = len(net.history)
    assert net.score(x, Y) > 0.85
    net.partial_fit(x, Y)
    assert len(net.history) > epochs
    attacked = net.attack(x, Y, Ball(2, 0.5))
    assert np.max(np.linalg.norm(attacked - x, axis=1)) <= 0.5 + 1e-5
    score = robust_scorer(Ball(2, 0.5), n_samples=4)(net, x, Y)
    assert score <= np.mean(net.predict(attacked.astype(np.float32)) == Y) < net.score(x, Y)
    again = pickle.loads(pickle.dumps(net))
    np.testing.assert_array_equal(again.predict(x), net.predict(x))
    assert clone(net).get_params()["radius"] == 0.3
    states = (3, np.random.RandomState(0), np.random.RandomState(0))
    first, second, third = (
        RobustClassifier(module, max_epochs=1, random_state=state, train_split=None, **options).fit(x, Y)
        for state in states
    )
    weights = [model.module_[0].weight.detach() for model in (first, second, third)]
    assert torch.equal(weights[1], weights[2])
    assert not torch.equal(weights[0], weights[1])
    line = torch.nn.Linear(3, 1)
    model = RobustRegressor(line, radius=0.1, max_epochs=60, train_split=None, **options)
    model.fit(x[:, :3], x[:, 3:])
    assert model.score(x[:, :3], x[:, 3:]) > 0.8
    assert robust_scorer(Ball(2, 0.2))(model, x[:, :3], x[:, 3]) < 0


def test_feature_scale_is_matched_by_column_name() -> None:
    """The scales are a Series in any order or a dict; unknown names raise."""
    X = pd.DataFrame(np.random.default_rng(0).normal(size=(80, 3)), columns=list("abc"))
    y = (X.a + 0.5 * X.b + 0.3 * X.c > 0).astype(int)
    named = pd.Series({"a": 1.0, "b": 0.0, "c": 2.0})
    fits, scores = [], []
    for scale in ([1, 0, 2], named, named[::-1], {"b": 0, "c": 2}):
        model = RobustLogisticRegression(radius=0.5, feature_scale=scale).fit(X, y)
        fits.append(model.coef_)
        scores.append(robust_scorer(Ball(2, 0.5), feature_scale=scale)(model, X, y))
    assert all(np.array_equal(coef, fits[0]) for coef in fits)
    assert len(set(scores)) == 1
    for wrong in ({"z": 0}, named.rename({"a": "q"})):
        with pytest.raises(ValueError, match=r"has the key '[zq]'; expected a column of X"):
            robust_scorer(Ball(2, 0.5), feature_scale=wrong)(model, X, y)
        with pytest.raises(ValueError, match=r"has the key '[zq]'; expected a column of X"):
            RobustLogisticRegression(feature_scale=wrong).fit(X, y)
    with pytest.raises(ValueError, match=r"has no entry for \['c'\]; expected the columns of X"):
        RobustLogisticRegression(feature_scale=named[:2]).fit(X, y)


def test_feature_scale_is_matched_by_prefix_and_by_transformer() -> None:
    columns = ["num__age", "num__region_size", "cat__region_north", "cat__region_south", "cat__age_old"]

    def scales(**keys: float) -> Any:
        return by_feature("feature_scale", keys, columns, 5).tolist()

    assert scales(num=0, cat__region_north=3) == [0, 0, 3, 1, 1]
    assert scales(cat=0, cat__region_north=3) == [1, 1, 3, 0, 0]  # a full name is preferred
    assert scales(age=2, cat__region=0) == [2, 1, 0, 0, 1]  # so is a name without its transformer
    assert by_feature("feature_scale", {"region": 0}, ["region_a", "region_b"], 2).tolist() == [0, 0]
    for keys, message in (
        ({"region": 0}, r"which matches \['num__region_size', 'cat__region_north', .*expected full names"),
        ({"cat": 0, "age_old": 1}, r"which matches .*'cat__age_old'.*, as do the keys \['(cat|age_old)'\]"),
        ({"regoin": 0}, r"expected a column .*, such as \['region'"),
        ({"reg": 0}, "has the key 'reg'; expected a column"),
    ):
        with pytest.raises(ValueError, match=message):
            scales(**keys)


def test_transformed_scores_perturb_the_input_of_the_last_step() -> None:
    """Mixed columns in a search; with a scaler alone, the ball is in units of its scales."""
    frame = pd.DataFrame(X, columns=list("abcd")).assign(region=np.where(np.arange(150) % 3 == Y, "u", "v"))
    score = robust_scorer(Ball("linf", 0.3), feature_scale={"onehotencoder": 0}, transformed=True)
    same = robust_scorer(Ball("linf", 0.3), feature_scale=[1, 1, 1, 1, 0, 0])
    for output in ("default", "pandas"):
        encode = make_column_transformer((StandardScaler(), list("abcd")), (OneHotEncoder(), ["region"]))
        encode.set_params(onehotencoder__sparse_output=False).set_output(transform=output)
        model = make_pipeline(encode, RobustLogisticRegression(tol=1e-4))
        grid, folds = {"robustlogisticregression__radius": [0.0, 0.3]}, list(StratifiedKFold(2).split(X, Y))
        search = GridSearchCV(model, grid, scoring=score, cv=folds).fit(frame, Y)
        model.set_params(robustlogisticregression__radius=0.3).fit(frame.iloc[folds[0][0]], Y[folds[0][0]])
        inside = model[0].transform(frame.iloc[folds[0][1]])
        found = search.cv_results_["split0_test_score"][1]
        assert found == same(model[-1], inside, Y[folds[0][1]]) < model[-1].score(inside, Y[folds[0][1]])
    scaled = make_pipeline(StandardScaler(), LogisticRegression()).fit(X, Y)
    raw = robust_scorer(Ball(2, 0.7), feature_scale=X.std(axis=0))
    assert robust_scorer(Ball(2, 0.7), transformed=True)(scaled, X, Y) == raw(scaled, X, Y)


SCALED = StandardScaler().fit_transform(X)


@pytest.mark.parametrize(
    ("model", "y"),
    [
        (SVC(kernel="linear", decision_function_shape="ovo"), Y),  # three scores, of pairs of classes
        (FixedThresholdClassifier(LogisticRegression(), threshold=0.2), 1 * (Y == 1)),
        (VotingClassifier([("a", LogisticRegression()), ("b", RidgeClassifier())]), Y),
        (StackingClassifier([("a", RidgeClassifier())], final_estimator=KNeighborsClassifier()), Y),
        (BaggingClassifier(RidgeClassifier(), random_state=0), Y),
        (make_pipeline(StandardScaler(), KNeighborsClassifier()), Y),
    ],
)
def test_models_without_an_exact_score_are_sampled_and_warn_once_per_scorer(model: Any, y: Any) -> None:
    ball, score = Ball(2, 0.3), robust_scorer(Ball(2, 0.3))
    model.fit(SCALED, y)
    with pytest.warns(UserWarning, match="64 sampled points per example, which is optimistic") as seen:
        value = score(model, SCALED, y)
    assert seen[0].filename == __file__
    points = ball.sample(SCALED, 64, rng=rng(0)).reshape(-1, 4)
    right = (model.predict(points) == np.repeat(y, 64)).reshape(-1, 64)
    assert score(model, SCALED, y) == value == np.mean(np.all(right, axis=1))  # without a second warning
    assert robust_scorer(Ball(2, 0.0))(model, SCALED, y) == model.score(SCALED, y)


def test_linear_models_are_recognized_by_their_class() -> None:
    """Outputs that are affine on the data may decide other predictions elsewhere, as those of the bag do."""
    two, target = 1 * (Y == 1), X[:, 3]
    scale = make_column_transformer((StandardScaler(), [0, 1]), ("drop", [2]), remainder="passthrough")
    clipped = TransformedTargetRegressor(
        LinearRegression(), func=lambda y: y, inverse_func=lambda y: np.maximum(y, -9.0), check_inverse=False
    )
    cases: list[tuple[Any, Any, bool]] = [
        (make_pipeline(SimpleImputer(), scale, PCA(2), LogisticRegression()), two, True),
        (make_pipeline(make_pipeline(SelectKBest(k=2), MinMaxScaler()), RidgeClassifier()), Y, True),
        (GridSearchCV(LinearRegression(), {"fit_intercept": [True]}), target, True),
        (BaggingClassifier(LogisticRegression(), 2, random_state=0), two, False),
        (CalibratedClassifierCV(LogisticRegression()), two, False),
        (make_pipeline(MinMaxScaler(clip=True), LogisticRegression()), two, False),
        (make_pipeline(Normalizer(), LogisticRegression()), two, False),
        (clipped, target, False),
        (SVC(), two, False),
    ]
    for model, y, linear in cases:
        assert is_linear(model.fit(X, y)) == linear, model
    bag = BaggingClassifier(LogisticRegression(), 2, random_state=0).fit(X, two)
    with pytest.warns(UserWarning, match="sampled points per example"):
        robust_scorer(Ball(2, 0.3))(bag, X, two)


def test_scores_of_meta_estimators_of_linear_models_are_exact() -> None:
    score, two = robust_scorer(Ball(2, 0.3)), 1 * (Y == 1)
    machine = RobustSVC(radius=0.1, tol=1e-4).fit(SCALED, two)
    calibrated = CalibratedClassifierCV(FrozenEstimator(machine)).fit(SCALED, two)
    assert not hasattr(machine, "predict_proba")
    logit = np.diff(np.log(calibrated.predict_proba(SCALED)), axis=1)[:, 0]
    margin = machine.decision_function(SCALED)
    slope, offset = np.polyfit(margin, logit, 1)
    right = (2 * two - 1) * (margin + offset / slope) > 0.3 * np.linalg.norm(machine.coef_)
    assert score(calibrated, SCALED, two) == np.mean(right) < calibrated.score(SCALED, two)
    separate = OneVsRestClassifier(LogisticRegression()).fit(SCALED, Y)
    model = LogisticRegression().fit(SCALED, Y)
    model.coef_ = np.vstack([one.coef_ for one in separate.estimators_])
    model.intercept_ = np.concatenate([one.intercept_ for one in separate.estimators_])
    assert score(separate, SCALED, Y) == score(model, SCALED, Y)
    line = TransformedTargetRegressor(LinearRegression(), transformer=StandardScaler()).fit(X[:, :3], X[:, 3])
    plain = LinearRegression().fit(X[:, :3], X[:, 3])
    assert score(line, X[:, :3], X[:, 3]) == pytest.approx(score(plain, X[:, :3], X[:, 3]))


@pytest.mark.slow
def test_networks_accept_the_data_of_the_linear_estimators() -> None:
    """Such data are data frames, float64 arrays and targets of shape (n,)."""
    X = pd.DataFrame(np.random.default_rng(0).normal(size=(120, 3)), columns=list("abc"))
    y = (X.a + 0.5 * X.b > 0).astype(int)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        module = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
        before = module[0].weight.clone()
        options = {"radius": 0.3, "max_epochs": 5, "lr": 0.1, "verbose": 0}
        net = RobustClassifier(module, **options)
        model = make_pipeline(StandardScaler(), net).fit(X, y)
        assert torch.equal(module[0].weight, before)
        linear = RobustRegressor(torch.nn.Linear(3, 1), **{**options, "max_epochs": 60, "radius": 0.01})
        target = (X @ [1.0, 2.0, 3.0]).to_numpy()
        assert linear.fit(X.to_numpy(), target).score(X.to_numpy(), target) > 0.95
        assert linear.predict(X.to_numpy()).shape == target.shape
        for outputs in (1, 3):
            with pytest.raises(ValueError, match=f"returns {outputs} scores; expected"):
                RobustClassifier(torch.nn.Linear(3, outputs), **options).fit(X, y)
        few = RobustClassifier(torch.nn.Linear(3, 3), classes=[0, 1, 2], **options)
        assert few.partial_fit(X, 2 * y).predict(X).shape == (120,)
        assert few.n_features_in_ == 3
        with pytest.raises(ValueError, match="X has 2 features; expected 3"):
            few.predict(X[["a", "b"]])
        with pytest.raises(TypeError, match="RobustClassifier does not support sample_weight"):
            few.fit(X, y, sample_weight=np.ones(120))
        limited = RobustClassifier(module, feature_scale={"b": 0}, **options).fit(X, y)
    score = robust_scorer(Ball(2, 0.5), n_samples=2, transformed=True)
    moved = model[-1].attack(model[0].transform(X), y, Ball(2, 0.5))
    assert score(model, X, y) <= np.mean(model[-1].predict(moved.astype(np.float32)) == y)
    fixed = limited.attack(X.to_numpy(), y.to_numpy(), Ball(2, 0.5, feature_scale=[1, 0, 1]))
    assert np.allclose(fixed[:, 1], X.b, atol=1e-6)
    with pytest.raises(ValueError, match="expected the whole numbers 0, 1"):
        RobustClassifier(module, **options).fit(X.to_numpy(), np.where(y, "no", "yes"))

"""Robust scores against brute force: exact for affine models, not too kind for others; networks of torch."""

from __future__ import annotations

import pickle
from math import inf
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_iris
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from skorch.callbacks import EarlyStopping

from phiball.backends import rng
from phiball.refimpl import Ball
from phiball.refimpl.sklearn import RobustLogisticRegression, RobustSVC, robust_scorer
from phiball.refimpl.sklearn.networks import RobustClassifier, RobustRegressor

X, Y = load_iris(return_X_y=True)
TWO = Y < 2


@pytest.mark.parametrize("norm", [1, 2, inf])
@pytest.mark.parametrize("classes", [2, 3])
def test_worst_case_accuracy_of_linear_models(norm: float, classes: int) -> None:
    """No point of the ball errs where the score says none does, and one does elsewhere: in a pipeline too."""
    ball = Ball(norm, 0.7)
    keep = 3 - classes <= Y
    x, y = X[keep], Y[keep]
    model = make_pipeline(StandardScaler(), LogisticRegression()).fit(x, y)
    score = robust_scorer(ball)(model, x, y)
    # The worst points lie against the difference of two slopes.
    W = np.atleast_2d(model[-1].coef_) / model[0].scale_
    pairs = [W[0], -W[0]] if len(W) == 1 else [a - b for a in W for b in W if a is not b]
    right = model.predict(x) == y
    for direction in pairs:
        for size in (1 - 1e-9, 1.0):
            right &= model.predict(x - size * ball.steepest(direction)) == y
    assert score == pytest.approx(np.mean(right))
    assert 0 < score < model.score(x, y)
    noisy = model.predict(ball.sample(x, 1, rng(3))[:, 0, :]) == y
    assert np.mean(noisy) >= score


def test_regressors_trees_and_risks() -> None:
    """The closed form for least squares; trees by samples; the risk falls with eta towards the mean loss."""
    x, y = X[:, :3], X[:, 3]
    line = LinearRegression().fit(x, y)
    exact = np.mean((np.abs(line.predict(x) - y) + 0.2 * np.linalg.norm(line.coef_)) ** 2)
    assert robust_scorer(Ball(2, 0.2))(line, x, y) == pytest.approx(-exact)
    forest = RandomForestClassifier(10, random_state=0).fit(X, Y)
    assert robust_scorer(Ball(2, 0.5), samples=16)(forest, X, Y) < forest.score(X, Y)
    risks = [robust_scorer(Ball(2, 0.2), eta=eta)(line, x, y) for eta in (0.01, 0.1, 1e6)]
    assert risks[0] < risks[1] < risks[2]
    moved = np.mean((line.predict(x) - y) ** 2 / 2) + np.sum(line.coef_**2) * 0.04 / (2 * 5)
    assert -risks[2] == pytest.approx(moved, rel=0.05)
    model = LogisticRegression(max_iter=1000).fit(X, Y)
    assert robust_scorer(Ball(2, 0.2), eta=0.1)(model, X, Y) < 0
    with pytest.raises(TypeError, match="without predict_proba"):
        robust_scorer(Ball(2, 0.2), eta=0.1)(RobustSVC(tol=1e-4).fit(X[TWO], Y[TWO]), X[TWO], Y[TWO])
    with pytest.raises(TypeError, match=r"ball is 0\.5"):
        robust_scorer(0.5)  # type: ignore[arg-type]


def test_tables_and_scales() -> None:
    """Tables keep their names, so that nothing warns; a scale gives raw features the units of a pipeline."""
    frames = pd.DataFrame(X, columns=list("abcd")), pl.DataFrame(X, schema=list("abcd"))
    for frame in frames:
        model = make_pipeline(StandardScaler(), LogisticRegression()).fit(frame, Y)
        inner = robust_scorer(Ball(2, 0.7))(model[-1], np.asarray(model[0].transform(frame)), Y)
        assert robust_scorer(Ball(2, 0.7), scale=X.std(axis=0))(model, frame, Y) == inner
        held = robust_scorer(Ball(2, 0.7), scale=[0.0] * 4)(model, frame, Y)
        assert held == model.score(frame, Y) > inner
        assert robust_scorer(Ball(2, 0.7), eta=0.1, scale=X.std(axis=0))(model, frame, Y) < 0
        forest = RandomForestClassifier(5, random_state=0).fit(frame, Y)
        assert robust_scorer(Ball(2, 0.5), samples=4, scale=[0.0] * 4)(forest, frame, Y) == forest.score(
            frame, Y
        )
    with pytest.raises(ValueError, match=r"scale is \[1\.0\]; expected 4 numbers, one per feature"):
        robust_scorer(Ball(2, 0.7), scale=[1.0])(model, X, Y)


@pytest.mark.slow
def test_networks() -> None:
    """Training with the robust loss, early stopping, partial_fit, clone, pickle, and an attack as score."""
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
    score = robust_scorer(Ball(2, 0.5), samples=4)(net, x, Y)
    assert score <= np.mean(net.predict(attacked.astype(np.float32)) == Y) < net.score(x, Y)
    again = pickle.loads(pickle.dumps(net))
    np.testing.assert_array_equal(again.predict(x), net.predict(x))
    assert clone(net).get_params()["radius"] == 0.3
    line = torch.nn.Linear(3, 1)
    model = RobustRegressor(line, radius=0.1, max_epochs=60, train_split=None, **options)
    model.fit(x[:, :3], x[:, 3:])
    assert model.score(x[:, :3], x[:, 3:]) > 0.8
    assert robust_scorer(Ball(2, 0.2))(model, x[:, :3], x[:, 3]) < 0


def test_sizes_of_features_go_by_name() -> None:
    """A Series in another order, or a dict, is that of the columns; a wrong name is an error."""
    X = pd.DataFrame(np.random.default_rng(0).normal(size=(80, 3)), columns=list("abc"))
    y = (X.a + 0.5 * X.b + 0.3 * X.c > 0).astype(int)
    named = pd.Series({"a": 1.0, "b": 0.0, "c": 2.0})
    fits, scores = [], []
    for scale in ([1, 0, 2], named, named[::-1], {"b": 0, "c": 2}):
        model = RobustLogisticRegression(radius=0.5, feature_scale=scale).fit(X, y)
        fits.append(model.coef_)
        scores.append(robust_scorer(Ball(2, 0.5), scale=scale)(model, X, y))
    assert all(np.array_equal(coef, fits[0]) for coef in fits)
    assert len(set(scores)) == 1
    for wrong in ({"z": 0}, named.rename({"a": "q"})):
        with pytest.raises(ValueError, match="expected the columns of X"):
            robust_scorer(Ball(2, 0.5), scale=wrong)(model, X, y)
        with pytest.raises(ValueError, match="expected the columns of X"):
            RobustLogisticRegression(feature_scale=wrong).fit(X, y)


@pytest.mark.slow
def test_networks_take_what_the_estimators_take() -> None:
    """Tables, doubles and targets (n,); a module is left as it was, and attacked inside a pipeline too."""
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
        held = RobustClassifier(module, feature_scale={"b": 0}, **options).fit(X, y)
    score = robust_scorer(Ball(2, 0.5), samples=2)
    inside = model[0].transform(X)
    moved = model[-1].attack(inside, y, Ball(2, 0.5, scale=1 / X.std(ddof=0).to_numpy()))
    assert score(model, X, y) <= np.mean(model[-1].predict(moved.astype(np.float32)) == y)
    fixed = held.attack(X.to_numpy(), y.to_numpy(), Ball(2, 0.5, scale=[1, 0, 1]))
    assert np.allclose(fixed[:, 1], X.b, atol=1e-6)
    with pytest.raises(ValueError, match="expected the whole numbers from 0 on"):
        RobustClassifier(module, **options).fit(X.to_numpy(), np.where(y, "no", "yes"))

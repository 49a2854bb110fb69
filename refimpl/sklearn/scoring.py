"""Scores of models under perturbed features: exact for linear ones, by attack or by sampling for others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from sklearn.base import is_classifier

from phiball.backends import rng
from phiball.refimpl.inner.divergences import Divergence
from phiball.refimpl.laws.balls import Ball
from phiball.refimpl.risk.robust_risk import robust_risk
from phiball.refimpl.sklearn.base import by_feature, named_divergence

_AFFINE = 1e-8  # of the predictions: what a linear model, or a pipeline of linear steps, has of rounding


def robust_scorer(
    ball: Ball,
    *,
    eta: float | None = None,
    divergence: str | Divergence = "entropic",
    scale: Any = None,
    samples: int = 64,
    seed: int = 0,
) -> Callable[[Any, Any, Any], float]:
    """A scorer for `GridSearchCV` and `cross_val_score`: larger is better.

    Arguments:
    - `ball`: how far examples move, in the units of the features that the model, or its pipeline, gets. A
      pipeline that standardises gets raw features: give it `scale`, or standardise before the search.
    - `eta`: None scores the worst point of the ball: accuracy for classifiers, minus the mean squared error
      for regressors. A number scores minus the robust risk, of the log loss or of half of the squared error.
    - `divergence`: of the robust risk.
    - `scale`: how far each feature moves, as multiples of the radius (d,), such as X.std(axis=0); 0 holds it.
      A Series of pandas goes by the names of the columns, and so does a dict, in which the others are 1.
    - `samples`: points of the ball per example, for models that are not linear, and for the risk.
    - `seed`: of these points.

    The worst point is exact where predictions are affine functions of the features: whether they are is
    checked on the data and on points around it, so that pipelines with linear steps count too. A network of
    `RobustClassifier` is attacked by its gradient, also behind steps of a pipeline that only shift and scale
    the features. For others the worst of the sampled points is taken, which is too kind to the model.

    >>> import numpy as np
    >>> from sklearn.linear_model import LogisticRegression
    >>> from phiball.refimpl import Ball
    >>> from phiball.refimpl.sklearn import robust_scorer
    >>> X, y = np.array([[-2.0], [-0.4], [0.3], [2.0]]), np.array([0, 0, 1, 1])
    >>> model = LogisticRegression().fit(X, y)
    >>> model.score(X, y), robust_scorer(Ball(2, 1.0))(model, X, y)
    (1.0, 0.5)
    """
    if not isinstance(ball, Ball):
        raise TypeError(f"ball is {ball!r}; expected a Ball such as Ball(2, 0.5)")
    phi = named_divergence(divergence)

    def score(model: Any, X: Any, y: Any) -> float:
        framed, columns = _like(X), getattr(X, "columns", None)
        X, y = np.asarray(X, dtype=np.float64), np.asarray(y)
        law = ball
        if scale is not None:
            law = replace(ball, scale=by_feature("scale", scale, columns, X.shape[1]))
        if eta is not None:
            loss = _losses(model, y, framed)
            return -float(robust_risk(loss, X, law, eta, phi, samples=samples, rng=rng(seed)).value)
        points = law.sample(X, samples, rng(seed))
        affine = _affine(model, X, points[:, 0, :], framed)
        if affine is not None:
            return _worst_affine(model, *affine, y, law)
        attacked = _attacked(model, X, y, law, framed)
        if attacked is not None:
            points = np.concatenate([points, attacked[:, None, :]], axis=1)
        found = np.asarray(model.predict(framed(points.reshape(-1, X.shape[1])))).reshape(points.shape[:2])
        if is_classifier(model):
            return float(np.mean(np.all(found == y[:, None], axis=1)))
        return -float(np.mean(np.max((found - y[:, None]) ** 2, axis=1)))

    return score


def _attacked(model: Any, X: Any, y: Any, ball: Ball, framed: Callable[[Any], Any]) -> Any:
    """The points that the attack of a network finds, alone or at the end of a pipeline; None without one."""
    if hasattr(model, "attack"):
        return model.attack(X, y, ball)
    steps = getattr(model, "steps", None)
    if not steps or not hasattr(steps[-1][1], "attack"):
        return None

    def inside(x: Any) -> Any:
        return np.asarray(model[:-1].transform(framed(x)), dtype=np.float64)

    Z = inside(X)
    if Z.shape != X.shape:
        return None
    size = 1e-3 * (1 + np.abs(X).max())
    slopes = (inside(X[:1] + size * np.eye(X.shape[1])) - Z[:1]) / size
    sizes = np.diag(slopes)
    linear = Z[:1] + (X - X[:1]) * sizes
    tight = _AFFINE * (1 + np.abs(Z).max())
    if not (np.allclose(slopes, np.diag(sizes), atol=1e-6 * np.abs(slopes).max()) and np.all(sizes != 0)):
        return None
    if not np.allclose(linear, Z, rtol=0, atol=1e3 * tight):
        return None
    given = 1.0 if ball.scale is None else ball.scale.values
    found = steps[-1][1].attack(Z, y, replace(ball, scale=np.abs(sizes) * given, clip=None))
    return ball.project(X + (found - Z) / sizes, X)


def _like(X: Any) -> Callable[[Any], Any]:
    """Arrays as what X is: a table with the same columns, or an array of its dtype, as networks want it."""
    columns = getattr(X, "columns", None)
    if columns is None:
        kind = np.asarray(X).dtype
        return lambda x: x.astype(kind)
    name = "columns" if hasattr(X, "iloc") else "schema"  # of pandas, or of polars
    return lambda x: type(X)(x, **{name: list(columns)})


def _affine(model: Any, X: Any, around: Any, framed: Callable[[Any], Any]) -> tuple[Any, Any] | None:
    """(slopes (C, d), values at X (n, C)) if the outputs are affine on the data and around it, else None.

    The outputs are the decision function of a classifier, or the predictions of a regressor.
    """
    function = getattr(model, "decision_function" if is_classifier(model) else "predict", None)
    if function is None:
        return None

    def outputs(x: Any) -> Any:
        return np.asarray(function(framed(x)), dtype=np.float64).reshape(len(x), -1)

    centre, size = X.mean(axis=0), X.std(axis=0) + 1e-3 * (1 + np.abs(X).max())
    base, values = outputs(centre[None, :]), outputs(X)
    slopes = (outputs(centre + np.diag(size)) - base) / size[:, None]
    for points, known in ((X, values), (around, outputs(around))):
        linear = base + (points - centre) @ slopes
        if not np.allclose(linear, known, rtol=0, atol=_AFFINE * (1 + np.abs(known).max())):
            return None
    return slopes.T, values


def _worst_affine(model: Any, slopes: Any, values: Any, y: Any, ball: Ball) -> float:
    """The accuracy, or minus the mean squared error, at the worst point of the ball around each row."""
    if not is_classifier(model):
        reach = ball.radius * float(ball.dual_norm(slopes)[0])
        return -float(np.mean((np.abs(values[:, 0] - y) + reach) ** 2))
    labels = np.searchsorted(model.classes_, y)
    if values.shape[1] == 1:  # ties go to the first class
        reach = ball.radius * float(ball.dual_norm(slopes)[0])
        right = np.where(labels == 1, values[:, 0] - reach > 0, values[:, 0] + reach <= 0)
        return float(np.mean(right))
    right = np.ones(len(y), dtype=bool)
    own = values[np.arange(len(y)), labels]
    for k in range(values.shape[1]):
        reach = ball.radius * ball.dual_norm(slopes[labels] - slopes[k])
        right &= (labels == k) | (own - values[:, k] - reach > 0)
    return float(np.mean(right))


def _losses(model: Any, y: Any, framed: Callable[[Any], Any]) -> Callable[[Any, Any], Any]:
    """loss(x, i): the log loss of the probabilities, or half of the squared error."""
    if not is_classifier(model):

        def half_square(x: Any, i: Any) -> Any:
            found = np.asarray(model.predict(framed(x)), dtype=np.float64)
            return (found.reshape(len(x)) - y[i]) ** 2 / 2

        return half_square
    if not hasattr(model, "predict_proba"):
        raise TypeError(f"model is {model!r}, without predict_proba; expected one with it, or eta=None")
    labels = np.searchsorted(model.classes_, y)

    def loss(x: Any, i: Any) -> Any:
        probabilities = np.asarray(model.predict_proba(framed(x)), dtype=np.float64)
        return -np.log(np.maximum(probabilities[np.arange(len(x)), labels[i]], 1e-300))

    return loss

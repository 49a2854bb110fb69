"""Scores of models under perturbed features: exact for linear ones, by attack or by sampling for others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn.base import is_classifier

from phiball.backends import rng
from phiball.refimpl.inner.divergences import Divergence
from phiball.refimpl.laws.balls import Ball
from phiball.refimpl.risk.robust_risk import robust_risk
from phiball.refimpl.sklearn.base import named_divergence

_AFFINE = 1e-8  # of the predictions: what a linear model, or a pipeline of linear steps, has of rounding


def robust_scorer(
    ball: Ball,
    *,
    eta: float | None = None,
    divergence: str | Divergence = "entropic",
    samples: int = 64,
    seed: int = 0,
) -> Callable[[Any, Any, Any], float]:
    """A scorer for `GridSearchCV` and `cross_val_score`: larger is better.

    Arguments:
    - `ball`: how far examples move, in the units of the features that the model, or its pipeline, gets.
    - `eta`: None scores the worst point of the ball: accuracy for classifiers, minus the mean squared error
      for regressors. A number scores minus the robust risk, of the log loss or of half of the squared error.
    - `divergence`: of the robust risk.
    - `samples`: points of the ball per example, for models that are not linear, and for the risk.
    - `seed`: of these points.

    The worst point is exact where predictions are affine functions of the features: whether they are is
    checked on the data and on points around it, so that pipelines with linear steps count too. A network of
    `RobustClassifier` is attacked by its gradient. For others the worst of the sampled points is taken, which
    is too kind to the model.

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
        kind = np.asarray(X).dtype  # networks insist on theirs
        X, y = np.asarray(X, dtype=np.float64), np.asarray(y)
        points = ball.sample(X, samples, rng(seed))
        if eta is not None:
            loss = _losses(model, y, kind)
            risk = robust_risk(loss, X, ball, eta, phi, samples=samples, rng=rng(seed))
            return -float(risk.value)
        affine = _affine(model, X, points[:, 0, :], kind)
        if affine is not None:
            return _worst_affine(model, *affine, X, y, ball)
        attack = getattr(model, "attack", None)
        if attack is not None:
            points = np.concatenate([points, attack(X, y, ball)[:, None, :]], axis=1)
        flat = points.reshape(-1, X.shape[1])
        found = np.asarray(model.predict(flat.astype(kind))).reshape(points.shape[:2])
        if is_classifier(model):
            return float(np.mean(np.all(found == y[:, None], axis=1)))
        return -float(np.mean(np.max((found - y[:, None]) ** 2, axis=1)))

    return score


def _affine(model: Any, X: Any, around: Any, kind: Any) -> tuple[Any, Any] | None:
    """(slopes (C, d), values at X (n, C)) if the outputs are affine on the data and around it, else None.

    The outputs are the decision function of a classifier, or the predictions of a regressor.
    """
    function = getattr(model, "decision_function" if is_classifier(model) else "predict", None)
    if function is None:
        return None

    def outputs(x: Any) -> Any:
        return np.asarray(function(x.astype(kind)), dtype=np.float64).reshape(len(x), -1)

    centre, size = X.mean(axis=0), X.std(axis=0) + 1e-3 * (1 + np.abs(X).max())
    base, values = outputs(centre[None, :]), outputs(X)
    slopes = (outputs(centre + np.diag(size)) - base) / size[:, None]
    for points, known in ((X, values), (around, outputs(around))):
        linear = base + (points - centre) @ slopes
        if not np.allclose(linear, known, rtol=0, atol=_AFFINE * (1 + np.abs(known).max())):
            return None
    return slopes.T, values


def _worst_affine(model: Any, slopes: Any, values: Any, X: Any, y: Any, ball: Ball) -> float:
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


def _losses(model: Any, y: Any, kind: Any) -> Callable[[Any, Any], Any]:
    """loss(x, i): the log loss of the probabilities, or half of the squared error."""
    if not is_classifier(model):

        def half_square(x: Any, i: Any) -> Any:
            found = np.asarray(model.predict(x.astype(kind)), dtype=np.float64)
            return (found.reshape(len(x)) - y[i]) ** 2 / 2

        return half_square
    if not hasattr(model, "predict_proba"):
        raise TypeError(f"model is {model!r}, without predict_proba; expected one with it, or eta=None")
    labels = np.searchsorted(model.classes_, y)

    def loss(x: Any, i: Any) -> Any:
        probabilities = np.asarray(model.predict_proba(x.astype(kind)), dtype=np.float64)
        return -np.log(np.maximum(probabilities[np.arange(len(x)), labels[i]], 1e-300))

    return loss

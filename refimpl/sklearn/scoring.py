"""Scores of models under perturbed features: exact for linear ones, by attack or by sampling for others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from sklearn.utils.validation import _check_sample_weight

from phiball.backends import rng
from phiball.refimpl.distributions.balls import Ball
from phiball.refimpl.inner.divergences import Divergence, as_divergence
from phiball.refimpl.linear.losses import LinearLoss
from phiball.refimpl.risk.robust_risk import robust_risk
from phiball.refimpl.sklearn.affine import affine_outputs, affine_risk, attacked, like, numbers, right_in_ball
from phiball.refimpl.sklearn.base import by_feature
from phiball.refimpl.sklearn.measures import Measure, measure_of
from phiball.refimpl.validation import valid_count


def robust_scorer(
    ball: Ball,
    *,
    eta: float | None = None,
    divergence: str | Divergence = "entropic",
    feature_scale: Any = None,
    loss: str | LinearLoss | None = None,
    n_samples: int = 64,
    rng: int = 0,
) -> RobustScorer:
    """A scorer for `GridSearchCV` and `cross_val_score`: larger is better.

    Arguments:
    - `ball`: how far examples move, in the units of the features that the model, or its pipeline, gets.
    - `eta`: None scores the worst point of the ball: accuracy for classifiers, minus the mean loss for
      regressors. A number scores minus the robust risk.
    - `divergence`: of the robust risk.
    - `feature_scale`: how far each feature moves, as multiples of the radius (d,), such as X.std(axis=0); 0 holds it.
      A Series or a dict goes by the names of the columns; features that a dict does not name get 1.
    - `loss`: of regressors: squared, absolute, poisson, huber or a `LinearLoss` such as quantile_loss(0.9).
      None takes the one that the model minimises, if it is known, and else the squared error.
    - `n_samples`: points of the ball per example, for models that are not linear.
    - `rng`: of these points.

    It can be called, scorer(model, X, y, sample_weight=None), printed and pickled. Scores are exact where
    predictions are affine in the features, which is checked on the data (the risk in norm 2 alone). Networks
    of `RobustClassifier` are attacked by their gradient; for other models the worst of the sampled points is
    taken, which is too optimistic. refimpl/LINEAR.md says more.

    >>> import numpy as np
    >>> from sklearn.linear_model import LogisticRegression
    >>> from phiball.refimpl import Ball
    >>> from phiball.refimpl.sklearn import robust_scorer
    >>> X, y = np.array([[-2.0], [-0.4], [0.3], [2.0]]), np.array([0, 0, 1, 1])
    >>> model = LogisticRegression().fit(X, y)
    >>> model.score(X, y), robust_scorer(Ball(2, 1.0))(model, X, y)
    (1.0, 0.5)
    """
    return RobustScorer(ball, eta, divergence, feature_scale, loss, n_samples, rng)


@dataclass(frozen=True, repr=False, eq=False)
class RobustScorer:
    """What `robust_scorer` returns: a function of a model, X (n, d), y (n,) and weights of the examples."""

    ball: Ball
    eta: float | None = None
    divergence: str | Divergence = "entropic"
    feature_scale: Any = None
    loss: str | LinearLoss | None = None
    n_samples: int = 64
    rng: int = 0

    def __post_init__(self) -> None:
        """Refuse here what would be an error in a fold of a search."""
        if not isinstance(self.ball, Ball):
            raise TypeError(f"ball is {self.ball!r}; expected a Ball such as Ball(2, 0.5)")
        as_divergence(self.divergence)
        measure_of(None, self.loss)
        valid_count("n_samples", self.n_samples)

    def __repr__(self) -> str:
        """The call that makes it: the ball, and what differs from the defaults."""
        given = [(f.name, getattr(self, f.name)) for f in fields(self)[1:]]
        more = [
            f"{name}={_shown(value)}"
            for (name, value), f in zip(given, fields(self)[1:], strict=True)
            if value is not f.default
        ]
        return f"robust_scorer({', '.join([repr(self.ball), *more])})"

    def _accept_sample_weight(self) -> bool:
        """What `GridSearchCV` asks a scorer before it passes weights on."""
        return True

    def __call__(self, model: Any, X: Any, y: Any, sample_weight: Any = None) -> float:
        """The score of a fitted model, the mean over examples by their weights."""
        framed, columns, y = like(X), getattr(X, "columns", None), np.asarray(y)
        X = numbers(X)
        w = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
        distribution, eta, phi = self.ball, self.eta, as_divergence(self.divergence)
        if self.feature_scale is not None:
            distribution = replace(
                distribution,
                feature_scale=by_feature("feature_scale", self.feature_scale, columns, X.shape[1]),
            )
        measure = measure_of(model, self.loss)
        points = distribution.sample(X, self.n_samples, rng=rng(self.rng))
        affine = affine_outputs(model, X, points[:, 0, :], framed, measure)
        if eta is not None:
            if affine is not None and distribution.norm == 2 and distribution.clip is None:
                exact = affine_risk(model, *affine, X, y, w, distribution, eta, phi, framed, measure)
                if exact is not None:
                    return -exact
            losses = _losses(model, y, framed, measure)
            risk = robust_risk(losses, X, distribution, eta, phi, n_samples=self.n_samples, rng=rng(self.rng))
            return -float(np.average(risk.values, weights=w))
        if affine is not None:
            if distribution.clip is not None:
                raise ValueError(
                    f"ball is {self.ball!r}; expected one without clip for a linear model, whose worst point "
                    "is known in a whole ball"
                )
            return float(np.average(_worst_affine(model, *affine, y, distribution, measure), weights=w))
        worst = attacked(model, X, y, distribution, framed)
        if worst is not None:
            points = np.concatenate([points, worst[:, None, :]], axis=1)
        found = np.asarray(model.predict(framed(points.reshape(-1, X.shape[1])))).reshape(points.shape[:2])
        if measure is None:
            return float(np.average(np.all(found == y[:, None], axis=1), weights=w))
        losses_there = np.max(measure.losses(found, y[:, None]), axis=1)
        return -measure.factor * float(np.average(losses_there, weights=w))


def _shown(value: Any) -> str:
    """A parameter in a repr: divergences by name, columns of numbers by their length."""
    if isinstance(value, Divergence):
        return value.name
    if hasattr(value, "__len__") and not isinstance(value, (str, dict)):
        return f"<{len(value)} numbers>"
    return repr(value)


def _worst_affine(model: Any, slopes: Any, values: Any, y: Any, ball: Ball, measure: Measure | None) -> Any:
    """Whether each row is right, or minus its loss, at the worst point of the ball around it."""
    if measure is None:
        return right_in_ball(model, slopes, values, y, ball)
    reach = ball.radius * float(ball.dual_norm(slopes)[0])
    # A convex loss is largest at an end.
    ends = [measure.loss.jet(values[:, 0] + s * reach, y)[0] for s in (-1, 1)]
    return -measure.factor * np.maximum(*ends)


def _losses(
    model: Any, y: Any, framed: Callable[[Any], Any], measure: Measure | None
) -> Callable[[Any, Any], Any]:
    """loss(x, i): of a regressor's predictions, the log loss of probabilities, or the hinge loss."""
    if measure is not None:

        def of_numbers(x: Any, i: Any) -> Any:
            found = np.asarray(model.predict(framed(x)), dtype=np.float64)
            return measure.losses(found.reshape(len(x)), y[i])

        return of_numbers
    labels = np.searchsorted(model.classes_, y)
    if not hasattr(model, "predict_proba"):
        if not hasattr(model, "decision_function"):
            raise TypeError(
                f"model is {model!r}, without predict_proba and decision_function; expected one of them, or "
                "eta=None"
            )

        def hinge(x: Any, i: Any) -> Any:
            scores = np.asarray(model.decision_function(framed(x)), dtype=np.float64).reshape(len(x), -1)
            own = np.arange(scores.shape[1]) == labels[i][:, None] if scores.shape[1] > 1 else labels[i, None]
            return np.sum(np.maximum(0.0, 1 - np.where(own, 1, -1) * scores), axis=1)

        return hinge

    def log_loss(x: Any, i: Any) -> Any:
        probabilities = np.asarray(model.predict_proba(framed(x)), dtype=np.float64)
        return -np.log(np.maximum(probabilities[np.arange(len(x)), labels[i]], 1e-300))

    return log_loss

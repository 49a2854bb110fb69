"""Scores of models under perturbed features: exact for linear models, by attack or sampling for others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any
from warnings import warn

import numpy as np
from sklearn.utils.validation import _check_sample_weight

from phiball.backends import Rng, as_rng
from phiball.refimpl.distributions.balls import Ball
from phiball.refimpl.inner.divergences import Divergence, as_divergence
from phiball.refimpl.linear.losses import LinearLoss
from phiball.refimpl.risk.robust_risk import robust_risk
from phiball.refimpl.sklearn.affine_models import (
    AffineOutputs,
    ScoredModel,
    affine_risk,
    as_float_matrix,
    input_converter,
    right_in_ball,
)
from phiball.refimpl.sklearn.base import by_feature
from phiball.refimpl.sklearn.regression_loss import regression_loss
from phiball.refimpl.validation import valid_count


def robust_scorer(
    ball: Ball,
    *,
    eta: float | None = None,
    divergence: str | Divergence = "entropic",
    feature_scale: Any = None,
    loss: str | LinearLoss | None = None,
    transformed: bool = False,
    n_samples: int = 64,
    rng: int | Rng | None = 0,
) -> RobustScorer:
    """Create a scorer of robustness for `GridSearchCV` and `cross_val_score`; larger is better.

    Arguments:
    - `ball`: how far examples move, in the units of X, or of the input of the last step if `transformed`.
    - `eta`: None scores each example at the worst point of its ball: by accuracy for classifiers, by minus
      the metric of scikit-learn, such as the squared error, for regressors. A number scores by minus the
      robust risk with this price, of the loss that is minimized, such as half the squared error.
    - `divergence`: the divergence of the robust risk, a name or a `Divergence`.
    - `feature_scale` (d,): how far each feature moves, in multiples of the radius, such as X.std(axis=0); 0
      fixes it. A Series or a dict is matched by name, as in `RobustLogisticRegression`.
    - `loss`: the loss of regressors: squared, absolute, poisson, huber or a `LinearLoss` such as
      quantile_loss(0.9). None means the loss that the model minimizes if it is known, else the squared error.
    - `transformed`: whether the last step of a pipeline is scored, on the output of the other steps: for
      features that are not numbers, or to have the ball in scaled units.
    - `n_samples`: sampled points per example, for nonlinear models.
    - `rng`: seed or generator of the sampled points. Every call uses the same points, so that models are
      compared on equal terms: a generator is used once, when the scorer is created.

    Returns a `RobustScorer`, to be called as scorer(model, X, y, sample_weight=None). For linear models,
    also after affine steps of a pipeline, worst points are exact, and so are risks in norm 2.
    Networks of `RobustClassifier` are attacked by gradient steps. For other models the worst of the sampled
    points is used; the score is then optimistic, of which the scorer warns once. See docs/guides/linear.md.

    >>> import numpy as np
    >>> from sklearn.linear_model import LogisticRegression
    >>> from phiball import Ball
    >>> from phiball.sklearn import robust_scorer
    >>> X, y = np.array([[-2.0], [-0.4], [0.3], [2.0]]), np.array([0, 0, 1, 1])
    >>> model = LogisticRegression().fit(X, y)
    >>> model.score(X, y), robust_scorer(Ball(2, 1.0))(model, X, y)
    (1.0, 0.5)
    """
    return RobustScorer(ball, eta, divergence, feature_scale, loss, transformed, n_samples, rng)


@dataclass(frozen=True, repr=False, eq=False)
class RobustScorer:
    """The scorer that `robust_scorer` returns."""

    ball: Ball
    eta: float | None = None
    divergence: str | Divergence = "entropic"
    feature_scale: Any = None
    loss: str | LinearLoss | None = None
    transformed: bool = False
    n_samples: int = 64
    rng: int | Rng | None = 0
    _warned = False  # not a field

    def __post_init__(self) -> None:
        """Validate the arguments now: in a search, an error in a fold is only a warning."""
        if not isinstance(self.ball, Ball):
            raise TypeError(f"ball is {self.ball!r}; expected a Ball such as Ball(2, 0.5)")
        as_divergence(self.divergence)
        regression_loss(None, self.loss)
        valid_count("n_samples", self.n_samples)
        generator = as_rng(self.rng)
        if not isinstance(self.rng, (int, np.integer)):
            seed = int(2.0**53 * float(generator.uniform((), like=np.empty(0))))
            object.__setattr__(self, "rng", seed)

    def __repr__(self) -> str:
        """The call that creates the scorer, with arguments that differ from the defaults."""
        given = [(f.name, getattr(self, f.name)) for f in fields(self)[1:]]
        more = [
            f"{name}={_short_repr(value)}"
            for (name, value), f in zip(given, fields(self)[1:], strict=True)
            if value is not f.default
        ]
        return f"robust_scorer({', '.join([repr(self.ball), *more])})"

    def _accept_sample_weight(self) -> bool:
        """Tell `GridSearchCV` to pass sample weights."""
        return True

    def __call__(self, model: Any, X: Any, y: Any, sample_weight: Any = None) -> float:
        """The score of a fitted model: the weighted mean over the examples."""
        names = None
        if self.transformed:
            model, X, names = _last_step(model, X)
        as_input, columns, y = input_converter(X), getattr(X, "columns", names), np.asarray(y)
        X = as_float_matrix(X)
        w = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
        ball, eta, divergence = self.ball, self.eta, as_divergence(self.divergence)
        if self.feature_scale is not None:
            sizes = by_feature("feature_scale", self.feature_scale, columns, X.shape[1])
            ball = replace(ball, feature_scale=sizes)
        loss = regression_loss(model, self.loss)
        scored = ScoredModel(model, X, y, w, as_input, loss)
        affine = scored.affine_outputs(ball.sample(X, 1, rng=as_rng(self.rng))[:, 0, :])
        if eta is not None:
            if affine is not None and ball.norm == 2 and ball.clip is None:
                exact = affine_risk(scored, affine, ball, eta, divergence)
                if exact is not None:
                    return -exact
            self._warn_if_sampled(model, ball)
            losses = _losses(scored)
            risk = robust_risk(
                losses, X, ball, eta, divergence, n_samples=self.n_samples, rng=as_rng(self.rng)
            )
            return -float(np.average(risk.values, weights=w))
        if affine is not None:
            if ball.clip is not None:
                raise ValueError(
                    f"ball is {self.ball!r}; expected a ball without clip: the worst point of a linear model "
                    "in a clipped ball is not known"
                )
            return float(np.average(_worst_affine(scored, affine, ball), weights=w))
        points = ball.sample(X, self.n_samples, rng=as_rng(self.rng))
        if hasattr(model, "attack"):
            points = np.concatenate([points, model.attack(X, y, ball)[:, None, :]], axis=1)
        else:
            self._warn_if_sampled(model, ball)
        found = np.asarray(model.predict(as_input(points.reshape(-1, X.shape[1])))).reshape(points.shape[:2])
        if loss is None:
            return float(np.average(np.all(found == y[:, None], axis=1), weights=w))
        losses_there = np.max(loss.losses(found, y[:, None]), axis=1)
        return -loss.factor * float(np.average(losses_there, weights=w))

    def _warn_if_sampled(self, model: Any, ball: Ball) -> None:
        """Warn once that scores are optimistic, at the line that calls the scorer."""
        if self._warned or ball.reach == 0:
            return
        object.__setattr__(self, "_warned", True)
        hint = "; for a pipeline, transformed=True scores its last step" if hasattr(model, "steps") else ""
        warn(
            f"{type(model).__name__} has no exact score in this ball: it is scored at {self.n_samples} "
            f"sampled points per example, which is optimistic{hint}",
            stacklevel=3,
        )


def _last_step(model: Any, X: Any) -> tuple[Any, Any, Any]:
    """The last step of a pipeline, the output of the other steps for X, and its names or None."""
    if len(getattr(model, "steps", ())) < 2:
        raise TypeError(f"model is {model!r}; expected a pipeline of two or more steps, for transformed=True")
    others = model[:-1]
    try:
        names = others.get_feature_names_out()
    except (AttributeError, ValueError):  # not every transformer names its output
        names = None
    return model[-1], others.transform(X), names


def _short_repr(value: Any) -> str:
    """A short repr: the name of a divergence, the length of an array."""
    if isinstance(value, Divergence):
        return value.name
    if hasattr(value, "__len__") and not isinstance(value, (str, dict)):
        return f"<{len(value)} numbers>"
    return repr(value)


def _worst_affine(scored: ScoredModel, outputs: AffineOutputs, ball: Ball) -> Any:
    """For each row, at its worst point: whether it is classified correctly, or minus a regressor's loss."""
    loss = scored.loss
    if loss is None:
        return right_in_ball(scored, outputs, ball)
    reach = ball.radius * float(ball.dual_norm(outputs.slopes)[0])
    # A convex loss is largest at an end of the range of predictions.
    ends = [loss.loss.jet(outputs.values[:, 0] + s * reach, scored.y)[0] for s in (-1, 1)]
    return -loss.factor * np.maximum(*ends)


def _losses(scored: ScoredModel) -> Callable[[Any, Any], Any]:
    """The function loss(x, i) of a model: the regression loss, the log loss or else the hinge loss."""
    model, as_input, loss = scored.model, scored.as_input, scored.loss
    if loss is not None:

        def of_numbers(x: Any, i: Any) -> Any:
            found = np.asarray(model.predict(as_input(x)), dtype=np.float64)
            return loss.losses(found.reshape(len(x)), scored.y[i])

        return of_numbers
    labels = scored.labels
    if not hasattr(model, "predict_proba"):
        if not hasattr(model, "decision_function"):
            raise TypeError(
                f"model is {model!r}, which has neither predict_proba nor decision_function: use eta=None"
            )
        last = model.steps[-1][1] if hasattr(model, "steps") else model
        if len(model.classes_) > 2 and getattr(last, "decision_function_shape", "ovr") == "ovo":
            raise TypeError(f'model is {model!r}; expected decision_function_shape="ovr", or use eta=None')

        def hinge(x: Any, i: Any) -> Any:
            scores = np.asarray(model.decision_function(as_input(x)), dtype=np.float64).reshape(len(x), -1)
            own = np.arange(scores.shape[1]) == labels[i][:, None] if scores.shape[1] > 1 else labels[i, None]
            return np.sum(np.maximum(0.0, 1 - np.where(own, 1, -1) * scores), axis=1)

        return hinge

    def log_loss(x: Any, i: Any) -> Any:
        probabilities = np.asarray(model.predict_proba(as_input(x)), dtype=np.float64)
        return -np.log(np.maximum(probabilities[np.arange(len(x)), labels[i]], 1e-300))

    return log_loss

"""Models whose outputs are affine in the features: detection, and their exact worst cases."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import expit, softmax
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import ColumnTransformer, TransformedTargetRegressor
from sklearn.decomposition import PCA, TruncatedSVD
from sklearn.feature_selection import SelectorMixin
from sklearn.frozen import FrozenEstimator
from sklearn.impute import SimpleImputer
from sklearn.multiclass import OneVsRestClassifier
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import (
    FunctionTransformer,
    MaxAbsScaler,
    MinMaxScaler,
    RobustScaler,
    StandardScaler,
)
from sklearn.utils import check_array

from phiball.refimpl.distributions.balls import Ball
from phiball.refimpl.inner.divergences import Divergence
from phiball.refimpl.linear.problem import LinearProblem
from phiball.refimpl.linear.risk import linear_model_risk
from phiball.refimpl.sklearn.regression_loss import RegressionLoss

_AFFINE_STEPS = (StandardScaler, MaxAbsScaler, RobustScaler, PCA, TruncatedSVD, SelectorMixin)
_AFFINE = 1e-8  # tolerance for an affine model, relative to the predictions: a pipeline of steps rounds


@dataclass(frozen=True)
class ScoredModel:
    """A fitted model and the data it is scored on.

    - `X` (n, d) float64, `y` (n,), `sample_weight` (n,): the data.
    - `as_input`: a function that converts rows (k, d) to the type of the user's X, such as a data frame.
    - `loss`: the loss of a regressor; None for a classifier.
    """

    model: Any
    X: Any
    y: Any
    sample_weight: Any
    as_input: Callable[[Any], Any]
    loss: RegressionLoss | None

    @property
    def labels(self) -> Any:
        """The labels of a classifier as class numbers (n,)."""
        return np.searchsorted(self.model.classes_, self.y)

    def affine_outputs(self, around: Any) -> AffineOutputs | None:
        """The outputs of a linear model, checked on the data and at the points `around` (n, d), else None.

        The output of a classifier is its decision function, or the logit of the probability of two classes;
        None if it does not decide the predictions. For a regressor it is the linear predictor of its loss.
        """
        names = ("decision_function", "predict_proba") if self.loss is None else ("predict",)
        name = next((name for name in names if hasattr(self.model, name)), None)
        if name is None or not is_linear(self.model):
            return None

        def outputs(x: Any) -> Any:
            found = np.asarray(getattr(self.model, name)(self.as_input(x)), dtype=np.float64)
            if self.loss is not None:
                found = self.loss.link(found)
            elif name == "predict_proba":
                with np.errstate(divide="ignore"):
                    found = np.diff(np.log(found)) if found.shape[1] == 2 else np.full(len(x), np.nan)
            return found.reshape(len(x), -1)

        found = find_affine(outputs, self.X, around)
        if found is not None and self.loss is None:
            points = np.concatenate([self.X, around])
            if not decides(self.model, self.as_input(points), outputs(points)):
                return None
        return found


@dataclass(frozen=True)
class AffineOutputs:
    """Outputs that are affine in the features: their slopes (C, d), and their values (n, C) on the data."""

    slopes: Any
    values: Any


def is_linear(model: Any) -> bool:
    """Whether a fitted model is linear, after affine steps and in some meta-estimators, judged by its class.

    Outputs at points are not enough: they may be affine at all of them, but not elsewhere.
    """
    if isinstance(model, Pipeline):
        return is_affine_step(model[:-1]) and is_linear(model[-1])
    if isinstance(model, TransformedTargetRegressor):
        return is_affine_step(model.transformer_) and is_linear(model.regressor_)
    if isinstance(model, OneVsRestClassifier):
        return all(is_linear(member) for member in model.estimators_)
    if isinstance(model, CalibratedClassifierCV):
        members = model.calibrated_classifiers_
        return len(members) == 1 and is_linear(members[0].estimator)
    if isinstance(model, FrozenEstimator):
        return is_linear(model.estimator)
    return is_linear(model.best_estimator_) if hasattr(model, "best_estimator_") else hasattr(model, "coef_")


def is_affine_step(step: Any) -> bool:
    """Whether a fitted transformer is affine for numbers, judged by its class."""
    if isinstance(step, Pipeline):
        return all(is_affine_step(part) for _, part in step.steps)
    if isinstance(step, ColumnTransformer):
        return all(is_affine_step(part) for _, part, _ in step.transformers_)
    if isinstance(step, FunctionTransformer):
        return step.func is None and step.inverse_func is None
    if isinstance(step, MinMaxScaler):
        return not step.clip
    if isinstance(step, SimpleImputer):  # keeps numbers
        return bool(step.missing_values != step.missing_values and not step.add_indicator)
    return step in (None, "passthrough", "drop") or isinstance(step, _AFFINE_STEPS)


def find_affine(outputs: Callable[[Any], Any], X: Any, around: Any) -> AffineOutputs | None:
    """The outputs (n, C) of a function if they are affine at X and `around`, both (n, d), else None."""
    points, n = np.concatenate([X, around]), len(X)
    known = outputs(points)
    if not np.all(np.isfinite(known)):
        return None
    centre, size = X.mean(axis=0), X.std(axis=0) + 1e-3 * (1 + np.abs(X).max())
    base, d = outputs(centre[None, :]), len(size)
    step = max(1, 2**22 // d)  # features at a time, to limit memory
    moved = [outputs(centre + np.eye(min(step, d - j), d, j) * size) for j in range(0, d, step)]
    slopes = (np.concatenate(moved) - base) / size[:, None]
    linear = base + (points - centre) @ slopes
    affine = np.allclose(linear, known, rtol=0, atol=_AFFINE * (1 + np.abs(known).max()))
    return AffineOutputs(slopes.T, known[:n]) if affine else None


def decides(model: Any, x: Any, outputs: Any) -> bool:
    """Whether the outputs (k, C) of a classifier at x (k, d), one per class, decide its predictions."""
    classes = np.asarray(model.classes_)
    if outputs.shape[1] == 1:
        chosen = (outputs[:, 0] > 0).astype(int)
    elif outputs.shape[1] == len(classes):
        chosen = outputs.argmax(axis=1)
    else:
        return False
    return bool(np.all(np.asarray(model.predict(x)) == classes[chosen]))


def affine_risk(
    scored: ScoredModel, outputs: AffineOutputs, ball: Ball, eta: float, divergence: Divergence
) -> float | None:
    """The robust risk on a Euclidean ball, without sampling; None if the loss of a classifier is unknown."""
    slopes, values = outputs.slopes, outputs.values
    intercept = np.mean(values - scored.X @ slopes.T, axis=0)
    many = values.shape[1] > 1
    if scored.loss is not None:
        loss: Any = scored.loss.loss
        targets = scored.y.astype(np.float64)
    else:
        labels = scored.labels
        targets = 1.0 * labels if many else 2.0 * labels - 1
        loss = "multinomial" if many else "logistic"
        if many and (eta == 0 or labels.max() + 1 < values.shape[1]):
            return None
        if hasattr(scored.model, "predict_proba"):
            found = np.asarray(scored.model.predict_proba(scored.as_input(scored.X)), dtype=np.float64)
            known = softmax(values, axis=1) if many else np.hstack([expit(-values), expit(values)])
            if not np.allclose(found, known, rtol=0, atol=1e-6):
                return None
        elif many:
            return None
        else:
            loss = "hinge"
    sizes = None if ball.feature_scale is None else ball.feature_scale.values
    problem = LinearProblem(loss, Ball(2, ball.radius), eta, divergence, feature_scale=sizes)
    coef, last = (slopes, intercept) if many else (slopes[0], float(intercept[0]))
    return linear_model_risk(problem, coef, last, scored.X, targets, sample_weight=scored.sample_weight).value


def right_in_ball(scored: ScoredModel, outputs: AffineOutputs, ball: Ball) -> Any:
    """Whether each row is classified correctly everywhere in the ball around it (n,)."""
    labels, slopes, values = scored.labels, outputs.slopes, outputs.values
    if values.shape[1] == 1:  # a decision function of 0 means the first class
        reach = ball.radius * float(ball.dual_norm(slopes)[0])
        return np.where(labels == 1, values[:, 0] - reach > 0, values[:, 0] + reach <= 0)
    right = np.ones(len(labels), dtype=bool)
    own = values[np.arange(len(labels)), labels]
    for k in range(values.shape[1]):
        reach = ball.radius * ball.dual_norm(slopes[labels] - slopes[k])
        right &= (labels == k) | (own - values[:, k] - reach > 0)
    return right


def as_float_matrix(X: Any) -> Any:
    """X as a float64 array (n, d); raises TypeError or ValueError for other data."""
    try:
        return check_array(X, dtype=np.float64, ensure_all_finite=False)
    except ValueError as error:
        raise ValueError(
            f"{error}; if X has entries that are not numbers, score a pipeline with transformed=True"
        ) from None


def input_converter(X: Any) -> Callable[[Any], Any]:
    """A function that converts arrays to the type of X: a data frame, or an array of the dtype of X."""
    columns = getattr(X, "columns", None)
    if columns is None:
        kind = np.asarray(X).dtype
        kind = kind if kind.kind == "f" else np.dtype(np.float64)  # integers would round perturbations
        return lambda x: x.astype(kind)
    name = "columns" if hasattr(X, "iloc") else "schema"  # pandas has iloc; polars calls columns schema
    return lambda x: type(X)(x, **{name: list(columns)})

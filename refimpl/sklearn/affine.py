"""Models whose outputs are affine functions of their features: how they are told, and their worst cases."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from scipy.sparse import issparse
from scipy.special import expit, softmax

from phiball.refimpl.distributions.balls import Ball
from phiball.refimpl.inner.divergences import Divergence
from phiball.refimpl.linear.problem import LinearProblem
from phiball.refimpl.linear.risk import linear_model_risk
from phiball.refimpl.sklearn.measures import Measure

_AFFINE = 1e-8  # of the predictions: what a linear model, or a pipeline of linear steps, has of rounding


def affine_outputs(
    model: Any, X: Any, around: Any, framed: Callable[[Any], Any], measure: Measure | None
) -> tuple[Any, Any] | None:
    """(slopes (C, d), values at X (n, C)) if the outputs are affine on the data and around it, else None.

    The outputs are the decision function of a classifier, or what the loss of a regressor is a function of.
    """
    function = getattr(model, "decision_function" if measure is None else "predict", None)
    if function is None:
        return None

    def outputs(x: Any) -> Any:
        found = np.asarray(function(framed(x)), dtype=np.float64)
        return (found if measure is None else measure.link(found)).reshape(len(x), -1)

    centre, size = X.mean(axis=0), X.std(axis=0) + 1e-3 * (1 + np.abs(X).max())
    base, values = outputs(centre[None, :]), outputs(X)
    slopes = (outputs(centre + np.diag(size)) - base) / size[:, None]
    for points, known in ((X, values), (around, outputs(around))):
        linear = base + (points - centre) @ slopes
        if not np.allclose(linear, known, rtol=0, atol=_AFFINE * (1 + np.abs(known).max())):
            return None
    return slopes.T, values


def affine_risk(
    model: Any,
    slopes: Any,
    values: Any,
    X: Any,
    y: Any,
    sample_weight: Any,
    ball: Ball,
    eta: float,
    phi: Divergence,
    framed: Callable[[Any], Any],
    measure: Measure | None,
) -> float | None:
    """The robust risk on a Euclidean ball without sampling; None where the loss is not known."""
    intercept = np.mean(values - X @ slopes.T, axis=0)
    many = values.shape[1] > 1
    if measure is not None:
        loss: Any = measure.loss
        targets = y.astype(np.float64)
    else:
        labels = np.searchsorted(model.classes_, y)
        targets = 1.0 * labels if many else 2.0 * labels - 1
        loss = "multinomial" if many else "logistic"
        if many and (eta == 0 or labels.max() + 1 < values.shape[1]):
            return None
        if hasattr(model, "predict_proba"):
            found = np.asarray(model.predict_proba(framed(X)), dtype=np.float64)
            known = softmax(values, axis=1) if many else np.hstack([expit(-values), expit(values)])
            if not np.allclose(found, known, rtol=0, atol=1e-6):
                return None
        elif many:
            return None
        else:
            loss = "hinge"
    sizes = None if ball.feature_scale is None else ball.feature_scale.values
    problem = LinearProblem(loss, Ball(2, ball.radius), eta, phi, feature_scale=sizes)
    coef, last = (slopes, intercept) if many else (slopes[0], float(intercept[0]))
    return linear_model_risk(problem, coef, last, X, targets, sample_weight=sample_weight).value


def right_in_ball(model: Any, slopes: Any, values: Any, y: Any, ball: Ball) -> Any:
    """Whether each row has its class in all of the ball around it, (n,)."""
    labels = np.searchsorted(model.classes_, y)
    if values.shape[1] == 1:  # ties go to the first class
        reach = ball.radius * float(ball.dual_norm(slopes)[0])
        return np.where(labels == 1, values[:, 0] - reach > 0, values[:, 0] + reach <= 0)
    right = np.ones(len(y), dtype=bool)
    own = values[np.arange(len(y)), labels]
    for k in range(values.shape[1]):
        reach = ball.radius * ball.dual_norm(slopes[labels] - slopes[k])
        right &= (labels == k) | (own - values[:, k] - reach > 0)
    return right


def attacked(model: Any, X: Any, y: Any, ball: Ball, framed: Callable[[Any], Any]) -> Any:
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
    given = 1.0 if ball.feature_scale is None else ball.feature_scale.values
    found = steps[-1][1].attack(Z, y, replace(ball, scale=np.abs(sizes) * given, clip=None))
    return ball.project(X + (found - Z) / sizes, X)


def numbers(X: Any) -> Any:
    """X as an array of doubles, or an error that says what to do."""
    last = "score the last step of a pipeline, model[-1], on model[:-1].transform(X)"
    if issparse(X):
        raise TypeError(
            f"X is sparse; expected a dense array, as a perturbation fills it: X.toarray(), or {last}"
        )
    try:
        found = np.asarray(X, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"X has entries that are no numbers ({error}): encode them first, and {last}"
        ) from None
    if found.ndim != 2:
        raise ValueError(f"X has shape {found.shape}; expected (n, d), one row per example")
    return found


def like(X: Any) -> Callable[[Any], Any]:
    """Arrays as what X is: a table with the same columns, or an array of its precision, for networks."""
    columns = getattr(X, "columns", None)
    if columns is None:
        kind = np.asarray(X).dtype
        kind = kind if kind.kind == "f" else np.dtype(np.float64)  # whole numbers would undo what is moved
        return lambda x: x.astype(kind)
    name = "columns" if hasattr(X, "iloc") else "schema"  # of pandas, or of polars
    return lambda x: type(X)(x, **{name: list(columns)})

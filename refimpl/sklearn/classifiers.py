"""Robust classifiers: logistic regression and the linear support vector machine."""

from __future__ import annotations

from inspect import signature
from typing import Any

import numpy as np
from scipy.special import expit, softmax
from sklearn.base import ClassifierMixin
from sklearn.utils.class_weight import compute_class_weight
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from phiball.refimpl.inner.divergences import Divergence
from phiball.refimpl.linear.fit import LinearModel
from phiball.refimpl.linear.problem import Reweighting
from phiball.refimpl.sklearn.base import RobustLinearModel, store_parameters
from phiball.refimpl.validation import valid_number


class BaseRobustClassifier(ClassifierMixin, RobustLinearModel):  # type: ignore[misc]
    """A classifier of two or more classes.

    `_one_fit` says whether more than two classes are one problem, and `_weighted_counts` whether balanced
    class weights count sample weights.
    """

    C: float
    class_weight: Any
    _loss: str
    _one_fit: bool
    _weighted_counts: bool

    def __init__(
        self,
        *,
        radius: float = 0.1,
        eta: float = 0.1,
        C: float = 1.0,
        divergence: str | Divergence = "entropic",
        norm: str | float = 2,
        feature_scale: Any = None,
        reweighting: Reweighting | None = None,
        fit_intercept: bool = True,
        class_weight: Any = None,
        n_points: int = 256,
        tol: float = 1e-8,
        max_iter: int = 1000,
    ) -> None:
        store_parameters(self, locals())

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Any:
        """Fit the model to features X (n, d) and labels y (n,)."""
        X, labels, weights = self._read(X, y, sample_weight)
        self._fit_classes(X, labels, weights)
        self._warn(self.solutions_)
        return self

    def _read(self, X: Any, y: Any, sample_weight: Any) -> tuple[Any, Any, Any]:
        """(X, class numbers, weights), all validated; sets `classes_`."""
        valid_number("C", self.C, above=0.0, infinite=True)
        X, y = validate_data(self, X, y, dtype=np.float64)
        try:
            check_classification_targets(y)
            self.classes_, labels = np.unique(y, return_inverse=True)
        except TypeError:
            kinds = sorted({type(label).__name__ for label in y})
            raise TypeError(f"y has labels of types {', '.join(kinds)}; expected a single type") from None
        if len(self.classes_) < 2:
            raise ValueError(f"y has one class, {self.classes_.tolist()[0]!r}; expected at least two classes")
        weights = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
        if self.class_weight is not None:
            counted = weights if self._weighted_counts else None
            factors = _of_classes(self.class_weight, self.classes_, y, counted)[labels]
            weights = weights * np.where(weights > 0, factors, 0.0)  # infinite if a class has no weight
        return X, labels, weights

    def _fit_classes(self, X: Any, labels: Any, weights: Any, start: list[LinearModel] | None = None) -> None:
        ridge = 1 / (self.C * weights.sum())  # 0 for C = inf
        targets: list[tuple[str, Any]]
        if len(self.classes_) == 2:
            targets = [(self._loss, 2.0 * labels - 1)]
        elif self._one_fit:
            targets = [("multinomial", labels)]
        else:  # one against the rest
            targets = [(self._loss, np.where(labels == k, 1.0, -1.0)) for k in range(len(self.classes_))]
        starts: list[Any] = [None] * len(targets) if start is None else list(start)
        found = [
            self._solve(loss, ridge, X, y, weights, begin)
            for (loss, y), begin in zip(targets, starts, strict=True)
        ]
        self._keep(found)
        self.solutions_ = found
        self.coef_ = np.vstack([model.coef for model in found])
        self.intercept_ = np.concatenate([np.ravel(model.intercept) for model in found])

    def decision_function(self, X: Any) -> Any:
        """The scores theta.x + c: (n,) for two classes, otherwise (n, C)."""
        check_is_fitted(self)
        scores = validate_data(self, X, dtype=np.float64, reset=False) @ self.coef_.T + self.intercept_
        return scores[:, 0] if scores.shape[1] == 1 else scores

    def predict(self, X: Any) -> Any:
        """The class of each row of X."""
        scores = self.decision_function(X)
        return self.classes_[(scores > 0).astype(int) if scores.ndim == 1 else scores.argmax(axis=1)]


def _of_classes(class_weight: Any, classes: Any, y: Any, counted: Any) -> Any:
    """The class weights; since 1.9, scikit-learn's logistic regression balances weighted counts."""
    weighted = "sample_weight" in signature(compute_class_weight).parameters
    more = {"sample_weight": counted} if weighted else {}
    with np.errstate(divide="ignore"):
        return compute_class_weight(class_weight, classes=classes, y=y, **more)


class RobustLogisticRegression(BaseRobustClassifier):
    """Robust logistic regression, multinomial for three or more classes.

    With `radius=0` it is scikit-learn's `LogisticRegression(C=C)`: the ridge is 1/(C n). C = inf means no
    ridge, and then `gap_` is infinite. Three classes are as exact as two; four or more use Sobol points (see
    `phiball.linear.multinomial_objective`). Other parameters are those of `RobustLinearModel`.
    """

    _loss = "logistic"
    _one_fit = True
    _weighted_counts = True

    def predict_proba(self, X: Any) -> Any:
        """The probabilities of the classes, (n, C)."""
        scores = self.decision_function(X)
        if scores.ndim == 1:
            return np.stack([expit(-scores), expit(scores)], axis=1)
        return softmax(scores, axis=1)

    def predict_log_proba(self, X: Any) -> Any:
        """The logarithms of `predict_proba`."""
        with np.errstate(divide="ignore"):
            return np.log(self.predict_proba(X))


class RobustSVC(BaseRobustClassifier):
    """Robust support vector machine with a linear kernel, one-vs-rest for three or more classes.

    With `radius=0` and two classes it is scikit-learn's `SVC(kernel="linear", C=C)`. Other parameters are
    those of `RobustLinearModel`.
    """

    _loss = "hinge"
    _one_fit = False
    _weighted_counts = False

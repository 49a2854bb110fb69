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

    - `_multinomial`: whether three or more classes are fitted jointly, instead of one against the rest.
    - `_balances_weights`: whether class_weight="balanced" counts sample weights instead of examples.
    """

    C: float
    class_weight: Any
    _loss: str
    _multinomial: bool
    _balances_weights: bool

    def __init__(
        self,
        *,
        radius: float = 0.1,
        eta: float = 0.1,
        C: float = 1.0,
        divergence: str | Divergence = "entropic",
        norm: str | float = 2,
        reference: str = "ball",
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
        X, labels, weights = self._validate(X, y, sample_weight)
        self._fit_classes(X, labels, weights)
        self._warn_if_inexact(self.solutions_)
        self._warn_if_unscaled(X, self.radius)
        return self

    def _validate(self, X: Any, y: Any, sample_weight: Any) -> tuple[Any, Any, Any]:
        """Validate the data, and return (X, class numbers, weights); sets `classes_`."""
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
            counted = weights if self._balances_weights else None
            factors = _class_weights(self.class_weight, self.classes_, y, counted)[labels]
            weights = weights * np.where(weights > 0, factors, 0.0)  # factors may be infinite at weight 0
        return X, labels, weights

    def _fit_classes(self, X: Any, labels: Any, weights: Any, start: list[LinearModel] | None = None) -> None:
        ridge = 1 / (self.C * weights.sum())  # 0 for C = inf
        targets: list[tuple[str, Any]]
        if len(self.classes_) == 2:
            targets = [(self._loss, 2.0 * labels - 1)]
        elif self._multinomial:
            targets = [("multinomial", labels)]
        else:  # one against the rest
            targets = [(self._loss, np.where(labels == k, 1.0, -1.0)) for k in range(len(self.classes_))]
        starts: list[Any] = [None] * len(targets) if start is None else list(start)
        found = [
            self._solve(loss, ridge, X, y, weights, begin)
            for (loss, y), begin in zip(targets, starts, strict=True)
        ]
        self._set_results(found)
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


def _class_weights(class_weight: Any, classes: Any, y: Any, counted: Any) -> Any:
    """The class weights; since version 1.9, scikit-learn can balance by sample weights `counted`."""
    weighted = "sample_weight" in signature(compute_class_weight).parameters
    more = {"sample_weight": counted} if weighted else {}
    with np.errstate(divide="ignore"):
        return compute_class_weight(class_weight, classes=classes, y=y, **more)


class RobustLogisticRegression(BaseRobustClassifier):
    """Robust logistic regression, multinomial for three or more classes.

    With `radius=0` it is scikit-learn's `LogisticRegression(C=C)`: the ridge is 1/(C n). With C = inf there
    is no ridge, and `gap_` is infinite. Two and three classes need no sampling; four or more use Sobol points
    (see refimpl/linear/multinomial_objective.py). Other parameters are those of `RobustLinearModel`.

    >>> import numpy as np
    >>> from phiball.sklearn import RobustLogisticRegression
    >>> X, y = np.array([[-2.0], [-1.0], [1.0], [2.0]]), [0, 0, 1, 1]
    >>> plain, robust = (RobustLogisticRegression(radius=r).fit(X, y) for r in (0, 0.5))
    >>> bool(0 < robust.coef_[0, 0] < plain.coef_[0, 0]), robust.predict([[0.5]]).tolist()
    (True, [1])
    """

    _loss = "logistic"
    _multinomial = True
    _balances_weights = True

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

    >>> import numpy as np
    >>> from phiball.sklearn import RobustSVC
    >>> model = RobustSVC(radius=0.5).fit(np.array([[-2.0], [-1.0], [1.0], [2.0]]), [0, 0, 1, 1])
    >>> model.predict([[-0.5], [0.5]]).tolist()
    [0, 1]
    """

    _loss = "hinge"
    _multinomial = False
    _balances_weights = False

    @property
    def predict_proba(self) -> Any:
        """Absent, as for LinearSVC: the hinge loss has no probabilities."""
        raise AttributeError("RobustSVC has no predict_proba; use CalibratedClassifierCV(RobustSVC(...))")

"""Robust regressors: least squares, quantiles and counts."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.base import RegressorMixin
from sklearn.metrics import d2_tweedie_score
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from phiball.refimpl.inner.divergences import Divergence
from phiball.refimpl.linear.losses import LinearLoss, quantile_loss
from phiball.refimpl.linear.problem import Reweighting
from phiball.refimpl.sklearn.base import RobustLinearModel, store_parameters
from phiball.refimpl.validation import valid_number


class BaseRobustRegressor(RegressorMixin, RobustLinearModel):  # type: ignore[misc]
    """A regressor; subclasses define its loss by `_loss`, and the ridge by `_ridge`."""

    alpha: float

    def __init__(
        self,
        *,
        radius: float = 0.1,
        eta: float = 0.1,
        alpha: float = 1.0,
        divergence: str | Divergence = "entropic",
        norm: str | float = 2,
        reference: str = "ball",
        feature_scale: Any = None,
        reweighting: Reweighting | None = None,
        fit_intercept: bool = True,
        n_points: int = 256,
        tol: float = 1e-8,
        max_iter: int = 1000,
    ) -> None:
        store_parameters(self, locals())

    def _loss(self) -> LinearLoss | str:
        raise NotImplementedError

    def _ridge(self, weights: Any) -> float:
        return self.alpha

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Any:
        """Fit the model to features X (n, d) and targets y (n,)."""
        valid_number("alpha", self.alpha, least=0.0)
        X, y = validate_data(self, X, y, dtype=np.float64, y_numeric=True)
        weights = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
        found = self._solve(self._loss(), self._ridge(weights), X, y, weights)
        self._set_results([found])
        self.coef_, self.intercept_ = found.coef, float(found.intercept)
        self._warn_if_inexact([found])
        self._warn_if_unscaled(X, self.radius)
        return self

    def _linear_predictor(self, X: Any) -> Any:
        check_is_fitted(self)
        return validate_data(self, X, dtype=np.float64, reset=False) @ self.coef_ + self.intercept_

    def predict(self, X: Any) -> Any:
        """The prediction for each row of X."""
        return self._linear_predictor(X)


class RobustLinearRegression(BaseRobustRegressor):
    """Robust least squares.

    With `radius=0` it is scikit-learn's `Ridge(alpha)`, and with `alpha=0` also `LinearRegression`. With
    `alpha=0`, `gap_` is infinite. The loss is half the squared error. Other parameters are those of
    `RobustLinearModel`.

    >>> import numpy as np
    >>> from phiball.sklearn import RobustLinearRegression
    >>> X, y = np.array([[0.0], [1.0], [2.0]]), np.array([0.0, 2.0, 4.0])
    >>> plain, robust = (RobustLinearRegression(radius=r, alpha=1).fit(X, y) for r in (0, 0.5))
    >>> print(plain.coef_.round(4), bool(0 < robust.coef_[0] < plain.coef_[0]))
    [1.3333] True
    """

    def _loss(self) -> LinearLoss | str:
        return "squared"

    def _ridge(self, weights: Any) -> float:
        return float(self.alpha / weights.sum())


class RobustQuantileRegressor(BaseRobustRegressor):
    """Robust quantile regression, with the pinball loss of `quantile`.

    With `radius=0` and `alpha=0` it is scikit-learn's `QuantileRegressor(alpha=0)`. A positive `alpha`
    penalizes squares here, and absolute values there. Other parameters are those of `RobustLinearModel`.

    >>> import numpy as np
    >>> from phiball.sklearn import RobustQuantileRegressor
    >>> X, y = np.array([[0.0], [1.0], [2.0], [3.0]]), np.array([0.0, 1.0, 2.0, 9.0])
    >>> low, high = (RobustQuantileRegressor(quantile=q, radius=0.1).fit(X, y).predict(X) for q in (0.1, 0.9))
    >>> bool(low.mean() < high.mean())
    True
    """

    quantile: float

    def __init__(
        self,
        *,
        quantile: float = 0.5,
        radius: float = 0.1,
        eta: float = 0.1,
        alpha: float = 1e-3,
        divergence: str | Divergence = "entropic",
        norm: str | float = 2,
        reference: str = "ball",
        feature_scale: Any = None,
        reweighting: Reweighting | None = None,
        fit_intercept: bool = True,
        n_points: int = 256,
        tol: float = 1e-6,
        max_iter: int = 1000,
    ) -> None:
        store_parameters(self, locals())

    def _loss(self) -> LinearLoss | str:
        valid_number("quantile", self.quantile, above=0.0)
        if self.quantile >= 1:
            raise ValueError(f"quantile is {self.quantile!r}; expected a number in (0, 1)")
        return quantile_loss(self.quantile)


class RobustPoissonRegressor(BaseRobustRegressor):
    """Robust Poisson regression of counts, with a log link.

    With `radius=0` it is scikit-learn's `PoissonRegressor(alpha)`. The loss is half the deviance. Other
    parameters are those of `RobustLinearModel`.

    >>> import numpy as np
    >>> from phiball.sklearn import RobustPoissonRegressor
    >>> X, counts = np.array([[0.0], [1.0], [2.0]]), np.array([1, 3, 9])
    >>> plain, robust = (RobustPoissonRegressor(radius=r).fit(X, counts) for r in (0, 0.5))
    >>> bool(0 < robust.coef_[0] < plain.coef_[0])
    True
    """

    def _loss(self) -> LinearLoss | str:
        return "poisson"

    def predict(self, X: Any) -> Any:
        """The expected count for each row of X."""
        return np.exp(self._linear_predictor(X))

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """The fraction of deviance explained, D^2."""
        return float(d2_tweedie_score(y, self.predict(X), sample_weight=sample_weight, power=1))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.positive_only = True
        return tags

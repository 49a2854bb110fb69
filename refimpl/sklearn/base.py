"""What the robust linear estimators share: their parameters, and how these become a problem."""

from __future__ import annotations

from typing import Any
from warnings import warn

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning

from phiball.refimpl.inner.divergences import ABSOLUTE, ENTROPIC, HINGE, QUADRATIC, Divergence
from phiball.refimpl.laws.balls import Ball
from phiball.refimpl.linear.fit import LinearModel, fit_linear_model
from phiball.refimpl.linear.losses import LinearLoss
from phiball.refimpl.linear.problem import LinearProblem, Reweighting

DIVERGENCES = {"entropic": ENTROPIC, "quadratic": QUADRATIC, "absolute": ABSOLUTE, "hinge": HINGE}


def named_divergence(divergence: str | Divergence) -> Divergence:
    """The divergence of that name, or the divergence itself, or an error."""
    if isinstance(divergence, Divergence):
        return divergence
    if divergence not in DIVERGENCES:
        names = ", ".join(DIVERGENCES)
        raise ValueError(f"divergence is {divergence!r}; expected a Divergence, or one of {names}")
    return DIVERGENCES[divergence]


class RobustLinearModel(BaseEstimator):  # type: ignore[misc]
    """A linear model against perturbed features, and against reweighted examples.

    Parameters that all have:
    - `radius`: how far an example may move. 0 gives the plain model.
    - `eta`: what the adversary pays for leaving the uniform law; 0 for the worst point, inf for the average.
    - `divergence`: entropic, quadratic, absolute, hinge, or a `Divergence` such as indicator(0.1).
    - `norm`: of the ball; 2 is solved exactly, others on a fixed set of `points` Sobol points.
    - `feature_scale`: how far each feature moves, as multiples of the radius; 0 holds it.
    - `reweighting`: a `Reweighting`, for a worst case over the weights of the examples, or None.
    - `fit_intercept`, `tol` (on the gradient), `max_iter`: as in scikit-learn.

    A fit leaves `coef_`, `intercept_`, `objective_` (the value that is minimised), `gap_` (a bound on how far
    it is above the minimum), `error_` (of the integrals) and `n_iter_`.
    """

    def __init__(
        self,
        *,
        radius: float = 0.1,
        eta: float = 0.1,
        divergence: str | Divergence = "entropic",
        norm: float = 2,
        feature_scale: Any = None,
        reweighting: Reweighting | None = None,
        fit_intercept: bool = True,
        points: int = 256,
        tol: float = 1e-8,
        max_iter: int = 1000,
    ) -> None:
        self.radius = radius
        self.eta = eta
        self.divergence = divergence
        self.norm = norm
        self.feature_scale = feature_scale
        self.reweighting = reweighting
        self.fit_intercept = fit_intercept
        self.points = points
        self.tol = tol
        self.max_iter = max_iter

    def problem(self, loss: LinearLoss | str, ridge: float) -> LinearProblem:
        """The problem that a fit with this loss and ridge solves."""
        return LinearProblem(
            loss,
            Ball(self.norm, self.radius),
            self.eta,
            named_divergence(self.divergence),
            ridge=ridge,
            scale=self.feature_scale,
            intercept=self.fit_intercept,
            reweighting=self.reweighting,
        )

    def _solve(
        self,
        loss: LinearLoss | str,
        ridge: float,
        X: Any,
        y: Any,
        sample_weight: Any,
        start: LinearModel | None = None,
    ) -> LinearModel:
        if self.feature_scale is not None and np.shape(self.feature_scale) != (X.shape[1],):
            raise ValueError(
                f"feature_scale is {self.feature_scale!r}; expected {X.shape[1]} numbers, one per feature"
            )
        found = fit_linear_model(
            self.problem(loss, ridge),
            np.asarray(X, dtype=np.float64),
            np.asarray(y, dtype=np.float64),
            sample_weight=np.asarray(sample_weight, dtype=np.float64),
            tolerance=self.tol,
            points=self.points,
            start=start,
            max_iterations=self.max_iter,
        )
        if not found.converged:
            warn(
                f"stopped after {found.iterations} iterations with a gradient of {found.gradient:.1e}, "
                f"above tol = {self.tol:g}; the value is within {found.gap:.1e} of the minimum",
                ConvergenceWarning,
                stacklevel=3,
            )
        return found

    def _keep(self, found: list[LinearModel]) -> None:
        """Set what a fit leaves, from one solution or one per class."""
        self.objective_ = sum(model.value for model in found)
        self.gap_ = sum(model.gap for model in found)
        self.error_ = sum(model.error for model in found)
        self.n_iter_ = max(1, *(model.iterations for model in found), 1)

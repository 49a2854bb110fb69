"""The base class of the robust linear estimators."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any
from warnings import warn

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning

from phiball.refimpl.distributions.balls import Ball
from phiball.refimpl.distributions.gaussian import Gaussian
from phiball.refimpl.distributions.norms import as_norm
from phiball.refimpl.inner.divergences import Divergence
from phiball.refimpl.linear.fit import LinearModel, fit_linear_model
from phiball.refimpl.linear.losses import LinearLoss
from phiball.refimpl.linear.problem import LinearProblem, Reweighting
from phiball.refimpl.validation import valid_count, valid_number

_COARSE = 0.01  # a fit warns if the relative error of its integrals is larger


def by_feature(name: str, values: Any, columns: Any, d: int) -> Any:
    """`values` as d numbers in the order of the features; a Series or dict is matched by name.

    - `name`: the argument's name, for error messages.
    - `columns`: the names of the features, or None. Features missing from a dict get 1.
    """
    names = None if columns is None else [str(column) for column in columns]
    if isinstance(values, Mapping) or hasattr(values, "reindex"):
        given = {str(key): value for key, value in values.items()}
        positions = list(given) == [str(k) for k in range(d)]  # a Series with the default index
        if names is None and not positions:
            raise ValueError(
                f"{name} has names, {list(given)}, but X has none; expected {d} numbers, or in a pipeline "
                'transformers with set_output(transform="pandas")'
            )
        if names is not None and not (positions and set(given) != set(names)):
            keys = _match_columns(name, list(given), names)
            missing = (
                [] if isinstance(values, Mapping) else [column for column in names if column not in keys]
            )
            if missing:
                raise ValueError(f"{name} has no entry for {missing}; expected the columns of X, {names}")
            given = {column: given[keys[column]] if column in keys else 1.0 for column in names}
        values = list(given.values())
    try:
        found = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        found = np.asarray(np.nan)
    if found.shape != (d,):
        raise ValueError(f"{name} is {values!r}; expected {d} numbers, one per feature")
    if not np.all((found >= 0) & np.isfinite(found)):
        raise ValueError(f"{name} is {values!r}; expected finite, nonnegative numbers")
    return found


def _match_columns(name: str, keys: list[str], columns: list[str]) -> dict[str, str]:
    """The key that applies to each column that has one: the rule is in `RobustLinearModel`."""
    short = {column: column.partition("__")[2] or column for column in columns}  # without its transformer
    owners = {key: key for key in keys if key in short}
    for key in (key for key in keys if key not in short):
        start = f"{key}_"
        found = [c for c in columns if short[c] == key] or [
            c for c in columns if c.startswith(start) or short[c].startswith(start)
        ]
        if not found:
            known = {*columns, *short.values()}
            known |= {form.rpartition("_")[0] for form in known}
            near = get_close_matches(key, known, n=5) or columns[:10]
            raise ValueError(
                f"{name} has the key {key!r}; expected a column of X, a prefix of columns or a transformer, "
                f"such as {near}"
            )
        shared = sorted({owners.setdefault(c, key) for c in found} - {key, *found})
        if shared or len({c.removesuffix(short[c]) for c in found}) > 1:
            and_keys = f", as do the keys {shared}" if shared else ""
            raise ValueError(
                f"{name} has the key {key!r}, which matches {found}{and_keys}; expected full names"
            )
    return owners


def store_parameters(estimator: Any, parameters: Mapping[str, Any]) -> None:
    """Set the arguments of a constructor, given as its `locals()`, as attributes."""
    for name, value in parameters.items():
        if name not in ("self", "__class__"):
            setattr(estimator, name, value)


class RobustLinearModel(BaseEstimator):  # type: ignore[misc]
    """A linear model that is robust to perturbed features and to reweighted examples.

    Parameters of all subclasses:
    - `radius`: how far an example may move. 0 gives the standard model.
    - `eta`: the price of the divergence from the reference distribution. 0 gives the largest loss on the
      ball, inf the average loss.
    - `divergence`: a name such as "kl" or "chi2", or a `Divergence` such as indicator(0.1).
    - `norm`: the norm of the ball, "l1", "l2", "linf" or a number. Norm 2 needs no sampling; other norms use
      `n_points` fixed Sobol points.
    - `reference`: "ball" for the uniform distribution on the ball, or "gaussian" for a normal distribution
      with standard deviation `radius`, for which `norm` is not used.
    - `feature_scale`: how far each feature moves, in multiples of the radius; 0 fixes it. d numbers, a Series
      indexed by column names, or a dict such as {"age": 0}, where other columns get 1. A key is a column, or
      else it stands for all columns that continue it by an underscore, as "region" for region_north, or
      "onehotencoder" for onehotencoder__region_north; the transformer's prefix may be left out.
    - `reweighting`: a `Reweighting`, for a worst case over the weights of the examples, or None.
    - `fit_intercept`, `tol` (on the gradient), `max_iter`: as in scikit-learn.

    Without `feature_scale`, `fit` warns of features that are not standardised: if the largest standard
    deviation is above 1000 times the smallest, or the median is above 10 and above 1000 radii, or it is
    below 0.1 and below the radius.

    Fitted attributes are `coef_`, `intercept_`, `objective_` (the value reached), `gap_` (a bound on its
    distance from the minimum), `error_` (the estimated error of the integrals) and `n_iter_`.
    """

    radius: float
    eta: float
    divergence: str | Divergence
    norm: str | float
    reference: str
    feature_scale: Any
    reweighting: Reweighting | None
    fit_intercept: bool
    n_points: int
    tol: float
    max_iter: int

    def problem(self, loss: LinearLoss | str, ridge: float, scale: Any) -> LinearProblem:
        """The problem that a fit with this loss, ridge and feature scale solves."""
        if self.reference not in ("ball", "gaussian"):
            raise ValueError(f"reference is {self.reference!r}; expected 'ball' or 'gaussian'")
        ball = self.reference == "ball"
        return LinearProblem(
            loss,
            Ball(as_norm(self.norm), self.radius) if ball else Gaussian(self.radius),
            self.eta,
            self.divergence,
            ridge=ridge,
            feature_scale=scale,
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
        valid_number("tol", self.tol, above=0.0)
        valid_count("max_iter", self.max_iter)
        if not isinstance(self.fit_intercept, (bool, np.bool_)):
            raise TypeError(f"fit_intercept is {self.fit_intercept!r}; expected True or False")
        scale = self.feature_scale
        if scale is not None:
            scale = by_feature("feature_scale", scale, getattr(self, "feature_names_in_", None), X.shape[1])
        return fit_linear_model(
            self.problem(loss, ridge, scale),
            np.asarray(X, dtype=np.float64),
            np.asarray(y, dtype=np.float64),
            sample_weight=np.asarray(sample_weight, dtype=np.float64),
            tol=self.tol,
            n_points=self.n_points,
            start=start,
            max_iter=self.max_iter,
        )

    def _warn_if_inexact(self, found: list[LinearModel]) -> None:
        """Warn of inexact fits. Only `fit` may call it: then the warning points at the user's line."""
        for model in found:
            if not model.converged:
                warn(
                    f"stopped after {model.iterations} iterations with a gradient of {model.gradient:.1e}, "
                    f"above tol = {self.tol:g}; the value is within {model.gap:.1e} of the minimum",
                    ConvergenceWarning,
                    stacklevel=3,
                )
        value, error = sum(model.value for model in found), sum(model.error for model in found)
        if error > _COARSE * abs(value):
            warn(
                f"the integrals have an error of about {error:.1e}, and the objective is "
                f"{value:.1e}; increase eta, or n_points (now {self.n_points}), which helps slowly",
                ConvergenceWarning,
                stacklevel=3,
            )

    def _warn_if_unscaled(self, X: Any, radius: float) -> None:
        """Warn if a ball of this radius does not fit the units of the features; called by `fit` alone."""
        sizes = X.std(axis=0)[np.ptp(X, axis=0) > 0]
        if self.feature_scale is not None or radius == 0 or not len(sizes):
            return
        least, median, largest = sizes.min(), np.median(sizes), sizes.max()
        if largest > 1000 * least or median > max(10, 1000 * radius) or median < min(0.1, radius):
            warn(
                f"X has standard deviations from {least:.2g} to {largest:.2g}, with a median of "
                f"{median:.2g}, and radius is {radius:g}: standardise X with StandardScaler, or set "
                "feature_scale",
                stacklevel=3,
            )

    def _set_results(self, found: list[LinearModel]) -> None:
        """Set the fitted attributes from one solution, or one per class."""
        self.objective_ = sum(model.value for model in found)
        self.gap_ = sum(model.gap for model in found)
        self.error_ = sum(model.error for model in found)
        self.n_iter_ = max(1, *(model.iterations for model in found), 1)

"""The objective of a linear model at given coefficients, computed to a given precision."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf, isfinite
from typing import Any

from phiball.backends import Array, array_namespace, detach, device, ignore_float_warnings
from phiball.refimpl.linear.budget import best_price
from phiball.refimpl.linear.certificate import Objective
from phiball.refimpl.linear.linear_objective import LinearObjective
from phiball.refimpl.linear.losses import MULTINOMIAL, check_labels
from phiball.refimpl.linear.multinomial_objective import MultinomialObjective
from phiball.refimpl.linear.problem import LinearProblem
from phiball.refimpl.printing import one_line
from phiball.refimpl.sampling.streaming import valid_data
from phiball.refimpl.validation import all_finite, check_array, valid_count, valid_number

FIRST_NODES = 16  # number of quadrature nodes to start with
_NULL = 1e-12  # relative: a smaller coordinate of every example is rounding
_MORE = 4  # times as many Sobol points for the error estimate: with as many, it would not include the bias


@dataclass(frozen=True)
class LinearRisk:
    """The objective of a linear model, at given coefficients.

    - `value`: F, including the ridge.
    - `values` (n,): the risk of each example.
    - `weights` (n,): the weight of each example in F: the sample weights, or the worst case over them.
    - `coef_gradient`, `intercept_gradient`: the gradient of F, in the shapes of coefficients and intercept.
    - `error`: an estimate of the error of F: its change with twice the nodes, or with four times as many
      new Sobol points.
    - `n_nodes`: quadrature nodes per example, or per piece if the integral is split at kinks.
    - `eta`: the price of the divergence; for a problem with a `budget`, the price that belongs to it.
    """

    value: float
    values: Array
    weights: Array
    coef_gradient: Array
    intercept_gradient: Array
    error: float
    n_nodes: int
    eta: float
    __repr__ = one_line


class LinearData:
    """Validated data in double precision, with methods that create objectives and convert parameters.

    `moving` is the number of features that move.
    """

    def __init__(
        self, problem: LinearProblem, X: Array, y: Array, sample_weight: Array | None, n_points: int
    ) -> None:
        X = valid_data(X, name="X")
        xp = array_namespace(X)
        if X.ndim != 2 or X.shape[1] == 0:
            raise ValueError(f"X has shape {tuple(X.shape)}; expected (n, d), one row per example")
        self.dtype = X.dtype
        self.X = xp.astype(X, xp.float64, copy=False)
        self.y = self._column("y", y)
        check_labels(problem.loss, self.y)
        if sample_weight is None:
            w = xp.ones_like(self.y)
        else:
            w = self._column("sample_weight", sample_weight)
            if not bool(xp.all(w >= 0)) or not float(xp.sum(w)) > 0:
                raise ValueError("sample_weight has a negative entry or sums to 0; expected weights")
        self.w = w / xp.sum(w)
        self.n_points = valid_count("n_points", n_points, 2)
        self.make = MultinomialObjective if problem.loss == MULTINOMIAL else LinearObjective
        self.outputs = int(xp.max(self.y)) + 1 if problem.loss == MULTINOMIAL else 1
        self.penalty = xp.ones((self.X.shape[1],), dtype=xp.float64, device=device(self.X))
        self.intercept = problem.intercept
        self.moving = int(xp.sum(xp.astype(problem.radii(self.X) > 0, xp.int64)))

    @cached_property
    def row_space(self) -> tuple[Array, Array, Array]:
        """(mean (d,), basis (d, k), coordinates Z (n, k)): the features are mean + Z basis^T.

        The basis is orthonormal, and the mean is 0 for a model without an intercept.
        """
        xp = array_namespace(self.X)
        mean = self.w @ self.X if self.intercept else xp.zeros_like(self.X[0, :])
        Q, R = xp.linalg.qr((self.X - mean).T)  # stable for each example, unlike an SVD or the Gram matrix
        norms = xp.linalg.vector_norm(R, axis=0)
        share = xp.max(xp.abs(R) / xp.where(norms > 0, norms, xp.ones_like(norms)), axis=1)
        (kept,) = xp.nonzero(share >= min(_NULL, float(xp.max(share))))
        return mean, xp.take(Q, kept, axis=1), xp.take(R, kept, axis=0).T

    def standardized(self, X: Array, center: Array, scale: Array) -> LinearData:
        """The data with features (X - center) / scale; the ridge applies to coefficients / scale."""
        data = copy(self)
        data.X, data.penalty, data.dtype = (X - center) / scale, 1 / scale**2, X.dtype
        return data

    def _column(self, name: str, v: Array) -> Array:
        check_array(name, v)
        xp = array_namespace(self.X, v)
        if tuple(v.shape) != (self.X.shape[0],):
            raise ValueError(f"{name} has shape {tuple(v.shape)}; expected ({self.X.shape[0]},)")
        return xp.astype(valid_data(v, name=name), xp.float64, copy=False)

    def objective(
        self, problem: LinearProblem, n_nodes: int, *, seed: int = 0, rounding: float = 0.0, more: int = 1
    ) -> Objective:
        """The objective on `n_nodes` nodes or `more` * n_points Sobol points, with kinks smoothed."""
        n_points = more * self.n_points
        return self.make(problem, self, n_nodes, n_points=n_points, seed=seed, rounding=rounding)

    def shape(self, params: Array, problem: LinearProblem) -> tuple[Array, Array]:
        """Split a parameter vector into coefficients and intercept, in the shapes of `LinearModel`."""
        xp = array_namespace(params)
        params = xp.astype(params, self.dtype, copy=False)
        d, C = self.X.shape[1], self.outputs
        shape = (C, d) if self.make is MultinomialObjective else (d,)
        last = params[C * d :] if problem.intercept else xp.zeros_like(params[:C])
        return xp.reshape(params[: C * d], shape), last if self.make is MultinomialObjective else last[0]

    def pack(self, coef: Array, intercept: Array | float, problem: LinearProblem) -> Array:
        """Join coefficients and intercept to a parameter vector; raises ValueError for a wrong size."""
        xp, d, C = array_namespace(self.X), self.X.shape[1], self.outputs
        made = {"dtype": xp.float64, "device": device(self.X)}
        coef = xp.reshape(xp.asarray(detach(coef), **made), (-1,))
        if coef.shape[0] != C * d:
            raise ValueError(f"coef has {coef.shape[0]} entries; expected {C * d}")
        if not problem.intercept:
            return coef
        last = xp.broadcast_to(xp.reshape(xp.asarray(detach(intercept), **made), (-1,)), (C,))
        return xp.concat([coef, last])


def linear_model_risk(
    problem: LinearProblem,
    coef: Array,
    intercept: Array | float,
    X: Array,
    y: Array,
    *,
    sample_weight: Array | None = None,
    quadrature_tol: float = 1e-9,
    n_points: int = 256,
) -> LinearRisk:
    """Compute the objective of a linear model and its gradient, without sampling.

    Arguments:
    - `problem`: a `LinearProblem`.
    - `coef`: (d,), or (C, d) for the multinomial loss; `intercept`: a number, or (C,).
    - `X` (n, d), `y` (n,): the data; `sample_weight` (n,): weights, equal by default.
    - `quadrature_tol`: the number of quadrature nodes is doubled until the value changes by at most this,
      relative to abs(value).
    - `n_points`: the number of Sobol points, for problems that need them.

    Returns a `LinearRisk` with `value`, `values` (n,), the gradients and an estimate of the `error`.

    >>> import numpy as np
    >>> from phiball import Ball
    >>> from phiball.linear import LinearProblem, linear_model_risk
    >>> problem = LinearProblem("squared", Ball(2, 1.0), eta=float("inf"))  # the average over the ball
    >>> risk = linear_model_risk(problem, np.array([1.0, 1.0]), 0.0, np.zeros((1, 2)), np.zeros(1))
    >>> print(round(risk.value, 12))  # |theta|^2/(2 (d + 2))
    0.25
    """
    valid_number("quadrature_tol", quadrature_tol, above=0.0)
    data = LinearData(problem, X, y, sample_weight, n_points)
    params = data.pack(coef, intercept, problem)
    if problem.budget is not None:
        budget, priced = problem.budget, replace(problem, budget=None)
        how: dict[str, Any] = {
            "sample_weight": sample_weight,
            "quadrature_tol": quadrature_tol,
            "n_points": n_points,
        }

        def at(eta: float) -> LinearRisk:
            return linear_model_risk(replace(priced, eta=eta), coef, intercept, X, y, **how)

        def value(eta: float) -> float:
            try:
                return eta * budget + at(eta).value
            except ValueError:  # the risk is infinite, or overflows
                return inf

        risk = at(best_price(value, problem.eta))
        return replace(risk, value=risk.value + risk.eta * budget)
    n_nodes = FIRST_NODES
    with ignore_float_warnings():
        objective = data.objective(problem, n_nodes)
        point, error = objective(params), 0.0
        while n_nodes < objective.max_nodes and isfinite(point.value):
            finer, n_nodes = finer_objective(data, problem, objective, n_nodes)
            if finer is None:
                break
            new = finer(params)
            error = abs(new.value - point.value)
            if not objective.adaptive:
                break
            objective, point = finer, new
            if error <= quadrature_tol * abs(new.value):
                break
    if not (isfinite(point.value) and all_finite(point.gradient)):
        if objective.infinite:
            raise ValueError(f"eta is {problem.eta:g}; {objective.infinite}: increase eta")
        raise ValueError(f"the risk or its gradient overflows {X.dtype}: rescale coef or X")
    gradient = data.shape(point.gradient, problem)
    return LinearRisk(point.value, point.values, point.weights, *gradient, error, n_nodes, problem.eta)


def finer_objective(
    data: LinearData, problem: LinearProblem, objective: Objective, n_nodes: int, *, rounding: float = 0.0
) -> tuple[Objective | None, int]:
    """(the objective with twice the nodes, or with more, new Sobol points; its nodes). None if F is exact."""
    if objective.adaptive:
        finer = data.objective(problem, 2 * n_nodes, rounding=rounding)
        if isinstance(finer, LinearObjective) and isinstance(objective, LinearObjective):
            finer.levels = objective.levels
        return finer, 2 * n_nodes
    if not objective.sampled:
        return None, n_nodes
    return data.objective(problem, n_nodes, seed=1, rounding=rounding, more=_MORE), n_nodes

"""Fits of robust linear models, with a bound on their suboptimality."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import isfinite
from typing import Any

from phiball.backends import Array, array_namespace, device
from phiball.refimpl.distributions.gaussian import Gaussian
from phiball.refimpl.linear.budget import best_price, convex_lower_bound
from phiball.refimpl.linear.certificate import lower_bound
from phiball.refimpl.linear.losses import LinearLoss
from phiball.refimpl.linear.problem import LinearProblem
from phiball.refimpl.linear.quasi_newton import minimize
from phiball.refimpl.linear.risk import FIRST_NODES, LinearData, finer_objective
from phiball.refimpl.linear.units import Units
from phiball.refimpl.printing import one_line
from phiball.refimpl.validation import valid_count, valid_number

_ROUNDING = 2e-15
_LARGE = 1e100  # largest entry of the data allowed, so that products of squares are finite
_WIDTHS = tuple(10.0 ** (-k / 2) for k in range(17))  # over which kinks are smoothed, one after the other


@dataclass(frozen=True)
class LinearModel:
    """A fitted linear model, with a bound on its suboptimality.

    - `coef`: (d,), or (C, d) for the multinomial loss. `intercept`: (), or (C,); 0 without an intercept.
    - `value`: the objective F at the solution.
    - `gap`: a bound on F minus its minimum, valid up to rounding and the `error` of the integrals (see
      refimpl/linear/certificate.py). It is infinite without a ridge, unless the risk has a closed form.
    - `gradient`: the largest entry of the gradient of F, or of the smoothed F for a loss with a kink, in
      units in which features, predictions and losses have size 1.
    - `error`, `n_nodes`, `eta`: as in `LinearRisk`.
    - `iterations`: the number of solver iterations. `converged`: whether `gradient` is at most `tol`.
    """

    coef: Array
    intercept: Array
    value: float
    gap: float
    gradient: float
    error: float
    n_nodes: int
    iterations: int
    converged: bool
    eta: float
    __repr__ = one_line


def fit_linear_model(
    problem: LinearProblem,
    X: Array,
    y: Array,
    *,
    sample_weight: Array | None = None,
    tol: float = 1e-6,
    quadrature_tol: float = 1e-9,
    n_points: int = 256,
    start: LinearModel | None = None,
    max_iter: int = 500,
) -> LinearModel:
    """Fit a robust linear model by minimizing a convex objective, with a bound on the suboptimality.

    Arguments:
    - `problem`: a `LinearProblem`.
    - `X` (n, d), `y` (n,): the data; `sample_weight` (n,): weights, equal by default.
    - `tol`: the solver stops when the largest entry of the gradient is at most this, in the units of
      `LinearModel.gradient`: the units of X and y do not matter.
    - `quadrature_tol`: the number of quadrature nodes is doubled until the value changes by at most this,
      relative to 1 + abs(value) in these units.
    - `n_points`: the number of Sobol points, for problems that need them.
    - `start`: the solution of a similar problem, from which to start.
    - `max_iter`: the total number of solver iterations.

    Returns a `LinearModel` with `coef`, `intercept`, `value` and `gap`, a bound on value minus minimum.

    A loss with a kink (absolute, quantile, hinge), the maximum at eta = 0, and a `reweighting` with an
    indicator, absolute or hinge divergence are replaced by smooth lower bounds that approach them; the gap
    includes the smoothing error.

    >>> import numpy as np
    >>> from phiball import Ball
    >>> from phiball.linear import LinearProblem, fit_linear_model
    >>> X, y = np.array([[0.0], [1.0], [2.0], [4.0]]), np.array([0.0, 1.0, 2.0, 3.0])
    >>> model = fit_linear_model(LinearProblem("squared", Ball(2, 0.5), eta=0.1, ridge=0.01), X, y)
    >>> print(f"{model.value:.6f}", model.coef.round(4), bool(model.gap < 1e-9), model.converged)
    0.058649 [0.7078] True True
    """
    valid_number("tol", tol, above=0.0)
    valid_number("quadrature_tol", quadrature_tol, above=0.0)
    valid_count("max_iter", max_iter, 1)
    data = LinearData(problem, X, y, sample_weight, n_points)
    xp = array_namespace(data.X)
    for name, values in (("X", data.X), ("y", data.y)):
        largest = float(xp.max(xp.abs(values)))
        if largest > _LARGE:
            raise ValueError(
                f"{name} has an entry of size {largest:.1e}; expected at most {_LARGE:g}: rescale it"
            )
    how: dict[str, Any] = {"tol": tol, "quadrature_tol": quadrature_tol, "max_iter": max_iter}
    if problem.budget is not None:
        return _fit_budget(problem, problem.budget, data, start, how)
    return _fit(problem, data, start, **how)


def _fit(
    problem: LinearProblem,
    data: LinearData,
    start: LinearModel | None,
    *,
    tol: float,
    quadrature_tol: float,
    max_iter: int,
) -> LinearModel:
    xp = array_namespace(data.X)
    units, dtype, eta = Units(problem, data), data.dtype, problem.eta
    problem, data = units.problem, units.data
    size = data.outputs * (data.X.shape[1] + int(problem.intercept))
    params = xp.zeros((size,), dtype=xp.float64, device=device(data.X))
    if start is not None:
        given = (
            xp.asarray(x, dtype=xp.float64, device=device(data.X)) for x in (start.coef, start.intercept)
        )
        params = data.pack(*units.to_units(*given), problem)
        gaussian = isinstance(problem.reference, Gaussian)
        if gaussian and not isfinite(data.objective(problem, FIRST_NODES)(params).value):
            params = xp.zeros_like(params)
    steps, n_nodes = 0, FIRST_NODES if start is None else start.n_nodes
    rounding = 0.0
    for rounding in _roundings(problem):
        objective = data.objective(problem, n_nodes, rounding=rounding)
        params, point, taken, met = minimize(objective, params, tol=tol, max_iter=max(1, max_iter - steps))
        steps += taken
    while True:
        finer, more = finer_objective(data, problem, objective, n_nodes, rounding=rounding)
        error = 0.0 if finer is None else abs(finer(params).value - point.value)
        good = error <= quadrature_tol * (1 + abs(point.value))
        if finer is None or good or not objective.adaptive or more > objective.max_nodes:
            break
        objective, n_nodes = finer, more
        params, point, taken, met = minimize(objective, params, tol=tol, max_iter=max(1, max_iter - steps))
        steps += taken
    value = data.objective(problem, n_nodes)(params).value if rounding else point.value
    still = objective.at_rest(params)
    at_rest = point if still is objective else still(params)
    # The gap is never 0, since the value and the bound are rounded.
    gap = max(value - lower_bound(still, params, at_rest), 0.0) + _ROUNDING * (1 + abs(value))
    coef, intercept = units.from_units(*data.shape(params, problem))
    coef, intercept = xp.astype(coef, dtype, copy=False), xp.astype(intercept, dtype, copy=False)
    largest = float(xp.max(xp.abs(point.gradient)))
    value, gap, error = (units.loss * x for x in (value, gap, error))
    return LinearModel(coef, intercept, value, gap, largest, error, n_nodes, steps, met, eta)


def _fit_budget(
    problem: LinearProblem, budget: float, data: LinearData, start: LinearModel | None, how: dict[str, Any]
) -> LinearModel:
    """Fit a model for every price that `best_price` tries; the gap also bounds the error of the price."""
    models: dict[float, LinearModel] = {}

    def value(eta: float) -> float:
        nonlocal start
        start = _fit(replace(problem, eta=eta, budget=None), data, start, **how)
        models[eta] = start
        return start.value + eta * budget

    eta = best_price(value, problem.eta if start is None else start.eta)
    values = {price: model.value + price * budget for price, model in models.items()}
    bounds = {price: (values[price] - model.gap, values[price]) for price, model in models.items()}
    steps = sum(model.iterations for model in models.values())
    gap = values[eta] - convex_lower_bound(eta, bounds)
    return replace(models[eta], value=values[eta], gap=gap, iterations=steps)


def _roundings(problem: LinearProblem) -> tuple[float, ...]:
    """The widths over which kinks are smoothed, in order; (0,) if F has no kinks."""
    kinked = isinstance(problem.loss, LinearLoss) and problem.loss.smoothed is not None
    maximum = problem.eta == 0 and problem.radius > 0
    outer = problem.reweighting is not None and problem.reweighting.kinked
    return _WIDTHS if kinked or maximum or outer else (0.0,)

"""Numba kernel of `multiplier`: for each row, the price eta at which the worst case uses its whole budget.

The method is explained in refimpl/inner/multiplier.py: the worst cases form a curve with a parameter beta,
and Newton's method finds the point of the curve whose cost, the divergence, equals the budget. Here
- `k` is the order of the divergence, a = k - 1, and g = f - max f;
- the unknown is x = beta + `anchor`, where `anchor` is 0 or the g of the smallest loss with positive weight;
- `max_cost` is the cost at beta = 0, and `series` are the coefficients of phi(exp(t)) from t^2 on.

Entries with p = 0 are skipped, and loops over a row are vectorised.
"""

from __future__ import annotations

from functools import partial
from math import factorial, inf, log, nan
from typing import Any

import numpy as np

from phiball.backends.arrays import Array
from phiball.backends.numba.compilation import compiled, subroutine
from phiball.backends.numba.elementary_functions import exp_minus, fast_log
from phiball.backends.numba.primitives import REORDER_SUMS
from phiball.backends.numba.solve import as_numpy_view, contiguous, to_library
from phiball.backends.numba.threads import over_rows

_EPS, _TINY = 2.0**-52, 2.2250738585072014e-308  # float64: machine epsilon, smallest normal number
_HUGE = 1.7976931348623157e308
_LOG_ZERO = -1e300  # in place of log 0
# As in refimpl/inner/multiplier.py.
_MAX_STEPS, _MAX_LOG_STEP, _SERIES_RANGE, _SERIES_TERMS = 200, 30.0, 0.25, 12


def multiplier(f: Array, budget: Array, p: Array | None, d: Any) -> Any:
    """(eta, cost) as in the reference; NotImplemented unless the losses are float64 in main memory."""
    losses, budgets_given = as_numpy_view(f), as_numpy_view(budget)
    distribution = np.full((1, f.shape[-1]), 1 / f.shape[-1]) if p is None else as_numpy_view(p)
    if losses is None or budgets_given is None or distribution is None:
        return NotImplemented
    if losses.dtype != np.float64 or not losses.size:
        return NotImplemented
    m = losses.shape[-1]
    k = 1.0 if d.family == "entropic" else 2.0 if d.family == "quadratic" else float(d.parameter or 0.0)
    rows = contiguous(losses).reshape(-1, m)
    if p is not None:
        distribution = np.broadcast_to(distribution, losses.shape)
    distributions = contiguous(distribution.astype(np.float64, copy=False)).reshape(-1, m)
    budgets = contiguous(np.broadcast_to(budgets_given.astype(np.float64, copy=False), losses.shape[:-1]))
    series = np.array([sum(k**j for j in range(n - 1)) / factorial(n) for n in range(2, _SERIES_TERMS + 1)])
    max_log_range = 690.0 if k > 0.5 else min(690.0, (1 - k) * (-14 - log(_TINY)))
    out = np.empty((2, len(rows)))
    work = partial(_multipliers, rows, distributions, budgets.reshape(-1), k, series, max_log_range, out)
    over_rows(work, len(rows), 16 * rows.size, _multipliers)  # about 16 passes over the entries
    eta, cost = out.reshape(2, *losses.shape[:-1])
    return to_library(eta, f), to_library(cost, f)


@compiled(REORDER_SUMS)
def _multipliers(
    f: Any, p: Any, budget: Any, k: float, series: Any, max_log_range: float, out: Any, start: int, stop: int
) -> None:
    """Fill out[0] with eta and out[1] with the cost, for the rows from `start` to stop - 1.

    f is (n, m), budget (n,), and p (n, m), or (1, m) if all rows share it. beta is at least the range of the
    losses times exp(-max_log_range).
    """
    m = f.shape[1]
    workspace = np.empty((5, m))
    for i in range(start, stop):
        distribution = p[i if len(p) > 1 else 0]
        n, top = 0, -inf
        for j in range(m):
            if distribution[j] > 0.0:
                workspace[0, n], workspace[1, n] = f[i, j], distribution[j]
                top = max(top, f[i, j])
                n += 1
        g, q = workspace[0, :n], workspace[1, :n]
        lowest, at_top, nonfinite = 0.0, 0.0, 0.0
        for j in range(n):
            g[j] -= top
            lowest = min(lowest, g[j])
            at_top += q[j] if g[j] == 0.0 else 0.0
            nonfinite += 0.0 * g[j]
        if nonfinite != 0.0:  # a loss is not finite: the caller raises the error
            out[0, i] = out[1, i] = nan
            continue
        if lowest == 0.0:  # all losses are equal; at_top may differ from one by rounding
            max_cost = 0.0
        elif k <= 0.0:
            max_cost = inf
        else:
            a, log_top = k - 1.0, np.log(at_top)
            max_cost = (np.expm1(-a * log_top) / a if a != 0.0 else -log_top) / k
        if budget[i] >= max_cost:
            out[0, i], out[1, i] = 0.0, max_cost
        elif not budget[i] > 0.0:
            out[0, i], out[1, i] = inf, 0.0
        else:
            out[0, i], out[1, i] = _root(
                workspace[:, :n], budget[i], max_cost, k, series, max_log_range, -lowest
            )


@subroutine(REORDER_SUMS)
def _root(
    row: Any, budget: float, max_cost: float, k: float, series: Any, max_log_range: float, spread: float
) -> tuple[float, float]:
    """(eta, cost) at which the cost equals the budget. `row` holds g, p and three rows of workspace.

    `spread` is the range of the losses.
    """
    g, p, n = row[0], row[1], row.shape[1]
    x_min = max(spread * np.exp(-max_log_range), 1e-290)
    mean, variance = 0.0, 0.0
    for j in range(n):
        mean += p[j] * (g[j] / spread)
    for j in range(n):
        variance += p[j] * (g[j] / spread - mean) ** 2  # squares of huge losses would overflow
    first = (0.5 * variance) ** 0.5 / (budget / (1.0 - budget / max_cost)) ** 0.5
    if k != 1.0:
        a = abs(k - 1.0)
        first = max(first / a - (mean if k > 1.0 else -mean), first / (16.0 * a))
    first = min(first * spread, _HUGE)
    cost, eta, beta = _newton(row, budget, max_cost, k, series, max(first, x_min), 0.0, x_min)
    if k > 2.0 and beta > x_min and abs(cost - budget) > 8.0 * _EPS * budget:
        anchor = 0.0
        for j in range(n):
            anchor = min(anchor, g[j] if g[j] >= -beta * (1.0 + 16.0 * _EPS) else 0.0)
        nearest = max(beta + anchor, _EPS * beta)
        again, other, _ = _newton(row, budget, max_cost, k, series, nearest, anchor, 1e-307)
        if abs(again - budget) < abs(cost - budget):
            cost, eta = again, other
    return max(eta, _TINY), cost


@subroutine(REORDER_SUMS)
def _newton(
    row: Any, budget: float, max_cost: float, k: float, series: Any, x: float, anchor: float, x_min: float
) -> tuple[float, float, float]:
    """(cost, eta, x) where the cost equals the budget, by Newton's method in log x; x is at least `x_min`."""
    low, high = 0.0, inf
    goal = np.log(budget / (1.0 - budget / max_cost))
    cost, eta = 0.0, 0.0
    for _ in range(_MAX_STEPS):
        cost, slope, eta = _cost_at(row, x, anchor, k, series)
        over_budget = cost > budget
        low, high = (x, high) if over_budget else (low, x)
        left = 1.0 - cost / max_cost
        step = (goal - np.log(cost / left)) * cost * left / slope
        if abs(cost - budget) <= 2.0 * _EPS * budget or abs(step) <= 2.0 * _EPS:
            break
        if low >= high * (1.0 - 4.0 * _EPS) or (not over_budget and x <= x_min):
            break
        new = x * np.exp(min(max(step, -_MAX_LOG_STEP), _MAX_LOG_STEP))
        if not low < new < high:
            new = 16.0 * low if high == inf else high / 16.0 if low == 0.0 else low**0.5 * high**0.5
        x = max(new, x_min)
    return cost, eta, x


@subroutine(REORDER_SUMS)
def _cost_at(row: Any, x: float, anchor: float, k: float, series: Any) -> tuple[float, float, float]:
    """(cost, its derivative with respect to log x, eta) at beta = x - anchor.

    `logs` are the logarithms of gamma/p before normalization, and `log_slopes` their derivatives.
    """
    g, p, logs, log_slopes, slope_terms = row[0], row[1], row[2], row[3], row[4]
    n, a, beta = len(g), k - 1.0, x - anchor
    excess, whole = 0.0, 0.0
    if a == 0.0:
        for j in range(n):
            logs[j] = g[j] / beta
            log_slopes[j] = -logs[j]
    else:
        side, ahead = (1.0 if a > 0.0 else -1.0) / beta, x / beta / a
        for j in range(n):
            v = side * g[j]
            z, log_z = _ratio(v, g[j], x, anchor, beta)
            logs[j] = log_z / a if z > 0.0 else _LOG_ZERO
            log_slopes[j] = ahead * (-v if anchor == 0.0 else 1.0) / z if z > 0.0 else 0.0
    for j in range(n):
        power, less_one = exp_minus(logs[j], 0.0), exp_minus(logs[j], 1.0)
        excess += p[j] * less_one
        whole += p[j] * power
    log_total = np.log1p(excess) if excess > -0.5 else np.log(whole)
    reach, at_zero = _SERIES_RANGE / max(1.0, abs(k)), 1.0 / k if k > 0.0 else 0.0
    cost, mean, slope = 0.0, 0.0, 0.0
    for j in range(n):
        t = logs[j] - log_total
        active = logs[j] > _LOG_ZERO
        power = exp_minus(t, 0.0)
        first = _expm1_over(a, t)
        value = power * first - _expm1_over(k, t)
        value = value if value == value else inf
        near = 0.0
        for c in range(len(series) - 1, -1, -1):
            near = near * t + series[c]
        value = near * t * t if abs(t) < reach else value
        cost += p[j] * (value if active else at_zero)
        weight = p[j] * power if active else 0.0
        mean += weight * log_slopes[j] if weight > 0.0 else 0.0
        slope_terms[j] = weight * first if weight > 0.0 else 0.0
    for j in range(n):
        slope += slope_terms[j] * (log_slopes[j] - mean) if slope_terms[j] != 0.0 else 0.0
    return cost, slope, beta * (abs(a) * np.exp(a * log_total) if a != 0.0 else 1.0)


@subroutine({"contract"})
def _ratio(v: float, g: float, x: float, anchor: float, beta: float) -> tuple[float, float]:
    """(z, log z) for z = 1 + v, where v = g/beta up to sign; if v <= -1/2, z is ((g - anchor) + x)/beta."""
    near = v > -0.5
    z = 1.0 + v if near else ((g - anchor) + x) / beta
    y = z if z > _TINY else _TINY
    return z, fast_log(y) + ((v - (y - 1.0)) / y if near else 0.0)


@subroutine({"contract"})
def _expm1_over(k: float, t: float) -> float:
    """(exp(k t) - 1)/k, or its limit t for k = 0."""
    x = k * t
    less_one = exp_minus(x if x < 708.0 else 708.0, 1.0)
    less_one = less_one if x < 708.0 else inf
    return less_one / k if k != 0.0 else t

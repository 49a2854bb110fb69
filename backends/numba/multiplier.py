"""The numba kernel of `multiplier`: the price at which a worst case uses its budget, row by row.

It follows refimpl/inner/multiplier.py, which explains the curve and the steps. Entries without mass are
skipped, and loops over a row are vectorised.
"""

from __future__ import annotations

from functools import partial
from math import factorial, inf, log, nan
from typing import Any

import numpy as np

from phiball.backends.arrays import Array
from phiball.backends.numba.compilation import compiled, part
from phiball.backends.numba.elementary_functions import exponential_less, log_normal
from phiball.backends.numba.primitives import SUMS
from phiball.backends.numba.solve import as_numpy_view, contiguous, to_library
from phiball.backends.numba.threads import over_rows

_EPS, _TINY = 2.0**-52, 2.2250738585072014e-308  # float64: machine epsilon, smallest normal number
_HUGE = 1.7976931348623157e308
_NONE = -1e300  # stands for log 0
_STEPS, _LONGEST, _SMALL, _TERMS = 200, 30.0, 0.25, 12  # as in refimpl/inner/multiplier.py


def multiplier(f: Array, budget: Array, p: Array | None, d: Any) -> Any:
    """(eta, cost) as the reference gives them, or NotImplemented unless losses are float64."""
    losses, given = as_numpy_view(f), as_numpy_view(budget)
    distribution = np.full((1, f.shape[-1]), 1 / f.shape[-1]) if p is None else as_numpy_view(p)
    if (
        losses is None
        or given is None
        or distribution is None
        or losses.dtype != np.float64
        or not losses.size
    ):
        return NotImplemented
    m = losses.shape[-1]
    k = 1.0 if d.family == "entropic" else 2.0 if d.family == "quadratic" else float(d.parameter or 0.0)
    rows = contiguous(losses).reshape(-1, m)
    if p is not None:
        distribution = np.broadcast_to(distribution, losses.shape)
    distributions = contiguous(distribution.astype(np.float64, copy=False)).reshape(-1, m)
    budgets = contiguous(np.broadcast_to(given.astype(np.float64, copy=False), losses.shape[:-1]))
    series = np.array([sum(k**j for j in range(n - 1)) / factorial(n) for n in range(2, _TERMS + 1)])
    longest = 690.0 if k > 0.5 else min(690.0, (1 - k) * (-14 - log(_TINY)))
    out = np.empty((2, len(rows)))
    work = partial(_multipliers, rows, distributions, budgets.reshape(-1), k, series, longest, out)
    over_rows(work, len(rows), 16 * rows.size, _multipliers)  # each entry is read in about ten steps
    eta, cost = out.reshape(2, *losses.shape[:-1])
    return to_library(eta, f), to_library(cost, f)


@compiled(SUMS)
def _multipliers(
    f: Any, p: Any, budget: Any, k: float, series: Any, longest: float, out: Any, start: int, stop: int
) -> None:
    m = f.shape[1]
    memory = np.empty((5, m))
    for i in range(start, stop):
        distribution = p[i if len(p) > 1 else 0]
        n, top = 0, -inf
        for j in range(m):
            if distribution[j] > 0.0:
                memory[0, n], memory[1, n] = f[i, j], distribution[j]
                top = max(top, f[i, j])
                n += 1
        g, q = memory[0, :n], memory[1, :n]
        lowest, at_top, check = 0.0, 0.0, 0.0
        for j in range(n):
            g[j] -= top
            lowest = min(lowest, g[j])
            at_top += q[j] if g[j] == 0.0 else 0.0
            check += 0.0 * g[j]
        if check != 0.0:  # a loss is not finite, which the caller will tell
            out[0, i] = out[1, i] = nan
            continue
        if lowest == 0.0:  # a sum of masses may be off one
            most = 0.0
        elif k <= 0.0:
            most = inf
        else:
            most = (np.expm1(-(k - 1.0) * np.log(at_top)) / (k - 1.0) if k != 1.0 else -np.log(at_top)) / k
        if budget[i] >= most:
            out[0, i], out[1, i] = 0.0, most
        elif not budget[i] > 0.0:
            out[0, i], out[1, i] = inf, 0.0
        else:
            out[0, i], out[1, i] = _root(memory[:, :n], budget[i], most, k, series, longest, -lowest)


@part(SUMS)
def _root(
    row: Any, budget: float, most: float, k: float, series: Any, longest: float, spread: float
) -> tuple[float, float]:
    g, p, n = row[0], row[1], row.shape[1]
    end = max(spread * np.exp(-longest), 1e-290)
    mean, variance = 0.0, 0.0
    for j in range(n):
        mean += p[j] * (g[j] / spread)
    for j in range(n):
        variance += p[j] * (g[j] / spread - mean) ** 2  # squares of huge losses would overflow
    first = (0.5 * variance) ** 0.5 / (budget / (1.0 - budget / most)) ** 0.5
    if k != 1.0:
        a = abs(k - 1.0)
        first = max(first / a - (mean if k > 1.0 else -mean), first / (16.0 * a))
    first = min(first * spread, _HUGE)
    cost, eta, beta = _newton(row, budget, most, k, series, max(first, end), 0.0, end)
    if k > 2.0 and beta > end and abs(cost - budget) > 8.0 * _EPS * budget:
        anchor = 0.0
        for j in range(n):
            anchor = min(anchor, g[j] if g[j] >= -beta * (1.0 + 16.0 * _EPS) else 0.0)
        nearest = max(beta + anchor, _EPS * beta)
        again, other, _ = _newton(row, budget, most, k, series, nearest, anchor, 1e-307)
        if abs(again - budget) < abs(cost - budget):
            cost, eta = again, other
    return max(eta, _TINY), cost


@part(SUMS)
def _newton(
    row: Any, budget: float, most: float, k: float, series: Any, x: float, anchor: float, end: float
) -> tuple[float, float, float]:
    """(cost, eta, x) where the cost equals the budget."""
    low, high = 0.0, inf
    goal = np.log(budget / (1.0 - budget / most))
    cost, eta = 0.0, 0.0
    for _ in range(_STEPS):
        cost, slope, eta = _at(row, x, anchor, k, series)
        far = cost > budget
        low, high = (x, high) if far else (low, x)
        left = 1.0 - cost / most
        step = (goal - np.log(cost / left)) * cost * left / slope
        if abs(cost - budget) <= 2.0 * _EPS * budget or abs(step) <= 2.0 * _EPS:
            break
        if low >= high * (1.0 - 4.0 * _EPS) or (not far and x <= end):
            break
        new = x * np.exp(min(max(step, -_LONGEST), _LONGEST))
        if not low < new < high:
            new = 16.0 * low if high == inf else high / 16.0 if low == 0.0 else low**0.5 * high**0.5
        x = max(new, end)
    return cost, eta, x


@part(SUMS)
def _at(row: Any, x: float, anchor: float, k: float, series: Any) -> tuple[float, float, float]:
    """(cost, its derivative in log x, eta) at beta = x - anchor."""
    g, p, logs, turns, parts = row[0], row[1], row[2], row[3], row[4]
    n, a, beta = len(g), k - 1.0, x - anchor
    excess, whole = 0.0, 0.0
    if a == 0.0:
        for j in range(n):
            logs[j] = g[j] / beta
            turns[j] = -logs[j]
    else:
        side, ahead = (1.0 if a > 0.0 else -1.0) / beta, x / beta / a
        for j in range(n):
            v = side * g[j]
            z, log_z = _ratio(v, g[j], x, anchor, beta)
            logs[j] = log_z / a if z > 0.0 else _NONE
            turns[j] = ahead * (-v if anchor == 0.0 else 1.0) / z if z > 0.0 else 0.0
    for j in range(n):
        power, less_one = exponential_less(logs[j], 0.0), exponential_less(logs[j], 1.0)
        excess += p[j] * less_one
        whole += p[j] * power
    log_total = np.log1p(excess) if excess > -0.5 else np.log(whole)
    reach, at_zero = _SMALL / max(1.0, abs(k)), 1.0 / k if k > 0.0 else 0.0
    cost, mean, slope = 0.0, 0.0, 0.0
    for j in range(n):
        t = logs[j] - log_total
        active = logs[j] > _NONE
        power = exponential_less(t, 0.0)
        first = _expm1_over(a, t)
        value = power * first - _expm1_over(k, t)
        value = value if value == value else inf
        near = 0.0
        for c in range(len(series) - 1, -1, -1):
            near = near * t + series[c]
        value = near * t * t if abs(t) < reach else value
        cost += p[j] * (value if active else at_zero)
        weight = p[j] * power if active else 0.0
        mean += weight * turns[j] if weight > 0.0 else 0.0
        parts[j] = weight * first if weight > 0.0 else 0.0
    for j in range(n):
        slope += parts[j] * (turns[j] - mean) if parts[j] != 0.0 else 0.0
    return cost, slope, beta * (abs(a) * np.exp(a * log_total) if a != 0.0 else 1.0)


@part({"contract"})
def _ratio(v: float, g: float, x: float, anchor: float, beta: float) -> tuple[float, float]:
    """(z, log z), z = 1 + v; computed from the distance to the anchor where 1 + v cancels. No reordering."""
    near = v > -0.5
    z = 1.0 + v if near else ((g - anchor) + x) / beta
    y = z if z > _TINY else _TINY
    return z, log_normal(y) + ((v - (y - 1.0)) / y if near else 0.0)


@part({"contract"})
def _expm1_over(k: float, t: float) -> float:
    """(exp(k t) - 1)/k, and its limit t at k = 0."""
    x = k * t
    less_one = exponential_less(x if x < 708.0 else 708.0, 1.0)
    less_one = less_one if x < 708.0 else inf
    return less_one / k if k != 0.0 else t

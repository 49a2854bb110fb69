"""The inner problem of the indicator, compiled: quantiles, under the uniform law and any other."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import float64

from phiball.backends.numba.compilation import compiled
from phiball.backends.numba.primitives import (
    BLOCK,
    SUMS,
    before,
    extent,
    extent_and_mass,
    larger,
    middle,
    minus,
    product,
    rank_of,
    read,
    share_of,
    write,
)

_SLACK = 8 * 2.220446049250313e-16  # a mass that falls short by so little reaches alpha, as in the reference


@compiled(SUMS)
def _count_above(a: Any, t: float) -> int:
    count = 0
    for i in range(a.size):
        count += a[i] > t
    return count


@compiled(SUMS)
def _largest_up_to(a: Any, t: float) -> tuple[float, int]:
    """The largest entry that does not exceed t, and how many entries reach it."""
    best = -np.inf
    for i in range(a.size):
        best = larger(best, float64(a[i]) if a[i] <= t else -np.inf)
    count = 0
    for i in range(a.size):
        count += a[i] >= best
    return best, count


@compiled()
def select(a: Any, rank: int) -> tuple[float, int, int]:
    """(q, above, reached): the `rank`-th largest entry from 1, how many exceed it, how many reach it.

    A bracket (low, high] of the answer is narrowed by counting what exceeds a value inside it, which
    is found by false position (Illinois), or, if that is slow, by halving the floating-point numbers in
    between; the last steps go down from entry to entry.
    """
    low, high = extent(a)
    exceed_high = 0
    short, over = rank - 0.5, a.size - rank + 0.5  # by how much the counts at high and low miss the rank
    side = 0
    for step in range(90):
        if rank - exceed_high <= 2:
            break
        t = high - (high - low) * (short / (short + over)) if step < 20 else middle(low, high)
        if not low < t < high:
            break
        count = _count_above(a, t)
        if count < rank:
            high, exceed_high, short = t, count, rank - 0.5 - count
            over = 0.5 * over if side == 1 else over
            side = 1
        else:
            low, over = t, count - rank + 0.5
            short = 0.5 * short if side == -1 else short
            side = -1
    while True:
        q, reached = _largest_up_to(a, high)
        if not reached < rank or q == -np.inf:  # the latter only where there is a NaN
            return q, exceed_high, reached
        high, exceed_high = before(q), reached


@compiled(SUMS)
def _masses_above(a: Any, law: Any, low: float, mid: float, high: float) -> tuple[float, float, float]:
    """The masses above three values."""
    if a.size <= BLOCK:
        return _parts_above(a, law, low, mid, high)
    first, second, third = 0.0, 0.0, 0.0
    for start in range(0, a.size, BLOCK):
        part = _parts_above(a[start : start + BLOCK], law[start : start + BLOCK], low, mid, high)
        first += part[0]
        second += part[1]
        third += part[2]
    return first, second, third


@compiled(SUMS)
def _parts_above(a: Any, law: Any, low: float, mid: float, high: float) -> tuple[float, float, float]:
    first, second, third = 0.0, 0.0, 0.0
    for i in range(a.size):
        x, w = a[i], float64(law[i])
        first += w * (1.0 if x > low else 0.0)  # a product is faster than a choice
        second += w * (1.0 if x > mid else 0.0)
        third += w * (1.0 if x > high else 0.0)
    return first, second, third


@compiled(SUMS)
def _at_and_above(a: Any, law: Any, q: float) -> tuple[float, float]:
    """(the mass of the entries that are q, sum p (a - q)_+)."""
    if a.size <= BLOCK:
        return _parts_from(a, law, q)
    tied, excess = 0.0, 0.0
    for start in range(0, a.size, BLOCK):
        part = _parts_from(a[start : start + BLOCK], law[start : start + BLOCK], q)
        tied += part[0]
        excess += part[1]
    return tied, excess


@compiled(SUMS)
def _parts_from(a: Any, law: Any, q: float) -> tuple[float, float]:
    tied, excess = 0.0, 0.0
    for i in range(a.size):
        g, w = minus(a[i], q), float64(law[i])
        tied += w * (1.0 if g == 0.0 else 0.0)
        excess += w * (g if g > 0.0 else 0.0)
    return tied, excess


@compiled(SUMS)
def _largest_with_mass(a: Any, law: Any, t: float) -> float:
    """The largest entry with mass that does not exceed t."""
    best = -np.inf
    for i in range(a.size):
        x, w = float64(a[i]), law[i]
        x = x + (0.0 if w > 0.0 else -np.inf)
        best = larger(best, x + (0.0 if x <= t else -np.inf))
    return best


@compiled()
def weighted_select(
    a: Any, law: Any, goal: float, whole: float, low: float, high: float
) -> tuple[float, float, float, float]:
    """(q, above, tied, excess): the largest entry with mass such that the mass from there on reaches `goal`.

    Beside it the mass above, the mass of entries that are q, and sum p (a - q)_+. As in `select`, from a
    bracket [low, high] of all entries with mass, but with three values a pass: that of false position and
    two close to it, which the answer mostly lies between. NaN if it fails.
    """
    mean = whole / a.size
    above, beyond = 0.0, whole  # the masses above `high` and above `low`
    less_short, less_over, side, steps_down, stalled = 1.0, 1.0, 0, 0, False
    for step in range(200):
        short = less_short * max(0.0, goal - 0.5 * mean - above)
        over = less_over * (beyond - goal + 0.5 * mean)
        t = high - (high - low) * (short / (short + over)) if step < 20 else middle(low, high)
        close = goal - above <= 4.0 * mean or stalled
        if (close and steps_down < 8) or not low < t < high:
            q = _largest_with_mass(a, law, high)
            tied, excess = _at_and_above(a, law, q)
            if not (above + tied < goal and q > low):  # the latter if all masses fall short by rounding
                return q, above, tied, excess
            high, above = before(q), above + tied
            steps_down, stalled = steps_down + 1, False
            continue
        width = 0.7 * 0.4**step + 0.1
        left, right = t - width * (t - low), t + width * (high - t)
        first, second, third = _masses_above(a, law, left, t, right)
        before_step = beyond - above
        if first < goal:
            high, above = left, first
            less_over, less_short, side = 0.5 * less_over if side == 1 else 1.0, 1.0, 1
        elif third >= goal:
            low, beyond = right, third
            less_short, less_over, side = 0.5 * less_short if side == -1 else 1.0, 1.0, -1
        else:
            less_short, less_over, side = 1.0, 1.0, 0
            if second < goal:
                low, beyond, high, above = left, first, t, second
            else:
                low, beyond, high, above = t, second, right, third
        stalled = beyond - above == before_step  # one entry may hold all the mass that is left
    return np.nan, np.nan, np.nan, np.nan


@compiled(SUMS)
def indicator(
    f: Any,
    offsets: Any,
    eta: Any,
    p: Any,
    shared: bool,
    parameter: float,
    slope1: float,
    out: Any,
    start: int,
    stop: int,
) -> None:
    """Example 1 with atoms: gamma_i = p_i/alpha above the quantile q, the rest shared on f = q."""
    value, mu, weights, gap = out
    for row in range(start, stop):
        first = offsets[row]
        m = offsets[row + 1] - first
        losses, density = f[first : first + m], weights[first : first + m]
        if p is None:
            full, rest = product(parameter, m)
            rank = rank_of(parameter, m)
            q, above, reached = select(losses, rank)
            tied = reached - above
            share = share_of(full, rest, above, tied) / full
            full_weight = (1.0 - share * tied) / max(above, 1)
        else:
            law = p if shared else p[first : first + m]
            top, low, whole = extent_and_mass(losses, law)
            value[row] = np.nan
            if not whole > 0.0:
                continue
            full = parameter * whole
            q, mass, at_q, excess = weighted_select(losses, law, full * (1.0 - _SLACK), whole, low, top)
            full_weight, share = 1.0 / full, min(1.0, max(0.0, minus(full, mass) / at_q)) / full
            gain = excess / full
        if p is None:
            gain, excess = 0.0, 0.0
            for block in range(0, m, BLOCK):
                part_gain, part_excess = 0.0, 0.0
                for i in range(block, min(block + BLOCK, m)):
                    g = minus(read(losses, i), q)
                    w = full_weight if g > 0.0 else (share if g == 0.0 else 0.0)
                    part_gain += w * g
                    part_excess += g if g > 0.0 else 0.0
                    write(density, i, w)
                gain += part_gain
                excess += part_excess
        else:
            for i in range(m):
                g = minus(read(losses, i), q)
                w = (full_weight if g > 0.0 else 0.0) + (share if g == 0.0 else 0.0)
                write(density, i, read(law, i) * w)
        mu[row] = q
        value[row] = q + gain
        gap[row] = excess / full - gain

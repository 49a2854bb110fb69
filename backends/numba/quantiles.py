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
    share_of,
    weighted,
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
def _mass_above(a: Any, law: Any, t: float) -> float:
    mass = 0.0
    for start in range(0, a.size, BLOCK):
        mass += _part_above(a[start : start + BLOCK], law[start : start + BLOCK], t)
    return mass


@compiled(SUMS)
def _part_above(a: Any, law: Any, t: float) -> float:
    mass = 0.0
    for i in range(a.size):
        x, w = a[i], float64(law[i])
        mass += w * (1.0 if x > t else 0.0)  # a product is faster than a choice
    return mass


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
) -> tuple[float, float]:
    """(q, above): the largest entry with mass such that the mass from there on reaches `goal`; that above it.

    As in `select`, from a bracket [low, high] of all entries with mass. NaN if it fails.
    """
    above, side, steps_down = 0.0, 0, 0
    short, over = goal, whole - goal
    for step in range(400):
        close = (goal - above) * a.size <= 2.5 * whole and steps_down < 8
        t = high - (high - low) * (short / (short + over)) if step < 20 else middle(low, high)
        if close or not low < t < high:
            q = _largest_with_mass(a, law, high)
            reached = _mass_above(a, law, before(q))
            if not reached < goal:
                return q, above
            if not q > low:  # rounding: the mass of all entries is short of a goal that is all of it
                return q, above
            high, above, short = before(q), reached, goal - reached
            steps_down += 1
            continue
        mass = _mass_above(a, law, t)
        if mass < goal:
            high, above, short = t, mass, goal - mass
            over = 0.5 * over if side == 1 else over
            side = 1
        else:
            low, over = t, mass - goal
            short = 0.5 * short if side == -1 else short
            side = -1
    return np.nan, np.nan


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
            law = None
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
            q, above_q = weighted_select(losses, law, full * (1.0 - _SLACK), whole, low, top)
            share, full_weight = 0.0, 1.0 / full
            tied_mass = _mass_at(losses, law, q)
            share = min(1.0, max(0.0, minus(full, above_q) / tied_mass)) / full
        gain, excess = 0.0, 0.0
        for block in range(0, m, BLOCK):
            part_gain, part_excess = 0.0, 0.0
            for i in range(block, min(block + BLOCK, m)):
                g = minus(losses[i], q)
                if p is None:
                    w = full_weight if g > 0.0 else (share if g == 0.0 else 0.0)
                    part_gain += w * g
                    part_excess += g if g > 0.0 else 0.0
                else:
                    part_excess += law[i] * (g if g > 0.0 else 0.0)
            gain += part_gain
            excess += part_excess
        for i in range(m):
            g = minus(losses[i], q)
            density[i] = weighted(law, i, full_weight if g > 0.0 else (share if g == 0.0 else 0.0))
        mu[row] = q
        if p is not None:  # the weights above q are those of the dual
            gain = excess / full
        value[row] = q + gain
        gap[row] = excess / full - gain


@compiled(SUMS)
def _mass_at(a: Any, law: Any, q: float) -> float:
    mass = 0.0
    for i in range(a.size):
        x, w = a[i], float64(law[i])
        mass += w * (1.0 if x == q else 0.0)
    return mass

"""Kernels for divergences with a closed form (entropic, absolute value, hinge) or a quantile (indicator).

All kernels of inner problems share their arguments. `rows` is (losses, offsets, eta): row r of the flat
losses is offsets[r], ..., offsets[r + 1] - 1. The reference distribution `p` is None if uniform, else it has
a mass for every loss if `own` is 1, or is shared by the rows if 0. A kernel solves the rows start, ...,
stop - 1 and fills out = (value, mu, weights, gap). Sums are in float64 for every dtype. The value is NaN if a
loss or p is invalid or the kernel cannot certify a row: the reference then solves the batch.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import float64

from phiball.backends.numba.compilation import compiled, part
from phiball.backends.numba.elementary_functions import exponential_less
from phiball.backends.numba.primitives import (
    BLOCK,
    EPS,
    SUMS,
    bits,
    extent,
    from_bits,
    minus,
    next_loss,
    plus,
    read,
    row_of,
    store_mu,
    write,
)

_SLACK = 8.0 * EPS  # relative tolerance for a mass to reach alpha, as in the reference


@compiled(SUMS)
def solve_entropic(
    rows: Any, p: Any, own: int, parameter: float, slope1: float, out: Any, start: int, stop: int
) -> None:
    """Example 2: gamma_i = exp(u_i)/sum exp(u), value = max f + eta log E exp(u)."""
    f, offsets, eta = rows
    value, mu, weights, gap = out
    for row in range(start, stop):
        first = offsets[row]
        m = offsets[row + 1] - first
        losses, density = row_of(f, first, m), row_of(weights, first, m)
        distribution = row_of(p, own * first, m)
        e, inverse = float64(eta[row]), 1.0 / float64(eta[row])
        top, low, whole = extent(losses, distribution)
        reach = minus(top, low) * inverse
        if reach < 1e-290 and top > low:
            value[row] = np.nan  # range/eta underflows
            continue
        less = 1.0 if reach < 1.0 else 0.0  # for a large eta, sum exp(u) - 1
        total = 0.0
        for block in range(0, m, BLOCK):
            partial = 0.0
            for i in range(block, block + BLOCK if block + BLOCK < m else m):
                u, w = minus(read(losses, i), top) * inverse, read(distribution, i)
                # A loss without mass may exceed the top.
                power = exponential_less(u if u < 0.0 else 0.0, less)
                partial += w * power
                write(density, i, w * (power + less))
            total += partial
        total = total / whole
        mean = plus(total, less)  # E exp(u)
        if not mean > (1e-280 if weights.itemsize == 8 else 1e-30):
            value[row] = np.nan  # almost no mass at the largest loss: underflow may matter
            continue
        scale = 1.0 / (mean * whole)
        for i in range(m):
            density[i] = density[i] * scale
        primal = e * (
            np.log(mean) + minus(total, minus(mean, less)) / mean
        )  # log(mean) plus a correction for rounding
        shift = store_mu(mu, row, top, primal, e, 0.0)
        h = minus(primal, shift) * inverse  # the rounding of the multiplier, in which the dual is convex
        value[row] = top + primal
        gap[row] = e * (0.5 * h * h if abs(h) < 1e-4 else np.expm1(h) - h)


@compiled(SUMS)
def solve_kinked(
    rows: Any, p: Any, own: int, parameter: float, slope1: float, out: Any, start: int, stop: int
) -> None:
    """Examples 4 and 5, corrected: gamma_i = p_i above max f - width; the rest moves to the largest loss.

    `parameter` is the slope of phi at 0: -1 for the absolute value, 0 for the hinge.
    """
    f, offsets, eta = rows
    value, mu, weights, gap = out
    for row in range(start, stop):
        first = offsets[row]
        m = offsets[row + 1] - first
        losses, density = row_of(f, first, m), row_of(weights, first, m)
        distribution = row_of(p, own * first, m)
        e = float64(eta[row])
        width = e * (1.0 - parameter)  # the cost of moving a unit of mass
        top, low, whole = extent(losses, distribution)
        # As in the reference: away from the end of the domain of phi* if possible, never beyond it.
        drop = minus(top, low) / (1.0 - parameter)
        drop = drop if drop < e else e
        shift = store_mu(mu, row, top, -drop * (1.0 - 8.0 * EPS), e, 0.0, True)
        cut = shift + parameter * e
        left, at_top, primal, dual = 0.0, 0.0, 0.0, 0.0
        for block in range(0, m, BLOCK):
            part_left, part_top, part_primal, part_dual = 0.0, 0.0, 0.0, 0.0
            for i in range(block, block + BLOCK if block + BLOCK < m else m):
                g, w = minus(read(losses, i), top), read(distribution, i)
                part_left += w * (0.0 if g > -width else 1.0)
                part_top += w * (1.0 if g == 0.0 else 0.0)
                part_primal += w * (g if g > -width else -width)
                part_dual += w * (g if g > cut else cut)
            left += part_left
            at_top += part_top
            primal += part_primal
            dual += part_dual
        scale, atom = 1.0 / whole, (left / at_top) / whole
        for i in range(m):
            g = minus(read(losses, i), top)
            write(
                density,
                i,
                read(distribution, i) * ((scale if g > -width else 0.0) + (atom if g == 0.0 else 0.0)),
            )
        value[row] = top + primal / whole
        gap[row] = (dual - primal) / whole


@part()
def middle(a: float, b: float) -> Any:
    """The number halfway between a and b, counting floating-point numbers."""
    low, high = bits(a), bits(b)
    low = low if low >= 0 else -(low & 0x7FFFFFFFFFFFFFFF)
    high = high if high >= 0 else -(high & 0x7FFFFFFFFFFFFFFF)
    half = (low >> 1) + (high >> 1) + (low & high & 1)
    return from_bits(half) if half >= 0 else -from_bits(-half)


@part(SUMS)
def _masses_above(
    a: Any, distribution: Any, low: float, mid: float, high: float
) -> tuple[float, float, float]:
    """The masses above three values."""
    first, second, third = 0.0, 0.0, 0.0
    for block in range(0, a.size, BLOCK):
        part_first, part_second, part_third = 0.0, 0.0, 0.0
        for i in range(block, block + BLOCK if block + BLOCK < a.size else a.size):
            x, w = read(a, i), read(distribution, i)
            part_first += w * (1.0 if x > low else 0.0)  # a product is faster than a branch
            part_second += w * (1.0 if x > mid else 0.0)
            part_third += w * (1.0 if x > high else 0.0)
        first += part_first
        second += part_second
        third += part_third
    return first, second, third


@part(SUMS)
def _at_and_above(a: Any, distribution: Any, q: float) -> tuple[float, float]:
    """(the mass of the entries that equal q, sum p (a - q)_+)."""
    tied, excess = 0.0, 0.0
    for block in range(0, a.size, BLOCK):
        part_tied, part_excess = 0.0, 0.0
        for i in range(block, block + BLOCK if block + BLOCK < a.size else a.size):
            g, w = minus(read(a, i), q), read(distribution, i)
            part_tied += w * (1.0 if g == 0.0 else 0.0)
            part_excess += w * (g if g > 0.0 else 0.0)
        tied += part_tied
        excess += part_excess
    return tied, excess


@part()
def select(
    a: Any, distribution: Any, goal: float, whole: float, low: float, high: float
) -> tuple[float, float, float, float]:
    """(q, above, tied, excess): q is the largest entry such that the mass of entries >= q reaches `goal`.

    `above` is the mass of entries > q, `tied` that of entries equal to q, `excess` is sum p (a - q)_+. A
    bracket [low, high] of all entries with mass is narrowed by the masses above three values: the point of
    false position (Illinois) and two close to it, which usually enclose q; if that is slow, by bisection over
    the floating-point numbers. The last steps move down from entry to entry. NaN on failure.
    """
    mean = whole / a.size
    above, beyond = 0.0, whole  # the masses above `high` and above `low`
    less_short, less_over, side, steps_down, stalled, inclusive = 1.0, 1.0, 0, 0, False, True
    for step in range(200):
        short = goal - 0.5 * mean - above
        short = less_short * (short if short > 0.0 else 0.0)
        over = less_over * (beyond - goal + 0.5 * mean)
        t = high - (high - low) * (short / (short + over)) if step < 20 else middle(low, high)
        close = goal - above <= 4.0 * mean or stalled
        if (close and steps_down < 8) or not low < t < high:
            q = next_loss(a, distribution, high, 1.0, inclusive)
            tied, excess = _at_and_above(a, distribution, q)
            if not (above + tied < goal and q > low):  # q = low if rounding keeps the masses below the goal
                return q, above, tied, excess
            high, above, inclusive = q, above + tied, False
            steps_down, stalled = steps_down + 1, False
            continue
        width = 0.7 * 0.4**step + 0.1
        left, right = t - width * (t - low), t + width * (high - t)
        first, second, third = _masses_above(a, distribution, left, t, right)
        before_step = beyond - above
        if first < goal:
            high, above, inclusive = left, first, True
            less_over, less_short, side = 0.5 * less_over if side == 1 else 1.0, 1.0, 1
        elif third >= goal:
            low, beyond = right, third
            less_short, less_over, side = 0.5 * less_short if side == -1 else 1.0, 1.0, -1
        else:
            less_short, less_over, side = 1.0, 1.0, 0
            inclusive = True
            if second < goal:
                low, beyond, high, above = left, first, t, second
            else:
                low, beyond, high, above = t, second, right, third
        stalled = beyond - above == before_step  # one entry may hold all the remaining mass
    return np.nan, np.nan, np.nan, np.nan


@compiled(SUMS)
def solve_indicator(
    rows: Any, p: Any, own: int, parameter: float, slope1: float, out: Any, start: int, stop: int
) -> None:
    """Example 1 with atoms: gamma_i = p_i/alpha above the quantile q; the rest is shared among f = q."""
    f, offsets, _ = rows
    value, mu, weights, gap = out
    for row in range(start, stop):
        first = offsets[row]
        m = offsets[row + 1] - first
        losses, density = row_of(f, first, m), row_of(weights, first, m)
        distribution = row_of(p, own * first, m)
        top, low, whole = extent(losses, distribution)
        value[row] = np.nan
        if not whole > 0.0:
            continue
        full = parameter * whole
        if distribution is None:
            # Masses are counts, and alpha m, which may be an integer up to rounding, is stored in two parts.
            # 2^27 + 1 splits alpha into halves whose products with m are exact.
            head = parameter * 134217729.0
            head = minus(head, minus(head, parameter))
            rest = minus(head * whole, full) + minus(parameter, head) * whole
            goal = np.ceil(full * (1.0 - 1e-14))
        else:
            rest, goal = 0.0, full * (1.0 - _SLACK)
        q, above, tied, excess = select(losses, distribution, goal if goal > 0.0 else 1.0, whole, low, top)
        share = (minus(full, above) + rest) / tied
        share = (share if share < 1.0 else 1.0) if share > 0.0 else 0.0
        share, gain = share / full, excess / full
        heavy = 1.0 / full
        if distribution is None and above > 0.0:
            heavy = (1.0 - share * tied) / above  # so that the weights sum to one
            gain = heavy * excess
        for i in range(m):
            g = minus(read(losses, i), q)
            w = (heavy if g > 0.0 else 0.0) + (share if g == 0.0 else 0.0)
            write(density, i, read(distribution, i) * w)
        mu[row] = q
        value[row] = q + gain
        gap[row] = excess / full - gain

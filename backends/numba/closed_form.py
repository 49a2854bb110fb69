"""Kernels for divergences with a closed form (entropic, absolute value, hinge) or a quantile (indicator).

All kernels of inner problems have the same arguments. `rows` is (losses, offsets, eta): row r consists of
losses[offsets[r] : offsets[r + 1]]. The reference distribution `p` is None if uniform. Otherwise it has the
shape of the losses if `p_per_row` is 1, and is shared by all rows if `p_per_row` is 0. `parameter` is that of
the divergence, and `slope1` is phi'(1). A kernel solves the rows from `start` to stop - 1, and fills
out = (value, mu, weights, gap). Sums are in float64 for every dtype. A kernel sets the value of a row to NaN
if a loss or p is invalid, or if the accuracy of the result is in doubt. The reference then solves the batch.

Names for one row of m losses f_i: top = max f, low = min f, `density` the weights to fill in, `p_sum` the sum
of p (m if p is None: every p_i counts as 1), w = p_i, and g = f_i - top (in `solve_indicator`, f_i minus the
quantile).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import float64

from phiball.backends.numba.compilation import compiled, subroutine
from phiball.backends.numba.elementary_functions import exp_minus
from phiball.backends.numba.primitives import (
    BLOCK,
    EPS,
    REORDER_SUMS,
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

_SLACK = 8.0 * EPS  # a probability of alpha (1 - _SLACK) counts as alpha, as in the reference


@compiled(REORDER_SUMS)
def solve_entropic(
    rows: Any, p: Any, p_per_row: int, parameter: float, slope1: float, out: Any, start: int, stop: int
) -> None:
    """Example 2: gamma_i = p_i exp(u_i)/E exp(u), value = top + eta log E exp(u), for u = (f - top)/eta."""
    f, offsets, eta = rows
    value, mu, weights, gap = out
    for row in range(start, stop):
        first = offsets[row]
        m = offsets[row + 1] - first
        losses, density = row_of(f, first, m), row_of(weights, first, m)
        distribution = row_of(p, p_per_row * first, m)
        e, inverse = float64(eta[row]), 1.0 / float64(eta[row])
        top, low, p_sum = extent(losses, distribution)
        spread = minus(top, low) * inverse
        if spread < 1e-290 and top > low:
            value[row] = np.nan  # range/eta underflows
            continue
        c = 1.0 if spread < 1.0 else 0.0  # sums p_i (exp(u_i) - c); c = 1 is more accurate for a large eta
        total = 0.0
        for block in range(0, m, BLOCK):
            partial = 0.0
            for i in range(block, block + BLOCK if block + BLOCK < m else m):
                u, w = minus(read(losses, i), top) * inverse, read(distribution, i)
                # A loss with p = 0 may exceed the top.
                power = exp_minus(u if u < 0.0 else 0.0, c)
                partial += w * power
                write(density, i, w * (power + c))
            total += partial
        total = total / p_sum
        mean = plus(total, c)  # E exp(u)
        if not mean > (1e-280 if weights.itemsize == 8 else 1e-30):
            value[row] = np.nan  # p is tiny at the largest losses, and terms of other losses may underflow
            continue
        scale = 1.0 / (mean * p_sum)
        for i in range(m):
            density[i] = density[i] * scale
        # The second term corrects log(mean) for the rounding error of mean.
        primal = e * (np.log(mean) + minus(total, minus(mean, c)) / mean)
        shift = store_mu(mu, row, top, primal, e, 0.0)
        h = minus(primal, shift) * inverse  # the rounding error of mu, in units of eta
        value[row] = top + primal
        gap[row] = e * (0.5 * h * h if abs(h) < 1e-4 else np.expm1(h) - h)


@compiled(REORDER_SUMS)
def solve_kinked(
    rows: Any, p: Any, p_per_row: int, parameter: float, slope1: float, out: Any, start: int, stop: int
) -> None:
    """Examples 4 and 5, corrected: gamma_i = p_i where f_i > top - width; the rest moves to the largest loss.

    `parameter` is the slope of phi at 0: -1 for the absolute value, 0 for the hinge.
    """
    f, offsets, eta = rows
    value, mu, weights, gap = out
    for row in range(start, stop):
        first = offsets[row]
        m = offsets[row + 1] - first
        losses, density = row_of(f, first, m), row_of(weights, first, m)
        distribution = row_of(p, p_per_row * first, m)
        e = float64(eta[row])
        width = e * (1.0 - parameter)  # the cost of moving a unit of probability
        top, low, p_sum = extent(losses, distribution)
        # As in the reference, (f - mu)/eta is inside the domain of phi* if possible, otherwise at its end.
        drop = minus(top, low) / (1.0 - parameter)
        drop = drop if drop < e else e
        shift = store_mu(mu, row, top, -drop * (1.0 - 8.0 * EPS), e, 0.0, True)
        cut = shift + parameter * e
        # `left` is the probability that moves, `at_top` the probability of the largest loss.
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
        scale, atom = 1.0 / p_sum, (left / at_top) / p_sum
        for i in range(m):
            g = minus(read(losses, i), top)
            write(
                density,
                i,
                read(distribution, i) * ((scale if g > -width else 0.0) + (atom if g == 0.0 else 0.0)),
            )
        value[row] = top + primal / p_sum
        gap[row] = (dual - primal) / p_sum


@subroutine()
def middle(a: float, b: float) -> Any:
    """The median of all floating-point numbers between a and b."""
    low, high = bits(a), bits(b)
    low = low if low >= 0 else -(low & 0x7FFFFFFFFFFFFFFF)
    high = high if high >= 0 else -(high & 0x7FFFFFFFFFFFFFFF)
    half = (low >> 1) + (high >> 1) + (low & high & 1)
    return from_bits(half) if half >= 0 else -from_bits(-half)


@subroutine(REORDER_SUMS)
def _masses_above(
    a: Any, distribution: Any, low: float, mid: float, high: float
) -> tuple[float, float, float]:
    """The probabilities of a > low, a > mid and a > high."""
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


@subroutine(REORDER_SUMS)
def _at_and_above(a: Any, distribution: Any, q: float) -> tuple[float, float]:
    """(the probability of a = q, sum_i p_i max(a_i - q, 0))."""
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


@subroutine()
def select(
    a: Any, distribution: Any, goal: float, p_sum: float, low: float, high: float
) -> tuple[float, float, float, float]:
    """(q, above, tied, excess): q is the largest entry of a such that the probability of a >= q is >= goal.

    `above` is the probability of a > q, `tied` that of a = q, and `excess` is sum_i p_i max(a_i - q, 0); all
    are NaN on failure. [low, high] is a bracket of q, which at first contains all entries with p > 0. A step
    evaluates the probability above three values: the point of false position (Illinois method), and one value
    on each side of it, which usually enclose q. After 20 steps the point is found by bisection over the
    floating-point numbers instead. Close to q, the search moves down from entry to entry.
    """
    mean = p_sum / a.size
    above, beyond = 0.0, p_sum  # the probabilities of a > high and a > low
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
            if not (above + tied < goal and q > low):  # stop at low even if rounding keeps the sum below goal
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
        stalled = beyond - above == before_step  # one entry may have all the remaining probability
    return np.nan, np.nan, np.nan, np.nan


@compiled(REORDER_SUMS)
def solve_indicator(
    rows: Any, p: Any, p_per_row: int, parameter: float, slope1: float, out: Any, start: int, stop: int
) -> None:
    """Example 1 with atoms: gamma_i = p_i/alpha where f_i exceeds the quantile q; the rest goes to f_i = q.

    `parameter` is alpha. Weights are `heavy` times p above q, and `share` times p at q.
    """
    f, offsets, _ = rows
    value, mu, weights, gap = out
    for row in range(start, stop):
        first = offsets[row]
        m = offsets[row + 1] - first
        losses, density = row_of(f, first, m), row_of(weights, first, m)
        distribution = row_of(p, p_per_row * first, m)
        top, low, p_sum = extent(losses, distribution)
        value[row] = np.nan
        if not p_sum > 0.0:
            continue
        full = parameter * p_sum
        if distribution is None:
            # p_sum is m. alpha m may be an integer up to rounding, so it is computed as full + rest, where
            # `rest` is the rounding error of `full`. The factor 2^27 + 1 splits alpha into two terms whose
            # products with m are exact (Dekker's method).
            head = parameter * 134217729.0
            head = minus(head, minus(head, parameter))
            rest = minus(head * p_sum, full) + minus(parameter, head) * p_sum
            goal = np.ceil(full * (1.0 - 1e-14))
        else:
            rest, goal = 0.0, full * (1.0 - _SLACK)
        q, above, tied, excess = select(losses, distribution, goal if goal > 0.0 else 1.0, p_sum, low, top)
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

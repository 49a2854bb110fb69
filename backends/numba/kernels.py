"""The inner problem, compiled: one pass over a row is one loop, and a row stays in the cache.

Each kernel solves the rows start, ..., stop - 1 of the losses under the uniform law and fills
out = (value, mu, weights, gap). It is serial and releases the interpreter's lock. Sums are kept in float64
whatever the dtype of the losses. A loss that is not finite makes the value NaN.

No loop both sums and stores: the compiler would keep two forms of it, with sums in two orders, and choose by
whether the arrays may overlap, so that the last digits would depend on where they happen to lie in memory.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import float64

from phiball.backends.numba.compilation import compiled
from phiball.backends.numba.primitives import (
    BLOCK,
    SUMS,
    before,
    exp_nonpositive,
    expm1_nonpositive,
    larger,
    middle,
    minus,
    product,
    rank_of,
    share_of,
    store_mu,
    top_and_mean,
    top_of,
)


@compiled(SUMS)
def entropic(
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
    """Example 2: gamma_i = exp(u_i)/sum exp(u), value = eta log E exp(u) above the maximum."""
    value, mu, weights, gap = out
    for row in range(start, stop):
        first = offsets[row]
        m = offsets[row + 1] - first
        losses, density = f[first : first + m], weights[first : first + m]
        e, inverse = float64(eta[row]), 1.0 / float64(eta[row])
        top = float64(top_of(losses))
        for i in range(m):
            u = minus(losses[i], top) * inverse
            density[i] = exp_nonpositive(u) + 0.0 * u  # a loss that is not finite must show in the value
        total = 0.0
        for block in range(0, m, BLOCK):
            part = 0.0
            for i in range(block, min(block + BLOCK, m)):
                part += density[i]
            total += part
        for i in range(m):
            density[i] = density[i] * (1.0 / total)
        excess = total / m - 1.0
        primal = e * np.log(total / m)
        if excess > -0.25:  # a large eta: keep the digits of E exp(u) - 1
            total = 0.0
            for block in range(0, m, BLOCK):
                part = 0.0
                for i in range(block, min(block + BLOCK, m)):
                    part += expm1_nonpositive(minus(losses[i], top) * inverse)
                total += part
            excess = total / m
            primal = e * np.log1p(excess)
        shift = store_mu(mu, row, top, primal, e, 0.0)
        dual = shift + e * (excess + (1.0 + excess) * np.expm1(-shift * inverse))
        value[row] = top + primal
        gap[row] = dual - primal


@compiled(SUMS)
def quadratic(
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
    """Example 3, centred: gamma_i = (1 + (g_i - c)/eta)_+ / m, by Newton on the active set."""
    value, mu, weights, gap = out
    for row in range(start, stop):
        first = offsets[row]
        m = offsets[row + 1] - first
        losses, density = f[first : first + m], weights[first : first + m]
        e, inverse = float64(eta[row]), 1.0 / float64(eta[row])
        top, mean = top_and_mean(losses)
        # Solve sum (g_i - edge)_+ = m eta, then c = edge + eta.
        edge = max(-e * m, mean - e)  # one point alone, or all: left of the root
        for step in range(100):
            count, total = 0, 0.0
            for block in range(0, m, BLOCK):
                part = 0.0
                for i in range(block, min(block + BLOCK, m)):
                    g = minus(minus(losses[i], top), edge)
                    count += g > 0.0
                    part += g if g > 0.0 else 0.0
                total += part
            slack = total / (m * e)
            if slack > 1.5 and step < 4:
                # Newton on the logarithm of the sum (by a fraction close to it) is there sooner.
                change = slack * 3.0 * (slack * slack - 1.0) / (slack * (slack + 4.0) + 1.0)
                edge = min(edge + m * e * change / count, -e)
                continue
            # A plain step ends on the root, unless it crosses points: about count (slack - 1) of them.
            edge = edge + m * e * (slack - 1.0) / count
            if abs(slack - 1.0) * count > 0.5 and step < 99:
                continue
            c = edge + e if count < m else mean  # a large eta takes the digits of edge + eta
            shift = store_mu(mu, row, top, c, e, slope1)
            mass, gain, cost = 0.0, 0.0, 0.0
            for block in range(0, m, BLOCK):
                part_mass, part_gain, part_cost = 0.0, 0.0, 0.0
                for i in range(block, min(block + BLOCK, m)):
                    g = minus(losses[i], top)
                    d = minus(g, c) * inverse
                    d = d if d > -1.0 else -1.0
                    part_mass += d
                    part_gain += (1.0 + d) * g
                    part_cost += d * d
                mass += part_mass
                gain += part_gain
                cost += part_cost
            if not abs(mass) > 1e-14 * m:  # the weights sum to one: no point was crossed
                break
        for i in range(m):
            d = minus(minus(losses[i], top), c) * inverse
            density[i] = (1.0 + (d if d > -1.0 else -1.0)) * (1.0 / m)
        # The multiplier corrects the value for weights that sum to one but for rounding.
        primal = (gain - 0.5 * e * cost - c * mass) / m
        value[row] = top + primal
        # phi*(s) = s + s^2/2 at s = d - h/eta, where h is what mu was rounded up by.
        h = minus(shift, c)
        conj = e * (mass + 0.5 * cost) / m - h * (1.0 + mass / m) + 0.5 * h * h * inverse * (count / m)
        gap[row] = (shift + conj) - primal


@compiled(SUMS)
def three_halves(
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
    """Cressie-Read, k = 3/2: gamma_i = y_i^2/m with y_i = (1 + b + g_i/(2 eta))_+.

    Newton on sqrt(E y^2), which is convex in b and straight while the same points are active.
    """
    value, mu, weights, gap = out
    for row in range(start, stop):
        first = offsets[row]
        m = offsets[row + 1] - first
        losses, density = f[first : first + m], weights[first : first + m]
        e, half = float64(eta[row]), 0.5 / float64(eta[row])
        top, mean = top_and_mean(losses)
        # sqrt(E y^2) is at least E y, and at least the share of the largest y: right of the root
        b = min(-mean * half, np.sqrt(float64(m)) - 1.0)
        for _ in range(100):
            first, second = 0.0, 0.0
            for block in range(0, m, BLOCK):
                part_first, part_second = 0.0, 0.0
                for i in range(block, min(block + BLOCK, m)):
                    y = 1.0 + (b + minus(losses[i], top) * half)
                    y = y if y > 0.0 else 0.0
                    part_first += y
                    part_second += y * y
                first += part_first
                second += part_second
            square = second / m
            change = (np.sqrt(square) - square) * m / first
            b += change
            if not abs(change) > 4e-16 * (1.0 + b):
                break
        # y at the largest loss is 1 + b, so s = phi'((1 + b)^2) = 2 b.
        shift = store_mu(mu, row, top, -2.0 * e * b, e, 0.0)
        at_mu = -shift * half
        mass, gain, cost, conj = 0.0, 0.0, 0.0, 0.0
        for block in range(0, m, BLOCK):
            part_mass, part_gain, part_cost, part_conj = 0.0, 0.0, 0.0, 0.0
            for i in range(block, min(block + BLOCK, m)):
                g = minus(losses[i], top)
                d = b + g * half
                d = d if d > -1.0 else -1.0
                s = at_mu + g * half
                s = s if s > -1.0 else -1.0
                x = (1.0 + d) * (1.0 + d)
                part_mass += d * (2.0 + d)  # x - 1
                part_gain += x * g
                part_cost += d * d * (d + 1.5)  # phi(y^2) = 4/3 (y - 1)^2 (y + 1/2)
                part_conj += s * (3.0 + s * (3.0 + s))  # phi*(s) = 2/3 (y^3 - 1)
            gain += part_gain
            cost += part_cost
            conj += part_conj
            mass += part_mass
        for i in range(m):
            d = b + minus(losses[i], top) * half
            d = d if d > -1.0 else -1.0
            density[i] = (1.0 + d) * (1.0 + d) * (1.0 / m)
        primal = (gain - (4.0 / 3.0) * e * cost - shift * mass) / m
        value[row] = top + primal
        gap[row] = (shift + (2.0 / 3.0) * e * (conj / m)) - primal


@compiled(SUMS)
def _extent(a: Any) -> tuple[float, float]:
    """(min, max)."""
    low, high = -a[0], a[0]
    for i in range(a.size):
        low = larger(low, -a[i])
        high = larger(high, a[i])
    return -float64(low), float64(high)


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
    low, high = _extent(a)
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
    """Example 1 with atoms: gamma_i = 1/(alpha m) above the quantile q, the rest shared on f = q."""
    value, mu, weights, gap = out
    for row in range(start, stop):
        first = offsets[row]
        m = offsets[row + 1] - first
        losses, density = f[first : first + m], weights[first : first + m]
        full, rest = product(parameter, m)
        rank = rank_of(parameter, m)
        q, above, reached = select(losses, rank)
        tied = reached - above
        share = share_of(full, rest, above, tied) / full
        full_weight = (1.0 - share * tied) / max(above, 1)
        gain, excess = 0.0, 0.0
        for block in range(0, m, BLOCK):
            part_gain, part_excess = 0.0, 0.0
            for i in range(block, min(block + BLOCK, m)):
                g = minus(losses[i], q)
                w = full_weight if g > 0.0 else (share if g == 0.0 else 0.0)
                part_gain += w * g
                part_excess += g if g > 0.0 else 0.0
            gain += part_gain
            excess += part_excess
        for i in range(m):
            g = minus(losses[i], q)
            density[i] = full_weight if g > 0.0 else (share if g == 0.0 else 0.0)
        mu[row] = q
        value[row] = q + gain
        gap[row] = excess / full - gain

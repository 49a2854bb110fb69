"""The inner problem, compiled: one pass over a row is one loop, and a row stays in the cache.

Each kernel solves rows of losses under the uniform law and fills value, mu, weights and gap. They are
serial and release the interpreter's lock; rows are shared among threads elsewhere. Sums are kept
in float64 whatever the dtype of the losses. A loss that is not finite makes the value NaN.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import float64

from phiball.backends.numba_parts import (
    BLOCK,
    SUMS,
    compiled,
    exp_nonpositive,
    expm1_nonpositive,
    minus,
    next_row,
    product,
    rank_of,
    ring,
    share_of,
    store_mu,
    top_and_mean,
)


@compiled(SUMS)
def entropic(
    f: Any,
    eta: Any,
    parameter: float,
    slope1: float,
    value: Any,
    mu: Any,
    weights: Any,
    gap: Any,
    bell: Any,
    queue: Any,
) -> None:
    """Example 2: gamma_i = exp(u_i)/sum exp(u), value = eta log E exp(u) above the maximum."""
    ring(bell)
    m = f.shape[1]
    n, (row, stop) = f.shape[0], next_row(queue, 0, 0, 1, f.shape[0])
    while row < n:
        e, inverse = float64(eta[row]), 1.0 / float64(eta[row])
        top, _ = top_and_mean(f[row])
        total = 0.0
        for start in range(0, m, BLOCK):
            part = 0.0
            for i in range(start, min(start + BLOCK, m)):
                u = minus(f[row, i], top) * inverse
                w = exp_nonpositive(u)
                weights[row, i] = w
                part += w + 0.0 * u  # a loss that is not finite must show in the value
            total += part
        for i in range(m):
            weights[row, i] = weights[row, i] * (1.0 / total)
        excess = total / m - 1.0
        primal = e * np.log(total / m)
        if excess > -0.25:  # a large eta: keep the digits of E exp(u) - 1
            total = 0.0
            for start in range(0, m, BLOCK):
                part = 0.0
                for i in range(start, min(start + BLOCK, m)):
                    part += expm1_nonpositive(minus(f[row, i], top) * inverse)
                total += part
            excess = total / m
            primal = e * np.log1p(excess)
        shift = store_mu(mu, row, top, primal, e, 0.0)
        dual = shift + e * (excess + (1.0 + excess) * np.expm1(-shift * inverse))
        value[row] = top + primal
        gap[row] = dual - primal
        row, stop = next_row(queue, row, stop, 1, n)


@compiled(SUMS)
def quadratic(
    f: Any,
    eta: Any,
    parameter: float,
    slope1: float,
    value: Any,
    mu: Any,
    weights: Any,
    gap: Any,
    bell: Any,
    queue: Any,
) -> None:
    """Example 3, centred: gamma_i = (1 + (g_i - c)/eta)_+ / m, by Newton on the active set."""
    ring(bell)
    m = f.shape[1]
    n, (row, stop) = f.shape[0], next_row(queue, 0, 0, 1, f.shape[0])
    while row < n:
        e, inverse = float64(eta[row]), 1.0 / float64(eta[row])
        top, mean = top_and_mean(f[row])
        # Solve sum (g_i - edge)_+ = m eta, then c = edge + eta.
        edge = max(-e * m, mean - e)  # one point alone, or all: left of the root
        for step in range(100):
            count, total = 0, 0.0
            for start in range(0, m, BLOCK):
                part = 0.0
                for i in range(start, min(start + BLOCK, m)):
                    g = minus(minus(f[row, i], top), edge)
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
            mass, gain, cost, conj = 0.0, 0.0, 0.0, 0.0
            for start in range(0, m, BLOCK):
                part_mass, part_gain, part_cost, part_conj = 0.0, 0.0, 0.0, 0.0
                for i in range(start, min(start + BLOCK, m)):
                    g = minus(f[row, i], top)
                    d = minus(g, c) * inverse
                    d = d if d > -1.0 else -1.0
                    s = minus(g, shift) * inverse
                    s = s if s > -1.0 else -1.0
                    weights[row, i] = (1.0 + d) * (1.0 / m)
                    part_mass += d
                    part_gain += (1.0 + d) * g
                    part_cost += d * d
                    part_conj += s + 0.5 * (s * s)
                mass += part_mass
                gain += part_gain
                cost += part_cost
                conj += part_conj
            if not abs(mass) > 1e-14 * m:  # the weights sum to one: no point was crossed
                break
        # The multiplier corrects the value for weights that sum to one but for rounding.
        primal = (gain - 0.5 * e * cost - c * mass) / m
        value[row] = top + primal
        gap[row] = (shift + e * (conj / m)) - primal
        row, stop = next_row(queue, row, stop, 1, n)


@compiled(SUMS)
def three_halves(
    f: Any,
    eta: Any,
    parameter: float,
    slope1: float,
    value: Any,
    mu: Any,
    weights: Any,
    gap: Any,
    bell: Any,
    queue: Any,
) -> None:
    """Cressie-Read, k = 3/2: gamma_i = y_i^2/m with y_i = (1 + b + g_i/(2 eta))_+.

    Newton on sqrt(E y^2), which is convex in b and straight while the same points are active.
    """
    ring(bell)
    m = f.shape[1]
    n, (row, stop) = f.shape[0], next_row(queue, 0, 0, 1, f.shape[0])
    while row < n:
        e, half = float64(eta[row]), 0.5 / float64(eta[row])
        top, mean = top_and_mean(f[row])
        # sqrt(E y^2) is at least E y, and at least the share of the largest y: right of the root
        b = min(-mean * half, np.sqrt(float64(m)) - 1.0)
        for _ in range(100):
            first, second = 0.0, 0.0
            for start in range(0, m, BLOCK):
                part_first, part_second = 0.0, 0.0
                for i in range(start, min(start + BLOCK, m)):
                    y = 1.0 + (b + minus(f[row, i], top) * half)
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
        for start in range(0, m, BLOCK):
            part_mass, part_gain, part_cost, part_conj = 0.0, 0.0, 0.0, 0.0
            for i in range(start, min(start + BLOCK, m)):
                g = minus(f[row, i], top)
                d = b + g * half
                d = d if d > -1.0 else -1.0
                s = at_mu + g * half
                s = s if s > -1.0 else -1.0
                x = (1.0 + d) * (1.0 + d)
                weights[row, i] = x * (1.0 / m)
                part_mass += d * (2.0 + d)  # x - 1
                part_gain += x * g
                part_cost += d * d * (d + 1.5)  # phi(y^2) = 4/3 (y - 1)^2 (y + 1/2)
                part_conj += s * (3.0 + s * (3.0 + s))  # phi*(s) = 2/3 (y^3 - 1)
            gain += part_gain
            cost += part_cost
            conj += part_conj
            mass += part_mass
        primal = (gain - (4.0 / 3.0) * e * cost - shift * mass) / m
        value[row] = top + primal
        gap[row] = (shift + (2.0 / 3.0) * e * (conj / m)) - primal
        row, stop = next_row(queue, row, stop, 1, n)


@compiled()
def _sort_down(a: Any, n: int) -> None:
    for i in range(1, n):
        x = a[i]
        j = i
        while j > 0 and a[j - 1] < x:
            a[j] = a[j - 1]
            j -= 1
        a[j] = x


@compiled(SUMS)
def _count_above(a: Any, n: int, q: float) -> int:
    count = 0
    for i in range(n):
        count += a[i] > q
    return count


@compiled()
def _gather(a: Any, n: int, low: float, high: float, out: Any) -> int:
    """Copy the entries of a in [low, high] to out, without a branch; returns how many."""
    inside = 0
    for i in range(n):
        out[inside] = a[i]
        inside += (a[i] >= low) & (a[i] <= high)
    return inside


@compiled()
def select(a: Any, rank: int, one: Any, two: Any, sample: Any) -> Any:
    """The `rank`-th largest entry of `a` (from 1); the other arrays are room to work in.

    A sorted sample puts a bracket around the answer; what lies inside it is gathered, and so on.
    """
    n = a.size
    while n > 32:
        size = min(64, n // 8)
        stride = n // size
        for i in range(size):
            sample[i] = a[i * stride]
        _sort_down(sample, size)
        place = rank * size / n
        margin = 1.0 + 1.5 * np.sqrt(place * (1.0 - rank / n) + 1.0)
        upper, lower = int(place - margin), int(place + margin)
        high = sample[upper] if place >= margin else np.inf
        low = sample[lower] if lower < size else -np.inf
        above = _count_above(a, n, high)
        if rank <= above:  # the sample misled
            low, high, above = np.nextafter(high, np.inf), np.inf, 0
        inside = _gather(a, n, low, high, one)
        if rank > above + inside:
            above += inside
            high, low = np.nextafter(low, -np.inf), -np.inf
            inside = _gather(a, n, low, high, one)
        if low == high:
            return low
        if 4 * inside > 3 * n:  # ties: split into more than, equal to and less than a pivot
            pivot = sample[min(size - 1, max(0, int(place)))]
            above = _count_above(a, n, pivot)
            if rank <= above:
                above, inside = 0, _gather(a, n, np.nextafter(pivot, np.inf), np.inf, one)
            else:
                least = np.nextafter(pivot, -np.inf)
                inside = _gather(a, n, -np.inf, least, one)
                if rank <= n - inside:
                    return pivot
                above = n - inside
        rank, n = rank - above, inside
        a, one, two = one, two, one
    answer = np.inf
    for i in range(n):  # the smallest of those that fewer than `rank` exceed
        if a[i] < answer and _count_above(a, n, a[i]) < rank:
            answer = a[i]
    return answer


@compiled(SUMS)
def indicator(
    f: Any,
    eta: Any,
    parameter: float,
    slope1: float,
    value: Any,
    mu: Any,
    weights: Any,
    gap: Any,
    bell: Any,
    queue: Any,
) -> None:
    """Example 1 with atoms: gamma_i = 1/(alpha m) above the quantile q, the rest shared on f = q."""
    ring(bell)
    m = f.shape[1]
    alpha = parameter
    one, two, sample = np.empty(m, f.dtype), np.empty(m, f.dtype), np.empty(64, f.dtype)
    full, rest = product(alpha, m)
    rank = rank_of(alpha, m)
    n, (row, stop) = f.shape[0], next_row(queue, 0, 0, 1, f.shape[0])
    while row < n:
        q = float64(select(f[row], rank, one, two, sample))
        above, reached, excess = 0, 0, 0.0
        for start in range(0, m, BLOCK):
            part = 0.0
            for i in range(start, min(start + BLOCK, m)):
                g = minus(f[row, i], q)
                above += g > 0.0
                reached += g >= 0.0
                part += g if g > 0.0 else 0.0
            excess += part
        tied = reached - above
        share = share_of(full, rest, above, tied) / full
        each = (1.0 - share * tied) / max(above, 1)
        gain = 0.0
        for start in range(0, m, BLOCK):
            part = 0.0
            for i in range(start, min(start + BLOCK, m)):
                g = minus(f[row, i], q)
                w = each if g > 0.0 else (share if g == 0.0 else 0.0)
                weights[row, i] = w
                part += w * g
            gain += part
        mu[row] = q
        value[row] = q + gain
        gap[row] = excess / full - gain
        row, stop = next_row(queue, row, stop, 1, n)

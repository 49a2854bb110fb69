"""The kernel of the Cressie-Read divergences: every order k but those with kernels of their own.

With a = k - 1, q = 1/a and y_i = Y + a (f_i - f_j)/eta, the ratios are x_i = y_i^q, or 0 where y_i <= 0, and
Y is such that E x = 1. The point j is the largest loss, or for k > 2 the smallest one that has weight, where
a ratio reaches zero with infinite slope; so no digit of a small y is lost. Short polynomials find Y to four
digits. Then the powers are computed accurately, once as a rule: the rest is a series in the change of Y.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import float64

from phiball.backends.numba.compilation import compiled
from phiball.backends.numba.power_passes import (
    conjugate,
    keep_above,
    move,
    neighbours,
    next_above,
    ratios,
    rough_slope,
    rough_sums,
    sums,
)
from phiball.backends.numba.primitives import BLOCK, SUMS, larger, minus, store_mu

_MET = 2e-15  # a mass that differs from 1 by so little is one


@compiled(SUMS)
def power(
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
    """Cressie-Read of order `parameter`; a row that it cannot vouch for gets the value NaN."""
    value, mu, weights, gap = out
    longest = 0
    for row in range(start, stop):
        longest = max(longest, offsets[row + 1] - offsets[row])
    g, law, x, d = np.empty(longest), np.ones(longest), np.empty(longest), np.empty(longest)
    where = np.empty(longest, np.int64)
    k, a, q = parameter, parameter - 1.0, 1.0 / (parameter - 1.0)
    for row in range(start, stop):
        first = offsets[row]
        m = offsets[row + 1] - first
        losses, density = f[first : first + m], weights[first : first + m]
        e = float64(eta[row])
        scale = a / e
        value[row] = np.nan
        own = None if p is None else (p if shared else p[first : first + m])
        n = _load(losses, own, g, law, where)
        top, low, mean, total, at_top = survey(g[:n], law[:n])
        spread = abs(scale) * minus(top, low)
        if not (
            spread < 1e280 and (spread > 1e-280 or top == low) and abs(a) * np.log(total / at_top) < 600.0
        ):
            continue  # something is not finite, or would leave the range of the numbers
        # mean <= 0, and E x is at least, or for k in (1, 2) and below 1 at most, what it is for equal losses
        mean = mean * scale
        lone = (total / at_top) ** a  # Y if the largest loss had all the weight
        dropped, n_kept, kept = -np.inf, n, total
        if k > 2.0:
            Y, dropped, n = _rough_threshold(g, law, where, n, total, top, scale, q, mean, lone, spread)
            ref = next_above(g[:n], top - Y / scale)
            Y = Y + minus(ref, top) * scale
        else:
            ref = top
            Y, dropped, n = _rough_root(g, law, where, n, total, top, scale, k, mean, lone)
        if n < n_kept:
            kept = 0.0
            for i in range(n):
                kept += law[i]
        Y, T, ref, rate, mass = _exact(
            g[:n], law[:n], total, kept, ref, top, scale, k, dropped, Y, x[:n], d[:n]
        )
        if not abs(mass) < 1e-13:
            continue
        for i in range(m):
            density[i] = 0.0
        share = 1.0 / total  # computed here: in the loops it would be at every step
        if n < m:
            for i in range(n):
                density[where[i]] = x[i] * law[i] * share
        else:
            for i in range(m):
                density[i] = x[i] * law[i] * share
        conj = conjugate(g[:n], law[:n], ref, scale, Y, T, _beyond(Y, T), k, x[:n], d[:n])
        if k > 1.0:
            conj -= (total - kept) / k
        exact = -(e * q) * T - minus(top, ref)
        # Next to a pole, mu rounded down would make the dual infinite.
        near = (
            exact * (1.0 - (8.0 * 2.220446049250313e-16 if mu.itemsize == 8 else 8.0 * 1.1920929e-07))
            if k < 1.0
            else exact
        )
        shift = store_mu(mu, row, top, near, e, slope1, parameter < 1.0)
        primal = exact + e * (conj / total)
        value[row] = top + primal
        h = minus(shift, exact)
        # phi*'' grows with s for k < 2, and beyond, a step back costs at most a times as much.
        gap[row] = -h * mass + (min(h, h * (h / e) * 0.5 * max(1.0, a) * rate) if h > 0.0 else 0.0)


@compiled()
def _load(losses: Any, p: Any, g: Any, law: Any, where: Any) -> int:
    """Copy the points that have mass, their masses and places; returns how many there are.

    A loss that is not finite, also one without mass, or a p that is not a law makes the first loss NaN.
    """
    if p is None:
        for i in range(losses.size):
            g[i] = losses[i]
        for i in range(losses.size):
            where[i] = i
        return int(losses.size)
    amiss, total, n = 0.0, 0.0, 0
    for i in range(losses.size):
        amiss += 0.0 * losses[i]
        total += p[i]
    for i in range(losses.size):
        amiss += 0.0 if p[i] >= 0.0 else 1.0
    for i in range(losses.size):
        mass = float64(p[i])
        g[n], law[n], where[n] = losses[i], mass, i
        n += mass > 0.0
    if not (amiss == 0.0 and abs(total - 1.0) <= (1e-6 if p.itemsize == 8 else 1e-4)):  # as in the reference
        g[0] = np.nan
    return max(n, 1)


@compiled(SUMS)
def survey(f: Any, law: Any) -> tuple[float, float, float, float, float]:
    """(max f, min f, mean f - max f, the mass of all points, that of the largest)."""
    top, low = f[0], -f[0]
    for i in range(f.size):
        top = larger(top, f[i])
        low = larger(low, -f[i])
    moment, total, at_top = 0.0, 0.0, 0.0
    for block in range(0, f.size, BLOCK):
        part, part_total, part_top = 0.0, 0.0, 0.0
        for i in range(block, min(block + BLOCK, f.size)):
            part += law[i] * minus(f[i], top)
            part_total += law[i]
            part_top += law[i] if f[i] == top else 0.0
        moment += part
        total += part_total
        at_top += part_top
    return top, -low, moment / total, total, at_top


@compiled()
def _rough_root(
    f: Any,
    law: Any,
    where: Any,
    n: int,
    total: float,
    top: float,
    scale: float,
    k: float,
    mean: float,
    lone: float,
) -> tuple[float, float, int]:
    """(Y, level, n) for k < 2: Y to four digits; n points are kept, and the others are below the level.

    By Halley's method on the mass in X = Y^q for k < 1, and on its logarithm in log X above. If that is
    slow, by Newton's on the mass to the power a, which is concave, respectively convex, in Y.
    """
    a = k - 1.0
    q = 1.0 / a
    start = max(1.0 - mean, lone) if a < 0.0 else min(1.0 - mean, lone)
    Y, dropped = start, -np.inf
    if abs(a) < 1e-6:
        return Y, dropped, n
    for step in range(60):
        first, second, third = rough_sums(f[:n], law[:n], top, scale, Y, q)
        F, rate, bend = first / total, second / total, (1.0 - a) * (third - second) / total
        newton = Y * (1.0 + F * np.expm1(-a * np.log(F)) / rate)
        if a > 0.25 and step < 2:
            # Newton's step on a convex function does not fall short of the root: what is idle there stays so.
            level = top - newton * 1.001 / scale
            if newton > 0.0 and level > dropped:
                n, dropped = keep_above(f, law, where, n, level), level
        if a < 0.0:
            change = np.log(max(1e-2, 1.0 - 2.0 * (F - 1.0) * rate / (2.0 * rate * rate - (F - 1.0) * bend)))
        else:
            log, slope = np.log(F), rate / F
            bend = (bend + rate) / F - slope * slope if a < 0.75 else 0.0
            change = -2.0 * log * slope / (2.0 * slope * slope - log * bend)
        new = Y * np.exp(a * change) if step < 8 and abs(change) < 50.0 else newton
        new = min(max(new, min(start, 1.0)), max(start, 1.0))
        change = q * np.log(new / Y)
        Y = new
        if not abs(change) > 0.03:
            break
    return Y, dropped, n


@compiled()
def _rough_threshold(
    f: Any,
    law: Any,
    where: Any,
    n: int,
    total: float,
    top: float,
    scale: float,
    q: float,
    mean: float,
    lone: float,
    spread: float,
) -> tuple[float, float, int]:
    """The same for k > 2, but to within a point or so: Newton's method on log E x in Y, in a bracket."""
    low, high = 1.0, min(lone, 1.0 + spread)
    Y, dropped = min(max(1.0 - mean, low), high), -np.inf
    for step in range(60):
        first, slope, count = rough_slope(f[:n], law[:n], top, scale, Y, q)
        F = first / total
        if F < 1.0:
            low = Y
        else:
            high = Y
            if F > 1.001 and step < 4 and count < 0.75 * n:
                dropped = top - Y / scale
                n = keep_above(f, law, where, n, dropped)
        if not abs(F - 1.0) * count > 1.0:
            break
        new = Y * (1.0 - np.log(F) * first / slope)
        Y = new if low < new < high else low + 0.5 * (high - low)
    return Y, dropped, n


@compiled()
def _exact(
    f: Any,
    law: Any,
    total: float,
    kept: float,
    ref: float,
    top: float,
    scale: float,
    k: float,
    dropped: float,
    Y: float,
    x: Any,
    d: Any,
) -> tuple[float, float, float, float, float]:
    """(Y, Y - 1, the loss of j, E x/y, E x - 1), with the ratios in x and d; the mass is NaN if it fails."""
    a = k - 1.0
    q = 1.0 / a
    T = Y - 1.0
    idle, active = (
        dropped,
        top,
    )  # for k > 2: the smallest loss that has weight lies above the one, up to the other
    below, tied = _neighbours(f, law, ref, dropped) if k > 2.0 else (dropped, 0.0)
    polished = False
    for step in range(60):
        if not Y > 1e-290:
            break
        ratios(f, ref, scale, Y, _beyond(Y, T), q, x, d)
        for _ in range(8):
            first, second, third = sums(f, law, ref, scale, Y, x, d)
            mass, rate = (first - (total - kept)) / total, second / total
            bend = (1.0 - a) * (third - second) / total if k < 1.5 else 0.0
            rho = -2.0 * mass * rate / (2.0 * rate * rate - mass * bend)
            gap = minus(ref, below) * scale
            largest = 1.0 if k < 2.0 else (Y / (Y + minus(top, ref) * scale)) ** q
            if abs(mass) <= _MET and (polished or abs(rho) * largest <= 1e-14) and not (k > 1.0 and gap < Y):
                return Y, T, ref, rate / Y, mass
            polished = abs(mass) <= _MET
            rho = max(rho, -0.9) if k < 2.0 else rho
            new = Y * np.exp(a * np.log1p(rho)) if rho > -1.0 else 0.0
            if k > 2.0:
                if mass < 0.0:
                    active = min(active, ref)
                else:
                    idle = max(idle, below)
                level = ref
                # What the mass of the points above j gains with Y, and a guess at what those gain that enter.
                gain = max(0.0, q * (second - tied * Y**q) / (total * Y))
                if rho <= -1.0:
                    idle = ref
                    entering = (minus(next_above(f, ref), ref) * scale) ** (q - 1.0) * tied / total
                    level = ref + (mass - rate) / ((gain + entering) * scale)
                elif new > gap and below > idle:
                    left = -mass - gain * (gap - Y) - (gap**q - Y**q) * tied / total
                    if left > 0.0 or gap == Y:
                        level = below - max(left, 0.0) / ((gain + gap ** (q - 1.0) * tied / total) * scale)
                if level != ref or rho <= -1.0:
                    bound = active if rho <= -1.0 else below
                    if not idle <= level < bound or (step > 15 and idle > -np.inf):
                        level = idle + 0.5 * (bound - idle)
                    ref = next_above(f, level)
                    below, tied = _neighbours(f, law, ref, dropped)
                    Y = minus(ref, level) * scale
                    T = Y - 1.0
                    break
                new = min(new, gap)
            change = new - Y
            near = abs(change) / Y * rate * max(1.0, abs(q)) <= 1e-3
            if near:
                change = Y * np.expm1(a * np.log1p(rho)) if new != gap else change
            T = T + change if 0.5 < new < 2.0 else new - 1.0
            old, Y = Y, 1.0 + T if 0.5 < new < 2.0 else new
            if not near:
                break
            move(f, ref, scale, old, change, Y, _beyond(Y, T), q, x, d)
    return Y, T, ref, 0.0, np.nan


@compiled()
def _beyond(Y: float, T: float) -> float:
    """The digits of Y = 1 + T beyond its rounding."""
    return T - (Y - 1.0) if 0.5 < Y < 2.0 else 0.0


@compiled()
def _neighbours(f: Any, law: Any, ref: float, dropped: float) -> tuple[float, float]:
    """(the largest loss below `ref`, or the level up to which points were dropped, the mass at `ref`)."""
    below, tied = neighbours(f, law, ref)
    return max(below, dropped), tied

"""The kernel of the Cressie-Read divergences: every order k but those with kernels of their own.

With a = k - 1, q = 1/a and y_i = Y + a (f_i - f_j)/eta, the ratios are x_i = y_i^q, or 0 where y_i <= 0, and
Y is such that E x = 1. The point j is the largest loss, or for k > 2 another one, see `thresholds`. Passes in
single precision find Y to four digits. Then the powers are computed accurately, once as a rule: the rest is a
series in the change of Y.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import float64

from phiball.backends.numba.balance import MET
from phiball.backends.numba.compilation import compiled
from phiball.backends.numba.elementary import exponentials, log_normal
from phiball.backends.numba.power_passes import (
    LANES,
    SMALL,
    beyond,
    conjugate,
    keep_above,
    move,
    move_logarithms,
    pad,
    padded,
    plain_sums,
    ratios,
    renew,
    rough_sums,
    single,
    sums,
)
from phiball.backends.numba.primitives import BLOCK, SUMS, larger, minus, store_mu, weighted
from phiball.backends.numba.thresholds import rough_threshold, settle


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
    room = longest + LANES
    g, log, x, d = np.empty(room), np.empty(room), np.empty(room), np.empty(room)
    t, light = np.empty(room, np.float32), None if p is None else np.empty(room, np.float32)
    where, at, law = np.empty(room, np.int64), np.empty(room, np.int64), None if p is None else np.empty(room)
    k, a, q = parameter, parameter - 1.0, 1.0 / (parameter - 1.0)
    size = room if k > 2.0 else 0
    masses = None if p is None else np.empty(size)
    close = np.empty(size), masses, np.empty(size, np.int64), np.empty(size), np.empty(size)
    coefficients = np.empty(7)
    for row in range(start, stop):
        first = offsets[row]
        m = offsets[row + 1] - first
        losses, density = f[first : first + m], weights[first : first + m]
        e = float64(eta[row])
        scale = a / e
        value[row] = np.nan
        own = None if p is None else (p if shared else p[first : first + m])
        n = _load(losses, own, g, law, where)
        top, low, mean, total, at_top = survey(g[:n], law)
        spread = abs(scale) * minus(top, low)
        if not (
            spread < 1e280 and (spread > 1e-280 or top == low) and abs(a) * np.log(total / at_top) < 600.0
        ):
            continue  # something is not finite, or would leave the range of the numbers
        # mean <= 0, and E x is at least, or for k in (1, 2) and below 1 at most, what it is for equal losses
        mean = mean * scale
        lone = np.exp(a * np.log(total / at_top))  # Y if the largest loss had all the weight
        start_Y = max(1.0 - mean, lone) if a < 0.0 else min(1.0 - mean, lone)
        coarse = at_top > 1e-20 * total and spread < 1e25 * start_Y  # single precision has the range
        if coarse:
            single(g[:n], law, top, scale / start_Y, t, light)
        pad(g, law, t, light, n)
        n_loaded = n
        if k > 2.0:
            for careful in (not coarse, True):
                if careful and n < n_loaded:  # too many points were dropped
                    _load(losses, own, g, law, where)
                    single(g[:n_loaded], law, top, scale / start_Y, t, light)
                    pad(g, law, t, light, n_loaded)
                bounds = start_Y, lone, spread
                Y, dropped, n = rough_threshold(
                    g, law, where, t, light, at, n_loaded, total, top, scale, q, bounds, coarse, careful
                )
                kept = _mass(law, n, n_loaded, total)
                Y, T, ref, rate, mass = settle(
                    g, law, n, total, kept, top, scale, q, dropped, Y, log, x, d, close, coefficients
                )
                if abs(mass) < 1e-13:
                    break
        else:
            ref = top
            Y, dropped, n = _rough_root(g, law, where, t, light, at, n, total, top, scale, k, start_Y, coarse)
            kept = _mass(law, n, n_loaded, total)
            Y, T, rate, mass = _exact(g, law, n, total, kept, top, scale, k, dropped, Y, log, x, d)
        if not abs(mass) < 1e-13:
            continue
        share = 1.0 / total  # computed here: in the loops it would be at every step
        if n < m:
            for i in range(m):
                density[i] = 0.0
            for i in range(n):
                density[where[i]] = weighted(law, i, x[i]) * share
        else:
            for i in range(m):
                density[i] = weighted(law, i, x[i]) * share
        conj = conjugate(g[:n], law, ref, scale, T, k, log, x, d)
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
def _mass(law: Any, n: int, n_loaded: int, total: float) -> float:
    """The mass of the first n points; `total` is that of all."""
    if n == n_loaded:
        return total
    mass = 0.0
    for i in range(n):
        mass += weighted(law, i, 1.0)
    return mass


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
            part += weighted(law, i, minus(f[i], top))
            part_total += weighted(law, i, 1.0)
            part_top += weighted(law, i, 1.0 if f[i] == top else 0.0)
        moment += part
        total += part_total
        at_top += part_top
    return top, -low, moment / total, total, at_top


@compiled()
def _rough_root(
    f: Any,
    law: Any,
    where: Any,
    t: Any,
    light: Any,
    at: Any,
    n: int,
    total: float,
    top: float,
    scale: float,
    k: float,
    start: float,
    coarse: bool,
) -> tuple[float, float, int]:
    """(Y, level, n) for k < 2: Y to four digits; n points are kept, and the others are below the level.

    By Halley's method on the mass in X = Y^q for k < 1, and on its logarithm in log X above. If that is
    slow, by Newton's on the mass to the power a, which is concave, respectively convex, in Y. If `coarse`,
    t has the losses in single precision, in units of `start`.
    """
    a = k - 1.0
    q = 1.0 / a
    Y, dropped = start, -np.inf
    if abs(a) < 1e-6:
        return Y, dropped, n
    for step in range(60):
        if coarse:
            first, second, third = rough_sums(t[: padded(n)], light, start / Y, q)
        else:
            first, second, third = plain_sums(f[:n], law, top, scale, Y, q)
        log = q * log_normal(Y) + log_normal(first / total)
        F = exponentials(log)[0]  # E x
        rate, bend = F * (second / first), F * (1.0 - a) * ((third - second) / first)
        newton = Y * (1.0 + F * exponentials(-a * log)[1] / rate)
        if a > 0.25 and step < 2:
            # Newton's step on a convex function does not fall short of the root: what is idle there stays so.
            level = top - newton * 1.001 / scale
            if newton > 0.0 and level > dropped:
                n, dropped = keep_above(f, law, where, t, light, at, n, level), level
        if a < 0.0:
            change = 1.0 - 2.0 * (F - 1.0) * rate / (2.0 * rate * rate - (F - 1.0) * bend)
            change = log_normal(max(1e-2, change))
        else:
            slope = rate / F
            bend = (bend + rate) / F - slope * slope if a < 0.75 else 0.0
            change = -2.0 * log * slope / (2.0 * slope * slope - log * bend)
        new = Y * exponentials(a * change)[0] if step < 8 and abs(change) < 50.0 else newton
        new = min(max(new, min(start, 1.0)), max(start, 1.0))
        change = q * log_normal(new / Y)
        Y = new
        if not abs(change) > 0.03:
            break
    return Y, dropped, n


@compiled()
def _exact(
    points: Any,
    law: Any,
    n: int,
    total: float,
    kept: float,
    top: float,
    scale: float,
    k: float,
    dropped: float,
    Y: float,
    logs: Any,
    x: Any,
    d: Any,
) -> tuple[float, float, float, float]:
    """(Y, Y - 1, E x/y, E x - 1) for k < 2, with the ratios in x and d; the mass is NaN if it fails."""
    a = k - 1.0
    q = 1.0 / a
    f, full = points[:n], points[: padded(n)]
    T, gap = Y - 1.0, minus(top, dropped) * scale if k > 1.0 else np.inf
    polished = False
    for _ in range(60):
        if not Y > 1e-290:
            break
        ratios(full, top, scale, Y, beyond(Y, T), q, logs, x, d)
        for _ in range(8):
            first, second, third = sums(f, law, top, scale, Y, x, d)
            mass, rate = (first - (total - kept)) / total, second / total
            bend = (1.0 - a) * (third - second) / total if k < 1.5 else 0.0
            rho = -2.0 * mass * rate / (2.0 * rate * rate - mass * bend)
            if abs(mass) <= MET and (polished or abs(rho) <= 1e-14) and not gap < Y:
                return Y, T, rate / Y, mass
            polished = abs(mass) <= MET
            rho = max(rho, -0.9)
            new = Y * np.exp(a * np.log1p(rho))
            change = new - Y
            near = abs(change) / Y * rate * max(1.0, abs(q)) <= 1e-3
            if near:
                change = Y * np.expm1(a * np.log1p(rho))
            T = T + change if 0.5 < new < 2.0 else new - 1.0
            old, Y = Y, 1.0 + T if 0.5 < new < 2.0 else new
            if not near:
                break
            least = abs(change) * max(1.0, abs(q)) * 100.0
            move(full, top, scale, old, change, q, least, x, d)
            if abs(k) < SMALL:
                move_logarithms(full, top, scale, old, change, q, logs)
            if k > 1.0 or least > old:
                renew(f, top, scale, old, least, Y, beyond(Y, T), q, x, d)
    return Y, T, 0.0, np.nan

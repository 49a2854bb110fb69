"""Kernels for Cressie-Read divergences, by Newton's method: orders 2 and 3/2, and every other order k.

With a = k - 1, q = 1/a and y_i = Y + a (f_i - ref)/eta the densities are x_i = y_i^q, or 0 where y_i <= 0,
and Y solves E x = 1. For k < 2, `ref` is the largest loss, and the power mean (E y^q)^a is concave in Y for
k < 1 and convex for k > 1: Newton's method on it converges monotonically from the left or from the right. For
k > 2 a density reaches zero with infinite slope: `ref` is the smallest loss with a positive density, so that
small y are accurate, and Newton's method is applied to E x, which is convex in Y^q.
Orders 2 (quadratic) and 3/2 are the case 1 < k <= 2, with polynomials in b = Y - 1 in place of powers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import float64

from phiball.backends.numba.compilation import compiled, part
from phiball.backends.numba.elementary_functions import exponential_less, log_normal
from phiball.backends.numba.primitives import (
    BLOCK,
    EPS,
    ROUNDING,
    SUMS,
    extent,
    minus,
    moments,
    next_loss,
    plus,
    read,
    row_of,
    store_mu,
    write,
)

_CERTAIN = 1e-13  # a row whose mass differs from one by more is left to the reference


@compiled(SUMS)
def solve_small_powers(
    rows: Any, p: Any, own: int, squared: Any, slope1: float, out: Any, start: int, stop: int
) -> None:
    """Order 3/2 if `squared` is True, order 2 if it is None; only that branch is compiled."""
    f, offsets, eta = rows
    value, mu, weights, gap = out
    for row in range(start, stop):
        first = offsets[row]
        m = offsets[row + 1] - first
        losses, density = row_of(f, first, m), row_of(weights, first, m)
        distribution = row_of(p, own * first, m)
        e = float64(eta[row])
        scale = (1.0 if squared is None else 0.5) / e
        top, low, whole = extent(losses, distribution)
        moment, at_top = moments(losses, distribution, top)
        at_top = at_top if at_top < whole else whole  # two sums of the same numbers may differ
        value[row] = np.nan
        if not whole > 0.0:
            continue
        # The power mean is at least the mean, and at least the term of the largest loss.
        alone = whole / at_top if squared is None else np.sqrt(whole / at_top)
        b = -moment * scale / whole
        b = b if b < alone - 1.0 else alone - 1.0
        ref, mass, gain, cost, conj, shift = top, np.nan, 0.0, 0.0, 0.0, 0.0
        for attempt in range(3):
            if squared is None and attempt == 0 and b + minus(low, top) * scale > -1.0:
                pass  # all points are active: b is the root
            elif squared is None:
                b = _linear_root(losses, distribution, whole, ref, b, scale, m / whole)
            else:
                b = _square_root(losses, distribution, whole, ref, b, scale)
            shift = store_mu(mu, row, ref, -b / scale, e, slope1)
            mass, gain, cost, conj = _polynomial_sums(
                (losses, distribution, density), ref, b, -shift * scale, scale, 1.0 / whole, squared
            )
            if not abs(mass) > ROUNDING * whole or attempt == 2:
                break
            # The largest loss has so little mass that b is inaccurate: measure from the smallest active loss.
            near = next_loss(losses, distribution, ref - (1.0 + b) / scale, -1.0)
            near = near if near < top else top
            b, ref = b + minus(near, ref) * scale, near
        primal = (gain - e * cost + b / scale * mass) / whole
        value[row] = ref + primal if abs(mass) < 1e-12 * whole else np.nan
        gap[row] = (shift + e * (conj / whole)) - primal


@part(SUMS)
def _linear_root(
    losses: Any, distribution: Any, whole: float, ref: float, b: float, scale: float, density: float
) -> float:
    """The root b of E y = 1, from the right; in the loop, y is in units of the losses."""
    last_b, last_active = np.inf, 0.0
    for step in range(100):
        edge = -(1.0 + b) / scale
        active, total = 0.0, 0.0
        for block in range(0, losses.size, BLOCK):
            part_active, part_total = 0.0, 0.0
            for i in range(block, block + BLOCK if block + BLOCK < losses.size else losses.size):
                g = minus(minus(read(losses, i), ref), edge)
                w = read(distribution, i) * (1.0 if g > 0.0 else 0.0)  # a product is faster than a branch
                part_active += w
                part_total += w * g
            active += part_active
            total += part_total
        mean = total * scale / whole
        change = whole * (mean - 1.0) / active
        if not abs(mean - 1.0) * active * density > 0.5 or step > 9:
            # A plain step hits the root unless it crosses points: about `active (mean - 1)` of them.
            b -= change
            if step <= 9 or not abs(change) > 4.0 * EPS * (1.0 + abs(b)):
                break
            continue
        if mean > 1.5 and step < 4:  # Newton's method on log(mean), by a rational approximation
            new = b - whole * mean * 3.0 * (mean * mean - 1.0) / (mean * (mean + 4.0) + 1.0) / active
        else:  # assume the mass per length of the last step, or of an exponential tail
            crossed = (last_active - active) / (last_b - b)
            tail = active * active / (whole * mean)
            bend = 1.0 - 2.0 * (crossed if crossed < tail else tail) * change / active
            new = b - change * (2.0 / (1.0 + np.sqrt(bend)) if bend > 0.0 else 1.5)
        last_b, last_active = b, active
        b = new if new > -1.0 else b - change
    return b


@part(SUMS)
def _square_root(losses: Any, distribution: Any, whole: float, ref: float, b: float, scale: float) -> float:
    """The root b of E y^2 = 1, from the right."""
    for _ in range(100):
        first, excess = 0.0, 0.0
        for block in range(0, losses.size, BLOCK):
            part_first, part_excess = 0.0, 0.0
            for i in range(block, block + BLOCK if block + BLOCK < losses.size else losses.size):
                d = b + minus(read(losses, i), ref) * scale
                d = d if d > -1.0 else -1.0
                w = read(distribution, i)
                part_first += w * (1.0 + d)
                part_excess += (w * d) * (2.0 + d)
            first += part_first
            excess += part_excess
        excess = excess / whole  # E y^2 - 1
        root = np.sqrt(1.0 + excess)
        change = excess * (root / (1.0 + root)) * whole / first
        b -= change
        if not abs(change) > 4e-16 * (1.0 + abs(b)):
            break
    return b


@part(SUMS)
def _polynomial_sums(
    row: Any, ref: float, b: float, at_mu: float, scale: float, share: float, squared: Any
) -> tuple[float, float, float, float]:
    """(sum p (x - 1), sum p x g, sum p phi(x), sum p phi*(s)), with s for the rounded multiplier.

    Stores the densities, times `share`.
    """
    losses, distribution, density = row
    mass, gain, cost, conj = 0.0, 0.0, 0.0, 0.0
    for block in range(0, losses.size, BLOCK):
        part_mass, part_gain, part_cost, part_conj = 0.0, 0.0, 0.0, 0.0
        for i in range(block, block + BLOCK if block + BLOCK < losses.size else losses.size):
            g, w = minus(read(losses, i), ref), read(distribution, i)
            c = g * scale
            d, s = plus(b, c), plus(at_mu, c)
            d, s = d if d > -1.0 else -1.0, s if s > -1.0 else -1.0
            if squared is None:
                x = 1.0 + d
                part_mass += w * d
                part_cost += w * (d * d)
                part_conj += w * (s * (2.0 + s))
            else:
                x = (1.0 + d) * (1.0 + d)
                part_mass += w * (d * (2.0 + d))
                part_cost += w * (d * d * (d + 1.5))
                part_conj += w * (s * (3.0 + s * (3.0 + s)))
            part_gain += w * (x * g)
            write(density, i, w * (x * share))
        mass += part_mass
        gain += part_gain
        cost += part_cost
        conj += part_conj
    if squared is None:
        return mass, gain, 0.5 * cost, 0.5 * conj
    return mass, gain, (4.0 / 3.0) * cost, (2.0 / 3.0) * conj


@compiled(SUMS)
def solve_power(
    rows: Any, p: Any, own: int, k: float, slope1: float, out: Any, start: int, stop: int
) -> None:
    """Cressie-Read of order k."""
    f, offsets, eta = rows
    value, mu, weights, gap = out
    a, q = k - 1.0, 1.0 / (k - 1.0)
    for row in range(start, stop):
        first = offsets[row]
        m = offsets[row + 1] - first
        losses, density = row_of(f, first, m), row_of(weights, first, m)
        distribution = row_of(p, own * first, m)
        e = float64(eta[row])
        scale = a / e
        top, low, whole = extent(losses, distribution)
        moment, at_top = moments(losses, distribution, top)
        at_top = at_top if at_top < whole else whole  # two sums of the same numbers may differ
        spread = abs(scale) * minus(top, low)
        logs = a * np.log(whole / at_top)
        value[row] = np.nan
        if not (whole > 0.0 and spread < 1e280 and (spread > 1e-280 or top == low) and abs(logs) < 600.0):
            continue  # invalid input, or overflow
        # Bounds of Y at the largest loss: it alone has weight, or all losses are equal.
        alone, equal = np.exp(logs), 1.0 - moment / whole * scale
        high = alone if alone < 1.0 + spread else 1.0 + spread
        Y = equal if (equal > alone) == (a < 0.0) else alone
        T, ref, mass, slope, conj = Y - 1.0, top, 0.0, 0.0, 0.0
        for attempt in range(3):
            if spread > 0.0:
                ref, Y, T = _root(
                    (losses, distribution, density), whole, ref, scale, k, Y, T, high, attempt > 0
                )
            mass, slope, conj = _sums(losses, distribution, density, ref, scale, Y, T, k, 1.0 / whole)
            mass = mass / whole
            if not abs(mass) > ROUNDING:
                break
        if not abs(mass) < _CERTAIN:
            continue
        exact = -(e * q) * T - minus(top, ref)
        # Near a pole, rounding mu down would make the dual infinite.
        rounding = 8.0 * (EPS if mu.itemsize == 8 else 1.1920929e-07)
        shift = store_mu(mu, row, top, exact * (1.0 - rounding) if k < 1.0 else exact, e, slope1, k < 1.0)
        value[row] = top + (exact + e * (conj / whole))
        h = minus(shift, exact)
        # phi*'' increases with s for k < 2; for k > 2, a step back costs at most a times as much.
        square = h * (h / e) * 0.5 * (a if a > 1.0 else 1.0) * (slope / whole)
        gap[row] = -h * mass + ((square if square < h else h) if h > 0.0 else 0.0)


@part(SUMS)
def _root(
    row: Any, whole: float, ref: float, scale: float, k: float, Y: float, T: float, high: float, again: bool
) -> tuple[float, float, float]:
    """(ref, Y, Y - 1) where the mass is one up to the square of 1e-8; NaN on failure.

    For k > 2, `ref` is the largest loss at first, with a bracket from 1 to `high`. `again` refines a root
    that is inaccurate because the largest loss has little mass; `ref` is then the smallest active loss.
    """
    losses, distribution, density = row
    a, low, distance, anchored = k - 1.0, 1.0, np.inf, again and k > 2.0
    if again and 1.0 < k < 2.0:
        near = next_loss(losses, distribution, ref - Y / scale, -1.0)
        near = near if near < np.inf else ref
        Y, ref = Y + minus(near, ref) * scale, near
        T = Y - 1.0
    for _ in range(120):
        mass, slope, _ = _sums(losses, distribution, density, ref, scale, Y, T, k, 1.0)
        mass, slope = mass / whole, slope / whole
        close, rho = abs(mass) < 1e-8, -mass / (slope * Y)
        if anchored:
            if rho <= -1.0:  # E x is convex in Y^q: if its tangent has no root, ref has no weight
                above = next_loss(losses, distribution, ref, -1.0)
                distance = minus(above, ref) * scale
                ref, Y = above, Y + distance
                T = Y - 1.0
                continue
            if rho > 0.0 and not distance > Y:  # the next loss has weight too
                ref = next_loss(losses, distribution, ref, 1.0)
                Y, T = 1e-290, -1.0
                distance = minus(ref, next_loss(losses, distribution, ref, 1.0)) * scale
                continue
        # A step in Y^q where anchored, else on the power mean.
        step, order, factor = (rho, a, Y) if anchored else (mass, -a, (1.0 + mass) / slope)
        change = factor * np.expm1(order * np.log1p(step))
        if anchored and Y + change > distance:
            change, close = distance - Y, False
        if k > 2.0 and not anchored:
            low, high = (Y, high) if mass < 0.0 else (low, Y)
            new = Y + change
            change = (new if close or low < new < high else low + 0.5 * (high - low)) - Y
            Y = Y + change
            if close or not abs(change) > 1e-9 * Y:
                anchored, near = True, next_loss(losses, distribution, ref - Y / scale, -1.0)
                near = near if near < np.inf else ref
                Y, ref = Y + minus(near, ref) * scale, near
                Y = Y if Y > 1e-290 else 1e-290
                distance = minus(ref, next_loss(losses, distribution, ref, 1.0)) * scale
            T = Y - 1.0
            continue
        if 0.5 < Y + change < 2.0:  # near 1, T is more accurate than Y
            T = T + change
            Y = plus(1.0, T)
        else:
            Y = Y + change
            T = Y - 1.0
        if close or not abs(change / a) > 4.0 * EPS * Y:  # or at rounding level
            return ref, Y, T
    return ref, np.nan, np.nan


@part(SUMS)
def _sums(
    losses: Any,
    distribution: Any,
    density: Any,
    ref: float,
    scale: float,
    Y: float,
    T: float,
    k: float,
    share: float,
) -> tuple[float, float, float]:
    """(sum p (x - 1), sum p x/y, sum p phi*); stores the densities x, times `share`.

    The rounding error of y is added to its logarithm, so that x - 1 is accurate.
    """
    q = 1.0 / (k - 1.0)
    beyond = minus(T, minus(Y, 1.0)) if 0.5 < Y < 2.0 else 0.0
    mass, slope, conj = 0.0, 0.0, 0.0
    k = k if abs(k) > 1e-30 else 1e-30  # then (x^k - 1)/k is log x
    for block in range(0, losses.size, BLOCK):
        part_mass, part_slope, part_conj = 0.0, 0.0, 0.0
        for i in range(block, block + BLOCK if block + BLOCK < losses.size else losses.size):
            w = read(distribution, i)
            c = minus(read(losses, i), ref) * scale
            c = c if w > 0.0 else 0.0
            y = plus(Y, c)
            lost = plus(plus(minus(Y, y), c), beyond)
            active = y > 0.0
            inverse = 1.0 / (y if active else 1.0)
            log = q * (log_normal(y if active else 1.0) + lost * inverse)
            log = log if log < 708.0 else 708.0
            log = log if active else -1000.0
            x = exponential_less(log, 0.0)
            part_mass += w * exponential_less(log, 1.0)
            part_slope += w * (x * inverse)
            part_conj += w * exponential_less(k * log, 1.0)
            write(density, i, w * (x * share))
        mass += part_mass
        slope += part_slope
        conj += part_conj
    return mass, slope, conj / k

"""Kernels for Cressie-Read divergences, by Newton's method: orders 2 and 3/2, and every other order k.

The docstring of closed_form.py explains the arguments. Let a = k - 1, q = 1/a and
y_i = Y + a (f_i - ref)/eta, where `ref` is one of the losses. The densities are x_i = gamma_i/p_i = y_i^q,
or 0 where y_i <= 0. The kernels solve E x = 1 for Y, where E is the mean under p.

For k < 2, `ref` is the largest loss, unless p is tiny there. The power mean (E y^q)^a is concave in Y for
k < 1 and convex for k > 1. So Newton's method for the power mean converges monotonically, from the left for
k < 1 and from the right for k > 1.

For k > 2, x_i as a function of y_i has infinite slope at zero. Then `ref` becomes the smallest loss with a
positive density, for which small y_i are accurate, and Newton's method is applied to E x as a function of
Y^q, which is convex.

Orders 2 (quadratic) and 3/2 use polynomials in b = Y - 1 instead of powers. In this file g = f_i - ref, and
`scale` is a/eta.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import float64

from phiball.backends.numba.compilation import compiled, subroutine
from phiball.backends.numba.elementary_functions import exp_minus, fast_log
from phiball.backends.numba.primitives import (
    BLOCK,
    EPS,
    MASS_ROUNDING,
    REORDER_SUMS,
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

_MAX_MASS_ERROR = 1e-13  # if the weights' sum differs from one by more, the reference solves the batch


@compiled(REORDER_SUMS)
def solve_small_powers(
    rows: Any, p: Any, p_per_row: int, squared: Any, slope1: float, out: Any, start: int, stop: int
) -> None:
    """Order 3/2 if `squared` is True, order 2 if None. (Numba compiles one branch, as None is a type.)"""
    f, offsets, eta = rows
    value, mu, weights, gap = out
    for row in range(start, stop):
        first = offsets[row]
        m = offsets[row + 1] - first
        losses, density = row_of(f, first, m), row_of(weights, first, m)
        distribution = row_of(p, p_per_row * first, m)
        e = float64(eta[row])
        scale = (1.0 if squared is None else 0.5) / e
        top, low, p_sum = extent(losses, distribution)
        moment, at_top = moments(losses, distribution, top)
        at_top = at_top if at_top < p_sum else p_sum  # two sums of the same numbers may differ
        value[row] = np.nan
        if not p_sum > 0.0:
            continue
        # Two upper bounds of b: the power mean of y is at least its mean, and at least the term of the
        # largest loss.
        alone = p_sum / at_top if squared is None else np.sqrt(p_sum / at_top)
        b = -moment * scale / p_sum
        b = b if b < alone - 1.0 else alone - 1.0
        ref, mass, gain, cost, conj, shift = top, np.nan, 0.0, 0.0, 0.0, 0.0
        for attempt in range(3):
            if squared is None and attempt == 0 and b + minus(low, top) * scale > -1.0:
                pass  # all densities are positive: b is the root already
            elif squared is None:
                b = _linear_root(losses, distribution, p_sum, ref, b, scale, m / p_sum)
            else:
                b = _square_root(losses, distribution, p_sum, ref, b, scale)
            shift = store_mu(mu, row, ref, -b / scale, e, slope1)
            mass, gain, cost, conj = _polynomial_sums(
                (losses, distribution, density), ref, b, -shift * scale, scale, 1.0 / p_sum, squared
            )
            if not abs(mass) > MASS_ROUNDING * p_sum or attempt == 2:
                break
            # b is inaccurate, as p is tiny at the largest loss: `ref` becomes the smallest loss with x > 0.
            near = next_loss(losses, distribution, ref - (1.0 + b) / scale, -1.0)
            near = near if near < top else top
            b, ref = b + minus(near, ref) * scale, near
        primal = (gain - e * cost + b / scale * mass) / p_sum
        value[row] = ref + primal if abs(mass) < 1e-12 * p_sum else np.nan
        gap[row] = (shift + e * (conj / p_sum)) - primal


@subroutine(REORDER_SUMS)
def _linear_root(
    losses: Any, distribution: Any, p_sum: float, ref: float, b: float, scale: float, points_per_mass: float
) -> float:
    """The root b of E max(y, 0) = 1, from a b above the root. In the loop, g is y/scale.

    `active` is the probability of y > 0, and `points_per_mass` the number of points divided by p_sum.
    """
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
        mean = total * scale / p_sum
        change = p_sum * (mean - 1.0) / active
        if not abs(mean - 1.0) * active * points_per_mass > 0.5 or step > 9:
            # A Newton step is exact if no y_i changes its sign. The left side estimates how many do.
            b -= change
            if step <= 9 or not abs(change) > 4.0 * EPS * (1.0 + abs(b)):
                break
            continue
        if mean > 1.5 and step < 4:  # Newton's method on log(mean), with log approximated
            new = b - p_sum * mean * 3.0 * (mean * mean - 1.0) / (mean * (mean + 4.0) + 1.0) / active
        else:  # a quadratic step; `active` changes at the rate of the last step, or of an exponential tail
            crossed = (last_active - active) / (last_b - b)
            tail = active * active / (p_sum * mean)
            bend = 1.0 - 2.0 * (crossed if crossed < tail else tail) * change / active
            new = b - change * (2.0 / (1.0 + np.sqrt(bend)) if bend > 0.0 else 1.5)
        last_b, last_active = b, active
        b = new if new > -1.0 else b - change
    return b


@subroutine(REORDER_SUMS)
def _square_root(losses: Any, distribution: Any, p_sum: float, ref: float, b: float, scale: float) -> float:
    """The root b of E max(y, 0)^2 = 1, from a b above the root."""
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
        excess = excess / p_sum  # E y^2 - 1
        root = np.sqrt(1.0 + excess)
        change = excess * (root / (1.0 + root)) * p_sum / first
        b -= change
        if not abs(change) > 4e-16 * (1.0 + abs(b)):
            break
    return b


@subroutine(REORDER_SUMS)
def _polynomial_sums(
    row: Any, ref: float, b: float, at_mu: float, scale: float, share: float, squared: Any
) -> tuple[float, float, float, float]:
    """(sum p (x - 1), sum p x g, sum p phi(x), sum p phi*), each sum over all points i; stores weights.

    The weights are p x times `share`. x is computed from b, and phi* from `at_mu`, the b of the rounded mu.
    In the loop, d is y - 1 for b, and s is y - 1 for `at_mu`.
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


@compiled(REORDER_SUMS)
def solve_power(
    rows: Any, p: Any, p_per_row: int, k: float, slope1: float, out: Any, start: int, stop: int
) -> None:
    """Cressie-Read of order k. `T` is Y - 1, stored separately for accuracy near Y = 1."""
    f, offsets, eta = rows
    value, mu, weights, gap = out
    a, q = k - 1.0, 1.0 / (k - 1.0)
    for row in range(start, stop):
        first = offsets[row]
        m = offsets[row + 1] - first
        losses, density = row_of(f, first, m), row_of(weights, first, m)
        distribution = row_of(p, p_per_row * first, m)
        e = float64(eta[row])
        scale = a / e
        top, low, p_sum = extent(losses, distribution)
        moment, at_top = moments(losses, distribution, top)
        at_top = at_top if at_top < p_sum else p_sum  # two sums of the same numbers may differ
        spread = abs(scale) * minus(top, low)
        logs = a * np.log(p_sum / at_top)
        value[row] = np.nan
        if not (p_sum > 0.0 and spread < 1e280 and (spread > 1e-280 or top == low) and abs(logs) < 600.0):
            continue  # invalid input, or overflow
        # Two bounds of Y: its values if only the largest loss had weight, and if all losses had their mean.
        alone, equal = np.exp(logs), 1.0 - moment / p_sum * scale
        high = alone if alone < 1.0 + spread else 1.0 + spread
        Y = equal if (equal > alone) == (a < 0.0) else alone
        T, ref, mass, slope, conj = Y - 1.0, top, 0.0, 0.0, 0.0
        for attempt in range(3):
            if spread > 0.0:
                ref, Y, T = _root(
                    (losses, distribution, density), p_sum, ref, scale, k, Y, T, high, attempt > 0
                )
            mass, slope, conj = _sums(losses, distribution, density, ref, scale, Y, T, k, 1.0 / p_sum)
            mass = mass / p_sum
            if not abs(mass) > MASS_ROUNDING:
                break
        if not abs(mass) < _MAX_MASS_ERROR:
            continue
        exact = -(e * q) * T - minus(top, ref)
        # For k < 1, rounding mu down could make the dual infinite.
        rounding = 8.0 * (EPS if mu.itemsize == 8 else 1.1920929e-07)
        shift = store_mu(mu, row, top, exact * (1.0 - rounding) if k < 1.0 else exact, e, slope1, k < 1.0)
        value[row] = top + (exact + e * (conj / p_sum))
        h = minus(shift, exact)
        # The rounding error h of mu increases the dual by at most h^2/(2 eta) times E phi*'', if phi*'' is
        # increasing (k < 2). For k > 2 it is decreasing, and the bound needs the factor a.
        square = h * (h / e) * 0.5 * (a if a > 1.0 else 1.0) * (slope / p_sum)
        gap[row] = -h * mass + ((square if square < h else h) if h > 0.0 else 0.0)


@subroutine(REORDER_SUMS)
def _root(
    row: Any, p_sum: float, ref: float, scale: float, k: float, Y: float, T: float, high: float, refine: bool
) -> tuple[float, float, float]:
    """(ref, Y, T = Y - 1) where E x = 1, from given ref, Y and T; Y and T are NaN on failure.

    The last Newton step starts where E x differs from 1 by less than 1e-8. For k > 2, `ref` is the largest
    loss at first, and Y lies between 1 and `high`; close to the root, `ref` becomes the smallest loss with a
    positive density (`anchored`). `refine` does the same from the start, for k > 1: it is set if a first root
    was inaccurate because p is tiny at the largest loss.
    """
    losses, distribution, density = row
    a, low, distance, anchored = k - 1.0, 1.0, np.inf, refine and k > 2.0
    if refine and 1.0 < k < 2.0:
        near = next_loss(losses, distribution, ref - Y / scale, -1.0)
        near = near if near < np.inf else ref
        Y, ref = Y + minus(near, ref) * scale, near
        T = Y - 1.0
    for _ in range(120):
        mass, slope, _ = _sums(losses, distribution, density, ref, scale, Y, T, k, 1.0)
        mass, slope = mass / p_sum, slope / p_sum
        close, rho = abs(mass) < 1e-8, -mass / (slope * Y)
        if anchored:
            if rho <= -1.0:  # the tangent of E x, as a function of Y^q, is never 1: the density at ref is 0
                above = next_loss(losses, distribution, ref, -1.0)
                distance = minus(above, ref) * scale
                ref, Y = above, Y + distance
                T = Y - 1.0
                continue
            if rho > 0.0 and not distance > Y:  # the next smaller loss has a positive density too
                ref = next_loss(losses, distribution, ref, 1.0)
                Y, T = 1e-290, -1.0
                distance = minus(ref, next_loss(losses, distribution, ref, 1.0)) * scale
                continue
        # If anchored, a Newton step in Y^q; otherwise one on the power mean.
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
        if close or not abs(change / a) > 4.0 * EPS * Y:
            return ref, Y, T
    return ref, np.nan, np.nan


@subroutine(REORDER_SUMS)
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
    """(sum p (x - 1), sum p x/y, sum p phi*), each sum over all points i; stores the weights p x * share.

    The logarithm of y is corrected for the rounding error of y, so that x - 1 is accurate.
    """
    q = 1.0 / (k - 1.0)
    rounding_of_Y = minus(T, minus(Y, 1.0)) if 0.5 < Y < 2.0 else 0.0
    mass, slope, conj = 0.0, 0.0, 0.0
    k = k if abs(k) > 1e-30 else 1e-30  # avoids 0/0: (x^k - 1)/k is then log x
    for block in range(0, losses.size, BLOCK):
        part_mass, part_slope, part_conj = 0.0, 0.0, 0.0
        for i in range(block, block + BLOCK if block + BLOCK < losses.size else losses.size):
            w = read(distribution, i)
            c = minus(read(losses, i), ref) * scale
            c = c if w > 0.0 else 0.0
            y = plus(Y, c)
            rounding_error = plus(plus(minus(Y, y), c), rounding_of_Y)
            active = y > 0.0
            inverse = 1.0 / (y if active else 1.0)
            log = q * (fast_log(y if active else 1.0) + rounding_error * inverse)
            log = log if log < 708.0 else 708.0
            log = log if active else -1000.0
            x = exp_minus(log, 0.0)
            part_mass += w * exp_minus(log, 1.0)
            part_slope += w * (x * inverse)
            part_conj += w * exp_minus(k * log, 1.0)
            write(density, i, w * (x * share))
        mass += part_mass
        slope += part_slope
        conj += part_conj
    return mass, slope, conj / k

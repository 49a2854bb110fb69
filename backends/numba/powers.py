"""The kernel of the Cressie-Read divergences of every other order k: a safeguarded Newton's method.

With a = k - 1, q = 1/a and y_i = Y + a (f_i - ref)/eta the densities are x_i = y_i^q, or 0 where y_i <= 0,
and Y is such that E x = 1. For k < 2, `ref` is the largest loss, and the power mean (E y^q)^a is concave in Y
for k < 1 and convex beyond: Newton's method on it is monotone from the left, respectively from the right. For
k > 2 a density reaches zero with an infinite slope: `ref` is the smallest loss with a positive density, so
that no digit of a small y is lost, and Newton's method is on E x in Y^q, in which it is convex.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import float64

from phiball.backends.numba.compilation import compiled, part
from phiball.backends.numba.elementary import exponential_less, log_normal
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

_CERTAIN = 1e-13  # a mass that differs from one by more is left to the reference


@compiled(SUMS)
def power(rows: Any, p: Any, own: int, k: float, slope1: float, out: Any, start: int, stop: int) -> None:
    """Cressie-Read of order k."""
    f, offsets, eta = rows
    value, mu, weights, gap = out
    a, q = k - 1.0, 1.0 / (k - 1.0)
    for row in range(start, stop):
        first = offsets[row]
        m = offsets[row + 1] - first
        losses, density = row_of(f, first, m), row_of(weights, first, m)
        law = row_of(p, own * first, m)
        e = float64(eta[row])
        scale = a / e
        top, low, whole = extent(losses, law)
        moment, at_top = moments(losses, law, top)
        spread = abs(scale) * minus(top, low)
        logs = a * np.log(whole / at_top)
        value[row] = np.nan
        if not (whole > 0.0 and spread < 1e280 and (spread > 1e-280 or top == low) and abs(logs) < 600.0):
            continue  # something is invalid, or would leave the range of the numbers
        # Bounds of Y at the largest loss: it alone has weight, or all losses are equal.
        alone, equal = np.exp(logs), 1.0 - moment / whole * scale
        high = alone if alone < 1.0 + spread else 1.0 + spread
        Y = equal if (equal > alone) == (a < 0.0) else alone
        T, ref, mass, slope, conj = Y - 1.0, top, 0.0, 0.0, 0.0
        for attempt in range(3):
            if spread > 0.0:
                ref, Y, T = _root((losses, law, density), whole, ref, scale, k, Y, T, high, attempt > 0)
            mass, slope, conj = _sums(losses, law, density, ref, scale, Y, T, k, 1.0 / whole)
            mass = mass / whole
            if not abs(mass) > ROUNDING:
                break
        if not abs(mass) < _CERTAIN:
            continue
        exact = -(e * q) * T - minus(top, ref)
        # Next to a pole, mu rounded down would make the dual infinite.
        rounding = 8.0 * (EPS if mu.itemsize == 8 else 1.1920929e-07)
        shift = store_mu(mu, row, top, exact * (1.0 - rounding) if k < 1.0 else exact, e, slope1, k < 1.0)
        value[row] = top + (exact + e * (conj / whole))
        h = minus(shift, exact)
        # phi*'' grows with s for k < 2, and beyond, a step back costs at most a times as much.
        square = h * (h / e) * 0.5 * (a if a > 1.0 else 1.0) * (slope / whole)
        gap[row] = -h * mass + ((square if square < h else h) if h > 0.0 else 0.0)


@part(SUMS)
def _root(
    row: Any, whole: float, ref: float, scale: float, k: float, Y: float, T: float, high: float, again: bool
) -> tuple[float, float, float]:
    """(ref, Y, Y - 1) where the mass is one up to the square of 1e-8; NaN if it fails.

    For k > 2 first with `ref` the largest loss, in a bracket from 1 to `high`. `again`: from a root that
    lacks digits, as the largest loss has little mass; `ref` is then the smallest active loss for k < 2 too.
    """
    losses, law, density = row
    a, low, distance, anchored = k - 1.0, 1.0, np.inf, again and k > 2.0
    if again and 1.0 < k < 2.0:
        near = next_loss(losses, law, ref - Y / scale, -1.0)
        near = near if near < np.inf else ref
        Y, ref = Y + minus(near, ref) * scale, near
        T = Y - 1.0
    for _ in range(120):
        mass, slope, _ = _sums(losses, law, density, ref, scale, Y, T, k, 1.0)
        mass, slope = mass / whole, slope / whole
        close, rho = abs(mass) < 1e-8, -mass / (slope * Y)
        if anchored:
            if rho <= -1.0:  # E x is convex in Y^q: where its tangent has no root, ref has no weight
                above = next_loss(losses, law, ref, -1.0)
                distance = minus(above, ref) * scale
                ref, Y = above, Y + distance
                T = Y - 1.0
                continue
            if rho > 0.0 and not distance > Y:  # the next loss has weight too
                ref = next_loss(losses, law, ref, 1.0)
                Y, T = 1e-290, -1.0
                distance = minus(ref, next_loss(losses, law, ref, 1.0)) * scale
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
                anchored, near = True, next_loss(losses, law, ref - Y / scale, -1.0)
                near = near if near < np.inf else ref
                Y, ref = Y + minus(near, ref) * scale, near
                Y = Y if Y > 1e-290 else 1e-290
                distance = minus(ref, next_loss(losses, law, ref, 1.0)) * scale
            T = Y - 1.0
            continue
        if 0.5 < Y + change < 2.0:  # next to 1, T has digits of Y beyond its rounding
            T = T + change
            Y = plus(1.0, T)
        else:
            Y = Y + change
            T = Y - 1.0
        if close or not abs(change / a) > 4.0 * EPS * Y:  # the latter where the mass has no more digits
            return ref, Y, T
    return ref, np.nan, np.nan


@part(SUMS)
def _sums(
    losses: Any, law: Any, density: Any, ref: float, scale: float, Y: float, T: float, k: float, share: float
) -> tuple[float, float, float]:
    """(sum p (x - 1), sum p x/y, sum p phi*); `share` times the densities x is stored.

    What rounding takes off y is given back to its logarithm, so that x is as accurate as its difference to 1.
    """
    q = 1.0 / (k - 1.0)
    beyond = minus(T, minus(Y, 1.0)) if 0.5 < Y < 2.0 else 0.0
    mass, slope, conj = 0.0, 0.0, 0.0
    k = k if abs(k) > 1e-30 else 1e-30  # (x^k - 1)/k is then log x
    for block in range(0, losses.size, BLOCK):
        part_mass, part_slope, part_conj = 0.0, 0.0, 0.0
        for i in range(block, block + BLOCK if block + BLOCK < losses.size else losses.size):
            w = read(law, i)
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

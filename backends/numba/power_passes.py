"""Passes over a row for the kernel of powers: x_i = y_i^q with y_i = Y + (f_i - ref) scale, 0 where y_i <= 0.

Each takes the losses and the law of the points that are kept. None both sums and stores, see `kernels`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from phiball.backends.numba.compilation import compiled
from phiball.backends.numba.elementary import exponentials, log_normal, rough_power
from phiball.backends.numba.primitives import BLOCK, SUMS, larger, minus

_CHUNK = 1024  # numbers of which a few arrays fit into the fastest cache


@compiled(SUMS)
def rough_sums(f: Any, law: Any, ref: float, scale: float, Y: float, q: float) -> tuple[float, float, float]:
    """(sum p x, sum p x h, sum p x h^2) with h = Y/y, to 1e-4 or so."""
    first, second, third = 0.0, 0.0, 0.0
    for i in range(f.size):
        y = Y + minus(f[i], ref) * scale
        active = y > 0.0
        y = y if active else 1.0
        x = rough_power(y, q)
        x = law[i] * (x if active else 0.0)
        h = Y / y
        first += x
        second += x * h
        third += x * h * h
    return first, second, third


@compiled(SUMS)
def rough_slope(f: Any, law: Any, ref: float, scale: float, Y: float, q: float) -> tuple[float, float, int]:
    """(sum p x, its derivative in log Y, the number of points with weight), to 1e-4 or so, for q < 1.

    Where y is small the slope of y^q, which has a pole at 0, is replaced by a mean of it: a point enters
    with an infinite slope, but many of them at a finite rate.
    """
    small = Y / 32.0
    entering = rough_power(small, q) * 32.0
    first, slope, count = 0.0, 0.0, 0
    for i in range(f.size):
        y = Y + minus(f[i], ref) * scale
        active = y > 0.0
        count += active
        y = y if active else 1.0
        x = rough_power(y, q)
        first += law[i] * (x if active else 0.0)
        steep = q * x * (Y / y)
        steep = steep if y > small else entering
        slope += law[i] * (steep if active else 0.0)
    return first, slope, count


@compiled(SUMS)
def ratios(f: Any, ref: float, scale: float, Y: float, low: float, q: float, x: Any, d: Any) -> None:
    """Fill x with the ratios and d with x - 1, where Y + low is the base at `ref`.

    Each is as accurate as its difference to 1: what rounding takes off y is given back to its logarithm.
    """
    for start in range(0, f.size, _CHUNK):
        stop = min(start + _CHUNK, f.size)
        _logarithms(f[start:stop], ref, scale, Y, low, q, x[start:stop])
        _exponentials(x[start:stop], d[start:stop])


@compiled(SUMS)
def _logarithms(f: Any, ref: float, scale: float, Y: float, low: float, q: float, log_x: Any) -> None:
    for i in range(f.size):
        c = minus(f[i], ref) * scale
        y = Y + c
        lost = minus(Y, y) + c
        active = y > 0.0
        y = y if active else 1.0
        log = q * (log_normal(y) + (lost + low) / y)
        log = log if log < 708.0 else 708.0
        log_x[i] = log if active else -1000.0


@compiled(SUMS)
def _exponentials(x: Any, d: Any) -> None:
    for i in range(x.size):
        x[i], d[i] = exponentials(x[i])


@compiled(SUMS)
def sums(f: Any, law: Any, ref: float, scale: float, Y: float, x: Any, d: Any) -> tuple[float, float, float]:
    """(sum p d, sum p x h, sum p x h^2) with h = Y/y."""
    first, second, third = 0.0, 0.0, 0.0
    for block in range(0, f.size, BLOCK):
        part_first, part_second, part_third = 0.0, 0.0, 0.0
        for i in range(block, min(block + BLOCK, f.size)):
            y = Y + minus(f[i], ref) * scale
            h = Y / (y if y > 0.0 else 1.0)
            part_first += law[i] * d[i]
            part_second += law[i] * x[i] * h
            part_third += law[i] * x[i] * h * h
        first += part_first
        second += part_second
        third += part_third
    return first, second, third


@compiled(SUMS)
def move(
    f: Any,
    ref: float,
    scale: float,
    Y: float,
    change: float,
    new: float,
    low: float,
    q: float,
    x: Any,
    d: Any,
) -> None:
    """Turn ratios at Y into those at new = Y + change, whose digits beyond rounding are `low`.

    Four terms of the binomial series do where they may; the few points close to zero are computed anew.
    """
    near = abs(change) * max(1.0, abs(q)) * 500.0  # the next term of the series is below 1e-16
    missed = 0
    for i in range(f.size):
        y = Y + minus(f[i], ref) * scale
        missed += abs(y) < near
    for i in range(f.size):
        y = Y + minus(f[i], ref) * scale
        r = change / y
        r = q * r * (1.0 + (q - 1.0) * r * (0.5 + (q - 2.0) * r * (1.0 / 6.0 + (q - 3.0) * r * (1.0 / 24.0))))
        r = r if y >= near else 0.0
        d[i] = d[i] + x[i] * r
        x[i] = x[i] + x[i] * r
    if missed > 0:
        for i in range(f.size):
            if abs(Y + minus(f[i], ref) * scale) < near:
                ratios(f[i : i + 1], ref, scale, new, low, q, x[i : i + 1], d[i : i + 1])


@compiled(SUMS)
def conjugate(
    f: Any, law: Any, ref: float, scale: float, Y: float, T: float, low: float, k: float, x: Any, d: Any
) -> float:
    """sum p phi*(s) over the points that are kept; T is Y - 1 to its own digits. Overwrites d if k is small.

    phi*(s) = (x^k - 1)/k with x^k - 1 = d + x t, t = y - 1. Close to k = 0 that would cancel.
    """
    total, small, q = 0.0, abs(k) < 0.25, 1.0 / (k - 1.0)
    if small:
        for i in range(f.size):
            c = minus(f[i], ref) * scale
            y = Y + c
            d[i] = q * (log_normal(y) + ((minus(Y, y) + c) + low) / y)
    if small and abs(k) > 1e-20:
        for i in range(f.size):
            d[i] = exponentials(k * d[i])[1] / k
    for block in range(0, f.size, BLOCK):
        part = 0.0
        for i in range(block, min(block + BLOCK, f.size)):
            t = T + minus(f[i], ref) * scale
            part += law[i] * (d[i] if small else d[i] + x[i] * t)
        total += part
    return total if small else total / k


@compiled()
def keep_above(f: Any, law: Any, where: Any, n: int, level: float) -> int:
    """Move the points with losses above `level` to the front of the arrays; returns their number."""
    kept = 0
    for i in range(n):
        loss = f[i]
        f[kept], law[kept], where[kept] = loss, law[i], where[i]
        kept += loss > level
    return kept


@compiled(SUMS)
def neighbours(f: Any, law: Any, level: float) -> tuple[float, float]:
    """(the largest loss below `level`, the mass of the losses that are equal to it)."""
    below, mass = -np.inf, 0.0
    for i in range(f.size):
        below = larger(below, f[i] + (0.0 if f[i] < level else -np.inf))
        mass += law[i] if f[i] == level else 0.0
    return below, mass


@compiled(SUMS)
def next_above(f: Any, level: float) -> float:
    """The smallest loss above `level`."""
    above = -np.inf
    for i in range(f.size):
        above = larger(above, -f[i] + (0.0 if f[i] > level else -np.inf))
    return -above

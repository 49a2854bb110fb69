"""Passes over a row for the kernel of powers: x_i = y_i^q with y_i = Y + (f_i - ref) scale, 0 where y_i <= 0.

Each takes the losses of the points that are kept, and a law with a mass for each of them, or None if it is
uniform: then masses are counts. None both sums and stores: see `write`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import float32, float64

from phiball.backends.numba.compilation import compiled
from phiball.backends.numba.elementary import crude_power, exponentials, log_normal, power_single
from phiball.backends.numba.primitives import SUMS, larger, minus, over, weighted

_CHUNK = 1024  # numbers of which a few arrays fit into the fastest cache
_PART = 512  # partial sums of this length: many equal ratios, as ties have, are all rounded to one side
LANES = 8  # numbers of single precision in a vector
SMALL = 0.25  # an order k below which phi* is computed from logarithms
_ZERO: Any = np.float32(0.0)
_ONE: Any = np.float32(1.0)
_SMALL: Any = np.float32(1.0 / 32.0)


@compiled(SUMS)
def single(f: Any, law: Any, ref: float, scale: float, t: Any, light: Any) -> None:
    """Fill t with (f - ref) scale, and `light` with the law, in single precision, for the rough passes."""
    for i in range(f.size):
        t[i] = float32(minus(f[i], ref) * scale)
    if law is not None:
        for i in range(f.size):
            light[i] = float32(law[i])


@compiled(SUMS)
def rough_sums(t: Any, light: Any, inverse: float, q: float) -> tuple[float, float, float]:
    """(sum p x, sum p x/z, sum p x/z^2) to 1e-6 or so, with z = 1 + t inverse and x = z^q, or 0 if z <= 0."""
    unit, power = float32(inverse), float32(q)
    if t.size <= _CHUNK:  # a slice costs as much as a few dozen points
        part = _rough_part(t, light, unit, power)
        return float64(part[0]), float64(part[1]), float64(part[2])
    first, second, third = 0.0, 0.0, 0.0
    for start in range(0, t.size, _CHUNK):
        masses = None if light is None else light[start:]
        part = _rough_part(t[start : start + _CHUNK], masses, unit, power)
        first += part[0]
        second += part[1]
        third += part[2]
    return first, second, third


@compiled(SUMS)
def _rough_part(t: Any, light: Any, inverse: Any, q: Any) -> tuple[Any, Any, Any]:
    first, second, third = _ZERO, _ZERO, _ZERO
    for i in range(t.size):
        z = _ONE + t[i] * inverse
        active = z > _ZERO
        x = power_single(t[i] * inverse, q)
        x = weighted(light, i, x if active else _ZERO)
        h = _ONE / (z if active else _ONE)
        first += x
        second += x * h
        third += x * h * h
    return first, second, third


@compiled(SUMS)
def rough_slope(t: Any, light: Any, inverse: float, q: float, small: float) -> tuple[float, float, float]:
    """(sum p x, its derivative in log Y, the number of points with weight) as `rough_sums`, for 0 < q < 1.

    Where z is small the slope of z^q, which has a pole at 0, is replaced by a mean of it: a point enters
    with an infinite slope, but many of them at a finite rate.
    """
    unit, power, near = float32(inverse), float32(q), float32(small)
    entering = power_single(float32(small - 1.0), float32(q - 1.0))
    if t.size <= _CHUNK:
        part = _slope_part(t, light, unit, power, near, entering)
        return float64(part[0]), float64(part[1]), float64(part[2])
    first, slope, count = 0.0, 0.0, 0.0
    for start in range(0, t.size, _CHUNK):
        masses = None if light is None else light[start:]
        part = _slope_part(t[start : start + _CHUNK], masses, unit, power, near, entering)
        first += part[0]
        slope += part[1]
        count += part[2]
    return first, slope, count


@compiled(SUMS)
def _slope_part(t: Any, light: Any, inverse: Any, q: Any, small: Any, entering: Any) -> tuple[Any, Any, Any]:
    first, slope, count = _ZERO, _ZERO, _ZERO
    for i in range(t.size):
        z = _ONE + t[i] * inverse
        active = z > _ZERO
        x = power_single(t[i] * inverse, q)
        steep = q * x / (z if active else _ONE)
        steep = steep if z > small else entering
        first += weighted(light, i, x if active else _ZERO)
        slope += weighted(light, i, steep if active else _ZERO)
        count += _ONE if active else _ZERO
    return first, slope, count


@compiled(SUMS)
def crude_slope(t: Any, light: Any, inverse: float, q: float) -> tuple[float, float, float]:
    """`rough_slope` to a few percent, in a fifth of the time."""
    unit, power = float32(inverse), float32(q)
    entering = power_single(_SMALL - _ONE, float32(q - 1.0))
    first, slope, count = _ZERO, _ZERO, _ZERO
    for i in range(t.size):
        z = _ONE + t[i] * unit
        active = z > _ZERO
        x = crude_power(z if active else _ONE, power)
        steep = power * x / (z if active else _ONE)
        steep = steep if z > _SMALL else entering
        first += weighted(light, i, x if active else _ZERO)
        slope += weighted(light, i, steep if active else _ZERO)
        count += _ONE if active else _ZERO
    return float64(first), float64(slope), float64(count)


@compiled(SUMS)
def plain_sums(f: Any, law: Any, ref: float, scale: float, Y: float, q: float) -> tuple[float, float, float]:
    """`rough_sums` with z = y/Y in double precision: where masses or losses differ by too much for single."""
    first, second, third = 0.0, 0.0, 0.0
    for i in range(f.size):
        z = 1.0 + minus(f[i], ref) * scale / Y
        active = z > 0.0
        z = z if active else 1.0
        x = exponentials(q * log_normal(z))[0]
        x = weighted(law, i, x if active else 0.0)
        first += x
        second += x / z
        third += x / (z * z)
    return first, second, third


@compiled()
def beyond(Y: float, T: float) -> float:
    """The digits of Y = 1 + T beyond its rounding."""
    return T - (Y - 1.0) if 0.5 < Y < 2.0 else 0.0


@compiled(SUMS)
def ratios(
    f: Any, ref: float, scale: float, Y: float, low: float, q: float, log: Any, x: Any, d: Any
) -> None:
    """Fill x with the ratios, d with x - 1 and `log` with log x, where Y + low is the base at `ref`.

    Each is as accurate as its difference to 1: what rounding takes off y is given back to its logarithm.
    """
    if f.size <= _CHUNK:  # a slice costs as much as a few dozen points
        _logarithms(f, ref, scale, Y, low, q, log)
        _exponentials(f.size, log, x, d)
        return
    for start in range(0, f.size, _CHUNK):
        stop = min(start + _CHUNK, f.size)
        _logarithms(f[start:stop], ref, scale, Y, low, q, log[start:stop])
        _exponentials(stop - start, log[start:stop], x[start:stop], d[start:stop])


@compiled(SUMS)
def _logarithms(f: Any, ref: float, scale: float, Y: float, low: float, q: float, log_x: Any) -> None:
    for i in range(f.size):
        c = minus(f[i], ref) * scale
        log_x[i] = logarithm(Y, c, low, q)


@compiled(SUMS)
def logarithm(Y: float, c: float, low: float, q: float) -> float:
    y = Y + c
    # Over y it is what log y lacks. That counts where log y is small, and 2 - y is as good as 1/y there.
    lost = _lost(Y, c, y, low) * (2.0 - y) if abs(y - 1.0) < 0.5 else 0.0
    active = y > 0.0
    log = q * (log_normal(y if active else 1.0) + lost)
    log = log if log < 708.0 else 708.0
    return log if active else -1000.0


@compiled()
def _lost(Y: float, c: float, y: float, low: float) -> float:
    """Y + c + low - y to the last digit, where y = Y + c but for rounding."""
    return ((Y - y) + c) + low


@compiled(SUMS)
def _exponentials(n: int, log: Any, x: Any, d: Any) -> None:
    for i in range(n):
        x[i], d[i] = exponentials(log[i])


@compiled(SUMS)
def sums(f: Any, law: Any, ref: float, scale: float, Y: float, x: Any, d: Any) -> tuple[float, float, float]:
    """(sum p d, sum p x h, sum p x h^2) with h = Y/y."""
    first, second, third = 0.0, 0.0, 0.0
    for block in range(0, f.size, _PART):
        part_first, part_second, part_third = 0.0, 0.0, 0.0
        for i in range(block, min(block + _PART, f.size)):
            y = Y + minus(f[i], ref) * scale
            h = over(Y, y if y > 0.0 else 1.0)
            part_first += weighted(law, i, d[i])
            part_second += weighted(law, i, x[i] * h)
            part_third += weighted(law, i, x[i] * h * h)
        first += part_first
        second += part_second
        third += part_third
    return first, second, third


@compiled(SUMS)
def move(
    f: Any, ref: float, scale: float, Y: float, change: float, q: float, least: float, x: Any, d: Any
) -> None:
    """Turn ratios at Y into those at Y + change where y >= least, by six terms of the binomial series.

    If |change| max(1, |q|) is at most a hundredth of `least`, the next term is below 1e-15 of the ratio.
    """
    second, third, fourth = 0.5 * (q - 1.0), (1.0 / 3.0) * (q - 2.0), 0.25 * (q - 3.0)
    fifth, sixth = 0.2 * (q - 4.0), (1.0 / 6.0) * (q - 5.0)
    for i in range(f.size):
        y = Y + minus(f[i], ref) * scale
        r = over(change, y)  # chosen below, not here: a choice before a division becomes a branch
        s = 1.0 + fourth * r * (1.0 + fifth * r * (1.0 + sixth * r))
        r = q * r * (1.0 + second * r * (1.0 + third * r * s))
        r = r if y >= least else 0.0
        d[i] = d[i] + x[i] * r
        x[i] = x[i] + x[i] * r


@compiled(SUMS)
def move_logarithms(f: Any, ref: float, scale: float, Y: float, change: float, q: float, log: Any) -> None:
    """The same for log x, where all y are far."""
    for i in range(f.size):
        r = over(change, Y + minus(f[i], ref) * scale)
        s = 0.25 - r * (0.2 - r * (1.0 / 6.0))
        log[i] = log[i] + q * (r * (1.0 - r * (0.5 - r * (1.0 / 3.0 - r * s))))


@compiled(SUMS)
def renew(
    f: Any, ref: float, scale: float, Y: float, least: float, new: float, low: float, q: float, x: Any, d: Any
) -> None:
    """Compute the ratios at new + low where abs(y) < least at Y: those that `move` has left."""
    missed = 0
    for i in range(f.size):
        missed += abs(Y + minus(f[i], ref) * scale) < least
    if missed > 0:
        for i in range(f.size):
            c = minus(f[i], ref) * scale
            if abs(Y + c) < least:
                x[i], d[i] = exponentials(logarithm(new, c, low, q))


@compiled(SUMS)
def conjugate(
    f: Any, law: Any, ref: float, scale: float, T: float, k: float, log: Any, x: Any, d: Any
) -> float:
    """sum p phi*(s) over the points that are kept; T is Y - 1 to its own digits. May overwrite `log`.

    phi*(s) = (x^k - 1)/k with x^k - 1 = d + x t, t = y - 1. Close to k = 0 that would cancel.
    """
    total, small = 0.0, abs(k) < SMALL
    if small and abs(k) > 1e-20:
        for i in range(f.size):
            log[i] = exponentials(k * log[i])[1] / k
    for block in range(0, f.size, _PART):
        part = 0.0
        if small:
            for i in range(block, min(block + _PART, f.size)):
                part += weighted(law, i, log[i])
        else:
            for i in range(block, min(block + _PART, f.size)):
                t = T + minus(f[i], ref) * scale
                part += weighted(law, i, d[i] + x[i] * t)
        total += part
    return total if small else total / k


@compiled()
def keep_above(f: Any, law: Any, where: Any, t: Any, light: Any, at: Any, n: int, level: float) -> int:
    """Move the points with losses above `level` to the front of the arrays; returns their number."""
    kept = 0
    for i in range(n):
        at[kept] = i
        kept += f[i] > level
    for i in range(kept):
        f[i], where[i], t[i] = f[at[i]], where[at[i]], t[at[i]]
        if law is not None:
            law[i], light[i] = law[at[i]], light[at[i]]
    pad(f, law, t, light, kept)
    return kept


@compiled()
def pad(f: Any, law: Any, t: Any, light: Any, n: int) -> None:
    """Put points that do not count after n of them: the arrays have room for LANES more."""
    for i in range(n, n + LANES):
        f[i], t[i] = f[0], -1e30
        if law is not None:
            law[i], light[i] = 0.0, 0.0


@compiled()
def padded(n: int) -> int:
    """The next multiple of LANES: a loop of so many has no remainder, which is not vectorised."""
    return (n + LANES - 1) // LANES * LANES


@compiled(SUMS)
def next_above(f: Any, level: float) -> float:
    """The smallest loss above `level`, or infinity."""
    above = -np.inf
    for i in range(f.size):
        above = larger(above, -f[i] + (0.0 if f[i] > level else -np.inf))
    return -above


@compiled(SUMS)
def next_below(f: Any, level: float) -> float:
    """The largest loss below `level`, or minus infinity."""
    below = -np.inf
    for i in range(f.size):
        below = larger(below, f[i] + (0.0 if f[i] < level else -np.inf))
    return below

"""The change of Y at which ratios with infinite slopes sum to one: the last step of `thresholds`.

The points far from the threshold enter by the coefficients of a series, which one pass yields. Only the few
that are close are computed anew in each step.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from phiball.backends.numba.compilation import compiled
from phiball.backends.numba.elementary import exponentials
from phiball.backends.numba.power_passes import LANES, beyond, logarithm, next_above, next_below
from phiball.backends.numba.primitives import SUMS, minus, over, weighted

MET = 2e-15  # a mass that differs from 1 by so little is one
_PART = 1024  # points whose sums are added up; of a slice, where the row is longer


@compiled()
def gather(
    f: Any, law: Any, ref: float, scale: float, Y: float, cut: float, x: Any, d: Any, close: Any
) -> int:
    """Copy the points with abs(y) <= cut, their places and ratios; returns how many there are."""
    losses, masses, at, ratio, less = close
    count = 0
    for i in range(f.size):
        losses[count], at[count] = f[i], i
        count += abs(Y + minus(f[i], ref) * scale) <= cut
    if law is not None:
        for i in range(count):
            masses[i] = law[at[i]]
    for i in range(count):
        ratio[i], less[i] = x[at[i]], d[at[i]]
    for i in range(count, count + LANES):
        losses[i] = ref  # as `pad`
    return count


@compiled()
def scatter(close: Any, count: int, x: Any, d: Any) -> None:
    _, _, at, ratio, less = close
    for i in range(count):
        x[at[i]], d[at[i]] = ratio[i], less[i]


@compiled(SUMS)
def _close_sums(
    close: Any, count: int, ref: float, scale: float, Y: float, low: float, q: float, anew: bool
) -> tuple[float, float]:
    """(sum p (x - 1), sum p x Y/y) over the points that are close; y is Y + low at ref. Computes x `anew`."""
    losses, law, _, ratio, less = close
    for i in range((count + 3) // 4 * 4 if anew else 0):
        ratio[i], less[i] = exponentials(logarithm(Y, minus(losses[i], ref) * scale, low, q))
    first, second = 0.0, 0.0
    for i in range(count):
        y = Y + minus(losses[i], ref) * scale
        first += weighted(law, i, less[i])
        second += weighted(law, i, ratio[i] * (Y / y if y > 0.0 else 0.0))
    return first, second


@compiled(SUMS)
def far_sums(
    f: Any, law: Any, ref: float, scale: float, Y: float, cut: float, q: float, x: Any, d: Any, s: Any
) -> int:
    """s[j] = the coefficient of (change/cut)^j in the sum of p (x - 1) over the points that are not close.

    Returns how many are.
    """
    s[:] = 0.0
    count = 0
    for i in range(f.size):
        count += abs(Y + minus(f[i], ref) * scale) <= cut
    if f.size <= _PART:
        _add(_far_part(f, law, ref, scale, Y, cut, x, d), s)
    for start in range(0, f.size if f.size > _PART else 0, _PART):
        stop = min(start + _PART, f.size)
        masses = None if law is None else law[start:stop]
        _add(_far_part(f[start:stop], masses, ref, scale, Y, cut, x[start:stop], d[start:stop]), s)
    factor = 1.0
    for j in range(1, 7):
        factor *= (q - (j - 1.0)) / j
        s[j] *= factor
    return count


@compiled()
def _add(part: Any, s: Any) -> None:
    for j in range(7):
        s[j] += part[j]


@compiled(SUMS)
def _far_part(
    f: Any, law: Any, ref: float, scale: float, Y: float, cut: float, x: Any, d: Any
) -> tuple[float, float, float, float, float, float, float]:
    zeroth, first, second, third, fourth, fifth, sixth = 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
    for i in range(f.size):
        y = Y + minus(f[i], ref) * scale
        far = y > cut
        h = over(cut, y if far else 1.0)
        zeroth += weighted(law, i, d[i] if abs(y) > cut else 0.0)
        term = weighted(law, i, x[i] if far else 0.0) * h
        first += term
        second += term * h
        third += term * (h * h)
        term = term * (h * h) * h
        fourth += term
        fifth += term * h
        sixth += term * (h * h)
    return zeroth, first, second, third, fourth, fifth, sixth


@compiled()
def _far(s: Any, u: float) -> tuple[float, float]:
    """The polynomial of these coefficients at u, and its derivative."""
    value = s[1] + u * (s[2] + u * (s[3] + u * (s[4] + u * (s[5] + u * s[6]))))
    slope = 2.0 * s[2] + u * (3.0 * s[3] + u * (4.0 * s[4] + u * (5.0 * s[5] + u * 6.0 * s[6])))
    return s[0] + u * value, s[1] + u * slope


@compiled()
def balance(
    f: Any,
    total: float,
    start: float,
    top: float,
    scale: float,
    q: float,
    cut: float,
    Y0: float,
    T0: float,
    close: Any,
    count: int,
    s: Any,
) -> tuple[float, float, float, float]:
    """(ref, Y, Y - 1, change): where the masses sum to one, and by how much y has changed to get there.

    Y0 is y at the loss `start`. `close` gets the ratios of the points that are close to the threshold.
    """
    ref, gap, shift, settled = start, np.inf, 0.0, count == 0
    if count > 0:
        gap = minus(ref, next_below(close[0][:count], ref)) * scale
    lowest, highest = max(0.0, Y0 - cut), min(Y0 + cut, gap)
    Y, T = max(min(Y0, highest), 1e-290), T0
    anew = Y != Y0  # `close` has the ratios at Y0
    if anew:
        T = Y - 1.0
    change, polished = 0.0, False
    for _ in range(40):
        change = (T - T0) - shift if 0.5 < Y < 2.0 and 0.5 < Y0 < 2.0 else (Y - Y0) - shift
        first, slope = _far(s, change / cut)
        second = slope * Y / (cut * q)
        if count > 0:
            part = _close_sums(close, count, ref, scale, Y, beyond(Y, T), q, anew)
            first += part[0]
            second += part[1]
            anew = True
        rho = -first / second
        if abs(first) <= MET * total:
            size = abs(rho)  # of what x may still change by, as a part of the largest
            if size > 1e-14:
                size = size * np.exp(q * np.log(Y / (Y + minus(top, ref) * scale)))
            if polished or size <= 1e-14:
                break
            polished = True
        else:
            polished = False
        # E x is convex in Y^q: where the tangent has no root, there is none, and the point has no weight.
        if not settled and (rho <= -1.0 or (gap <= Y and rho > 0.0)):
            ref, below, missing = _smallest_with_weight(f, start, top, scale, q, cut, Y0, close, count, s)
            gap, shift, settled = minus(ref, below) * scale, minus(ref, start) * scale, True
            lowest, highest = max(0.0, Y0 + shift - cut), min(Y0 + shift + cut, gap)
            new = Y0 + shift
            if missing > 0.0:  # the point alone would have to make up for it: Y is less than that
                new = np.exp(np.log(missing / _mass_at(close, count, ref)) / q)
            Y = max(min(max(new, lowest), highest), 1e-290)
            T = Y - 1.0
            continue
        # (1 + rho)^(1/q) - 1, of which a few digits do, since it is a step of Newton's method
        step = rho / q * (1.0 + 0.5 * (1.0 / q - 1.0) * rho)
        new = Y + Y * step
        if abs(rho) > 0.01 * q:
            new = Y * np.exp(np.log1p(rho if rho > -1.0 else -0.9) / q)
            step = new / Y - 1.0
        new = min(max(new, lowest), highest)
        if new == Y or not new > 1e-290:
            break
        inside = 0.5 < new < 2.0 and lowest < new < highest
        T = T + Y * step if inside else new - 1.0
        Y = 1.0 + T if inside else new
    return ref, Y, T, change


@compiled()
def _mass_at(close: Any, count: int, loss: float) -> float:
    losses, law, _, _, _ = close
    mass = 0.0
    for i in range(count):
        mass += weighted(law, i, 1.0) if losses[i] == loss else 0.0
    return mass


@compiled()
def _smallest_with_weight(
    f: Any,
    start: float,
    top: float,
    scale: float,
    q: float,
    cut: float,
    Y0: float,
    close: Any,
    count: int,
    s: Any,
) -> tuple[float, float, float]:
    """(the smallest loss that has weight, the largest below it, the mass that is missing with y = 0 there).

    The latter is 0 if it is not known, and the largest below is minus infinity if it is not close. A loss
    has weight if with y = 0 there the mass is less than one.
    """
    losses = close[0][:count]
    high, low, missing = min(next_above(f, start + (cut - Y0) / scale), top), -np.inf, 0.0
    candidate = start if start < high else next_below(losses, high)
    for step in range(200):
        if not low < candidate < high:
            break
        first, _ = _far(s, -(Y0 + minus(candidate, start) * scale) / cut)
        first += _close_sums(close, count, candidate, scale, 0.0, 0.0, q, True)[0]
        if first < 0.0:
            high, missing = candidate, -first
        else:
            low = candidate
        below = next_below(losses, high)
        if not below > low:
            break
        if step < 2:
            candidate = below if first < 0.0 else next_above(losses, low)
        else:
            bottom = max(low, start - (Y0 + cut) / scale)
            candidate = next_above(losses, bottom + 0.5 * (high - bottom))
            candidate = candidate if candidate < high else below
    return high, low, missing

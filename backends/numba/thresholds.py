"""The Cressie-Read divergences of order k > 2: where a ratio y^q reaches zero, its slope is infinite.

So Y is measured at the smallest loss that has weight: no digit of a small y is lost. Rough passes find Y to
four digits or so. Then the ratios are computed accurately, once as a rule, and moved by a series to where
they sum to one; the few points close to the threshold, where a series is no good, are computed anew.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from phiball.backends.numba.balance import MET, balance, far_sums, gather, scatter
from phiball.backends.numba.compilation import compiled
from phiball.backends.numba.elementary import log_normal
from phiball.backends.numba.power_passes import (
    beyond,
    crude_slope,
    keep_above,
    move,
    next_above,
    padded,
    plain_sums,
    ratios,
    rough_slope,
    sums,
)
from phiball.backends.numba.primitives import minus

_SERIES = 0.01  # the part of the smallest y by which a series of six terms may change all others


@compiled()
def rough_threshold(
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
    q: float,
    bounds: tuple[float, float, float],
    coarse: bool,
    careful: bool,
) -> tuple[float, float, int]:
    """(Y, level, n): Y at the largest loss; n points are kept, and the others are below the level.

    By Newton's method on log E x in Y, in a bracket. If `coarse`, t has the losses in single precision, in
    units of `start`. Unless `careful`, Y is first found to a few percent, and what is idle then is dropped:
    if that was wrong, `settle` will notice.
    """
    start, lone, spread = bounds
    low, high = 1.0, min(lone, 1.0 + spread)
    Y, dropped, small = start, -np.inf, 1.0 / 32.0 if careful else 0.005
    if spread < 1e-4:
        return Y, dropped, n  # then that is as good
    if not careful:
        Y, n, dropped = _crude_threshold(
            f, law, where, t, light, at, n, total, top, scale, q, start, low, high
        )
    for _ in range(60):
        if coarse:
            first, slope, _ = rough_slope(t[: padded(n)], light, start / Y, q, small)
        else:
            first, slope, _ = plain_sums(f[:n], law, top, scale, Y, q)
            slope = q * slope
        log = q * log_normal(Y) + log_normal(first / total)  # of E x
        if log < 0.0:
            low = Y
        else:
            high = Y
        new = Y * (1.0 - log * first / slope)
        new = new if low < new < high else low + 0.5 * (high - low)
        change = abs(new - Y) / Y
        small = min(1.0 / 32.0, max(0.3 * change, 1e-6))  # what enters in the next step is of this size
        Y = new
        if not change > 0.05 * closeness(n):
            break
    return Y, dropped, n


@compiled()
def _crude_threshold(
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
    q: float,
    start: float,
    low: float,
    high: float,
) -> tuple[float, int, float]:
    """(Y to a few percent, n, level): what would be idle also if Y were larger by that is dropped."""
    Y, margin, count = start, 0.0, 0.0
    for _ in range(6):
        first, slope, count = crude_slope(t[: padded(n)], light, start / Y, q)
        log = q * log_normal(Y) + log_normal(first / total)
        if log < 0.0:
            low = Y
        else:
            high = Y
        margin = first / slope
        new = Y * (1.0 - log * margin)
        new = new if low < new < high else low + 0.5 * (high - low)
        change = abs(new - Y)
        Y = new
        if not change > 0.03 * Y:
            break
    if count > 0.75 * n:
        return Y, n, -np.inf
    level = top - (1.02 + 0.04 * margin) * Y / scale
    return Y, keep_above(f, law, where, t, light, at, n, level), level


@compiled()
def closeness(n: int) -> float:
    """How close to the threshold points are computed anew, as a part of the largest y: a few of n points."""
    return max(1e-4, min(0.01, 4.0 / n))


@compiled()
def settle(
    points: Any,
    law: Any,
    n: int,
    total: float,
    kept: float,
    top: float,
    scale: float,
    q: float,
    dropped: float,
    Y: float,
    log: Any,
    x: Any,
    d: Any,
    close: Any,
    s: Any,
) -> tuple[float, float, float, float, float]:
    """(Y, Y - 1, the loss that it belongs to, E x/y, E x - 1), with the ratios in x and d; the mass is NaN
    if it fails. On entry Y belongs to the largest loss. `close` and `s` are memory.
    """
    f, full = points[:n], points[: padded(n)]
    ref = min(next_above(f, top - Y / scale), top)
    Y = max(Y + minus(ref, top) * scale, 0.0)
    T = Y - 1.0
    for _ in range(20):
        cut = closeness(f.size) * (Y + minus(top, ref) * scale)
        ratios(full, ref, scale, Y, beyond(Y, T), q, log, x, d)
        count = far_sums(f, law, ref, scale, Y, cut, q, x, d, s)
        if count > 0:
            count = gather(f, law, ref, scale, Y, cut, x, d, close)
        s[0] -= total - kept
        old, old_ref = Y, ref
        ref, Y, T, change = balance(f, total, ref, top, scale, q, cut, Y, T, close, count, s)
        if not Y > 1e-290 or minus(ref, dropped) * scale < Y:  # the latter: too many points were dropped
            break
        if abs(change) <= _SERIES * cut:
            move(full, old_ref, scale, old, change, q, cut, x, d)
            scatter(close, count, x, d)
            first, second, _ = sums(f, law, ref, scale, Y, x, d)
            mass = (first - (total - kept)) / total
            if abs(mass) <= 2.0 * MET:
                return Y, T, ref, second / (total * Y), mass
    return Y, T, ref, 0.0, np.nan

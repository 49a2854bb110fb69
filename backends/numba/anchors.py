"""Where the largest loss has next to no mass: densities by way of the smallest loss that has weight."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import float64

from phiball.backends.numba.compilation import compiled
from phiball.backends.numba.primitives import BLOCK, SUMS, larger, minus


@compiled(SUMS)
def anchor(
    losses: Any, law: Any, whole: float, level: float, scale: float, squared: bool
) -> tuple[float, float, float]:
    """(ref, Y, mass): the smallest loss with weight, y there, and the mass from there on.

    y_i = Y + (f_i - ref) scale, and E y = 1, or E y^2 = 1, over the losses from `ref` on: no digit is lost,
    however little mass the largest loss has. The search starts at a `level` close to ref; NaN if it fails.
    """
    ref = _next(losses, law, level, True)
    ref = _next(losses, law, level, False) if ref == np.inf else ref
    for _ in range(100):
        mass, first, second = 0.0, 0.0, 0.0
        for block in range(0, losses.size, BLOCK):
            part_mass, part_first, part_second = 0.0, 0.0, 0.0
            for i in range(block, min(block + BLOCK, losses.size)):
                h, w = minus(losses[i], ref) * scale, float64(law[i])
                w = w if h >= 0.0 else 0.0
                part_mass += w
                part_first += w * h
                part_second += w * h * h
            mass += part_mass
            first += part_first
            second += part_second
        rest = whole - (second if squared else first)
        if not rest > 0.0:
            ref = _next(losses, law, ref, True)
            continue
        Y = rest / (first + np.sqrt(first * first + mass * rest)) if squared else rest / mass
        below = _next(losses, law, ref, False)
        if not minus(ref, below) * scale < Y:
            return ref, Y, mass
        ref = below
    return np.nan, np.nan, np.nan


@compiled(SUMS)
def _next(losses: Any, law: Any, level: float, up: bool) -> float:
    """The smallest loss with mass above `level`, or the largest below it; infinite if there is none."""
    best = -np.inf
    sign = -1.0 if up else 1.0
    level = sign * level
    for i in range(losses.size):
        g, w = sign * losses[i], law[i]
        g = g + (0.0 if w > 0.0 else -np.inf)
        best = larger(best, g + (0.0 if g < level else -np.inf))
    return sign * best

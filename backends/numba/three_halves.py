"""The kernel of the Cressie-Read divergence of order 3/2, whose ratios are squares."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import float64

from phiball.backends.numba.anchors import anchor
from phiball.backends.numba.compilation import compiled
from phiball.backends.numba.primitives import (
    BLOCK,
    ROUNDING,
    SUMS,
    extent_of_law,
    minus,
    moments_of_law,
    read,
    store_mu,
    top_and_mean,
    weighted,
    write,
)


@compiled(SUMS)
def three_halves(
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
    """Cressie-Read, k = 3/2: gamma_i = p_i y_i^2 with y_i = (1 + b + g_i/(2 eta))_+.

    Newton on sqrt(E y^2), which is convex in b and straight while the same points are active.
    """
    value, mu, weights, gap = out
    for row in range(start, stop):
        first = offsets[row]
        m = offsets[row + 1] - first
        losses, density = f[first : first + m], weights[first : first + m]
        e, half = float64(eta[row]), 0.5 / float64(eta[row])
        # sqrt(E y^2) is at least E y, and at least the share of the largest y: right of the root
        if p is None:
            law, whole = None, float64(m)
            top, mean = top_and_mean(losses)
            b = min(-mean * half, np.sqrt(float64(m)) - 1.0)
        else:
            law = p if shared else p[first : first + m]
            top, _ = extent_of_law(losses, law)
            whole, mean, at_top = moments_of_law(losses, law, top)
            if not (whole > 0.0 and top >= -np.inf):  # p is no law; an anchor would not see it
                value[row] = np.nan
                continue
            b = min(-mean * half, np.sqrt(whole / at_top) - 1.0)
        for _ in range(100):
            linear, square = _moments(losses, law, top, b, half)
            square = square / whole
            if p is None:
                change = (np.sqrt(square) - square) * whole / linear
            else:  # it is E y^2 - 1: a large eta would charge for the rounding of E y^2
                root = np.sqrt(1.0 + square)
                change = -square * (root / (1.0 + root)) * whole / linear
            b += change
            if not abs(change) > 4e-16 * (1.0 + b):
                break
        # y at the largest loss is 1 + b, so s = phi'((1 + b)^2) = 2 b.
        shift, scale = store_mu(mu, row, top, -2.0 * e * b, e, 0.0), 1.0 / whole
        mass, gain, cost, conj = _square_sums(losses, law, density, top, b, shift, half, scale)
        if p is not None and abs(mass) > ROUNDING * whole:  # see `anchor`
            level = top - (1.0 + b) / half
            top, Y, _ = anchor(losses, law, whole, level, half, True)
            b = Y - 1.0
            shift = store_mu(mu, row, top, -2.0 * e * b, e, 0.0)
            mass, gain, cost, conj = _square_sums(losses, law, density, top, b, shift, half, scale)
        primal = (gain - (4.0 / 3.0) * e * cost - shift * mass) / whole
        value[row] = top + primal if p is None or abs(mass) < 1e-12 else np.nan
        gap[row] = (shift + (2.0 / 3.0) * e * (conj / whole)) - primal


@compiled()
def _root(g: float, b: float, half: float) -> float:
    """y - 1, the same bits where it is summed and where it is stored: SUMS would round its product in one.

    Where the largest loss has little mass, b is large, and so is that difference in the sum of the weights.
    """
    d = b + g * half
    return d if d > -1.0 else -1.0


@compiled(SUMS)
def _moments(losses: Any, law: Any, top: float, b: float, half: float) -> tuple[float, float]:
    """(sum p y, sum p y^2), or under a law (sum p y, sum p (y^2 - 1))."""
    if losses.size <= BLOCK:
        return _moments_part(losses, law, top, b, half)
    first, second = 0.0, 0.0
    for start in range(0, losses.size, BLOCK):
        masses = None if law is None else law[start : start + BLOCK]
        part = _moments_part(losses[start : start + BLOCK], masses, top, b, half)
        first += part[0]
        second += part[1]
    return first, second


@compiled(SUMS)
def _moments_part(losses: Any, law: Any, top: float, b: float, half: float) -> tuple[float, float]:
    first, second = 0.0, 0.0
    for i in range(losses.size):
        if law is None:
            y = 1.0 + (b + minus(losses[i], top) * half)
            y = y if y > 0.0 else 0.0
            first += y
            second += y * y
        else:
            d, w = b + minus(losses[i], top) * half, float64(law[i])
            d = d if d > -1.0 else -1.0
            first += w * (1.0 + d)
            second += (w * d) * (2.0 + d)
    return first, second


@compiled(SUMS)
def _square_sums(
    losses: Any, law: Any, density: Any, top: float, b: float, shift: float, half: float, scale: float
) -> tuple[float, float, float, float]:
    """(sum p (x - 1), sum p x g, 3/4 sum p phi(x), 3/2 sum p phi*(s)), with s that of the multiplier.

    `scale` times the density x is kept.
    """
    if losses.size <= BLOCK:
        return _square_part(losses, law, density, top, b, -shift * half, half, scale)
    mass, gain, cost, conj = 0.0, 0.0, 0.0, 0.0
    for start in range(0, losses.size, BLOCK):
        some, kept = losses[start : start + BLOCK], density[start : start + BLOCK]
        masses = None if law is None else law[start : start + BLOCK]
        part = _square_part(some, masses, kept, top, b, -shift * half, half, scale)
        mass += part[0]
        gain += part[1]
        cost += part[2]
        conj += part[3]
    return mass, gain, cost, conj


@compiled(SUMS)
def _square_part(
    losses: Any, law: Any, density: Any, top: float, b: float, at_mu: float, half: float, scale: float
) -> tuple[float, float, float, float]:
    mass, gain, cost, conj = 0.0, 0.0, 0.0, 0.0
    for i in range(losses.size):
        g = minus(read(losses, i), top)
        d, s = _root(g, b, half), _root(g, at_mu, half)
        x = (1.0 + d) * (1.0 + d)
        mass += weighted(law, i, d * (2.0 + d))  # x - 1
        gain += weighted(law, i, x * g)
        cost += weighted(law, i, d * d * (d + 1.5))  # phi(y^2) = 4/3 (y - 1)^2 (y + 1/2)
        conj += weighted(law, i, s * (3.0 + s * (3.0 + s)))  # phi*(s) = 2/3 (y^3 - 1)
        write(density, i, weighted(law, i, x * scale))
    return mass, gain, cost, conj

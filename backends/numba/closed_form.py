"""Kernels of the divergences whose worst case has a closed form: entropic, absolute value and hinge.

All kernels of inner problems share their arguments. `rows` is (losses, offsets, eta): row r of the flat
losses is offsets[r], ..., offsets[r + 1] - 1. The reference distribution `p` is None if uniform, else it has
a mass for every loss if `own` is 1, or is shared by the rows if 0. A kernel solves the rows start, ...,
stop - 1 and fills out = (value, mu, weights, gap). Sums are in float64 whatever the dtype. The value is NaN
where a loss or p is invalid, or the kernel cannot certify a row: the reference then solves the batch.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import float64

from phiball.backends.numba.compilation import compiled
from phiball.backends.numba.elementary import exponential_less
from phiball.backends.numba.primitives import (
    BLOCK,
    EPS,
    SUMS,
    extent,
    minus,
    plus,
    read,
    row_of,
    store_mu,
    write,
)


@compiled(SUMS)
def entropic(
    rows: Any, p: Any, own: int, parameter: float, slope1: float, out: Any, start: int, stop: int
) -> None:
    """Example 2: gamma_i = exp(u_i)/sum exp(u), value = eta log E exp(u) above the maximum."""
    f, offsets, eta = rows
    value, mu, weights, gap = out
    for row in range(start, stop):
        first = offsets[row]
        m = offsets[row + 1] - first
        losses, density = row_of(f, first, m), row_of(weights, first, m)
        law = row_of(p, own * first, m)
        e, inverse = float64(eta[row]), 1.0 / float64(eta[row])
        top, low, whole = extent(losses, law)
        less = 1.0 if minus(top, low) * inverse < 1.0 else 0.0  # a large eta: keep the digits of exp(u) - 1
        total = 0.0
        for block in range(0, m, BLOCK):
            partial = 0.0
            for i in range(block, block + BLOCK if block + BLOCK < m else m):
                u, w = minus(read(losses, i), top) * inverse, read(law, i)
                power = exponential_less(
                    u if u < 0.0 else 0.0, less
                )  # a loss without mass may exceed the top
                partial += w * power
                write(density, i, w * (power + less))
            total += partial
        total = total / whole
        mean = plus(total, less)  # E exp(u)
        if not mean > (1e-280 if weights.itemsize == 8 else 1e-30):
            value[row] = np.nan  # next to no mass at the largest loss: underflow may matter
            continue
        scale = 1.0 / (mean * whole)
        for i in range(m):
            density[i] = density[i] * scale
        primal = e * (np.log(mean) + minus(total, minus(mean, less)) / mean)  # log1p by what rounding lost
        shift = store_mu(mu, row, top, primal, e, 0.0)
        h = (
            minus(primal, shift) * inverse
        )  # what rounding took off the multiplier, of which the dual is convex
        value[row] = top + primal
        gap[row] = e * (0.5 * h * h if abs(h) < 1e-4 else np.expm1(h) - h)


@compiled(SUMS)
def kinked(
    rows: Any, p: Any, own: int, parameter: float, slope1: float, out: Any, start: int, stop: int
) -> None:
    """Examples 4 and 5, corrected: gamma_i = p_i above max f - width, and the mass below moves to the top.

    `parameter` is the slope of phi at 0: -1 for the absolute value, 0 for the hinge.
    """
    f, offsets, eta = rows
    value, mu, weights, gap = out
    for row in range(start, stop):
        first = offsets[row]
        m = offsets[row + 1] - first
        losses, density = row_of(f, first, m), row_of(weights, first, m)
        law = row_of(p, own * first, m)
        e = float64(eta[row])
        width = e * (1.0 - parameter)  # the cost of moving a unit of mass
        top, low, whole = extent(losses, law)
        # As in the reference: off the end of the domain of phi* where it can be, and never beyond it.
        drop = minus(top, low) / (1.0 - parameter)
        drop = drop if drop < e else e
        shift = store_mu(mu, row, top, -drop * (1.0 - 8.0 * EPS), e, 0.0, True)
        cut = shift + parameter * e
        left, at_top, primal, dual = 0.0, 0.0, 0.0, 0.0
        for block in range(0, m, BLOCK):
            part_left, part_top, part_primal, part_dual = 0.0, 0.0, 0.0, 0.0
            for i in range(block, block + BLOCK if block + BLOCK < m else m):
                g, w = minus(read(losses, i), top), read(law, i)
                part_left += w * (0.0 if g > -width else 1.0)
                part_top += w * (1.0 if g == 0.0 else 0.0)
                part_primal += w * (g if g > -width else -width)
                part_dual += w * (g if g > cut else cut)
            left += part_left
            at_top += part_top
            primal += part_primal
            dual += part_dual
        scale, atom = 1.0 / whole, (left / at_top) / whole
        for i in range(m):
            g = minus(read(losses, i), top)
            write(density, i, read(law, i) * ((scale if g > -width else 0.0) + (atom if g == 0.0 else 0.0)))
        value[row] = top + primal / whole
        gap[row] = (dual - primal) / whole

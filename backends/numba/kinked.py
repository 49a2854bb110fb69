"""The inner problem of the absolute value and the hinge, compiled."""

from __future__ import annotations

from typing import Any

from numba import float64

from phiball.backends.numba.compilation import compiled
from phiball.backends.numba.primitives import (
    BLOCK,
    SUMS,
    extent,
    extent_and_mass,
    minus,
    store_mu,
    weighted,
)


@compiled(SUMS)
def kinked(
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
    """Examples 4 and 5, corrected: gamma_i = p_i above max f - width, and the mass below moves to the top.

    `parameter` is the slope of phi at 0: -1 for the absolute value, 0 for the hinge.
    """
    value, mu, weights, gap = out
    for row in range(start, stop):
        first = offsets[row]
        m = offsets[row + 1] - first
        losses, density = f[first : first + m], weights[first : first + m]
        e = float64(eta[row])
        width = e * (1.0 - parameter)  # what it costs to move a unit of mass
        if p is None:
            law, whole = None, float64(m)
            low, top = extent(losses)
        else:
            law = p if shared else p[first : first + m]
            top, low, whole = extent_and_mass(losses, law)
        # As in the reference: off the end of the domain of phi* where it can be, and never beyond it.
        drop = min(minus(top, low) / (1.0 - parameter), e)
        shift = store_mu(mu, row, top, -drop * (1.0 - 8.0 * 2.220446049250313e-16), e, 0.0, True)
        cut = shift + parameter * e
        left, at_top, primal, dual = _sums(losses, law, top, width, cut)
        scale, atom = 1.0 / whole, (left / at_top) / whole
        for i in range(m):
            g = minus(losses[i], top)
            x = (scale if g > -width else 0.0) + (atom if g == 0.0 else 0.0)
            density[i] = weighted(law, i, x)
        value[row] = top + primal / whole
        gap[row] = (dual - primal) / whole


@compiled(SUMS)
def _sums(losses: Any, law: Any, top: float, width: float, cut: float) -> tuple[float, float, float, float]:
    """(the mass that moves, that at the top, sum p max(g, -width), the same with `cut`, of the dual)."""
    if losses.size <= BLOCK:
        return _part(losses, law, top, width, cut)
    left, at_top, primal, dual = 0.0, 0.0, 0.0, 0.0
    for start in range(0, losses.size, BLOCK):
        masses = None if law is None else law[start : start + BLOCK]
        part = _part(losses[start : start + BLOCK], masses, top, width, cut)
        left += part[0]
        at_top += part[1]
        primal += part[2]
        dual += part[3]
    return left, at_top, primal, dual


@compiled(SUMS)
def _part(losses: Any, law: Any, top: float, width: float, cut: float) -> tuple[float, float, float, float]:
    left, at_top, primal, dual = 0.0, 0.0, 0.0, 0.0
    for i in range(losses.size):
        g = minus(losses[i], top)
        left += weighted(law, i, 0.0 if g > -width else 1.0)
        at_top += weighted(law, i, 1.0 if g == 0.0 else 0.0)
        kept = g if g > -width else -width
        # Under a law, what is not finite has been seen before.
        primal += kept + 0.0 * g if law is None else weighted(law, i, kept)
        dual += weighted(law, i, g if g > cut else cut)
    return left, at_top, primal, dual

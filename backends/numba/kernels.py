"""The inner problem, compiled: one pass over a row is one loop, and a row stays in the cache.

Each kernel solves the rows start, ..., stop - 1 of the losses and fills out = (value, mu, weights, gap). The
law `p` is None if it is uniform, `shared` by all rows, or has a place for every loss; what is written for one
of the three kinds is not compiled for the others. A kernel is serial and releases the interpreter's lock.
Sums are kept in float64 whatever the dtype of the losses. A loss that is not finite makes the value NaN, as
does a p that is no law, and a row that the kernel cannot vouch for.

A loop that both sums and stores uses `read` and `write`: see there.
"""

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
    exp_nonpositive,
    expm1_nonpositive,
    extent_and_mass,
    extent_of_law,
    minus,
    moments_of_law,
    read,
    store_mu,
    times,
    top_and_mean,
    top_of,
    weighted,
    write,
)


@compiled(SUMS)
def entropic(
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
    """Example 2: gamma_i = exp(u_i)/sum exp(u), value = eta log E exp(u) above the maximum."""
    value, mu, weights, gap = out
    for row in range(start, stop):
        first = offsets[row]
        m = offsets[row + 1] - first
        losses, density = f[first : first + m], weights[first : first + m]
        e, inverse = float64(eta[row]), 1.0 / float64(eta[row])
        if p is None:
            law: Any = None
            top, whole = float64(top_of(losses)), float64(m)
        else:
            law = p if shared else p[first : first + m]
            top, _, whole = extent_and_mass(losses, law)
        total = 0.0
        for block in range(0, m, BLOCK):
            part, kept = losses[block : block + BLOCK], density[block : block + BLOCK]
            if p is None:
                total += _exponentials(part, None, kept, top, inverse)
            else:
                total += _exponentials(part, law[block : block + BLOCK], kept, top, inverse)
        if p is not None and not total > (1e-280 if weights.itemsize == 8 else 1e-30):
            value[row] = np.nan  # next to no mass at the largest loss: what has underflowed may count
            continue
        for i in range(m):
            density[i] = density[i] * (1.0 / total)
        ratio = total / whole
        if ratio > 0.75:  # a large eta: keep the digits of E exp(u) - 1
            total = 0.0
            for block in range(0, m, BLOCK):
                part = 0.0
                for i in range(block, min(block + BLOCK, m)):
                    u = minus(losses[i], top) * inverse
                    if p is None:
                        part += expm1_nonpositive(u)
                    else:
                        part += law[i] * expm1_nonpositive(u if u < 0.0 else 0.0)
                total += part
            excess = total / whole
            primal = e * np.log1p(excess)
            shift = store_mu(mu, row, top, primal, e, 0.0)
            dual = shift + e * (excess + (1.0 + excess) * np.expm1(-shift * inverse))
        else:
            primal = e * np.log(ratio)
            shift = store_mu(mu, row, top, primal, e, 0.0)
            dual = shift + e * (ratio * np.exp(-shift * inverse) - 1.0)
        value[row] = top + primal
        gap[row] = dual - primal


@compiled(SUMS)
def _exponentials(losses: Any, law: Any, density: Any, top: float, inverse: float) -> float:
    """The sum of the exp(u), or of the p exp(u), which are left in `density`."""
    total = 0.0
    for i in range(losses.size):
        u = minus(read(losses, i), top) * inverse
        if law is None:
            w = exp_nonpositive(u)
            total += w + 0.0 * u  # a loss that is not finite must show in the value
        else:
            w = read(law, i) * exp_nonpositive(u if u < 0.0 else 0.0)
            total += w
        write(density, i, w)
    return total


@compiled(SUMS)
def quadratic(
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
    """Example 3, centred: gamma_i = p_i (1 + (g_i - c)/eta)_+, by Newton on the active set."""
    value, mu, weights, gap = out
    for row in range(start, stop):
        first = offsets[row]
        m = offsets[row + 1] - first
        losses, density = f[first : first + m], weights[first : first + m]
        e, inverse = float64(eta[row]), 1.0 / float64(eta[row])
        # Solve E (g - edge)_+ = eta, then c = edge + eta. One point alone, or all: left of the root.
        if p is None:
            law, whole, low = None, float64(m), 0.0
            top, mean = top_and_mean(losses)
            edge = max(-e * m, mean - e)
        else:
            law = p if shared else p[first : first + m]
            top, low = extent_of_law(losses, law)
            whole, mean, at_top = moments_of_law(losses, law, top)
            if not (whole > 0.0 and top >= -np.inf):  # p is no law; an anchor would not see it
                value[row] = np.nan
                continue
            edge = max(-e * (whole / at_top), mean - e)
        last_edge, last_active = -np.inf, 0.0
        for step in range(100):
            active, total = _above(losses, law, top, edge)
            slack = total / (whole * e)
            crossing = abs(slack - 1.0) * active * (m / whole) > 0.5
            if crossing and step < 9:
                if slack > 1.5 and step < 4:
                    # Newton on the logarithm of the sum (by a fraction close to it) is there sooner.
                    change = slack * 3.0 * (slack * slack - 1.0) / (slack * (slack + 4.0) + 1.0)
                    new = edge + whole * e * change / active
                else:
                    # It crosses as much mass per length as lies between the last two edges, or as an
                    # exponential tail has, which heavier tails are taken for.
                    change = whole * e * (slack - 1.0) / active
                    dense = min((last_active - active) / (edge - last_edge), active * active / total)
                    bend = 1.0 - 2.0 * dense * change / active
                    new = edge + change * (2.0 / (1.0 + np.sqrt(bend)) if bend > 0.0 else 1.5)
                last_edge, last_active, edge = edge, active, min(new, -e)
                continue
            # A plain step ends on the root, unless it crosses points: about count (slack - 1) of them.
            edge = edge + whole * e * (slack - 1.0) / active
            if crossing and step < 99:
                continue
            # A large eta takes the digits of edge + eta.
            c = mean if (active == m if p is None else minus(low, top) > edge) else edge + e
            mass, gain, cost = _quadratic_sums(losses, law, density, top, c, inverse, 1.0 / whole)
            if not abs(mass) > ROUNDING * whole:  # the weights sum to one: no point was crossed
                break
            if p is not None and step > 9:  # the largest loss has so little mass that edge lacks digits
                top, Y, active = anchor(losses, law, whole, top + edge, inverse, False)
                c = e * (1.0 - Y)
                mass, gain, cost = _quadratic_sums(losses, law, density, top, c, inverse, 1.0 / whole)
                break
        shift = store_mu(mu, row, top, c, e, slope1)
        # The multiplier corrects the value for weights that sum to one but for rounding.
        primal = (gain - 0.5 * e * cost - c * mass) / whole
        # phi*(s) = s + s^2/2 at s = d - h/eta, where h is what mu was rounded up by. It is flat
        # beyond the edge, so that no step costs more than its length.
        h = minus(shift, c)
        conj = e * (mass + 0.5 * cost) / whole - h * (1.0 + mass / whole)
        square = times(0.5 * h, times(h, inverse)) * (active / whole)  # h^2 may overflow
        conj = conj + (square if square < h or h < 0.0 else h)
        value[row] = top + primal if p is None or abs(mass) < 1e-12 else np.nan
        gap[row] = (shift + conj) - primal


@compiled(SUMS)
def _above(losses: Any, law: Any, top: float, edge: float) -> tuple[float, float]:
    """(the mass of the losses above `edge`, by how much they exceed it in all)."""
    total = 0.0
    if law is None:
        count = 0
        for block in range(0, losses.size, BLOCK):
            part = 0.0
            for i in range(block, min(block + BLOCK, losses.size)):
                g = minus(minus(losses[i], top), edge)
                count += g > 0.0
                part += g if g > 0.0 else 0.0
            total += part
        return float64(count), total
    if losses.size <= BLOCK:
        return _mass_above(losses, law, top, edge)
    mass = 0.0
    for start in range(0, losses.size, BLOCK):
        part_mass, part = _mass_above(losses[start : start + BLOCK], law[start : start + BLOCK], top, edge)
        mass += part_mass
        total += part
    return mass, total


@compiled(SUMS)
def _mass_above(losses: Any, law: Any, top: float, edge: float) -> tuple[float, float]:
    mass, total = 0.0, 0.0
    for i in range(losses.size):
        g, w = minus(minus(losses[i], top), edge), float64(law[i])
        w = w * (1.0 if g > 0.0 else 0.0)  # a product is faster than a choice
        mass += w
        total += w * g
    return mass, total


@compiled(SUMS)
def _quadratic_sums(
    losses: Any, law: Any, density: Any, top: float, c: float, inverse: float, scale: float
) -> tuple[float, float, float]:
    """(sum p d, sum p (1 + d) g, sum p d^2), where 1 + d is the density; `scale` times that is kept."""
    if losses.size <= BLOCK:
        return _quadratic_part(losses, law, density, top, c, inverse, scale)
    mass, gain, cost = 0.0, 0.0, 0.0
    for start in range(0, losses.size, BLOCK):
        some, kept = losses[start : start + BLOCK], density[start : start + BLOCK]
        masses = None if law is None else law[start : start + BLOCK]
        part = _quadratic_part(some, masses, kept, top, c, inverse, scale)
        mass += part[0]
        gain += part[1]
        cost += part[2]
    return mass, gain, cost


@compiled(SUMS)
def _quadratic_part(
    losses: Any, law: Any, density: Any, top: float, c: float, inverse: float, scale: float
) -> tuple[float, float, float]:
    mass, gain, cost = 0.0, 0.0, 0.0
    for i in range(losses.size):
        g = minus(read(losses, i), top)
        d = minus(g, c) * inverse
        d = d if d > -1.0 else -1.0
        x = weighted(law, i, d)
        mass += x
        gain += (weighted(law, i, 1.0) + x) * g
        cost += x * d
        write(density, i, weighted(law, i, (1.0 + d) * scale))
    return mass, gain, cost

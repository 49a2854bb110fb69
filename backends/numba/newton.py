"""The kernel of the Cressie-Read divergences of order 2 (quadratic) and 3/2: Newton on the active set.

With a = k - 1 the density is y_i^(1/a), y_i = (1 + b + a (f_i - ref)/eta)_+, and b such that its mean is 1.
Newton's method on the power mean (E y^(1/a))^a, which is convex in b, comes down from the right of the root.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import float64

from phiball.backends.numba.compilation import compiled, part
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

_FEW = 0.5  # an expected number of points that enter or leave: less than one


@compiled(SUMS)
def small_powers(
    rows: Any, p: Any, own: int, squared: Any, slope1: float, out: Any, start: int, stop: int
) -> None:
    """Order 3/2 if `squared` is True, order 2 if it is None: only the code of one of them is compiled."""
    f, offsets, eta = rows
    value, mu, weights, gap = out
    for row in range(start, stop):
        first = offsets[row]
        m = offsets[row + 1] - first
        losses, density = row_of(f, first, m), row_of(weights, first, m)
        law = row_of(p, own * first, m)
        e = float64(eta[row])
        scale = (1.0 if squared is None else 0.5) / e
        top, low, whole = extent(losses, law)
        moment, at_top = moments(losses, law, top)
        value[row] = np.nan
        if not whole > 0.0:
            continue
        # The power mean is at least that of the first order, and that of the largest loss alone.
        alone = whole / at_top if squared is None else np.sqrt(whole / at_top)
        b = -moment * scale / whole
        b = b if b < alone - 1.0 else alone - 1.0
        ref, mass, gain, cost, conj, shift = top, np.nan, 0.0, 0.0, 0.0, 0.0
        for attempt in range(3):
            if squared is None and attempt == 0 and b + minus(low, top) * scale > -1.0:
                pass  # all points are active: b is the root
            elif squared is None:
                b = _linear_root(losses, law, whole, ref, b, scale, m / whole)
            else:
                b = _square_root(losses, law, whole, ref, b, scale)
            shift = store_mu(mu, row, ref, -b / scale, e, slope1)
            mass, gain, cost, conj = _sums(
                (losses, law, density), ref, b, -shift * scale, scale, 1.0 / whole, squared
            )
            if not abs(mass) > ROUNDING * whole or attempt == 2:
                break
            # The largest loss has so little mass that b lacks digits: measure from the smallest active loss.
            near = next_loss(losses, law, ref - (1.0 + b) / scale, -1.0)
            near = near if near < top else top
            b, ref = b + minus(near, ref) * scale, near
        primal = (gain - e * cost + b / scale * mass) / whole
        value[row] = ref + primal if abs(mass) < 1e-12 * whole else np.nan
        gap[row] = (shift + e * (conj / whole)) - primal


@part(SUMS)
def _linear_root(
    losses: Any, law: Any, whole: float, ref: float, b: float, scale: float, density: float
) -> float:
    """The root b of E y = 1, from its right; y is in units of the losses in the loop."""
    last_b, last_active = np.inf, 0.0
    for step in range(100):
        edge = -(1.0 + b) / scale
        active, total = 0.0, 0.0
        for block in range(0, losses.size, BLOCK):
            part_active, part_total = 0.0, 0.0
            for i in range(block, block + BLOCK if block + BLOCK < losses.size else losses.size):
                g = minus(minus(read(losses, i), ref), edge)
                w = read(law, i) * (1.0 if g > 0.0 else 0.0)  # a product is faster than a choice
                part_active += w
                part_total += w * g
            active += part_active
            total += part_total
        mean = total * scale / whole
        change = whole * (mean - 1.0) / active
        if not abs(mean - 1.0) * active * density > _FEW or step > 9:
            # A plain step ends on the root unless it crosses points: about `active (mean - 1)` of them.
            b -= change
            if step <= 9 or not abs(change) > 4.0 * EPS * (1.0 + abs(b)):
                break
            continue
        if mean > 1.5 and step < 4:  # Newton on the logarithm of the mean (by a fraction close to it)
            new = b - whole * mean * 3.0 * (mean * mean - 1.0) / (mean * (mean + 4.0) + 1.0) / active
        else:  # the step crosses as much mass per length as the last one did, or as an exponential tail has
            crossed = (last_active - active) / (last_b - b)
            tail = active * active / (whole * mean)
            bend = 1.0 - 2.0 * (crossed if crossed < tail else tail) * change / active
            new = b - change * (2.0 / (1.0 + np.sqrt(bend)) if bend > 0.0 else 1.5)
        last_b, last_active = b, active
        b = new if ref != ref or new > -1.0 else b - change
    return b


@part(SUMS)
def _square_root(losses: Any, law: Any, whole: float, ref: float, b: float, scale: float) -> float:
    """The root b of E y^2 = 1, from its right."""
    for _ in range(100):
        first, excess = 0.0, 0.0
        for block in range(0, losses.size, BLOCK):
            part_first, part_excess = 0.0, 0.0
            for i in range(block, block + BLOCK if block + BLOCK < losses.size else losses.size):
                d = b + minus(read(losses, i), ref) * scale
                d = d if d > -1.0 else -1.0
                w = read(law, i)
                part_first += w * (1.0 + d)
                part_excess += (w * d) * (2.0 + d)
            first += part_first
            excess += part_excess
        excess = excess / whole  # of E y^2 over 1
        root = np.sqrt(1.0 + excess)
        change = excess * (root / (1.0 + root)) * whole / first
        b -= change
        if not abs(change) > 4e-16 * (1.0 + abs(b)):
            break
    return b


@part(SUMS)
def _sums(
    row: Any, ref: float, b: float, at_mu: float, scale: float, share: float, squared: Any
) -> tuple[float, float, float, float]:
    """(sum p (x - 1), sum p x g, sum p phi(x), sum p phi*(s)), s that of the rounded multiplier.

    `share` times the densities is stored.
    """
    losses, law, density = row
    mass, gain, cost, conj = 0.0, 0.0, 0.0, 0.0
    for block in range(0, losses.size, BLOCK):
        part_mass, part_gain, part_cost, part_conj = 0.0, 0.0, 0.0, 0.0
        for i in range(block, block + BLOCK if block + BLOCK < losses.size else losses.size):
            g, w = minus(read(losses, i), ref), read(law, i)
            c = g * scale
            d, s = plus(b, c), plus(at_mu, c)
            d, s = d if d > -1.0 else -1.0, s if s > -1.0 else -1.0
            if squared is None:
                x = 1.0 + d
                part_mass += w * d
                part_cost += w * (d * d)
                part_conj += w * (s * (2.0 + s))
            else:
                x = (1.0 + d) * (1.0 + d)
                part_mass += w * (d * (2.0 + d))
                part_cost += w * (d * d * (d + 1.5))
                part_conj += w * (s * (3.0 + s * (3.0 + s)))
            part_gain += w * (x * g)
            write(density, i, w * (x * share))
        mass += part_mass
        gain += part_gain
        cost += part_cost
        conj += part_conj
    if squared is None:
        return mass, gain, 0.5 * cost, 0.5 * conj
    return mass, gain, (4.0 / 3.0) * cost, (2.0 / 3.0) * conj

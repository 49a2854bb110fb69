"""The compiled kernels for rows too short to fill a vector: many rows go side by side."""

from __future__ import annotations

from typing import Any

import numpy as np

from phiball.backends.numba.compilation import compiled
from phiball.backends.numba.primitives import (
    SUMS,
    TILE,
    minus,
    product,
    rank_of,
    share_of,
    store_mu,
)


@compiled(SUMS)
def _load_tile(f: Any, m: int, first: int, stop: int, tile: Any, top: Any) -> int:
    """tile[i, r] = loss i of row first + r, and top[r] = their maximum; returns the number of rows."""
    rows: int = min(TILE, stop - first)
    for r in range(rows):
        for i in range(m):
            tile[i, r] = f[(first + r) * m + i]
    for r in range(rows, TILE):  # a tile that is not full works on copies of its first row
        for i in range(m):
            tile[i, r] = f[first * m + i]
    for r in range(TILE):
        top[r] = tile[0, r]
    for i in range(1, m):
        for r in range(TILE):
            top[r] = tile[i, r] if tile[i, r] > top[r] else top[r]
    return rows


@compiled(SUMS)
def quadratic_short(
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
    """`quadratic` on many short rows side by side, step by step the same."""
    value, mu, weights, gap = out
    m = offsets[start + 1] - offsets[start]
    tile = np.empty((m, TILE))
    e, inverse, top, mean, edge, total, count, before, c, shift, conj = np.empty((11, TILE))
    for first in range(start, stop, TILE):
        rows = _load_tile(f, m, first, stop, tile, top)
        for r in range(TILE):
            e[r] = eta[first + r] if r < rows else eta[first]
        for r in range(TILE):
            inverse[r] = 1.0 / e[r]
            mean[r] = 0.0
            before[r] = 0.0
        for i in range(m):
            for r in range(TILE):
                tile[i, r] = minus(tile[i, r], top[r])
                mean[r] += tile[i, r] * (1.0 / m)
        for r in range(TILE):
            edge[r] = max(-e[r] * m, mean[r] - e[r])
        for _ in range(100):
            for r in range(TILE):
                count[r] = 0.0
                total[r] = 0.0
            for i in range(m):
                for r in range(TILE):
                    g = minus(tile[i, r], edge[r])
                    count[r] += 1.0 if g > 0.0 else 0.0
                    total[r] += g if g > 0.0 else 0.0
            moved = 0
            for r in range(TILE):
                moved += count[r] != before[r]
            if moved == 0:
                break
            for r in range(TILE):
                edge[r] += (total[r] - m * e[r]) / count[r] if count[r] != before[r] else 0.0
                before[r] = count[r]
        for r in range(TILE):
            c[r] = mean[r] if count[r] == m else edge[r] + e[r]
            total[r] = 0.0
            conj[r] = 0.0
        for r in range(rows):
            shift[r] = store_mu(mu, first + r, top[r], c[r], e[r], slope1)
        for i in range(m):
            for r in range(TILE):
                s = minus(tile[i, r], shift[r]) * inverse[r]
                s = s if s > -1.0 else -1.0
                conj[r] += s + 0.5 * (s * s)
        for i in range(m):
            for r in range(TILE):
                d = minus(tile[i, r], c[r]) * inverse[r]
                d = d if d > -1.0 else -1.0
                total[r] += (1.0 + d) * tile[i, r] - 0.5 * e[r] * (d * d)
                tile[i, r] = (1.0 + d) * (1.0 / m)
        for r in range(rows):
            for i in range(m):
                weights[(first + r) * m + i] = tile[i, r]
            value[first + r] = top[r] + total[r] / m
            gap[first + r] = (shift[r] + e[r] * (conj[r] / m)) - total[r] / m


@compiled(SUMS)
def indicator_short(
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
    """`indicator` on many short rows side by side, step by step the same."""
    value, mu, weights, gap = out
    m = offsets[start + 1] - offsets[start]
    full, rest = product(parameter, m)
    rank = rank_of(parameter, m)
    tile, best = np.empty((m, TILE)), np.empty((rank, TILE))
    x, q, above, reached, excess, full_weight, share, gain = np.empty((8, TILE))
    for first in range(start, stop, TILE):
        rows = _load_tile(f, m, first, stop, tile, x)
        best[:] = -np.inf
        for i in range(m):
            for r in range(TILE):
                x[r] = tile[i, r]
            for k in range(rank):  # x moves down the list of the largest so far
                for r in range(TILE):
                    larger = x[r] if x[r] > best[k, r] else best[k, r]
                    x[r] = best[k, r] if x[r] > best[k, r] else x[r]
                    best[k, r] = larger
        for r in range(TILE):
            q[r] = best[rank - 1, r]
            above[r] = 0.0
            reached[r] = 0.0
            excess[r] = 0.0
            gain[r] = 0.0
        for i in range(m):
            for r in range(TILE):
                g = minus(tile[i, r], q[r])
                above[r] += 1.0 if g > 0.0 else 0.0
                reached[r] += 1.0 if g >= 0.0 else 0.0
        for r in range(TILE):
            tied = reached[r] - above[r]
            share[r] = share_of(full, rest, above[r], tied) / full
            full_weight[r] = (1.0 - share[r] * tied) / max(above[r], 1.0)
        for i in range(m):
            for r in range(TILE):
                g = minus(tile[i, r], q[r])
                w = full_weight[r] if g > 0.0 else (share[r] if g == 0.0 else 0.0)
                excess[r] += g if g > 0.0 else 0.0
                gain[r] += w * g
                tile[i, r] = w
        for r in range(rows):
            for i in range(m):
                weights[(first + r) * m + i] = tile[i, r]
            mu[first + r] = q[r]
            value[first + r] = q[r] + gain[r]
            gap[first + r] = excess[r] / full - gain[r]

"""Gauss rules, for the density proportional to (1 - t^2)^((d-1)/2) on [-1, 1] and for the normal one."""

from __future__ import annotations

from math import inf, sqrt
from typing import Any

from phiball.backends import Array, array_namespace, device

_END = 1e-20  # probability of a node at each end, where a worst case may have an atom


def gauss_rule(n_nodes: int, d: float, like: Array, *, ends: bool = False) -> tuple[Array, Array]:
    """The Gauss rule with `n_nodes` nodes for the distribution of t in dimension d: nodes t, weights p (K,).

    - `d`: the dimension; inf for the standard normal distribution.
    - `ends`: whether to add the nodes t = -1 and 1, with probability 1e-20.
    - `like`: an array whose library and device the result has.

    >>> import numpy as np
    >>> from phiball.refimpl.linear.gauss_rules import gauss_rule
    >>> t, p = gauss_rule(3, 2, np.zeros(1))
    >>> print(np.round(p @ t**2, 12), np.round(p @ t**4, 12))  # 1/(d + 2), 3/((d + 2)(d + 4))
    0.25 0.125
    """
    xp = array_namespace(like)
    # The Jacobi matrix of the orthonormal polynomials: t p_j = b_j p_(j-1) + b_(j+1) p_(j+1).
    lam = d / 2
    squares = (j * (j + 2 * lam - 1) / (4 * (j + lam) * (j + lam - 1)) for j in range(1, n_nodes))
    b = [sqrt(square) for square in (squares if d < inf else range(1, n_nodes))]
    t, p = jacobi_rule([0.0] * n_nodes, b, like)
    return finish_rule((t - xp.flip(t)) / 2, p + xp.flip(p), ends=ends)


def jacobi_rule(own: list[float], off: list[float], like: Array) -> tuple[Array, Array]:
    """Nodes and weights from the Jacobi matrix of the orthonormal polynomials, with diagonal `own`."""
    xp, n = array_namespace(like), len(own)
    made: dict[str, Any] = {"dtype": xp.float64, "device": device(like)}
    rows = [[0.0] * n for _ in range(n)]
    for j in range(n):
        rows[j][j] = own[j]
        if j:
            rows[j][j - 1] = rows[j - 1][j] = off[j - 1]
    t = xp.linalg.eigvalsh(xp.asarray(rows, **made))
    # Weights by the Christoffel formula: tiny ones are accurate, unlike those from eigenvectors.
    before, now = xp.zeros_like(t), xp.ones_like(t)
    total = xp.ones_like(t)
    for j in range(1, n):
        back = off[j - 2] if j > 1 else 0.0
        before, now = now, ((t - own[j - 1]) * now - back * before) / off[j - 1]
        total = total + now * now
    return t, 1 / total


def finish_rule(t: Array, p: Array, *, ends: bool = False) -> tuple[Array, Array]:
    """Normalize the weights p; `ends` as in `gauss_rule`."""
    xp = array_namespace(t)
    p = p / xp.sum(p, axis=-1, keepdims=True)
    if ends:
        one = xp.ones_like(t[..., :1])
        t = xp.concat([-one, t, one], axis=-1)
        p = xp.concat([_END * one, p, _END * one], axis=-1)
    return t, p

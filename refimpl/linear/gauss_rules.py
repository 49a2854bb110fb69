"""Quadrature rules for the distribution of theta.b, where b is uniform on a Euclidean ball.

For b uniform on the unit ball of R^d, theta.b = |theta| t, where t has a density proportional to
(1 - t^2)^((d-1)/2) on [-1, 1]. Smooth functions of t are integrated by the Gauss rule for this density.
Functions with kinks are integrated piece by piece with Gauss-Legendre rules in u = arcsin t, whose density is
proportional to cos(u)^d.
"""

from __future__ import annotations

from math import asin, pi, sqrt
from typing import Any

from phiball.backends import Array, array_namespace, device

_END = 1e-20  # probability of a node at each end, where a worst case may have an atom
_DEVIATIONS = (2.0, 6.0)  # always cut at these standard deviations of t, as its peak is narrow for large d


def gauss_rule(n_nodes: int, d: int, like: Array, *, ends: bool = False) -> tuple[Array, Array]:
    """The Gauss rule with `n_nodes` nodes for the distribution of t in dimension d: nodes t, weights p (K,).

    - `ends`: whether to add the nodes t = -1 and 1, with probability 1e-20.
    - `like`: an array whose library and device the result has.

    >>> import numpy as np
    >>> from phiball.refimpl.linear.gauss_rules import gauss_rule
    >>> t, p = gauss_rule(3, 2, np.zeros(1))
    >>> print(np.round(p @ t**2, 12), np.round(p @ t**4, 12))  # 1/(d + 2), 3/((d + 2)(d + 4))
    0.25 0.125
    """
    xp = array_namespace(like)
    made: dict[str, Any] = {"dtype": xp.float64, "device": device(like)}
    # The Jacobi matrix of the orthonormal polynomials: t p_j = b_j p_(j-1) + b_(j+1) p_(j+1).
    lam = d / 2
    b = [sqrt(j * (j + 2 * lam - 1) / (4 * (j + lam) * (j + lam - 1))) for j in range(1, n_nodes + 1)]
    rows = [[0.0] * n_nodes for _ in range(n_nodes)]
    for j in range(1, n_nodes):
        rows[j][j - 1] = rows[j - 1][j] = b[j - 1]
    t = xp.linalg.eigvalsh(xp.asarray(rows, **made))
    t = (t - xp.flip(t)) / 2
    # Weights by the Christoffel formula: tiny ones are accurate, unlike those from eigenvectors.
    before, now = xp.zeros_like(t), xp.ones_like(t)
    total = xp.ones_like(t)
    for j in range(1, n_nodes):
        before, now = now, (t * now - (b[j - 2] if j > 1 else 0.0) * before) / b[j - 1]
        total = total + now * now
    p = 1 / total
    p = p + xp.flip(p)
    return _finish(t, p, ends)


def piecewise_rule(cuts: Array, n_nodes: int, d: int, *, ends: bool = False) -> tuple[Array, Array]:
    """Rules (t, p), both (n, K), for the distribution of t in dimension d, with `n_nodes` nodes per piece.

    - `cuts` (n, s): where to cut [-1, 1] into pieces, for each row; cuts outside have no effect.
    - `ends`: as in `gauss_rule`.

    >>> import numpy as np
    >>> from phiball.refimpl.linear.gauss_rules import piecewise_rule
    >>> t, p = piecewise_rule(np.array([[0.3]]), 8, 1)
    >>> print(np.round(np.sum(p * np.abs(t - 0.3)), 12))  # (1.3^2 + 0.7^2)/4
    0.545
    """
    xp = array_namespace(cuts)
    n = cuts.shape[0]
    x, w = gauss_rule(n_nodes, 1, cuts)
    inner = [k / sqrt(d + 2) for k in _DEVIATIONS if k / sqrt(d + 2) < 0.8 * asin(1.0)]
    fixed = [-pi / 2, *(-u for u in reversed(inner)), *inner, pi / 2]
    base = xp.broadcast_to(xp.asarray(fixed, dtype=cuts.dtype, device=device(cuts)), (n, len(fixed)))
    breaks = xp.sort(xp.concat([base, xp.asin(xp.clip(cuts, -1.0, 1.0))], axis=1), axis=1)
    half = (breaks[:, 1:] - breaks[:, :-1]) / 2
    u = (breaks[:, :-1] + half)[:, :, None] + half[:, :, None] * x
    density = xp.exp(d * xp.log(xp.clip(xp.cos(u), 1e-300, 1.0)))
    p = xp.reshape(half[:, :, None] * w * density, (n, -1))
    return _finish(xp.reshape(xp.sin(u), (n, -1)), p, ends)


def _finish(t: Array, p: Array, ends: bool) -> tuple[Array, Array]:
    xp = array_namespace(t)
    p = p / xp.sum(p, axis=-1, keepdims=True)
    if ends:
        one = xp.ones_like(t[..., :1])
        t = xp.concat([-one, t, one], axis=-1)
        p = xp.concat([_END * one, p, _END * one], axis=-1)
    return t, p


def upper_quantile(alpha: float, d: int, like: Array) -> float:
    """The quantile of t in dimension d that is exceeded with probability `alpha`.

    >>> import numpy as np
    >>> from phiball.refimpl.linear.gauss_rules import upper_quantile
    >>> round(upper_quantile(0.25, 1, np.zeros(1)), 12)
    0.5
    """
    xp = array_namespace(like)
    low, high = -1.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        cut = xp.asarray([[middle]], dtype=xp.float64, device=device(like))
        t, p = piecewise_rule(cut, 24, d)
        above = float(xp.sum(xp.where(t > middle, p, xp.zeros_like(p))))
        low, high = (middle, high) if above > alpha else (low, middle)
    return (low + high) / 2

"""The distribution of W b in C - 1 dimensions, for C classes and b uniform on a Euclidean ball, or Gaussian.

The softmax does not change if a multiple of (1, ..., 1) is added. So W (C, d) may be replaced by P W, where P
subtracts the mean over classes; its rank is at most k = C - 1. For b uniform on the unit ball of R^d, P W b
has the distribution of S v. Here S = (P W W^T P)^(1/2), and v is a point of the unit ball in the range of P,
of dimension k, with density proportional to (1 - |v|^2)^((d-k)/2); for k = 1 it is the distribution of t.
For a standard normal b, v is standard normal in the range of P, for which we write d = inf.
Quadrature points v move with W. With fixed points b in R^d, a W orthogonal to them would look robust.
"""

from __future__ import annotations

from math import inf, pi, sqrt
from typing import Any

from phiball.backends import Array, array_namespace, device, rng
from phiball.refimpl.distributions.balls import Ball
from phiball.refimpl.linear.gauss_rules import gauss_rule, jacobi_rule

_NULL = 1e-12  # singular values below this fraction of the largest count as 0


def subspace_rule(
    classes: int, d: float, n_nodes: int, n_points: int, seed: int, like: Array
) -> tuple[Array, Array | None]:
    """Points v (J, C) and their weights p (J,), or None for equal weights.

    There are d >= C moving features; d = inf stands for a Gaussian. For two or three classes the points are a
    product of Gauss rules with `n_nodes` nodes. Otherwise they are `n_points` scrambled Sobol points and
    their opposites.

    >>> import numpy as np
    >>> v, p = subspace_rule(3, 7, 16, 0, 0, np.zeros(1))
    >>> print(np.round(np.linalg.eigvalsh(v.T @ (p[:, None] * v)).clip(0), 12))  # 1/(d + 2) in the plane
    [0.         0.11111111 0.11111111]
    """
    xp, k = array_namespace(like), classes - 1
    made: dict[str, Any] = {"dtype": xp.float64, "device": device(like)}
    rows = [
        [(-1.0 if j == i + 1 else 1.0 / (i + 1) if j <= i else 0.0) for j in range(classes)] for i in range(k)
    ]
    rows = [
        [x / sqrt(1 + 1 / (i + 1)) for x in row] for i, row in enumerate(rows)
    ]  # orthonormal, each of sum 0
    basis = xp.asarray(rows, **made)
    if k == 1:
        t, p = gauss_rule(n_nodes, d, like)
        return t[:, None] @ basis, p
    if k == 2:
        radius, p = _radii(n_nodes // 2, d, like)
        angle = (xp.arange(n_nodes, **made) + 0.5) * (2 * pi / n_nodes)
        circle = xp.stack([xp.cos(angle), xp.sin(angle)], axis=1)
        v = xp.reshape(radius[:, None, None] * circle, (-1, 2))
        return v @ basis, xp.reshape(xp.broadcast_to(p[:, None] / n_nodes, (p.shape[0], n_nodes)), (-1,))
    v = Ball(2, 1.0).sample(xp.zeros((k,), **made), n_points, rng=rng(seed), antithetic=True, qmc=True)
    size = xp.linalg.vector_norm(v, axis=1, keepdims=True)
    return v / size * _radius_at(size**k, k, d) @ basis, None


def _radii(n_nodes: int, d: float, like: Array) -> tuple[Array, Array]:
    """The Gauss rule (s, p) for s = |v| and k = 2: x = s^2 has density proportional to (1 - x)^(d/2-1).

    For d = inf, x/2 has density exp(-x/2).
    """
    xp = array_namespace(like)
    if d == inf:
        x, p = jacobi_rule([2.0 * j + 1 for j in range(n_nodes)], [float(j) for j in range(1, n_nodes)], like)
        return xp.sqrt(2 * xp.clip(x, 0.0, None)), p / xp.sum(p)
    # The Jacobi matrix of the orthonormal polynomials of (1 - z)^a on [-1, 1], z = 2 s^2 - 1.
    a = d / 2 - 1
    own = [-a / (a + 2), *(-a * a / ((2 * j + a) * (2 * j + a + 2)) for j in range(1, n_nodes))]
    off = [2 * j * (j + a) / ((2 * j + a) * sqrt((2 * j + a) ** 2 - 1)) for j in range(1, n_nodes)]
    z, p = jacobi_rule(own, off, like)
    return xp.sqrt(xp.clip((1 + z) / 2, 0.0, 1.0)), p / xp.sum(p)


def _radius_at(share: Array, k: int, d: float) -> Array:
    """The quantile function of |v| at the probabilities `share` (J, 1)."""
    xp = array_namespace(share)
    x, w = gauss_rule(64, 1, share)

    def below(s: Array) -> Array:
        if d == inf:  # the chi distribution, relative to the peak of its density
            r = s * (1 + x) / 2
            return xp.sum(w * s * (r / sqrt(k)) ** (k - 1) * xp.exp((k - r * r) / 2), axis=1, keepdims=True)
        u = xp.asin(s) * (1 + x) / 2
        return xp.sum(w * xp.asin(s) * xp.sin(u) ** (k - 1) * xp.cos(u) ** (d - k + 1), axis=1, keepdims=True)

    low, high = xp.zeros_like(share), xp.full_like(share, sqrt(k) + 9 if d == inf else 1.0)
    total = below(high)
    for _ in range(50):
        middle = (low + high) / 2
        more = below(middle) < share * total
        low, high = xp.where(more, middle, low), xp.where(more, high, middle)
    return (low + high) / 2


class Spread:
    """S = (P A A^T P)^(1/2) for A (C, d), with its derivative: P A b has the distribution of S v."""

    def __init__(self, A: Array) -> None:
        xp = array_namespace(A)
        self.centred = A - xp.mean(A, axis=0, keepdims=True)
        values, self.vectors = xp.linalg.eigh(self.centred @ self.centred.T)
        self.values = xp.sqrt(xp.clip(values, 0.0, None))
        self.matrix = (self.vectors * self.values) @ self.vectors.T

    def gradient(self, G: Array) -> Array:
        """The gradient of <G, S> in A: P (2 Y P A), where Y solves S Y + Y S = (G + G^T)/2."""
        xp, Q, s = array_namespace(G), self.vectors, self.values
        sums = s[:, None] + s
        known = sums > _NULL * xp.max(s)
        inner = Q.T @ ((G + G.T) / 2) @ Q
        Y = xp.where(known, inner / xp.where(known, sums, xp.ones_like(sums)), xp.zeros_like(inner))
        found = 2 * (Q @ Y @ Q.T) @ self.centred
        return found - xp.mean(found, axis=0, keepdims=True)

    def directions(self) -> Array:
        """The matrix D = S^(-1) P A (C, d): v @ D is the mean of all b with P A b = S v."""
        xp, s = array_namespace(self.values), self.values
        known = s > _NULL * xp.max(s)
        inverse = xp.where(known, 1 / xp.where(known, s, xp.ones_like(s)), xp.zeros_like(s))
        return (self.vectors * inverse) @ self.vectors.T @ self.centred

"""The dual norm of the coefficients, smoothed, for the largest loss over a ball (eta = 0)."""

from __future__ import annotations

from math import inf, log
from typing import NamedTuple

from phiball.backends import Array, array_namespace
from phiball.refimpl.distributions.balls import Ball


class Reach(NamedTuple):
    """r = the largest theta.b over a ball, as a function of s = radii * theta, with derivatives in s.

    - `r`: the value. `v` (d,): its gradient.
    - `h` (d,), `k`: its Hessian is diag(h) - k v v^T.
    """

    r: float
    v: Array
    h: Array
    k: float


def dual_reach(norm: float, s: Array, width: float = 0.0) -> Reach:
    """The norm of s (d,) that is dual to `norm`; if `width` > 0, a smooth convex lower bound within `width`.

    For a finite dual exponent q the bound is |u|_q - |delta|_q with u = (s^2 + delta^2)^(1/2), and for
    q = inf it is delta log(mean exp(+-s/delta)).

    >>> import numpy as np
    >>> s = np.array([3.0, -4.0])
    >>> dual_reach(np.inf, s).r, round(dual_reach(np.inf, s, 1e-6).r, 5), round(dual_reach(1, s, 1e-6).r, 5)
    (7.0, 7.0, 4.0)
    """
    xp, d = array_namespace(s), s.shape[0]
    if width == 0:
        ball = Ball(norm, 1.0)
        r = float(ball.dual_norm(s))
        if r == 0:
            return Reach(0.0, xp.zeros_like(s), xp.zeros_like(s), 0.0)
        curved = float(norm == 2) / r
        return Reach(r, ball.steepest(s), xp.full_like(s, curved), curved)
    if norm == 1:
        delta, size = width / log(2 * d + 1), xp.abs(s)
        top = float(xp.max(size))
        up, down = xp.exp((size - top) / delta), xp.exp((-size - top) / delta)
        total = float(xp.sum(up + down))
        v = xp.sign(s) * (up - down) / total
        return Reach(top + delta * log(total / (2 * d)), v, (up + down) / (total * delta), 1 / delta)
    q = 1.0 if norm == inf else norm / (norm - 1)
    delta = width / d ** (1 / q)
    u = xp.sqrt(s * s + delta * delta)
    top = float(xp.max(u))
    N = top * float(xp.sum((u / top) ** q)) ** (1 / q)
    share = (u / N) ** (q - 1)
    v = share * (s / u)
    h = share * (delta / u) ** 2 / u + (q - 1) * share / u * (s / u) ** 2
    return Reach(N - width, v, h, (q - 1) / N)

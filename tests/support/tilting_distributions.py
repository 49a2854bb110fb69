"""Exact values for tilted distributions by quadrature and mpmath, without code of the samplers."""

from functools import cache
from math import inf
from typing import Any

import mpmath as mp
import numpy as np
from scipy.interpolate import PchipInterpolator

from phiball.refimpl import Gaussian

LEVEL = 1e-6  # significance level of each statistical test
Z = 4.9  # an error of more than Z standard errors has probability 1e-6
NODES, SHARES = np.polynomial.legendre.leggauss(24)


def left(r: Any, x: Any, norm: float) -> Any:
    """The radius of the ball of the remaining coordinates, if one coordinate in a ball of radius r is x."""
    if norm == inf:
        return r + 0 * x
    rest = r - np.abs(x) if norm == 1 else np.sqrt(np.maximum(0, (r - x) * (r + x)))
    return np.maximum(rest, 0)


def below(r: Any, x: Any, s: Any, norm: float) -> Any:
    """The integral of exp(s.b) over the points of the ball of radius r with b_1 <= x."""
    if len(s) == 1:
        return np.exp(-s[0] * r) * np.expm1(s[0] * (x + r)) / s[0] if s[0] else x + r
    # For norm 2, integrate over the angle, in which the integrand is smooth; for norm 1, split at its kink 0.
    if norm == 2:
        pieces = [(0 * r - np.pi / 2, np.arcsin(np.clip(x / np.where(r > 0, r, 1), -1, 1)))]
    elif norm == 1:
        pieces = [(-r, np.minimum(x, 0)), (0 * r, np.maximum(x, 0))]
    else:
        pieces = [(-r, x)]
    total = 0.0
    for low, high in pieces:
        half = ((high - low) / 2)[..., None]
        t = low[..., None] + half * (1 + NODES)
        wide = r[..., None]
        y, step = (wide * np.sin(t), wide * np.cos(t)) if norm == 2 else (t, 1.0)
        rest = left(wide, y, norm)
        inner = np.exp(s[0] * y) * step * below(rest, rest, s[1:], norm)
        total = total + np.sum(SHARES * half * inner, axis=-1)
    return total


@cache
def first(s: tuple[float, ...], norm: float) -> Any:
    """The distribution function of b_1 under exp(s.b) on the unit ball, interpolated from 500 points."""
    x = np.sin(np.linspace(-np.pi / 2, np.pi / 2, 500))
    total = below(np.ones(500), x, np.array(s), norm)
    return PchipInterpolator(x, total / total[-1])


def uniforms(b: Any, s: Any, norm: float) -> Any:
    """Rosenblatt's transform of points b (n, d): independent uniform numbers if b has density exp(s.b)."""
    columns = [first(tuple(s), norm)(b[:, 0])]
    r = left(np.ones(len(b)), b[:, 0], norm)
    for k in range(1, b.shape[1]):
        columns.append(below(r, b[:, k], s[k:], norm) / below(r, r, s[k:], norm))
        r = left(r, b[:, k], norm)
    return np.stack(columns, axis=1)


def log_mgf(s: Any, norm: float) -> Any:
    """log E exp(s.b) on the unit ball, in the working precision of mpmath."""
    s = [mp.mpf(v) for v in s]
    d = len(s)
    if norm == inf:
        return mp.fsum(mp.log(mp.sinh(v) / v) for v in s if v != 0)
    if norm == 2:
        return mp.log(mp.hyp0f1(mp.mpf(d) / 2 + 1, mp.fsum(v * v for v in s) / 4))
    # For norm 1: sum_k h_k d!/(d + 2k)!, where h_k is the complete homogeneous polynomial of the squares
    # s_j^2. It satisfies k h_k = sum_i P_i h_(k-i), i = 1, ..., k, with the power sums P_i = sum_j s_j^(2i).
    squares = [v * v for v in s if v != 0]
    powers, sums, h, total, c = squares, [], [mp.mpf(1)], mp.mpf(1), mp.mpf(1)
    k = 0
    while squares:
        k += 1
        sums.append(mp.fsum(powers))
        powers = [p * q for p, q in zip(powers, squares, strict=True)]
        h.append(mp.fsum(sums[i] * h[k - 1 - i] for i in range(k)) / k)
        c /= (d + 2 * k - 1) * (d + 2 * k)
        total += c * h[k]
        if c * h[k] < mp.eps * total:
            break
    return mp.log(total)


def moments(s: Any, c: Any, norm: float) -> tuple[float, float]:
    """The mean and variance of c.b under exp(s.b), as derivatives of log E exp(s.b) along c."""
    with mp.workdps(50):
        h = mp.mpf(10) ** -12
        down, at, up = (
            log_mgf([mp.mpf(a) + k * h * mp.mpf(b) for a, b in zip(s, c, strict=True)], norm)
            for k in (-1, 0, 1)
        )
        return float((up - down) / (2 * h)), float((up - 2 * at + down) / h**2)


def linear_value(distribution: Any, g: Any, eta: float) -> float:
    """eta log E exp(g.b/eta) for b from `distribution`, computed in thirty digits."""
    if isinstance(distribution, Gaussian):
        return float(distribution.std**2 * g @ g / (2 * eta))
    with mp.workdps(30):
        return float(
            eta
            * log_mgf([mp.mpf(distribution.radius) * mp.mpf(v) / mp.mpf(eta) for v in g], distribution.norm)
        )


# A loss that is curved in the point x and in the parameter theta, with its gradients in theta and in x.
THETA = np.array([0.7, -0.4])


def model(theta: Any, x: Any, i: Any) -> Any:
    return np.sin(theta[0] * x[:, 0] + theta[1]) + theta[1] * x[:, 1] ** 2


def in_theta(theta: Any, x: Any, i: Any) -> Any:
    c = np.cos(theta[0] * x[:, 0] + theta[1])
    return np.stack([x[:, 0] * c, c + x[:, 1] ** 2], axis=1)


def in_x(theta: Any, x: Any, i: Any) -> Any:
    return np.stack([theta[0] * np.cos(theta[0] * x[:, 0] + theta[1]), 2 * theta[1] * x[:, 1]], axis=1)

"""Uniform points in balls, from independent or quasi-random numbers.

The points are g/(sum |g_j|^p + e)^(1/p), where the g_j have density proportional to exp(-|g_j|^p) and e is
exponential (Barthe, Guedon, Mendelson and Naor, 2005). This is exact in any dimension.
"""

from __future__ import annotations

from math import exp, inf, lgamma
from typing import Any

from phiball.backends import Array, Rng, array_namespace, device, gamma_quantile, kernel


def uniform(x: Array, n: int, norm: float, radius: float, rng: Rng) -> Array:
    """Draw `n` independent points in the ball around each x (..., d); shape (..., n, d)."""
    shape = (*x.shape[:-1], n, x.shape[-1])
    if norm == inf:
        return uniform_inf(x, n, radius, rng)
    if norm == 1:
        g = rng.uniform(shape, like=x)
    elif norm == 2:
        g = rng.normal(shape, like=x)
    else:
        # |g_j|^p is Gamma(1/p), and so a Gamma(1 + 1/p) variable times the p-th power of a uniform one.
        g = rng.gamma(1 + 1 / norm, shape, like=x)
        g **= 1 / norm
        g *= rng.uniform(shape, like=x, low=-1.0)
    return ball_points(g, rng.uniform(shape[:-1], like=x), x, norm, radius)


def uniform_inf(x: Array, n: int, radius: float, rng: Rng) -> Array:
    """Draw the points of `uniform` for norm inf, one uniform number per coordinate."""
    return ball_points(rng.uniform((*x.shape[:-1], n, x.shape[-1]), like=x), None, x, inf, radius)


@kernel
def ball_points(b: Array, u: Array | None, x: Array, norm: float, radius: float) -> Array:
    """Compute points around x (..., d) from random b (..., n, d), which is overwritten, and u (..., n).

    b is uniform on [0, 1) for norms 1 and inf, normal for norm 2, and holds the g_j for other norms; u is
    None for norm inf.
    """
    xp = array_namespace(x)
    if u is None:
        b *= 2 * radius
        b -= radius
    else:
        b = _laplace(b, xp=xp) if norm == 1 else b
        e = -xp.log1p(-u)
        # A normal number squared is 2 |g_j|^2.
        b *= (radius * _reach(b, 2 * e if norm == 2 else e, norm))[..., None]
    b += xp.expand_dims(x, axis=-2)
    return b


def _laplace(u: Array, *, xp: Any) -> Array:
    """Convert uniform numbers to density exp(-|g|)/2: the first bit is the sign, the rest the magnitude."""
    side = 2 * u - 1
    return -xp.sign(side) * xp.log1p(xp.floor(side) - side)


def _reach(g: Array, e: Array, norm: float) -> Array:
    """(sum |g_j|^p + e)^(-1/p) along the last axis."""
    xp = array_namespace(g)
    size = g * g if norm == 2 else xp.abs(g)
    if norm not in (1, 2):
        size **= norm
    total = xp.sum(size, axis=-1) + e
    return 1 / total if norm == 1 else total ** (-1 / norm)


def quasi(x: Array, n: int, norm: float, radius: float, rng: Rng) -> Array:
    """Draw `n` quasi-random points in the ball around each x (..., d); shape (..., n, d)."""
    xp = array_namespace(x)
    shape, d = (*x.shape[:-1], n), x.shape[-1]
    if norm == inf:
        return ball_points(rng.sobol((*shape, d), like=x), None, x, norm, radius)
    double = xp.empty((0,), dtype=xp.float64, device=device(x))
    u = rng.sobol((*shape, d + 1), like=double)
    v = 2 * u[..., :d] - 1
    power = gamma_quantile(1 / norm, xp.abs(v))
    # The quantile is (|v| Gamma(1 + 1/p))^p where it underflows.
    root = xp.where(power > 1e-290, power ** (1 / norm), xp.abs(v) * exp(lgamma(1 + 1 / norm)))
    g = xp.sign(v) * root
    b = radius * g * _reach(g, -xp.log1p(-u[..., d]), norm)[..., None]
    return xp.expand_dims(x, axis=-2) + xp.astype(b, x.dtype, copy=False)

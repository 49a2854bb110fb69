"""Sampling of uniform points in balls, from independent or quasi-random numbers.

g/(sum_j |g_j|^p + e)^(1/p) is exactly uniform on the unit ball of norm p, in any dimension, if the g_j are
independent with density proportional to exp(-|g_j|^p), and e is exponential (Barthe, Guedon, Mendelson and
Naor, 2005).
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
        # |g_j|^p is Gamma(1/p): a Gamma(1 + 1/p) variable times the p-th power of a uniform variable.
        g = rng.gamma(1 + 1 / norm, shape, like=x)
        g **= 1 / norm
        g *= rng.uniform(shape, like=x, low=-1.0)
    return ball_points(g, rng.uniform(shape[:-1], like=x), x, norm, radius)


def uniform_inf(x: Array, n: int, radius: float, rng: Rng) -> Array:
    """`uniform` for norm inf: one uniform number per coordinate."""
    return ball_points(rng.uniform((*x.shape[:-1], n, x.shape[-1]), like=x), None, x, inf, radius)


@kernel
def ball_points(b: Array, u: Array | None, x: Array, norm: float, radius: float) -> Array:
    """Convert random numbers b (..., n, d) and u (..., n) to points around x (..., d).

    b is overwritten. It is uniform on [0, 1) for norms 1 and inf, normal for norm 2, and the g_j for other
    norms. u is uniform on [0, 1), or None for norm inf.
    """
    xp = array_namespace(x)
    if u is None:
        b *= 2 * radius
        b -= radius
    else:
        b = _laplace(b, xp=xp) if norm == 1 else b
        e = -xp.log1p(-u)
        # For norm 2, the normal b is sqrt(2) g, so that |b|^2 = 2 |g|^2, and e is doubled too.
        b *= (radius * _inverse_size(b, 2 * e if norm == 2 else e, norm))[..., None]
    b += xp.expand_dims(x, axis=-2)
    return b


def _laplace(u: Array, *, xp: Any) -> Array:
    """Convert uniform numbers u to g with density exp(-|g|)/2; g has the sign of 2u - 1."""
    v = 2 * u - 1
    return -xp.sign(v) * xp.log1p(xp.floor(v) - v)


def _inverse_size(g: Array, e: Array, norm: float) -> Array:
    """(sum_j |g_j|^p + e)^(-1/p), with p = `norm`, along the last axis."""
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
    # Where the quantile underflows, it is (|v| Gamma(1 + 1/p))^p up to rounding.
    root = xp.where(power > 1e-290, power ** (1 / norm), xp.abs(v) * exp(lgamma(1 + 1 / norm)))
    g = xp.sign(v) * root
    b = radius * g * _inverse_size(g, -xp.log1p(-u[..., d]), norm)[..., None]
    return xp.expand_dims(x, axis=-2) + xp.astype(b, x.dtype, copy=False)

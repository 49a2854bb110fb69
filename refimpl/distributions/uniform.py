"""Uniform points of the balls of a norm, from independent or from quasi-random numbers.

The points are g/(sum |g_j|^p + e)^(1/p), where the g_j have density proportional to exp(-|g_j|^p) and e is
exponential (Barthe, Guedon, Mendelson and Naor, 2005). This is exact in any dimension.
"""

from __future__ import annotations

from math import exp, inf, lgamma
from typing import Any

from phiball.backends import Array, Rng, array_namespace, gamma_quantile, kernel


def uniform(z: Array, n: int, norm: float, radius: float, rng: Rng) -> Array:
    """`n` independent points of the ball around each z (..., d); (..., n, d)."""
    shape = (*z.shape[:-1], n, z.shape[-1])
    if norm == inf:
        return uniform_inf(z, n, radius, rng)
    if norm == 1:
        g = rng.uniform(shape, like=z)
    elif norm == 2:
        g = rng.normal(shape, like=z)
    else:
        # |g_j|^p has the Gamma(1/p) distribution, which is Gamma(1 + 1/p) times the p-th power of a uniform
        # number.
        g = rng.gamma(1 + 1 / norm, shape, like=z)
        g **= 1 / norm
        g *= rng.uniform(shape, like=z, low=-1.0)
    return ball_points(g, rng.uniform(shape[:-1], like=z), z, norm, radius)


@kernel
def uniform_inf(z: Array, n: int, radius: float, rng: Rng) -> Array:
    """The points of `uniform` for norm inf, each coordinate from one uniform number."""
    return ball_points(rng.uniform((*z.shape[:-1], n, z.shape[-1]), like=z), None, z, inf, radius)


@kernel
def ball_points(b: Array, u: Array | None, z: Array, norm: float, radius: float) -> Array:
    """Points around z (..., d) from numbers b (..., n, d), which are overwritten, and uniform u (..., n).

    For norms 1 and inf the numbers are uniform on [0, 1), and for norm inf there is no u. For norm 2 they are
    normal, for others the g_j themselves.
    """
    xp = array_namespace(z)
    if u is None:
        b *= 2 * radius
        b -= radius
    else:
        b = _laplace(b, xp=xp) if norm == 1 else b
        e = -xp.log1p(-u)
        # A normal number squared is 2 |g_j|^2.
        b *= (radius * _reach(b, 2 * e if norm == 2 else e, norm))[..., None]
    b += xp.expand_dims(z, axis=-2)
    return b


def _laplace(u: Array, *, xp: Any) -> Array:
    """Numbers of density exp(-|g|)/2: the first digit of a uniform number is the sign, the rest the size."""
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


def quasi(z: Array, n: int, norm: float, radius: float, rng: Rng) -> Array:
    """`n` points of the ball around each z (..., d) that fill it evenly; (..., n, d)."""
    xp = array_namespace(z)
    shape, d = (*z.shape[:-1], n), z.shape[-1]
    if norm == inf:
        return ball_points(rng.sobol((*shape, d), like=z), None, z, norm, radius)
    double = xp.empty((0,), dtype=xp.float64, device=z.device)
    u = rng.sobol((*shape, d + 1), like=double)
    v = 2 * u[..., :d] - 1
    power = gamma_quantile(1 / norm, xp.abs(v))
    # Where the quantile underflows it is (|v| Gamma(1 + 1/p))^p.
    root = xp.where(power > 1e-290, power ** (1 / norm), xp.abs(v) * exp(lgamma(1 + 1 / norm)))
    g = xp.sign(v) * root
    b = radius * g * _reach(g, -xp.log1p(-u[..., d]), norm)[..., None]
    return xp.expand_dims(z, axis=-2) + xp.astype(b, z.dtype, copy=False)

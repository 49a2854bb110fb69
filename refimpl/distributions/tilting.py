"""Exact sampling of tilted distributions: density proportional to exp(a.b) on a unit ball, with the tilt a.

This is the worst-case distribution of a linear loss g.b for the entropic divergence, with a = radius g/eta.
It is uniform for a = 0, and concentrates at the maximizer of a.b for huge a. All three samplers draw the
distance from the maximizer, which avoids cancellation.
"""

from __future__ import annotations

from math import inf, isfinite, pi
from typing import Any

from phiball.backends import Array, Rng, array_namespace, detach, device, is_jax, kernel
from phiball.refimpl.distributions.moments import debye_series, huge_tilt, log_bessel, log_mgf
from phiball.refimpl.distributions.norms import length
from phiball.refimpl.numerics import largest
from phiball.refimpl.validation import check_array, check_same_array_type

TILTABLE = (1.0, 2.0, inf)  # norms with an exact sampler
_TINY = 1e-30  # smaller tilts have no effect, even in float32
_SHARP = 100.0  # for larger tilts a, exp(-2 a) is negligible
_MAX_DRAWS = 2**20  # random numbers drawn at a time in rejection sampling
_MAX_ROUNDS = 10_000  # of rejection sampling; a few hundred are enough


def tilted(z: Array, s: Array, n: int, norm: float, radius: float, rng: Rng) -> tuple[Array, Array]:
    """Draw `n` points z + b, where b has a density proportional to exp(s.b) on the ball.

    z and s have shape (..., d). Returns the points (..., n, d) and log(nu/q) (..., n), with nu the uniform
    and q the tilted density. The norm must be 1, 2 or inf.
    """
    xp = array_namespace(z)
    shape = (*z.shape[:-1], n, z.shape[-1])
    if norm == inf:
        return tilted_points_inf(z, s, n, radius, rng)
    if norm == 2:
        t, log_mean = tilt_norms(s, radius, *debye_series(shape[-1] / 2))
        below = _wood(xp.broadcast_to(t[..., None], shape[:-1]), shape[-1], rng, z, xp=xp)
        numbers = rng.normal(shape, like=z), rng.uniform(shape[:-1], like=z)
        return tilted_points_2(*numbers, below, log_mean, z, s, radius)
    b = radius * tilted_1(radius * s, n, rng)
    return xp.expand_dims(z, axis=-2) + b, log_ratio(_log_mean(s, norm, radius, xp=xp), s, b)


def valid_tilt(s: Array, x: Array) -> tuple[Array, float]:
    """(s, largest |s_j|), with s detached; raise unless s is finite and has the shape and dtype of x."""
    check_array("s", s)
    check_same_array_type("s", s, x, other="x")
    if tuple(s.shape) != tuple(x.shape) or s.dtype != x.dtype:
        raise ValueError(
            f"s has shape {tuple(s.shape)} and dtype {s.dtype}; expected the same as x, "
            f"{tuple(x.shape)} and {x.dtype}"
        )
    top = largest(s)
    if not isfinite(top):
        raise ValueError("s contains NaN or infinity; expected finite numbers")
    return detach(s), top


def _log_mean(s: Array, norm: float, radius: float, *, xp: Any) -> Array:
    """log E exp(s.b) over the ball, in double precision."""
    return log_mgf(radius * xp.astype(s, xp.float64, copy=False), norm)


def log_ratio(log_mean: Array, s: Array, b: Array) -> Array:
    """log(nu/q) = log E exp(s.b) - s.b for s (..., d), b (..., n, d); `log_mean` (...) is the first term."""
    xp = array_namespace(s)
    double = xp.astype(s, xp.float64, copy=False)
    product = xp.sum(xp.astype(b, xp.float64, copy=False) * double[..., None, :], axis=-1)
    return xp.astype(log_mean[..., None] - product, s.dtype, copy=False)


@kernel
def tilt_norms(s: Array, radius: float, steps: int, series: list[list[float]]) -> tuple[Array, Array]:
    """(min(radius |s|_2, huge), log E exp(s.b)) in float64; `debye_series` gives `steps` and `series`."""
    xp = array_namespace(s)
    t = radius * length(xp.astype(s, xp.float64, copy=False), 2)
    capped = xp.minimum(t, xp.full_like(t, huge_tilt(t)))
    return capped, log_bessel(capped * capped, s.shape[-1] / 2) + (t - capped)


@kernel
def tilted_points_inf(z: Array, s: Array, n: int, radius: float, rng: Rng) -> tuple[Array, Array]:
    """The points and log(nu/q) for norm inf, by inverting the distribution function of each coordinate."""
    xp = array_namespace(z)
    u = rng.uniform((*z.shape[:-1], n, z.shape[-1]), like=z)
    a = xp.expand_dims(radius * s, axis=-2)
    b = 1 - _below(xp.abs(a), u, xp=xp)
    b *= xp.where(a < 0, xp.full_like(a, -radius), xp.full_like(a, radius))
    return xp.expand_dims(z, axis=-2) + b, log_ratio(_log_mean(s, inf, radius, xp=xp), s, b)


def _below(a: Array, u: Array, *, xp: Any) -> Array:
    """Draw 1 - x, for x with density proportional to exp(a x) on [-1, 1], a >= 0, from a uniform u."""
    a = xp.where(a > _TINY, a, xp.full_like(a, _TINY))
    capped = xp.where(a < _SHARP, a, xp.full_like(a, _SHARP))  # 2 a must not overflow
    t = xp.log1p(u * xp.expm1(-2 * capped))
    t /= -a
    return xp.clip(t, max=2.0)


@kernel
def tilted_points_2(
    v: Array, u: Array, below: Array, log_mean: Array, z: Array, s: Array, radius: float
) -> tuple[Array, Array]:
    """The points and log(nu/q) for norm 2, from random numbers v, u and `below`; v may be overwritten.

    In units of the radius, the component x of b along s has a density proportional to
    exp(t x) (1 - x^2)^((d-1)/2), with t = radius |s|; `below` (..., n) is 1 - x. Given x, the part of b
    orthogonal to s is uniform on a ball of radius sqrt(1 - x^2); it is computed from normal v (..., n, d) and
    uniform u (..., n). `log_mean` (...) is log E exp(s.b). `below` and `log_mean` are in double precision.
    """
    xp = array_namespace(z)
    top = xp.max(xp.abs(s), axis=-1, keepdims=True)
    share = s / xp.where(top > 0, top, xp.ones_like(top))  # so that squares neither overflow nor underflow
    first = xp.astype(xp.arange(s.shape[-1], device=device(s)) == 0, s.dtype)
    share = xp.where(top > 0, share, first)  # where the tilt is 0, any direction will do
    along = xp.expand_dims(share / xp.sqrt(xp.sum(share * share, axis=-1, keepdims=True)), axis=-2)
    v -= along * xp.sum(v * along, axis=-1, keepdims=True)
    reach = xp.sqrt(xp.sum(v * v, axis=-1) - 2 * xp.log1p(-u))
    reach = xp.where(reach > 0, reach, xp.ones_like(reach))  # for d = 1, v is 0, and u may be 0 too
    wide = xp.astype(xp.sqrt(below * (2 - below)), s.dtype, copy=False)
    v *= (radius * wide / reach)[..., None]
    v += (radius * xp.astype(1 - below, s.dtype, copy=False))[..., None] * along
    return xp.expand_dims(z, axis=-2) + v, log_ratio(log_mean, s, v)


def _wood(t: Array, d: int, rng: Rng, like: Array, *, xp: Any) -> Array:
    """Draw 1 - x for each t, where x has density proportional to exp(t x) (1 - x^2)^((d-1)/2) on [-1, 1].

    Candidates are (1 - (1 + b) w)/(1 - (1 - b) w), with w drawn from Beta((d+1)/2, (d+1)/2) and b chosen as
    by Wood (1994): at least two thirds of the candidates are accepted, for all t and d.
    """
    shape, t = t.shape, xp.reshape(t, (-1,))
    if is_jax(t):
        kept = rng.redraw(lambda rng: _draw_wood(t, d, rng, like, xp=xp), like=like)
        return xp.reshape(kept, shape)
    kept, found = _draw_wood(t, d, rng, like, xp=xp)
    while not xp.all(found):
        missing = ~found
        kept[missing], found[missing] = _draw_wood(t[missing], d, rng, like, xp=xp)
    return xp.reshape(kept, shape)


def _draw_wood(t: Array, d: int, rng: Rng, like: Array, *, xp: Any) -> tuple[Array, Array]:
    """One round of `_wood`: 1 - x for each t (k,), and the mask of those that were accepted."""
    # Small batches try several candidates at once. So does JAX, where every round redraws all points.
    tries = 8 if is_jax(t) else max(1, min(8, 2048 // max(1, t.shape[0])))
    return first_accepted(t, d, rng.uniform((3, tries, t.shape[0]), like=like))


@kernel
def first_accepted(t: Array, d: int, u: Array) -> tuple[Array, Array]:
    """The first accepted candidate of `_wood` for each t (k,), and whether there is one.

    Candidates are computed from uniform numbers u (3, tries, k). w is (1 + y)/2, where y is a coordinate of a
    uniform point of the d-dimensional ball: the point's first two coordinates have the length
    sqrt(1 - U^(2/d)), U uniform, and a uniform direction (Ulrich, 1984).
    """
    xp = array_namespace(t)
    u = xp.astype(u, t.dtype, copy=False)
    m = d + 1.0
    b = m / (2 * t + xp.sqrt(4 * t * t + m * m))
    best = 2 * b / (1 + b)  # 1 - x where the ratio of target and candidate densities is largest
    y = xp.sqrt(-xp.expm1((2 / d) * xp.log1p(-u[0, ...]))) * xp.cos(pi * u[1, ...])
    below = 2 * b * (1 + y) / ((1 - y) + b * (1 + y))
    ratio = (best + below - best * below) / (2 * best - best * best)
    keep = t * (best - below) + m * xp.log(ratio) >= xp.log1p(-u[2, ...])
    first = xp.argmax(xp.astype(keep, xp.int8), axis=0, keepdims=True)
    return xp.take_along_axis(below, first, axis=0)[0, :], xp.any(keep, axis=0)


def tilted_1(a: Array, n: int, rng: Rng) -> Array:
    """Draw `n` points of the unit ball of norm 1 for each a (..., d), by rejection; shape (..., n, d).

    Let a_1 be the entry that is largest in absolute value, and L > |a_1|. Candidates for b_2, ..., b_d are
    independent, with density proportional to exp(a_j b_j - L |b_j|), and leave the range [-r, r] for b_1,
    with r = 1 - |b_2| - ... - |b_d|. They are accepted with probability proportional to
    exp(-L r) sinh(|a_1| r), and b_1 is then drawn with density proportional to exp(a_1 b_1) on [-r, r].
    `_beyond` chooses L such that a point needs about 2 sqrt(d) candidates.
    """
    xp = array_namespace(a)
    shape, d = a.shape[:-1], a.shape[-1]
    rows = xp.astype(xp.reshape(a, (-1, d)), xp.float64, copy=False)
    place = xp.argmax(xp.abs(rows), axis=-1, keepdims=True)
    largest = xp.arange(d, dtype=place.dtype, device=device(a)) == place
    top = xp.max(xp.abs(rows), axis=-1, keepdims=True)
    huge = huge_tilt(top)
    share = huge / xp.maximum(top, xp.full_like(top, huge))
    rows, top = share * rows, share * top
    beyond = _beyond(xp.abs(rows), top, xp=xp)
    if is_jax(a):
        parts = tuple(xp.repeat(v, n, axis=0)[:, None, :] for v in (rows, top, beyond, largest))
        b = rng.redraw(lambda rng: _candidates(parts, int(2 * d**0.5), rng, xp=xp), like=a)
        return xp.astype(xp.reshape(b, (*shape, n, d)), a.dtype)
    owner = xp.arange(rows.shape[0], dtype=place.dtype, device=device(a))
    owner = xp.reshape(xp.broadcast_to(owner[:, None], (rows.shape[0], n)), (-1,))
    missing = xp.arange(owner.shape[0], dtype=place.dtype, device=device(a))
    samples: list[Array] = [rows[:0, :]]  # not an empty list, for empty batches
    places: list[Array] = [missing[:0]]
    for _ in range(_MAX_ROUNDS):
        if missing.shape[0] == 0:
            break
        cut = min(missing.shape[0], max(1, _MAX_DRAWS // d))
        batch, missing = missing[:cut], missing[cut:]
        row = xp.take(owner, batch)
        tries = max(1, min(int(2 * d**0.5), _MAX_DRAWS // (d * cut)))
        parts = tuple(xp.take(v, row, axis=0)[:, None, :] for v in (rows, top, beyond, largest))
        points, kept = _candidates(parts, tries, rng, xp=xp)
        samples.append(points[kept])
        places.append(batch[kept])
        missing = xp.concat([missing, batch[~kept]])
    else:
        raise RuntimeError(f"rejection sampling has not finished after {_MAX_ROUNDS} rounds; reduce the tilt")
    order = xp.argsort(xp.concat(places))
    b = xp.take(xp.concat(samples), order, axis=0)
    return xp.astype(xp.reshape(b, (*shape, n, d)), a.dtype, copy=False)


def _beyond(size: Array, top: Array, *, xp: Any) -> Array:
    """L - |a_1| (..., 1) for `tilted_1`, by bisection; `size` (..., d) is |a|, and `top` (..., 1) is |a_1|.

    L is such that 1/L plus the mean of |b_1| + ... + |b_d| is 1, if b_1 is drawn like the other candidates.
    """
    low = xp.ones_like(top)
    high = xp.full_like(top, size.shape[-1] + 1.0)
    for _ in range(50):
        k = (low + high) / 2
        mean = 1 / (k + (top - size)) + 1 / (k + top + size) - 1 / (k + top)
        more = 1 / (k + top) + xp.sum(mean, axis=-1, keepdims=True) > 1
        low, high = xp.where(more, k, low), xp.where(more, high, k)
    return high


def _candidates(parts: tuple[Array, ...], tries: int, rng: Rng, *, xp: Any) -> tuple[Array, Array]:
    """The first accepted of `tries` candidates of `tilted_1` for each of M points, and whether there is one.

    `parts` are a (M, 1, d), |a_1| and L - |a_1| (M, 1, 1), and the mask (M, 1, d) of the entry a_1. Returns
    arrays (M, d) and (M,).
    """
    a, top, beyond, largest = parts
    shape = (a.shape[0], tries, a.shape[-1])
    up, down = beyond + (top - a), beyond + (top + a)  # the exponential rates of b_j above and below 0
    e = rng.exponential(shape, like=a)
    b = xp.where(rng.uniform(shape, like=a) * (up + down) < down, e / up, -e / down)
    b = xp.where(largest, xp.zeros_like(b), b)
    r = 1 - xp.sum(xp.abs(b), axis=-1, keepdims=True)
    inside = r > 0
    r = xp.where(inside, r, xp.ones_like(r))
    slope = xp.where(top > _TINY, top, xp.full_like(top, _TINY))

    def log_chance(r: Array) -> Array:
        return xp.log(-xp.expm1(-2 * slope * r) / slope) - beyond * r

    best = xp.log1p(2 * slope / beyond) / (2 * slope)
    excess = log_chance(r) - log_chance(xp.where(best < 1, best, xp.ones_like(best)))
    kept = inside & (excess >= -rng.exponential(r.shape, like=a))
    last = r * (1 - _below(top * r, rng.uniform(r.shape, like=a), xp=xp))
    b = xp.where(largest, xp.where(a < 0, -last, last), b)
    kept = kept[..., 0]
    first = xp.argmax(xp.astype(kept, xp.int8), axis=-1)
    flat = xp.arange(shape[0], dtype=first.dtype, device=device(a)) * tries + first
    return xp.take(xp.reshape(b, (-1, shape[-1])), flat, axis=0), xp.any(kept, axis=-1)

"""Exact samples of exponentially tilted uniform laws: density proportional to exp(a.b) on a unit ball.

For a linear loss g.b and the entropic divergence this is the worst-case law itself, with a = rho g/eta. All
three samplers are exact from a = 0, where the law is uniform, to huge a, where it is the point that
maximises a.b: they work with the distance to that point, in which nothing cancels.
"""

from __future__ import annotations

from typing import Any

from phiball.backends import Array, Rng, array_namespace

_TINY = 1e-30  # a tilt below it is none, in single precision too
_HUGE = 1e75  # a tilt beyond it leaves nothing but the maximiser, and its powers would overflow
_SHARP = 100.0  # exp(-2 a) of a larger tilt is nothing beside 1, and 2 a must not overflow
_NUMBERS = 2**20  # that are drawn at a time where candidates are rejected


def tilted_inf(a: Array, n: int, rng: Rng) -> Array:
    """`n` points of [-1, 1]^d for each a (..., d), by the inverse distribution function; (..., n, d)."""
    xp = array_namespace(a)
    a = xp.expand_dims(a, axis=-2)
    u = rng.uniform((*a.shape[:-2], n, a.shape[-1]), like=a)
    x = 1 - _below(xp.abs(a), u, xp=xp)
    return xp.where(a < 0, -x, x)


def _below(a: Array, u: Array, *, xp: Any) -> Array:
    """1 - x for x of density proportional to exp(a x) on [-1, 1], a >= 0, from a uniform u: in [0, 2]."""
    a = xp.where(a > _TINY, a, xp.full_like(a, _TINY))
    seen = xp.where(a < _SHARP, a, xp.full_like(a, _SHARP))
    t = -xp.log1p(u * xp.expm1(-2 * seen)) / a
    return xp.where(t < 2, t, xp.full_like(t, 2.0))


def tilted_2(a: Array, n: int, rng: Rng) -> Array:
    """`n` points of the Euclidean unit ball for each a (..., d); (..., n, d).

    The component x along a has density proportional to exp(t x) (1 - x^2)^((d-1)/2), t = |a|, as that of a
    von Mises-Fisher law in d + 2 dimensions. Given it, the rest is uniform on a ball of radius
    sqrt(1 - x^2) in the d - 1 dimensions across.
    """
    xp = array_namespace(a)
    d = a.shape[-1]
    top = xp.max(xp.abs(a), axis=-1, keepdims=True)
    share = a / xp.where(top > 0, top, xp.ones_like(top))  # its square neither over- nor underflows
    first = xp.astype(xp.arange(d, device=a.device) == 0, a.dtype)
    share = xp.where(top > 0, share, first)  # any direction will do where there is no tilt
    size = xp.sqrt(xp.sum(share * share, axis=-1, keepdims=True))
    along = xp.expand_dims(share / size, axis=-2)
    t = xp.astype(top, xp.float64, copy=False) * xp.astype(size, xp.float64, copy=False)
    t = xp.broadcast_to(xp.where(t < _HUGE, t, xp.full_like(t, _HUGE)), (*a.shape[:-1], n))
    below = _wood(t, d, rng, xp=xp)  # 1 - x
    wide = xp.astype(xp.sqrt(below * (2 - below)), a.dtype, copy=False)
    v = rng.normal((*t.shape, d), like=a)
    v = v - along * xp.sum(v * along, axis=-1, keepdims=True)
    reach = xp.sqrt(xp.sum(v * v, axis=-1) + 2 * rng.exponential(t.shape, like=a))
    reach = xp.where(reach > 0, reach, xp.ones_like(reach))  # on a line v is 0, and a draw may be 0 too
    x = xp.astype(1 - below, a.dtype, copy=False)
    return x[..., None] * along + (wide / reach)[..., None] * v


def _wood(t: Array, d: int, rng: Rng, *, xp: Any) -> Array:
    """1 - x for x of density proportional to exp(t x) (1 - x^2)^((d-1)/2) on [-1, 1], elementwise in t.

    By rejection from the law of (1 - (1 + b) w)/(1 - (1 - b) w), w of the Beta((d+1)/2, (d+1)/2) law, with
    Wood's choice of b (1994): at least two thirds of the candidates are kept, whatever t and d are.
    """
    m = d + 1.0
    b = m / (2 * t + xp.sqrt(4 * t * t + m * m))
    best = 2 * b / (1 + b)  # 1 - x where the ratio of the two densities is largest
    kept = xp.zeros_like(t)
    missing = xp.ones_like(t, dtype=xp.bool)
    while xp.any(missing):
        g, h = rng.gamma(m / 2, t.shape, like=t), rng.gamma(m / 2, t.shape, like=t)
        below = 2 * b * g / (h + b * g)
        ratio = (best + below - best * below) / (2 * best - best * best)
        excess = t * (best - below) + m * xp.log(ratio)
        keep = missing & (excess >= -rng.exponential(t.shape, like=t))
        kept = xp.where(keep, below, kept)
        missing = missing & ~keep
    return kept


def tilted_1(a: Array, n: int, rng: Rng) -> Array:
    """`n` points of the unit ball of norm 1 for each a (..., d), by rejection; (..., n, d).

    Let a_1 be the largest in size and L > abs(a_1). Candidates for b_2, ..., b_d are independent, of density
    proportional to exp(a_j b_j - L |b_j|). With r = 1 - |b_2| - ... - |b_d|, what is left for b_1, they are
    kept with probability proportional to exp(-L r) sinh(a_1 r), which has a maximum; b_1 is then of density
    proportional to exp(a_1 b_1) on [-r, r]. L is set where the mean of |b_1| + ... + |b_d| is right, so that
    one candidate in a few times sqrt(d) is kept.
    """
    xp = array_namespace(a)
    shape, d = a.shape[:-1], a.shape[-1]
    rows = xp.astype(xp.reshape(a, (-1, d)), xp.float64, copy=False)
    place = xp.argmax(xp.abs(rows), axis=-1, keepdims=True)
    largest = xp.arange(d, dtype=place.dtype, device=a.device) == place
    top = xp.max(xp.abs(rows), axis=-1, keepdims=True)
    share = _HUGE / xp.where(top > _HUGE, top, xp.full_like(top, _HUGE))
    rows, top = share * rows, share * top
    beyond = _beyond(xp.abs(rows), top, xp=xp)
    owner = xp.arange(rows.shape[0], dtype=place.dtype, device=a.device)
    owner = xp.reshape(xp.broadcast_to(owner[:, None], (rows.shape[0], n)), (-1,))
    missing = xp.arange(owner.shape[0], dtype=place.dtype, device=a.device)
    samples: list[Array] = [rows[:0, :]]  # so that an empty batch has an empty sample
    places: list[Array] = [missing[:0]]
    while missing.shape[0] > 0:
        cut = min(missing.shape[0], max(1, _NUMBERS // d))
        some, missing = missing[:cut], missing[cut:]
        who = xp.take(owner, some)
        tries = max(1, min(int(2 * d**0.5), _NUMBERS // (d * cut)))
        parts = tuple(xp.take(v, who, axis=0)[:, None, :] for v in (rows, top, beyond, largest))
        points, kept = _candidates(parts, tries, rng, xp=xp)
        samples.append(points[kept])
        places.append(some[kept])
        missing = xp.concat([missing, some[~kept]])
    order = xp.argsort(xp.concat(places))
    b = xp.take(xp.concat(samples), order, axis=0)
    return xp.astype(xp.reshape(b, (*shape, n, d)), a.dtype, copy=False)


def _beyond(size: Array, top: Array, *, xp: Any) -> Array:
    """L - abs(a_1): where 1/L + the mean of |b_1| + ... + |b_d| is 1, if all have their candidates' law."""
    low = xp.ones_like(top)
    high = xp.full_like(top, size.shape[-1] + 1.0)
    for _ in range(50):
        k = (low + high) / 2
        mean = 1 / (k + (top - size)) + 1 / (k + top + size) - 1 / (k + top)
        more = 1 / (k + top) + xp.sum(mean, axis=-1, keepdims=True) > 1
        low, high = xp.where(more, k, low), xp.where(more, high, k)
    return high


def _candidates(parts: tuple[Array, ...], tries: int, rng: Rng, *, xp: Any) -> tuple[Array, Array]:
    """For each a (M, 1, d) the first of some candidates that is kept, (M, d), and whether there is one."""
    a, top, beyond, largest = parts
    shape = (a.shape[0], tries, a.shape[-1])
    up, down = beyond + (top - a), beyond + (top + a)  # the rates of b_j on either side of 0
    e = rng.exponential(shape, like=a)
    b = xp.where(rng.uniform(shape, like=a) * (up + down) < down, e / up, -e / down)
    b = xp.where(largest, xp.zeros_like(b), b)
    r = 1 - xp.sum(xp.abs(b), axis=-1, keepdims=True)
    inside = r > 0
    r = xp.where(inside, r, xp.ones_like(r))
    some = xp.where(top > _TINY, top, xp.full_like(top, _TINY))

    def log_chance(r: Array) -> Array:
        return xp.log(-xp.expm1(-2 * some * r) / some) - beyond * r

    best = xp.log1p(2 * some / beyond) / (2 * some)
    excess = log_chance(r) - log_chance(xp.where(best < 1, best, xp.ones_like(best)))
    kept = inside & (excess >= -rng.exponential(r.shape, like=a))
    last = r * (1 - _below(top * r, rng.uniform(r.shape, like=a), xp=xp))
    b = xp.where(largest, xp.where(a < 0, -last, last), b)
    kept = kept[..., 0]
    first = xp.argmax(xp.astype(kept, xp.int8), axis=-1)
    flat = xp.arange(shape[0], dtype=first.dtype, device=a.device) * tries + first
    return xp.take(xp.reshape(b, (-1, shape[-1])), flat, axis=0), xp.any(kept, axis=-1)

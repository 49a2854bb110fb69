"""Numba kernels that turn random numbers into points of balls, in one pass.

They take NumPy arrays and torch tensors in main memory. The points overwrite the random numbers.
"""

from __future__ import annotations

from math import copysign, inf, prod
from typing import Any

import numpy as np

from phiball.backends.arrays import Array
from phiball.backends.numba.compilation import compiled, part
from phiball.backends.numba.elementary_functions import (
    exponential_less,
    log1p_above,
    log_normal,
    log_sinhc,
    sin_pi,
)
from phiball.backends.numba.primitives import SUMS
from phiball.backends.numba.solve import as_numpy_view, contiguous, to_library

_TINY, _HUGE = 1e-30, 1e75  # as in refimpl/distributions/tilting.py
_WIDE = 64  # coordinates in one inner loop: points with fewer coordinates are processed together


def ball_points(b: Array, u: Array | None, z: Array, norm: float, radius: float) -> Any:
    """Uniform points of balls of norm 1, 2 and inf, or NotImplemented for other norms."""
    views = _views(b, z) if norm in (1.0, 2.0, inf) else None
    if views is None:
        return NotImplemented
    if u is None:
        _place_inf(*views, radius)
    else:
        _place(*views, _rows(u, (-1, b.shape[-2])), float(norm), radius)
    return b


def tilted_points_inf(z: Array, s: Array, n: int, radius: float, rng: Any) -> Any:
    """Tilted points of balls of norm inf, and log(nu/q)."""
    if as_numpy_view(z) is None:
        return NotImplemented
    *shape, d = z.shape
    points = rng.uniform((*shape, n, d), like=z)
    numbers, centres = _rows(points, (prod(shape), n, d)), _rows(z, (prod(shape), d))
    log_w = np.empty((*shape, n), numbers.dtype)
    _aim_inf(numbers, centres, _rows(s, centres.shape), radius, log_w.reshape(numbers.shape[:2]))
    return points, to_library(log_w, z)


def tilted_points_2(v: Array, u: Array, below: Array, whole: Array, z: Array, s: Array, radius: float) -> Any:
    """Tilted points of balls of norm 2, and log(nu/q)."""
    views = _views(v, z)
    if views is None:
        return NotImplemented
    n, d = v.shape[-2:]
    log_w = np.empty(v.shape[:-1], views[0].dtype)
    more = _rows(u, (-1, n)), _rows(below, (-1, n)), _rows(whole, (-1,))
    _aim_2(*views, _rows(s, (-1, d)), *more, radius, log_w.reshape(-1, n))
    return v, to_library(log_w, v)


def first_accepted(t: Array, d: int, u: Array) -> Any:
    """The components of tilted points along the tilt, for norm 2: the first accepted candidates."""
    tilt = as_numpy_view(t)
    if tilt is None:
        return NotImplemented
    below, found = np.empty_like(tilt), np.zeros(len(tilt), np.bool_)
    _first_accepted(_rows(u, u.shape), contiguous(tilt), d, below, found)
    return to_library(below, t), to_library(found, t)


def tilt_norms(s: Array, radius: float, steps: int, series: list[list[float]]) -> Any:
    """min(radius |s|, 1e75) and log E exp(s.b), for norm 2."""
    tilts = as_numpy_view(s)
    if tilts is None:
        return NotImplemented
    both = np.empty((2, *tilts.shape[:-1]))
    t, whole = both[0, ...], both[1, ...]  # both[0] would be a copy for a single tilt
    rows = contiguous(tilts).reshape(-1, tilts.shape[-1])
    _sizes(rows, radius, steps, np.array(series), t.reshape(-1), whole.reshape(-1))
    return to_library(t, s), to_library(whole, s)


def _views(b: Array, z: Array) -> tuple[Any, Any] | None:
    """Numbers (rows, n, d) and centres (rows, d) as views, or None if that is not possible."""
    numbers = as_numpy_view(b)
    if numbers is None or not numbers.flags.c_contiguous:
        return None
    n, d = numbers.shape[-2:]
    return numbers if numbers.ndim == 3 else numbers.reshape(-1, n, d), _rows(z, (-1, d))


def _rows(x: Array, shape: tuple[int, ...]) -> Any:
    rows = contiguous(as_numpy_view(x))
    return rows if rows.ndim == len(shape) else rows.reshape(shape)


@compiled(SUMS)
def _place(b: Any, z: Any, u: Any, norm: float, radius: float) -> None:
    n, d = b.shape[1:]
    factor, size = np.empty(n, b.dtype), np.empty(n)
    for i in range(len(b)):
        if norm == 1.0:
            _laplace(b[i].reshape(n * d))
        for k in range(n):
            total = b.dtype.type(0.0)
            for j in range(d):
                total += abs(b[i, k, j]) if norm == 1.0 else b[i, k, j] * b[i, k, j]
            factor[k] = total
        for k in range(n):  # a loop with both a logarithm and a root would not vectorise
            e = -log_normal(1.0 - u[i, k])
            size[k] = factor[k] + (e if norm == 1.0 else 2.0 * e)
        for k in range(n):
            factor[k] = radius / (size[k] if norm == 1.0 else size[k] ** 0.5)
        for k in range(n):
            for j in range(d):
                b[i, k, j] = z[i, j] + factor[k] * b[i, k, j]


@compiled(SUMS)
def _place_inf(b: Any, z: Any, radius: float) -> None:
    n, d = b.shape[1:]
    side, half = b.dtype.type(2.0 * radius), b.dtype.type(radius)
    together = 1  # points that are processed as one
    for k in range(2, min(n, _WIDE // d) + 1):
        together = k if n % k == 0 else together
    width, parts = together * d, n // together
    numbers = b.reshape(len(b) * parts, width)
    centre = np.empty(width, b.dtype)
    for i in range(len(b)):
        for k in range(together):
            for j in range(d):
                centre[k * d + j] = z[i, j]
        for k in range(i * parts, (i + 1) * parts):
            for j in range(width):
                numbers[k, j] = centre[j] + (side * numbers[k, j] - half)


@part(SUMS)
def _laplace(u: Any) -> None:
    """Turn uniform numbers into Laplace numbers: the first bit is the sign, the rest the absolute value."""
    for j in range(u.size):
        side = 2.0 * np.float64(u[j]) - 1.0
        u[j] = copysign(log_normal(1.0 + (np.floor(side) - side)), side)


@compiled(SUMS)
def _aim_inf(u: Any, z: Any, s: Any, radius: float, log_w: Any) -> None:
    n, d = u.shape[1:]
    together = max(1, min(n, _WIDE // d))
    size, decay = np.empty((2, d))
    # Operands of the numbers have their dtype.
    rate, inverse, sign = np.empty((3, together * d), u.dtype)
    for i in range(len(u)):
        for j in range(d):
            a = radius * abs(np.float64(s[i, j]))
            size[j] = a if a > _TINY else _TINY
            sign[j] = -radius if s[i, j] < 0.0 else radius
        for j in range(d):
            rate[j] = decay[j] = exponential_less(-2.0 * size[j], 1.0)
            inverse[j] = -1.0 / size[j]
        whole = 0.0
        for j in range(d):
            whole += log_sinhc(radius * abs(np.float64(s[i, j])), decay[j])
        for j in range(d, together * d):
            rate[j], inverse[j], sign[j] = rate[j - d], inverse[j - d], sign[j - d]
        numbers = u[i].reshape(n * d)
        for start in range(0, n * d, together * d):
            some = numbers[start : start + together * d]
            for j in range(some.size):
                below = log1p_above(some[j] * rate[j]) * inverse[j]
                some[j] = sign[j] * (1.0 - (below if below < 2.0 else 2.0))
        for k in range(n):
            row, product = u[i, k], 0.0
            for j in range(d):
                product += np.float64(s[i, j]) * np.float64(row[j])
                row[j] += z[i, j]
            log_w[i, k] = whole - product


@compiled(SUMS)
def _aim_2(v: Any, z: Any, s: Any, u: Any, below: Any, whole: Any, radius: float, log_w: Any) -> None:
    n, d = v.shape[1:]
    along = np.empty(d, v.dtype)
    ahead, wide = np.empty((2, n), v.dtype)
    size = np.empty(n)
    for i in range(len(v)):
        top, square = 0.0, 0.0
        for j in range(d):
            top = max(top, abs(np.float64(s[i, j])))
        for j in range(d):
            along[j] = s[i, j] / top if top > 0.0 else 0.0
            square += along[j] * along[j]
        if top == 0.0:  # any direction is valid
            along[0] = square = 1.0
        for j in range(d):
            along[j] /= square**0.5
        for k in range(n):
            dot, rest = v.dtype.type(0.0), v.dtype.type(0.0)
            for j in range(d):
                dot += v[i, k, j] * along[j]
            for j in range(d):
                v[i, k, j] -= dot * along[j]
                rest += v[i, k, j] * v[i, k, j]
            wide[k] = rest
        for k in range(n):
            size[k] = wide[k] - 2.0 * log_normal(1.0 - u[i, k])
        for k in range(n):
            depth, reach = below[i, k], size[k] ** 0.5
            wide[k] = radius * (depth * (2.0 - depth)) ** 0.5 / (reach if reach > 0.0 else 1.0)
            ahead[k] = radius * (1.0 - depth)
        for k in range(n):
            product = 0.0
            for j in range(d):
                b = ahead[k] * along[j] + wide[k] * v[i, k, j]
                product += np.float64(s[i, j]) * np.float64(b)
                v[i, k, j] = z[i, j] + b
            log_w[i, k] = whole[i] - product


@compiled({"contract"})
def _first_accepted(u: Any, t: Any, d: int, below: Any, found: Any) -> None:
    m = d + 1.0
    candidate, excess, ratio = np.empty((3, len(t)))
    for k in range(u.shape[1] if len(u) else 0):
        for i in range(len(t)):
            candidate[i] = -exponential_less(2.0 / d * log_normal(1.0 - u[0, k, i]), 1.0)
        for i in range(len(t)):
            b = m / (2.0 * t[i] + (4.0 * t[i] * t[i] + m * m) ** 0.5)
            best = 2.0 * b / (1.0 + b)
            y = candidate[i] ** 0.5 * sin_pi(0.5 - u[1, k, i])
            depth = 2.0 * b * (1.0 + y) / ((1.0 - y) + b * (1.0 + y))
            ratio[i] = (best + depth - best * depth) / (2.0 * best - best * best)
            candidate[i] = depth
            excess[i] = t[i] * (best - depth)
        for i in range(len(t)):
            excess[i] += m * log_normal(ratio[i]) - log_normal(1.0 - u[2, k, i])
        for i in range(len(t)):
            if excess[i] >= 0.0 and not found[i]:
                below[i], found[i] = candidate[i], True


@compiled(SUMS)
def _sizes(s: Any, radius: float, steps: int, series: Any, t: Any, whole: Any) -> None:
    d = s.shape[1]
    for i in range(len(s)):
        top, square = 0.0, 0.0
        for j in range(d):
            top = max(top, abs(np.float64(s[i, j])))
        scale = top if top > 0.0 else 1.0  # so that squares do not overflow or underflow
        for j in range(d):
            square += (s[i, j] / scale) ** 2
        whole[i] = radius * (top * square**0.5)
        t[i] = min(whole[i], _HUGE)
        whole[i] -= t[i]
    _bessel(t * t, d / 2, steps, series, whole)


@part()
def _bessel(x: Any, nu: float, steps: int, series: Any, out: Any) -> None:
    """Add log Gamma(nu + 1) (2/t)^nu I_nu(t), x = t^2, to `out`."""
    value, q, ratio = np.empty((3, len(x)))
    _debye(x, nu + steps, series[0], q, value)
    if steps > 0:
        _debye(x, nu + steps + 1.0, series[1], q, ratio)
        for i in range(len(x)):
            ratio[i] = exponential_less(min(ratio[i] - value[i], 0.0), 0.0)
        for j in range(steps, 0, -1):
            below = 4.0 * (nu + j) * (nu + j + 1.0)
            for i in range(len(x)):
                rest = x[i] / below * ratio[i]
                value[i] += log1p_above(rest)
                ratio[i] = 1.0 / (1.0 + rest)
    for i in range(len(x)):
        out[i] += value[i]


@part()
def _debye(x: Any, nu: float, series: Any, q: Any, out: Any) -> None:
    for i in range(len(x)):
        y = x[i] / (nu * nu)
        sigma = (1.0 + y) ** 0.5
        q[i] = y / (1.0 + sigma) / sigma
        out[i] = 0.0
    for k in range(len(series) - 1, -1, -1):
        for i in range(len(x)):
            out[i] = q[i] * (series[k] + out[i])
    for i in range(len(x)):
        y = x[i] / (nu * nu)
        m = y / (1.0 + (1.0 + y) ** 0.5)
        out[i] = log1p_above(out[i]) + nu * (m - log1p_above(0.5 * m)) - 0.25 * log1p_above(y)

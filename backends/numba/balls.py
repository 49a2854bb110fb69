"""Numba kernels that turn random numbers into points of balls, in one pass.

They take NumPy arrays and torch tensors in main memory. The points overwrite the random numbers. The
reference functions in refimpl/distributions (uniform.py, tilting.py) explain the methods. In this file:

- `z` (..., d) are the centres, and `s` (..., d) the tilts. There are n points around each centre. Tilted
  points are z + b, where b has a density proportional to exp(s.b) on the ball around 0.
- `log_mean` (...) is log E exp(s.b), for b uniform on the ball around 0.
- `log_w` (..., n) is log(nu/q) at each point, where nu is the uniform density and q the tilted one.
- `below` is 1 - x, where x is a component of b in units of the radius: the component along s for norm 2, and
  each coordinate, with the sign of its tilt, for norm inf.
"""

from __future__ import annotations

from math import copysign, inf, prod
from typing import Any

import numpy as np

from phiball.backends.arrays import Array
from phiball.backends.numba.compilation import compiled, subroutine
from phiball.backends.numba.elementary_functions import exp_minus, fast_log, fast_log1p, log_sinhc, sin_pi
from phiball.backends.numba.primitives import REORDER_SUMS
from phiball.backends.numba.solve import as_numpy_view, contiguous, to_library

_TINY, _HUGE = 1e-30, 1e75  # as in refimpl/distributions/tilting.py
_LOOP_WIDTH = 64  # numbers in one inner loop; points with fewer coordinates are processed in groups


def ball_points(b: Array, u: Array | None, z: Array, norm: float, radius: float) -> Any:
    """Uniform points from random numbers b (..., n, d) and u (..., n), for norm 1, 2 or inf.

    The distributions of b and u are those of the reference in uniform.py. Returns NotImplemented for other
    norms.
    """
    views = _views(b, z) if norm in (1.0, 2.0, inf) else None
    if views is None:
        return NotImplemented
    if u is None:
        _uniform_points_inf(*views, radius)
    else:
        _uniform_points(*views, _as_rows(u, (-1, b.shape[-2])), float(norm), radius)
    return b


def tilted_points_inf(z: Array, s: Array, n: int, radius: float, rng: Any) -> Any:
    """`n` tilted points around each centre, for norm inf, and `log_w`."""
    if as_numpy_view(z) is None:
        return NotImplemented
    *shape, d = z.shape
    points = rng.uniform((*shape, n, d), like=z)
    numbers, centres = _as_rows(points, (prod(shape), n, d)), _as_rows(z, (prod(shape), d))
    log_w = np.empty((*shape, n), numbers.dtype)
    _tilted_points_inf(numbers, centres, _as_rows(s, centres.shape), radius, log_w.reshape(numbers.shape[:2]))
    return points, to_library(log_w, z)


def tilted_points_2(
    v: Array, u: Array, below: Array, log_mean: Array, z: Array, s: Array, radius: float
) -> Any:
    """Tilted points for norm 2, and `log_w`, from normal v (..., n, d), uniform u (..., n) and `below`."""
    views = _views(v, z)
    if views is None:
        return NotImplemented
    n, d = v.shape[-2:]
    log_w = np.empty(v.shape[:-1], views[0].dtype)
    others = _as_rows(u, (-1, n)), _as_rows(below, (-1, n)), _as_rows(log_mean, (-1,))
    _tilted_points_2(*views, _as_rows(s, (-1, d)), *others, radius, log_w.reshape(-1, n))
    return v, to_library(log_w, v)


def first_accepted(t: Array, d: int, u: Array) -> Any:
    """The first accepted candidate for `below` (k,), for each t = radius |s| (k,), and whether there is one.

    Candidates are computed from uniform numbers u (3, tries, k).
    """
    tilt = as_numpy_view(t)
    if tilt is None:
        return NotImplemented
    below, found = np.empty_like(tilt), np.zeros(len(tilt), np.bool_)
    _first_accepted(_as_rows(u, u.shape), contiguous(tilt), d, below, found)
    return to_library(below, t), to_library(found, t)


def tilt_norms(s: Array, radius: float, steps: int, series: list[list[float]]) -> Any:
    """t = min(radius |s|, 1e75) and `log_mean`, for norm 2; `debye_series` gives `steps` and `series`."""
    tilts = as_numpy_view(s)
    if tilts is None:
        return NotImplemented
    both = np.empty((2, *tilts.shape[:-1]))
    t, log_mean = both[0, ...], both[1, ...]  # both[0] would be a copy for a single tilt
    rows = contiguous(tilts).reshape(-1, tilts.shape[-1])
    _tilt_norms(rows, radius, steps, np.array(series), t.reshape(-1), log_mean.reshape(-1))
    return to_library(t, s), to_library(log_mean, s)


def _views(b: Array, z: Array) -> tuple[Any, Any] | None:
    """b as numbers (rows, n, d) and z as centres (rows, d), both NumPy; None if b would have to be copied."""
    numbers = as_numpy_view(b)
    if numbers is None or not numbers.flags.c_contiguous:
        return None
    n, d = numbers.shape[-2:]
    return numbers if numbers.ndim == 3 else numbers.reshape(-1, n, d), _as_rows(z, (-1, d))


def _as_rows(x: Array, shape: tuple[int, ...]) -> Any:
    """`x` as a contiguous NumPy array of this shape."""
    rows = contiguous(as_numpy_view(x))
    return rows if rows.ndim == len(shape) else rows.reshape(shape)


@compiled(REORDER_SUMS)
def _uniform_points(b: Any, z: Any, u: Any, norm: float, radius: float) -> None:
    """Overwrite random numbers b (rows, n, d) with uniform points, for norm 1 or 2.

    For norm 1, b is uniform, and first turned into Laplace numbers; for norm 2 it is normal. Point k is then
    z + radius b_k/(sum_j |b_kj|^norm + e)^(1/norm). e is -log(1 - u_k) for norm 1, twice as much for norm 2.
    """
    n, d = b.shape[1:]
    factor, size = np.empty(n, b.dtype), np.empty(n)
    for i in range(len(b)):
        if norm == 1.0:
            _uniform_to_laplace(b[i].reshape(n * d))
        for k in range(n):
            total = b.dtype.type(0.0)
            for j in range(d):
                total += abs(b[i, k, j]) if norm == 1.0 else b[i, k, j] * b[i, k, j]
            factor[k] = total
        for k in range(n):  # separate loops: one with both a logarithm and a root would not vectorise
            e = -fast_log(1.0 - u[i, k])
            size[k] = factor[k] + (e if norm == 1.0 else 2.0 * e)
        for k in range(n):
            factor[k] = radius / (size[k] if norm == 1.0 else size[k] ** 0.5)
        for k in range(n):
            for j in range(d):
                b[i, k, j] = z[i, j] + factor[k] * b[i, k, j]


@compiled(REORDER_SUMS)
def _uniform_points_inf(b: Any, z: Any, radius: float) -> None:
    """Points z + radius (2 b - 1) for norm inf, from uniform numbers b (rows, n, d)."""
    n, d = b.shape[1:]
    side, half = b.dtype.type(2.0 * radius), b.dtype.type(radius)
    group = 1  # number of points that are processed as one
    for k in range(2, min(n, _LOOP_WIDTH // d) + 1):
        group = k if n % k == 0 else group
    width, parts = group * d, n // group
    numbers = b.reshape(len(b) * parts, width)
    centre = np.empty(width, b.dtype)
    for i in range(len(b)):
        for k in range(group):
            for j in range(d):
                centre[k * d + j] = z[i, j]
        for k in range(i * parts, (i + 1) * parts):
            for j in range(width):
                numbers[k, j] = centre[j] + (side * numbers[k, j] - half)


@subroutine(REORDER_SUMS)
def _uniform_to_laplace(u: Any) -> None:
    """Turn uniform numbers into Laplace numbers: the first bit gives the sign, the others the size."""
    for j in range(u.size):
        side = 2.0 * np.float64(u[j]) - 1.0
        u[j] = copysign(fast_log(1.0 + (np.floor(side) - side)), side)


@compiled(REORDER_SUMS)
def _tilted_points_inf(u: Any, z: Any, s: Any, radius: float, log_w: Any) -> None:
    """Overwrite uniform numbers u (rows, n, d) with tilted points, and fill `log_w` (rows, n)."""
    n, d = u.shape[1:]
    group = max(1, min(n, _LOOP_WIDTH // d))
    size, decay = np.empty((2, d))
    # In the dtype of u, so that the inner loop needs no conversion.
    rate, inverse, sign = np.empty((3, group * d), u.dtype)
    for i in range(len(u)):
        for j in range(d):
            a = radius * abs(np.float64(s[i, j]))
            size[j] = a if a > _TINY else _TINY
            sign[j] = -radius if s[i, j] < 0.0 else radius
        for j in range(d):
            rate[j] = decay[j] = exp_minus(-2.0 * size[j], 1.0)
            inverse[j] = -1.0 / size[j]
        log_mean = 0.0
        for j in range(d):
            log_mean += log_sinhc(radius * abs(np.float64(s[i, j])), decay[j])
        for j in range(d, group * d):
            rate[j], inverse[j], sign[j] = rate[j - d], inverse[j - d], sign[j - d]
        numbers = u[i].reshape(n * d)
        for start in range(0, n * d, group * d):
            chunk = numbers[start : start + group * d]
            for j in range(chunk.size):
                below = fast_log1p(chunk[j] * rate[j]) * inverse[j]
                chunk[j] = sign[j] * (1.0 - (below if below < 2.0 else 2.0))
        for k in range(n):
            row, product = u[i, k], 0.0
            for j in range(d):
                product += np.float64(s[i, j]) * np.float64(row[j])
                row[j] += z[i, j]
            log_w[i, k] = log_mean - product


@compiled(REORDER_SUMS)
def _tilted_points_2(
    v: Any, z: Any, s: Any, u: Any, below: Any, log_mean: Any, radius: float, log_w: Any
) -> None:
    """Overwrite normal numbers v (rows, n, d) with tilted points, and fill `log_w` (rows, n).

    `along` is the direction of s. A point is z + `ahead` * along + `wide` * v, with v made orthogonal to s.
    """
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
            size[k] = wide[k] - 2.0 * fast_log(1.0 - u[i, k])
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
            log_w[i, k] = log_mean[i] - product


@compiled({"contract"})
def _first_accepted(u: Any, t: Any, d: int, below: Any, found: Any) -> None:
    """Fill `below` and `found`; the reference in tilting.py explains the formulas, with m, b, best and y."""
    m = d + 1.0
    candidate, excess, ratio = np.empty((3, len(t)))
    for k in range(u.shape[1] if len(u) else 0):
        for i in range(len(t)):
            candidate[i] = -exp_minus(2.0 / d * fast_log(1.0 - u[0, k, i]), 1.0)
        for i in range(len(t)):
            b = m / (2.0 * t[i] + (4.0 * t[i] * t[i] + m * m) ** 0.5)
            best = 2.0 * b / (1.0 + b)
            y = candidate[i] ** 0.5 * sin_pi(0.5 - u[1, k, i])
            depth = 2.0 * b * (1.0 + y) / ((1.0 - y) + b * (1.0 + y))
            ratio[i] = (best + depth - best * depth) / (2.0 * best - best * best)
            candidate[i] = depth
            excess[i] = t[i] * (best - depth)
        for i in range(len(t)):
            excess[i] += m * fast_log(ratio[i]) - fast_log(1.0 - u[2, k, i])
        for i in range(len(t)):
            if excess[i] >= 0.0 and not found[i]:
                below[i], found[i] = candidate[i], True


@compiled(REORDER_SUMS)
def _tilt_norms(s: Any, radius: float, steps: int, series: Any, t: Any, log_mean: Any) -> None:
    """Fill `t` and `log_mean`, both (rows,), for tilts s (rows, d)."""
    d = s.shape[1]
    for i in range(len(s)):
        top, square = 0.0, 0.0
        for j in range(d):
            top = max(top, abs(np.float64(s[i, j])))
        scale = top if top > 0.0 else 1.0  # so that squares do not overflow or underflow
        for j in range(d):
            square += (s[i, j] / scale) ** 2
        log_mean[i] = radius * (top * square**0.5)
        t[i] = min(log_mean[i], _HUGE)
        log_mean[i] -= t[i]
    _add_log_bessel(t * t, d / 2, steps, series, log_mean)


@subroutine()
def _add_log_bessel(x: Any, nu: float, steps: int, series: Any, out: Any) -> None:
    """Add log H_nu(x) to `out`, where H_nu(t^2) = Gamma(nu + 1) (2/t)^nu I_nu(t) with the Bessel function I.

    As in refimpl/distributions/moments.py, `value` starts at the order nu + steps, and a recurrence leads
    down to nu.
    """
    value, q, ratio = np.empty((3, len(x)))
    _log_debye(x, nu + steps, series[0], q, value)
    if steps > 0:
        _log_debye(x, nu + steps + 1.0, series[1], q, ratio)
        for i in range(len(x)):
            ratio[i] = exp_minus(min(ratio[i] - value[i], 0.0), 0.0)
        for j in range(steps, 0, -1):
            below = 4.0 * (nu + j) * (nu + j + 1.0)
            for i in range(len(x)):
                rest = x[i] / below * ratio[i]
                value[i] += fast_log1p(rest)
                ratio[i] = 1.0 / (1.0 + rest)
    for i in range(len(x)):
        out[i] += value[i]


@subroutine()
def _log_debye(x: Any, nu: float, series: Any, q: Any, out: Any) -> None:
    """Store log H_nu(x) in `out` for a large nu, as `_debye` in moments.py does; `q` is a workspace."""
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
        out[i] = fast_log1p(out[i]) + nu * (m - fast_log1p(0.5 * m)) - 0.25 * fast_log1p(y)

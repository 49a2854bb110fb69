"""Moments, volumes and log moment generating functions of uniform distributions on balls.

For b uniform on a ball, eta log E exp(g.b/eta) is the entropic risk of the linear loss g.b. The functions
below compute log E exp(s.b) on the unit ball with a small relative error for all s: for tiny s, where the
result is about Var[s.b]/2, and for huge s, where it is close to the dual norm of s. The results are smooth in
s, also at s = 0, and twice differentiable.
"""

from __future__ import annotations

from fractions import Fraction
from functools import cache
from math import ceil, exp, factorial, inf, lgamma, log, pi, sqrt
from typing import Any

from phiball.backends import Array, array_namespace, detach, is_abstract, iterate
from phiball.refimpl.distributions.norms import dual, length
from phiball.refimpl.numerics import largest


def huge_tilt(s: Array) -> float:
    """The size of s above which only the maximizer of s.b counts; powers of larger s would overflow."""
    largest_number = float(array_namespace(s).finfo(s.dtype).max)
    return min(1e75, sqrt(sqrt(largest_number)))


def log_mgf(s: Array, norm: float) -> Array:
    """log E exp(s.b) for b uniform on the unit ball of norm 1, 2 or inf; s (..., d) in double precision."""
    xp = array_namespace(s)
    function = {1.0: log_mgf_1, 2.0: log_mgf_2, inf: log_mgf_inf}[norm]
    huge = huge_tilt(s)
    if not is_abstract(s) and largest(s) * s.shape[-1] <= huge:
        return function(s)
    # For huge s, the result grows like the dual norm of s, up to rounding.
    size = length(detach(s), dual(norm))
    share = huge / xp.maximum(size, xp.full_like(size, huge))
    return function(s * share[..., None]) + (1 - share) * length(s, dual(norm))


def log_mgf_inf(s: Array) -> Array:
    """sum_j log(sinh(s_j)/s_j), for b uniform on [-1, 1]^d; s (..., d) in double precision."""
    xp = array_namespace(s)
    a = xp.abs(s)
    small = a < 1
    square = xp.where(small, s * s, xp.zeros_like(s))
    a = xp.where(small, xp.ones_like(a), a)
    # sinh(a)/a - 1 = a^2/3! + a^4/5! + ..., for which nine terms suffice for a < 1.
    series = xp.zeros_like(s)
    for k in range(9, 0, -1):
        series = square * (1 / factorial(2 * k + 1) + series)
    large = a + xp.log(-xp.expm1(-2 * a) / (2 * a))
    return xp.sum(xp.where(small, xp.log1p(series), large), axis=-1)


# Bessel functions of order at least _ORDER come from Debye's expansion, whose first _TERMS terms have an
# error below 1e-15 there. Lower orders follow by a recurrence.
_ORDER = 20
_TERMS = 12


def log_mgf_2(s: Array) -> Array:
    """The log of E exp(s.b) for b uniform on the Euclidean unit ball; s (..., d) in double precision."""
    xp = array_namespace(s)
    return log_bessel(xp.sum(s * s, axis=-1), s.shape[-1] / 2)


def log_bessel(x: Array, nu: float) -> Array:
    """log H_nu(x), where H_nu(x) = Gamma(nu + 1) (2/t)^nu I_nu(t) with t = sqrt(x) and the Bessel function I.

    This is log E exp(s.b) for x = |s|^2 and nu = d/2. The recurrence H_nu = H_(nu+1) + x/4/((nu+1)(nu+2))
    H_(nu+2) has positive terms, so that it is stable from high to low orders.
    """
    return _bessel(x, nu, *debye_series(nu))


def debye_series(nu: float) -> tuple[int, list[list[float]]]:
    """(steps, coefficients): Debye's expansion for the orders nu + steps and nu + steps + 1.

    `steps` is the number of steps of the recurrence from there down to the order nu.
    """
    steps = max(0, ceil(_ORDER - nu))
    return steps, [_debye_coefficients(nu + steps + k) for k in (0, 1)]


def _bessel(x: Array, nu: float, steps: int, series: list[list[float]]) -> Array:
    """log H_nu(x), by `steps` steps of the recurrence; `series` are the coefficients of `debye_series`."""
    xp = array_namespace(x)
    value = _debye(x, nu + steps, series[0], xp=xp)
    if not steps:
        return value
    gap = _debye(x, nu + steps + 1, series[1], xp=xp) - value
    # gap = log(H_(n+1)/H_n) <= 0 at n = nu + steps. For t > 1e15 it is all rounding error, but negligible.
    ratio = xp.exp(xp.where(gap < 0, gap, xp.zeros_like(gap)))
    for j in range(steps, 0, -1):
        order = nu + j - 1
        rest = x / (4 * (order + 1) * (order + 2)) * ratio
        value = value + xp.log1p(rest)
        ratio = 1 / (1 + rest)
    return value


def _debye(x: Array, nu: float, series: list[float], *, xp: Any) -> Array:
    """log H_nu(x) for a large order nu, by Debye's uniform expansion of the Bessel function:

    with sigma = sqrt(1 + x/nu^2), p = 1/sigma and m = (x/nu^2)/(1 + sigma),
    nu m - nu log(1 + m/2) - log(sigma)/2 + log A(p) - log A(1), A(p) = 1 + u_1(p)/nu + u_2(p)/nu^2 + ...
    """
    y = x / nu**2
    sigma = xp.sqrt(1 + y)
    m = y / (1 + sigma)
    q = m / sigma  # 1 - p, without cancellation
    rest = xp.zeros_like(q)
    for coefficient in reversed(series):
        rest = q * (coefficient + rest)  # A(p)/A(1) - 1
    return nu * (m - xp.log1p(m / 2)) - xp.log1p(y) / 4 + xp.log1p(rest)


@cache
def _debye_coefficients(nu: float) -> list[float]:
    """The coefficients of q, q^2, ... in A(p)/A(1) - 1, a polynomial in q = 1 - p."""
    at_one, tail = 1.0, [0.0] * (3 * _TERMS)
    for k, polynomial in enumerate(_debye_polynomials(), start=1):
        at_one += float(polynomial[0]) / nu**k
        for j, c in enumerate(polynomial[1:]):
            tail[j] += float(c) / nu**k
    return [c / at_one for c in tail]


@cache
def _debye_polynomials() -> tuple[tuple[Fraction, ...], ...]:
    """The coefficients of 1, q, q^2, ... in each of u_1, ..., u_12, polynomials in q = 1 - p."""
    u = [Fraction(1)]
    shifted = []
    for _ in range(_TERMS):
        # u_(k+1)(p) = p^2 (1 - p^2) u_k'(p)/2 + (1/8) int_0^p (1 - 5 t^2) u_k(t) dt
        new = [Fraction(0)] * (len(u) + 3)
        for j, c in enumerate(u):
            new[j + 1] += j * c / 2 + c / (8 * (j + 1))
            new[j + 3] -= j * c / 2 + 5 * c / (8 * (j + 3))
        u = new
        # Horner's rule in (1 - q) gives the coefficients around p = 1.
        moved = [Fraction(0)]
        for c in reversed(u):
            moved = [a - b for a, b in zip([*moved, Fraction(0)], [Fraction(0), *moved], strict=True)]
            moved[0] += c
        shifted.append(tuple(moved[: len(u)]))
    return tuple(shifted)


def log_mgf_1(s: Array) -> Array:
    """log E exp(s.b), for b uniform on the cross-polytope |b_1| + ... + |b_d| <= 1.

    E exp(s.b) = d!/(2 pi i) int e^u u^(d-1) / prod_j (u^2 - s_j^2) du, an inverse Laplace transform at 1.
    For small s, the integral is the sum over k of the positive terms h_k(s^2) d!/(d+2k)!, with h_k the
    complete symmetric polynomial of degree k. Otherwise the integral is computed along a parabola through the
    saddle point. The closed form, a sum over the poles, loses all digits at d = 20.
    """
    xp = array_namespace(s)
    d = s.shape[-1]
    scale = float((d + 1) * (d + 2))
    square = s * s
    small = xp.sum(square, axis=-1) <= scale / 4
    small_rows = small[..., None]
    nothing = xp.zeros_like(s)
    series = _series_1(xp.where(small_rows, square, nothing) / scale, xp=xp)
    # Rows computed by the series are replaced by s = 0, where the contour integral is well behaved.
    return xp.where(small, series, _contour_1(xp.where(small_rows, nothing, s), xp=xp))


def _series_1(v: Array, *, xp: Any) -> Array:
    """The log of sum_k c_k h_k(v), for v = s^2/((d+1)(d+2)) with sum_j v_j <= 1/4.

    h_k is the complete symmetric polynomial of degree k, and c_k = ((d+1)(d+2))^k d!/(d+2k)!.
    """
    d = v.shape[-1]
    terms = 26  # enough, because h_k(v) <= 4^-k
    powers, sums, h = v, [], [xp.ones_like(v[..., 0])]
    total = xp.zeros_like(h[0])
    c = 1.0
    for k in range(1, terms + 1):
        sums.append(xp.sum(powers, axis=-1))
        powers = powers * v
        # Newton's identity: k h_k is the sum over i = 1, ..., k of p_i h_(k-i), with the power sums p_i.
        new = xp.zeros_like(total)
        for i in range(k):
            new = new + sums[i] * h[k - 1 - i]
        h.append(new / k)
        c *= (d + 1) * (d + 2) / ((d + 2 * k - 1) * (d + 2 * k))
        total = total + c * h[k]
    return xp.log1p(total)


def _contour_1(s: Array, *, xp: Any) -> Array:
    """`log_mgf_1` by the contour integral, along a path that crosses the real axis at u0."""
    d = s.shape[-1]
    n = d + 1
    a = xp.abs(detach(s))
    square = s * s
    top = xp.max(a, axis=-1)
    # The saddle of h(u) = u + (d-1) log u - sum_j log(u^2 - s_j^2) lies at u = top + v, 1/2 < v <= d + 1.
    # With W = 1 - h', 1/W is increasing and concave: Newton's method for 1/W = 1 converges from the left.
    # A few steps suffice, because the integral does not depend on u0 = top + v (the array u below).
    v = xp.full_like(top, 0.5)
    for _ in range(12):
        u, _, w, slope, _ = _derivatives(v, top, a, xp=xp)
        v = xp.clip(v + (w - 1) * w / slope, 0.5, float(n))
    u, poles, _, slope, bend = _derivatives(v, top, a, xp=xp)
    width = 1 / xp.sqrt(slope)
    bow = bend / (6 * slope**2)
    poles = poles - (square - detach(square))  # subtracts 0, to pass on the gradient in s^2
    # The parabola u0 - bow tau^2 + i width tau follows the steepest descent. The trapezoidal rule with this
    # step has an error of 1e-15.
    step = 0.125

    def add_node(tau: Array, integral: Array) -> tuple[tuple[Array, Array], Array]:
        re, im = -bow * tau**2, width * tau  # delta = u(tau) - u0
        cr, ci = re * (2 * u + re) - im * im, im * (2 * u + re) + re * im  # delta (2 u0 + delta)
        zr, zi = 1 + cr[..., None] / poles, ci[..., None] / poles
        modulus = re - xp.sum(xp.log(zr * zr + zi * zi), axis=-1) / 2
        angle = im - xp.sum(xp.atan2(zi, zr), axis=-1)
        modulus = modulus + (d - 1) / 2 * xp.log((1 + re / u) ** 2 + (im / u) ** 2)
        angle = angle + (d - 1) * xp.atan2(im / u, 1 + re / u)
        size = xp.exp(modulus)
        integral = integral + size * (width * xp.cos(angle) - 2 * tau * bow * xp.sin(angle))
        return (tau + step, integral), size * (width + 2 * tau * bow) <= 1e-18 * width

    _, integral = iterate(add_node, (xp.full_like(width, step), 0.5 * width), 800)
    # log d! + h(u0), where the leading terms of Stirling's formula are cancelled analytically.
    part = square / u[..., None] ** 2
    small = part < 0.5
    logs = xp.where(
        small,
        xp.log1p(-xp.where(small, part, xp.zeros_like(part))),
        xp.log(xp.where(small, xp.ones_like(part), poles / u[..., None] ** 2)),
    )
    ratio = (u - n) / n
    saddle = n * (ratio - xp.log1p(ratio)) - xp.sum(logs, axis=-1) + _stirling(n)
    return saddle + xp.log(integral * (step / pi))


def _derivatives(v: Array, top: Array, a: Array, *, xp: Any) -> tuple[Array, Array, Array, Array, Array]:
    """(u, u^2 - s_j^2, 1 - h'(u), h''(u), -h'''(u)) at u = top + v, for a = |s| with maximum `top`."""
    u = top + v
    wide = u[..., None]
    left, right = v[..., None] + (top[..., None] - a), wide + a  # u - a without cancellation, and u + a
    d = a.shape[-1]
    sums = [xp.sum(left**-k + right**-k, axis=-1) - (d - 1) / u**k for k in (1, 2, 3)]
    return u, left * right, sums[0], sums[1], 2 * sums[2]


def _stirling(n: int) -> float:
    """log((n-1)!) + n - n log n, without cancellation."""
    if n < 20:
        return lgamma(n) + n - n * log(n)
    r = 1 / n**2
    series = (1 / 12 - r * (1 / 360 - r * (1 / 1260 - r / 1680))) / n
    return log(2 * pi / n) / 2 + series


def coordinate_variance(p: float, d: int) -> float:
    """E[b_1^2] for b uniform on the unit ball of norm p in d dimensions."""
    known = {1.0: 2 / ((d + 1) * (d + 2)), 2.0: 1 / (d + 2), inf: 1 / 3}
    if p in known:
        return known[p]
    return exp(lgamma(3 / p) - lgamma(1 / p) + lgamma(d / p + 1) - lgamma((d + 2) / p + 1))


def log_volume(p: float, radius: float, d: int, scales: list[float]) -> float:
    """The log of the volume of the ball of norm p in d dimensions, with one of `scales` per coordinate."""
    if radius == 0 or min(scales) == 0:
        return -inf
    stretch = sum(log(scale) for scale in scales)
    if p == inf:
        return d * log(2 * radius) + stretch
    return d * (log(2 * radius) + lgamma(1 + 1 / p)) - lgamma(1 + d / p) + stretch

"""Elementary functions without branches, so that loops vectorise; accurate to a few ulp.

The coefficients of the polynomials are Chebyshev fits.
"""

from __future__ import annotations

from numba import float64

from phiball.backends.numba.compilation import subroutine
from phiball.backends.numba.primitives import bits, from_bits

# log 2 as a sum; the first term has 21 bits, so that its product with an exponent k is exact.
_LOG2_HIGH, _LOG2_LOW = 0.6931467056274414, 4.7493250390316726e-07


@subroutine({"contract"}, inline=True)
def fast_log(y: float) -> float:
    """log y for y > 0 that is not subnormal.

    With y = 2^k m, where sqrt(1/2) <= m < sqrt(2), log y = k log 2 + 2 artanh s for s = (m - 1)/(m + 1).
    """
    shifted = bits(y) + 0x95F619980C433  # moves sqrt(1/2) to the next power of two
    # Convert the exponent to a float: the low bits of the float 2^52 + n are the integer n.
    k = from_bits(((shifted >> 52) & 0x7FF) | 0x4330000000000000) - 4503599627371519.0
    m = from_bits((shifted & 0xFFFFFFFFFFFFF) + 0x3FE6A09E667F3BCD)
    s = (m - 1.0) / (m + 1.0)
    q = s * s
    r = q * q  # even and odd terms are evaluated in parallel
    p = 0.3999999999989889 + 0.28571428626253836 * q
    p += r * (
        (0.22222211089379496 + 0.1818289243253687 * q) + r * (0.15331611722055008 + 0.14617807153417325 * q)
    )
    p = 0.666666666666667 + q * p
    log: float = k * _LOG2_HIGH + ((s + s) + (s * q * p + k * _LOG2_LOW))
    return log


@subroutine({"contract"}, inline=True)
def exp_minus(x: float, c: float) -> float:
    """exp(x) - c for c = 0 or 1, accurate also if exp(x) is close to c. Valid for x < 709.

    Below x = -708, where exp(x) would be subnormal, exp(x) is replaced by 0. With x = n log 2 + r and
    abs(r) <= log(2)/2, exp(x) = 2^n exp(r). Adding 1.5 * 2^52 to x/log 2 rounds it to the integer n, which is
    then in the low bits of the sum.
    """
    shifted = x * 1.4426950408889634 + 6755399441055744.0
    n = shifted - 6755399441055744.0
    r = (x - n * 0.6931471803691238) - n * 1.9082149292705877e-10  # log 2 as a sum
    q = r * r
    h = q * q
    y = (0.0013888888917213717 + 0.00019841269863053618 * r) + q * (
        2.4801521295954376e-05 + 2.7557268459997064e-06 * r
    )
    y += h * (2.7620088445409746e-07 + 2.510038549551032e-08 * r)
    y = (
        (0.5000000000000001 + 0.16666666666666669 * r) + q * (0.04166666666662413 + 0.008333333333330062 * r)
    ) + h * y
    scale = from_bits((bits(shifted) + 1023) << 52)
    return scale * (y * q + r) + (scale - c) if x >= -708.0 else -c


@subroutine({"contract"}, inline=True)
def fast_log1p(w: float) -> float:
    """log(1 + w) for w > -1, where 1 + w is not subnormal."""
    y = 1.0 + w
    return fast_log(y) + (w - (y - 1.0)) / y


@subroutine({"contract"}, inline=True)
def log_sinhc(a: float, decay: float) -> float:
    """log(sinh(a)/a) for a >= 0; `decay` is exp(-2 a) - 1."""
    q = a * a
    p = -7.310715998325355e-12
    p = p * q + 1.1708532674413125e-10
    p = p * q - 1.3794517478122135e-09
    p = p * q + 1.565518031433476e-08
    p = p * q - 1.803643341350071e-07
    p = p * q + 2.13777920281465e-06
    p = p * q - 2.645502634614059e-05
    p = p * q + 0.00035273368605855023
    p = p * q - 0.0055555555555553
    p = p * q + 0.16666666666666666
    large = (a - 0.6931471805599453) - fast_log(-a / decay)
    return q * p if a < 1.0 else large


@subroutine({"contract"}, inline=True)
def sin_pi(s: float) -> float:
    """sin(pi s) for |s| <= 1/2."""
    x: float = float64(s)
    q = x * x
    p = -2.113362735205297e-05
    p = p * q + 0.0004659870158043378
    p = p * q - 0.0073703643265304155
    p = p * q + 0.08214587881631043
    p = p * q - 0.599264528825224
    p = p * q + 2.5501640398618677
    p = p * q - 5.1677127800497855
    p = p * q + 3.1415926535897927
    return x * p

"""Elementary functions for the compiled kernels, without branches, so that loops of them are vectorised."""

from __future__ import annotations

from numba import float64

from phiball.backends.numba.compilation import compiled
from phiball.backends.numba.primitives import _bits, _float

# log 2 in two parts; the first has 21 digits, so that an exponent times it is exact.
_HIGH, _LOW = 0.6931467056274414, 4.7493250390316726e-07


@compiled({"contract"})
def log_normal(y: float) -> float:
    """log y to a few ulp, for normal numbers y > 0.

    With y = 2^k m, sqrt(1/2) <= m < sqrt(2), and s = (m - 1)/(m + 1), it is k log 2 + 2 artanh s. The
    polynomial is a Chebyshev fit, good to 5e-18.
    """
    bits = _bits(y) + 0x95F619980C433  # moves sqrt(1/2) to the power of two above it
    # Written into the low digits of 2^52, the exponent becomes a floating-point number.
    k = _float(((bits >> 52) & 0x7FF) | 0x4330000000000000) - 4503599627371519.0
    m = _float((bits & 0xFFFFFFFFFFFFF) + 0x3FE6A09E667F3BCD)
    s = (m - 1.0) / (m + 1.0)
    q = s * s
    p = 0.14617807153417325
    p = p * q + 0.15331611722055008
    p = p * q + 0.1818289243253687
    p = p * q + 0.22222211089379496
    p = p * q + 0.28571428626253836
    p = p * q + 0.3999999999989889
    p = p * q + 0.666666666666667
    log: float = k * _HIGH + ((s + s) + (s * q * p + k * _LOW))
    return log


@compiled({"contract"})
def log1p_above(w: float) -> float:
    """log(1 + w) to a few ulp, for w > -1 with a normal 1 + w."""
    y = 1.0 + w
    return log_normal(y) + (w - (y - 1.0)) / y


@compiled({"contract"})
def log_sinhc(a: float, decay: float) -> float:
    """log(sinh(a)/a) for a >= 0, to a few ulp; `decay` is exp(-2 a) - 1. The polynomial is good to 8e-18."""
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
    large = (a - 0.6931471805599453) - log_normal(-a / decay)
    return q * p if a < 1.0 else large


@compiled({"contract"})
def sin_pi(s: float) -> float:
    """sin(pi s) for |s| <= 1/2, to a few ulp. The polynomial is a Chebyshev fit, good to 4e-16."""
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

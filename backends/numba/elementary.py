"""Elementary functions for the compiled kernels, without branches, so that loops of them are vectorised."""

from __future__ import annotations

from math import frexp
from typing import Any

import numpy as np
from numba import float32, float64, types

from phiball.backends.numba.compilation import compiled
from phiball.backends.numba.primitives import _bits, _float, instruction

# log 2 in two parts; the first has 21 digits, so that an exponent times it is exact.
_HIGH, _LOW = 0.6931467056274414, 4.7493250390316726e-07
_CRUDE = 0x3F7A3BEA  # the bits of a number close to one: the errors of `crude_power` are of both signs
# In single precision: adding _ROUND rounds to an integer, and 2^_LEAST is as good as zero.
_ZERO, _ONE, _ROUND, _LEAST = np.float32(0.0), np.float32(1.0), np.float32(12582912.0), np.float32(-125.0)


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
    r = q * q  # a polynomial in two strands: half as many steps wait for one another
    p = 0.3999999999989889 + 0.28571428626253836 * q
    p += r * (
        (0.22222211089379496 + 0.1818289243253687 * q) + r * (0.15331611722055008 + 0.14617807153417325 * q)
    )
    p = 0.666666666666667 + q * p
    log: float = k * _HIGH + ((s + s) + (s * q * p + k * _LOW))
    return log


@compiled({"contract"})
def exponentials(x: float) -> tuple[float, float]:
    """(exp(x), exp(x) - 1) to a few ulp, for x < 709; (0, -1) below the normal range (x < -708).

    With x = n log 2 + r, abs(r) <= log(2)/2; adding 1.5 * 2^52 rounds x/log 2 to n, in the low bits. The
    polynomial is that of `exp_nonpositive`, in two strands.
    """
    shifted = x * 1.4426950408889634 + 6755399441055744.0
    n = shifted - 6755399441055744.0
    r = (x - n * 0.6931471803691238) - n * 1.9082149292705877e-10  # log 2 in two parts
    q = r * r
    h = q * q
    y = (0.0013888888917213717 + 0.00019841269863053618 * r) + q * (
        2.4801521295954376e-05 + 2.7557268459997064e-06 * r
    )
    y += h * (2.7620088445409746e-07 + 2.510038549551032e-08 * r)
    y = (
        (0.5000000000000001 + 0.16666666666666669 * r) + q * (0.04166666666662413 + 0.008333333333330062 * r)
    ) + h * y
    scale = _float((_bits(shifted) + 1023) << 52)
    power = scale * (y * q + r)
    normal = x >= -708.0
    return scale + power if normal else 0.0, power + (scale - 1.0) if normal else -1.0


@compiled({"contract"})
def log1p_above(w: float) -> float:
    """log(1 + w) to a few ulp, for w > -1 with a normal 1 + w."""
    y = 1.0 + w
    return log_normal(y) + (w - (y - 1.0)) / y


@compiled({"contract"})
def log1p_negative(w: float) -> float:
    """log(1 + w) to a few ulp, for -1 < w <= 0 with a normal 1 + w, without the division of `log1p_above`.

    What 1 + w has lost is 0 for w < -1/2; beyond, its division by 1 + w changes at most the last digit.
    """
    y = 1.0 + w
    return log_normal(y) + (w - (y - 1.0))


def _parts_in_python(y: float) -> tuple[Any, Any]:
    m, k = frexp(y)
    k, m = (k - 1, 2 * m) if m < 0.5**0.5 else (k, m)
    return np.float32(k), np.float32(m)


@instruction(_parts_in_python)
def _parts(context: Any, y: Any) -> Any:
    """(k, m) with y = 2^k m and sqrt(1/2) <= m < sqrt(2), in single precision and 32 bits throughout."""
    signature = types.UniTuple(float32, 2)(float32)

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        word, single = context.get_value_type(types.int32), context.get_value_type(float32)
        root = word(0x3F3504F3)  # sqrt(1/2)
        bits = builder.add(builder.bitcast(args[0], word), word(0x004AFB0D))  # moves it to a power of two
        k = builder.sub(builder.lshr(bits, word(23)), word(127))
        m = builder.add(builder.and_(bits, word(0x7FFFFF)), root)
        made = [builder.sitofp(k, single), builder.bitcast(m, single)]
        return context.make_tuple(builder, signature.return_type, made)

    return signature, build


@compiled({"contract"})
def log1p_negative_single(w: Any) -> Any:
    """`log1p_negative` in single precision throughout, which takes half as long."""
    y = _ONE + w
    k, m = _parts(y)
    s = (m - _ONE) / (m + _ONE)
    q = s * s
    p = np.float32(1 / 7) + q * np.float32(1 / 9)
    p = np.float32(1 / 3) + q * (np.float32(1 / 5) + q * p)
    log = (s + s) + (np.float32(2.0) * (s * q * p) + k * np.float32(-2.12194440e-4))
    return k * np.float32(0.693359375) + log + (w - (y - _ONE))


def _scaled_in_python(x: float, shifted: float) -> Any:
    return np.float32(x) * np.float32(2.0) ** (np.float32(shifted) - _ROUND)


@instruction(_scaled_in_python)
def _scaled(context: Any, x: Any, shifted: Any) -> Any:
    """x 2^n, in single precision, where `shifted` is 1.5 * 2^23 + n and has n in its low bits."""
    signature = float32(float32, float32)

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        word, single = context.get_value_type(types.int32), context.get_value_type(float32)
        exponent = builder.shl(builder.bitcast(args[1], word), word(23))
        return builder.bitcast(builder.add(builder.bitcast(args[0], word), exponent), single)

    return signature, build


@compiled({"contract"})
def power_single(t: Any, q: Any) -> Any:
    """(1 + t)^q in single precision throughout, for t > -1 and a result below 1e38: to 1e-6 where it is not
    close to these ends, and as good as 0 where it is. What it gives for t <= -1 is not to be used.

    It is 2^(q log2(1 + t)), by polynomials that are good to 2e-7; the error of the logarithm is relative also
    for tiny t, so that q may be large.
    """
    k, m = _parts(_ONE + t)
    w = t if k == _ZERO else m - _ONE
    r = w * w
    log = (np.float32(0.28709870) - np.float32(0.24887688) * w) + r * (
        np.float32(0.23404230) - np.float32(0.14581151) * w
    )
    log = (np.float32(1.44269490) - np.float32(0.72135282) * w) + r * (
        (np.float32(0.48092324) - np.float32(0.36023962) * w) + r * log
    )
    x = q * (k + w * log)
    x = x if x > _LEAST else _LEAST
    shifted = x + _ROUND
    r = x - (shifted - _ROUND)
    power = (np.float32(1.0000001) + np.float32(0.69314694) * r) + (r * r) * (
        (np.float32(0.24022120) + np.float32(0.05550713) * r)
        + (r * r) * (np.float32(0.00967554) + np.float32(0.00132765) * r)
    )
    return _scaled(power, shifted)


def _crude_in_python(y: float, q: float) -> Any:
    bits = np.float32(y).view(np.int32) - _CRUDE
    return np.int32(np.float32(q) * np.float32(bits) + _CRUDE).view(np.float32)


@instruction(_crude_in_python)
def crude_power(context: Any, y: Any, q: Any) -> Any:
    """y^q in single precision to a few percent, for y > 0 and q in (0, 1), in a tenth of the time.

    The bits of a number, as an integer, are close to its logarithm.
    """
    signature = float32(float32, float32)

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        word, single = context.get_value_type(types.int32), context.get_value_type(float32)
        bits = builder.sitofp(builder.sub(builder.bitcast(args[0], word), word(_CRUDE)), single)
        bits = builder.fptosi(builder.fmul(bits, args[1]), word)
        return builder.bitcast(builder.add(bits, word(_CRUDE)), single)

    return signature, build


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

"""The small parts that the compiled kernels are made of."""

from __future__ import annotations

from collections.abc import Callable
from struct import pack, unpack
from typing import Any

import numpy as np
from llvmlite import ir
from numba import config, float64, int64, void
from numba.extending import intrinsic

from phiball.backends.numba.compilation import compiled

# Sums may be reordered, to be vectorised; NaN and infinity keep their meaning. A function that says
# nothing inherits this from its caller, so what must not be reordered says fastmath=False.
SUMS = {"reassoc", "contract", "nsz"}
BLOCK = 4096  # partial sums of this length keep the error of a long sum at rounding level
ROUNDING = 1e-14  # a mass that differs from one by more is improved
TILE = 64  # rows that are solved side by side where they are short


def instruction(python: Callable[..., Any]) -> Callable[[Any], Any]:
    """Make a machine instruction of a builder of it; `python` does the same where nothing is compiled.

    That is with NUMBA_DISABLE_JIT, for a debugger or to measure which lines of the kernels run.
    """
    return lambda builder: python if config.DISABLE_JIT else intrinsic(builder)


@instruction(lambda x: unpack("q", pack("d", x))[0])
def _bits(context: Any, x: Any) -> Any:
    """The bits of a float64, as an int64."""
    signature = int64(float64)

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], context.get_value_type(int64))

    return signature, build


@instruction(lambda n: unpack("d", pack("Q", n % 2**64))[0])
def _float(context: Any, n: Any) -> Any:
    """The float64 that has these bits."""
    signature = float64(int64)

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], context.get_value_type(float64))

    return signature, build


@instruction(lambda a, i: a[i])
def read(context: Any, a: Any, i: Any) -> Any:
    """a[i], of an array that `write` never changes."""

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        loaded = builder.load(_place(context, builder, signature, args))
        loaded.set_metadata("alias.scope", _scope(builder.module))
        return loaded

    a = getattr(a, "type", a)  # of an argument that may be None
    return a.dtype(a, i), build


def _write(a: Any, i: int, x: float) -> None:
    a[i] = x


@instruction(_write)
def write(context: Any, a: Any, i: Any, x: Any) -> Any:
    """a[i] = x, of a part of memory that `read` never reads: a loop with both is compiled once.

    Without that promise the compiler keeps two forms of it, with sums in two orders, and chooses by how close
    the arrays are, so that the last digits would depend on where they lie in memory.
    """

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        value = context.cast(builder, args[2], signature.args[2], signature.args[0].dtype)
        stored = builder.store(value, _place(context, builder, signature, args))
        stored.set_metadata("noalias", _scope(builder.module))
        return context.get_dummy_value()

    return void(a, i, x), build


def _place(context: Any, builder: Any, signature: Any, args: Any) -> Any:
    """The address of a[i], for a contiguous array."""
    array = context.make_array(signature.args[0])(context, builder, args[0])
    return builder.gep(array.data, [args[1]])


def _scope(module: Any) -> Any:
    """The mark of what `read` reads."""
    domain = module.add_metadata(["phiball"])
    return module.add_metadata([module.add_metadata(["read", domain])])


@compiled({"contract"})
def _scale_and_power(x: float) -> tuple[float, float]:
    """(2^n, exp(r) - 1) with x = n log 2 + r and abs(r) <= log(2)/2, without a branch.

    Adding 1.5 * 2^52 rounds x/log 2 to the integer n, in the low bits. No `reassoc` here: it
    would undo that. The polynomial is a Chebyshev fit, good to 2e-17.
    """
    shifted = x * 1.4426950408889634 + 6755399441055744.0
    n = shifted - 6755399441055744.0
    r = (x - n * 0.6931471803691238) - n * 1.9082149292705877e-10  # log 2 in two parts
    y = 2.510038549551032e-08
    y = y * r + 2.7620088445409746e-07
    y = y * r + 2.7557268459997064e-06
    y = y * r + 2.4801521295954376e-05
    y = y * r + 0.00019841269863053618
    y = y * r + 0.0013888888917213717
    y = y * r + 0.008333333333330062
    y = y * r + 0.04166666666662413
    y = y * r + 0.16666666666666669
    y = y * r + 0.5000000000000001
    return _float((_bits(shifted) + 1023) << 52), y * (r * r) + r


@compiled({"contract"})
def exp_nonpositive(x: float) -> float:
    """exp(x) for x <= 0, to a few ulp, as vectors of it; 0 below the normal range (x < -708)."""
    scale, power = _scale_and_power(x)
    return scale + scale * power if x >= -708.0 else 0.0


@compiled({"contract"})
def expm1_nonpositive(x: float) -> float:
    """exp(x) - 1 for x <= 0, to a few ulp, as vectors of it."""
    scale, power = _scale_and_power(x)
    return scale * power + (scale - 1.0) if x >= -708.0 else -1.0


@compiled()
def minus(a: float, b: float) -> float:
    """a - b, first: compiled without SUMS, it is not merged with the sums around it.

    Reordering (f - top) - c to f - (top + c) would lose the digits of c under an offset of f.
    """
    difference: float = float64(a) - float64(b)
    return difference


@compiled()
def times(a: float, b: float) -> float:
    """a b, first: compiled with SUMS, a product of several may be taken in another order, and overflow."""
    return a * b


@compiled()
def over(a: float, b: float) -> float:
    """a / b, once: compiled with SUMS, each of its multiples would be a division of its own."""
    return a / b


@compiled()
def _add_up(a: float, b: float) -> float:
    """a + b, rounded upwards."""
    s = a + b
    c = s - a
    e = (a - (s - c)) + (b - c)
    if e > 0.0:  # then s is not 0, and its neighbour above is a step of its bits
        s = _float(_bits(s) + (1 if s > 0.0 else -1))
    return s


@compiled()
def store_mu(
    out: Any, row: int, top: float, shift: float, eta: float, slope1: float, ends: bool = False
) -> float:
    """out[row] = top + shift - eta slope1; returns the shift that this mu stands for.

    Rounded up if the domain of phi* `ends`, or eta is below the rounding of mu, and else to the nearest: see
    `_multiplier` of the reference.
    """
    mu = (top + shift) - eta * slope1
    up = ends or not 64.0 * (2.220446049250313e-16 if out.itemsize == 8 else 1.1920929e-07) * abs(mu) < eta
    mu = _add_up(_add_up(top, shift), -eta * slope1) if up else mu
    out[row] = mu
    if up and out[row] < mu:  # the dtype of the losses is coarser
        out[row] = np.nextafter(out[row], out.dtype.type(np.inf))
    mu = float64(out[row])
    high = mu + eta * slope1
    c = high - mu
    low = (mu - (high - c)) + (eta * slope1 - c)
    stands_for: float = (high - top) + low
    return stands_for


@compiled()
def _ordinal(x: float) -> int:
    """The place of x among the floating-point numbers in order."""
    bits: int = _bits(x)
    return bits if bits >= 0 else -(bits & 0x7FFFFFFFFFFFFFFF)


@compiled()
def _number(n: int) -> float:
    number: float = _float(n) if n >= 0 else -_float(-n)
    return number


@compiled()
def middle(a: float, b: float) -> float:
    """The number halfway between a and b, counting floating-point numbers."""
    first, last = _ordinal(a), _ordinal(b)
    return _number((first >> 1) + (last >> 1) + (first & last & 1))


@compiled()
def before(x: float) -> float:
    """The largest floating-point number below x."""
    return _number(_ordinal(x) - 1)


@instruction(np.fmax)
def larger(context: Any, a: Any, b: Any) -> Any:
    """max(a, b), as the instruction that the compiler knows how to vectorise in a reduction."""

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = args[0].type
        takes = ir.FunctionType(kind, [kind, kind])
        function = builder.module.declare_intrinsic("llvm.maxnum", [kind], takes)
        return builder.call(function, args, fastmath=("nnan", "nsz"))

    return a(a, a), build


@compiled(SUMS)
def top_of(f: Any) -> float:
    """max f."""
    top = f[0]
    for i in range(f.size):
        top = larger(top, f[i])
    return float(top)


@compiled(SUMS)
def extent(a: Any) -> tuple[float, float]:
    """(min, max)."""
    low, high = -a[0], a[0]
    for i in range(a.size):
        low = larger(low, -a[i])
        high = larger(high, a[i])
    return -float64(low), float64(high)


@compiled(SUMS)
def top_and_mean(f: Any) -> tuple[float, float]:
    """(max f, mean f - max f), the mean by way of differences, which an offset does not spoil."""
    top, total = f[0], 0.0
    for start in range(0, f.size, BLOCK):
        part = 0.0
        for i in range(start, min(start + BLOCK, f.size)):
            top = larger(top, f[i])
            part += minus(f[i], f[0])
        total += part
    return float64(top), minus(total / f.size, minus(top, f[0]))


@compiled(SUMS)
def weighted(law: Any, i: int, x: float) -> float:
    """p_i x, or x under the uniform law, where `law` is None and masses are counts."""
    return x if law is None else read(law, i) * x


@compiled(SUMS)
def extent_and_mass(f: Any, law: Any) -> tuple[float, float, float]:
    """(max f, min f, sum p) over the points with mass; the sum is NaN if p is no law or a loss not finite."""
    # Of slices, as an index that starts at 0 is the fastest; none of a short row, which costs less than one.
    short = f.size <= BLOCK
    top, low, negative, amiss, whole = _survey(f, law) if short else _survey(f[:BLOCK], law[:BLOCK])
    for start in range(BLOCK, f.size, BLOCK):
        high, deep, below, bad, part = _survey(f[start : start + BLOCK], law[start : start + BLOCK])
        top, low, negative = max(top, high), max(low, deep), max(negative, below)
        amiss += bad
        whole += part
    valid = amiss == 0.0 and negative <= 0.0 and abs(whole - 1.0) <= _loose(law)
    return top, -low, whole if valid else np.nan


@compiled(SUMS)
def _survey(f: Any, law: Any) -> tuple[float, float, float, float, float]:
    top, low, negative, amiss, whole = -np.inf, -np.inf, -np.inf, 0.0, 0.0
    for i in range(f.size):
        # Read first, and a sum for a choice: else the loop would not be vectorised.
        x, w = float64(f[i]), float64(law[i])
        charged = 0.0 if w > 0.0 else -np.inf
        top = larger(top, charged + x)
        low = larger(low, charged - x)
        negative = larger(negative, -w)
        amiss += 0.0 * x
        whole += w
    return top, low, negative, amiss, whole


@compiled(SUMS)
def extent_of_law(f: Any, law: Any) -> tuple[float, float]:
    """(max f, min f) over the points with mass; NaN for the first if a mass is negative."""
    top, low, negative = -np.inf, -np.inf, -np.inf
    for i in range(f.size):
        x, w = float64(f[i]), float64(law[i])
        charged = 0.0 if w > 0.0 else -np.inf
        top = larger(top, charged + x)
        low = larger(low, charged - x)
        negative = larger(negative, -w)
    return top if negative <= 0.0 else np.nan, -low


@compiled(SUMS)
def moments_of_law(f: Any, law: Any, top: float) -> tuple[float, float, float]:
    """(sum p, mean f - max f, the mass of the largest loss); NaN if p is no law or a loss not finite."""
    whole, moment, at_top = _moments(f, law, top) if f.size <= BLOCK else (0.0, 0.0, 0.0)
    for start in range(0, f.size if f.size > BLOCK else 0, BLOCK):
        part = _moments(f[start : start + BLOCK], law[start : start + BLOCK], top)
        whole += part[0]
        moment += part[1]
        at_top += part[2]
    valid = abs(whole - 1.0) <= _loose(law)
    return whole if valid else np.nan, moment / whole, at_top


@compiled(SUMS)
def _moments(f: Any, law: Any, top: float) -> tuple[float, float, float]:
    whole, moment, at_top = 0.0, 0.0, 0.0
    for i in range(f.size):
        g, w = minus(f[i], top), float64(law[i])
        whole += w
        moment += w * g  # NaN for a loss that is not finite, also where w is 0
        at_top += w * (1.0 if g == 0.0 else 0.0)  # a product is faster than a choice
    return whole, moment, at_top


@compiled()
def _loose(law: Any) -> float:
    """By how much the sum of p may differ from one, as in the reference."""
    return 1e-6 if law.itemsize == 8 else 1e-4


@compiled()
def product(a: float, n: int) -> tuple[float, float]:
    """(high, low) with high = fl(a n) and high + low = a n exactly, for n below 2^26."""
    head = a * 134217729.0  # 2^27 + 1 splits a into two halves, whose products with n are exact
    head = head - (head - a)
    tail = a - head
    high = a * n
    return high, (head * n - high) + tail * n


@compiled()
def rank_of(alpha: float, m: int) -> int:
    """The rank of the smallest loss that has weight; alpha m may be an integer but for rounding."""
    return min(m, max(1, int(np.ceil(alpha * m * (1.0 - 1e-14)))))


@compiled()
def share_of(full: float, rest: float, above: float, tied: float) -> float:
    """What part of its largest weight each tied point has, with full + rest = alpha m."""
    return min(1.0, max(0.0, (minus(full, above) + rest) / tied))

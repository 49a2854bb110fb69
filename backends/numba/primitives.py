"""Building blocks of the compiled kernels.

Most of them are single LLVM instructions, which compile fast, vectorise, and keep their own floating-point
flags inside functions with REORDER_SUMS. With NUMBA_DISABLE_JIT, plain Python replaces the instructions.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import pack, unpack
from typing import Any

import numpy as np
from llvmlite import ir
from numba import config, float64, int64, types, void
from numba.extending import intrinsic
from numba.np.arrayobj import populate_array

from phiball.backends.numba.compilation import subroutine

REORDER_SUMS = {"reassoc", "contract", "nsz"}  # fastmath flags; NaN and infinity keep their meaning
BLOCK = 4096  # long sums are split into partial sums of this length, to limit the rounding error
EPS = 2.220446049250313e-16
MASS_ROUNDING = 1e-14  # if the weights' sum differs from one by more, the solution is refined


def instruction(python: Callable[..., Any]) -> Callable[[Any], Any]:
    """Decorate a builder of LLVM code as a compiled function; without compilation, `python` replaces it."""
    return lambda builder: python if config.DISABLE_JIT else intrinsic(builder)


def _bit_cast(source: Any, target: Any) -> Callable[..., Any]:
    """A builder that reinterprets the bits of a number of type `source` as the type `target`."""

    def typed(context: Any, x: Any) -> Any:
        def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return builder.bitcast(args[0], context.get_value_type(target))

        return target(source), build

    return typed


bits: Any = instruction(lambda x: unpack("q", pack("d", x))[0])(_bit_cast(float64, int64))
from_bits: Any = instruction(lambda n: unpack("d", pack("Q", n % 2**64))[0])(_bit_cast(int64, float64))


@instruction(lambda a, i: 1.0 if a is None else float(a[i]))
def read(context: Any, a: Any, i: Any) -> Any:
    """a[i] as a float64, from an array that `write` never changes; 1 if `a` is None."""

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        if isinstance(signature.args[0], types.NoneType):
            return context.get_constant(float64, 1.0)
        loaded = builder.load(_address(context, builder, signature, args))
        loaded.set_metadata("alias.scope", _scope(builder.module))
        return context.cast(builder, loaded, signature.args[0].dtype, float64)

    return float64(a, i), build


@instruction(lambda a, i, x: a.__setitem__(i, x))
def write(context: Any, a: Any, i: Any, x: Any) -> Any:
    """a[i] = x, in memory that `read` never reads.

    Without this guarantee the compiler would generate two versions of a loop, which sum in different orders,
    and choose by the addresses of the arrays: the last digits of results would depend on the addresses.
    """

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        value = context.cast(builder, args[2], signature.args[2], signature.args[0].dtype)
        stored = builder.store(value, _address(context, builder, signature, args))
        stored.set_metadata("noalias", _scope(builder.module))
        return context.get_dummy_value()

    return void(a, i, x), build


def _address(context: Any, builder: Any, signature: Any, args: Any) -> Any:
    """The address of a[i], for a contiguous array."""
    array = context.make_array(signature.args[0])(context, builder, args[0])
    return builder.gep(array.data, [args[1]])


def _scope(module: Any) -> Any:  # LLVM metadata: `read` and `write` use different memory
    domain = module.add_metadata(["phiball"])
    return module.add_metadata([module.add_metadata(["read", domain])])


def _in_order(operation: str) -> Callable[..., Any]:
    """A builder for an operation on two float64 that REORDER_SUMS does not affect."""

    def typed(context: Any, a: Any, b: Any) -> Any:
        def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return getattr(builder, operation)(*args, flags=("nsz",))  # explicit flags are not overwritten

        return float64(float64, float64), build

    return typed


# (f - top) - c must not become f - (top + c), which loses c if f and top are large.
minus: Any = instruction(lambda a, b: a - b)(_in_order("fsub"))
plus: Any = instruction(lambda a, b: a + b)(_in_order("fadd"))


@instruction(lambda a, b: a if a > b or b != b else b)
def larger(context: Any, a: Any, b: Any) -> Any:
    """max(a, b), vectorised in loops that compute a maximum."""

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = args[0].type
        takes = ir.FunctionType(kind, [kind, kind])
        function = builder.module.declare_intrinsic("llvm.maxnum", [kind], takes)
        return builder.call(function, args, fastmath=("nnan", "nsz"))

    return float64(float64, float64), build


@subroutine()
def store_mu(
    out: Any, row: int, top: float, shift: float, eta: float, slope1: float, ends: bool = False
) -> float:
    """Store mu = top + shift - eta slope1, rounded, in out[row]; return the shift of the rounded mu.

    slope1 is phi'(1). As in `_round_mu` of the reference, mu is rounded to nearest. It is rounded up if eta
    is below the rounding error of mu, or if the domain of phi* is bounded (`ends`), because a smaller mu
    could leave the domain.
    """
    unit, least = (EPS, 5e-324) if out.itemsize == 8 else (1.1920929e-07, 1e-45)
    mu = (top + shift) - eta * slope1
    up = ends or not 64.0 * unit * abs(mu) < eta
    while True:
        out[row] = mu
        mu = float64(out[row])
        high = mu + eta * slope1
        c = high - mu
        rounded: float = (high - top) + ((mu - (high - c)) + (eta * slope1 - c))
        if not (up and rounded < shift):
            return rounded
        mu = mu + (0.6 * unit * abs(mu) + least)  # rounds to the next floating-point number


@instruction(lambda a, first, m: None if a is None else a[first : first + m])
def row_of(context: Any, a: Any, first: Any, m: Any) -> Any:
    """a[first : first + m] of a contiguous array, without reference counting; None if `a` is None."""

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        if isinstance(signature.return_type, types.NoneType):
            return context.get_dummy_value()
        made = context.make_array(signature.return_type)
        array, row = made(context, builder, args[0]), made(context, builder)
        start = builder.gep(array.data, [args[1]])
        populate_array(row, start, [args[2]], array.strides, array.itemsize, None)
        return row._getvalue()

    return a(a, int64, int64), build


@subroutine(REORDER_SUMS)
def extent(f: Any, distribution: Any) -> tuple[float, float, float]:
    """(max f, min f, sum p) over points with p > 0, where p = 1 if `distribution` is None.

    The sum is NaN if a loss is not finite, or if p is not a distribution.
    """
    top, low, negative, p_sum = -np.inf, -np.inf, -np.inf, 0.0
    for block in range(0, f.size, BLOCK):
        partial = 0.0
        for i in range(block, block + BLOCK if block + BLOCK < f.size else f.size):
            x, w = read(f, i), read(distribution, i)
            barrier = 0.0 if w > 0.0 else -np.inf
            top = larger(top, barrier + x)
            low = larger(low, barrier - x)
            negative = larger(negative, -w)
            partial += w + 0.0 * x
        p_sum += partial
    # The same tolerance as in the reference.
    tolerance = np.inf if distribution is None else (1e-6 if distribution.itemsize == 8 else 1e-4)
    return top, -low, p_sum if negative <= 0.0 and abs(p_sum - 1.0) <= tolerance else np.nan


@subroutine(REORDER_SUMS)
def moments(f: Any, distribution: Any, top: float) -> tuple[float, float]:
    """(sum_i p_i (f_i - top), the probability of the losses equal to top), where top = max f."""
    moment, at_top = 0.0, 0.0
    for block in range(0, f.size, BLOCK):
        partial, tied = 0.0, 0.0
        for i in range(block, block + BLOCK if block + BLOCK < f.size else f.size):
            g, w = minus(read(f, i), top), read(distribution, i)
            partial += w * g
            tied += w * (1.0 if g == 0.0 else 0.0)  # a product is faster than a branch
        moment += partial
        at_top += tied
    return moment, at_top


@subroutine(REORDER_SUMS)
def next_loss(f: Any, distribution: Any, level: float, sign: float, inclusive: bool = False) -> float:
    """The nearest loss with p > 0 below `level` (above it for sign = -1); infinite if there is none.

    If `inclusive`, a loss equal to `level` counts too.
    """
    best, level = -np.inf, sign * level
    tie = level if inclusive else np.nan
    for i in range(f.size):
        x = sign * read(f, i)
        best = larger(best, (0.0 if (x < level or x == tie) and read(distribution, i) > 0.0 else -np.inf) + x)
    return sign * best

"""The numba backend's twin of the check for NaN and infinity: one pass, for NumPy and torch alike."""

from __future__ import annotations

from functools import partial
from typing import Any

from phiball.backends.arrays import Array
from phiball.backends.numba.compilation import compiled, prepare
from phiball.backends.numba.primitives import SUMS
from phiball.backends.numba.solve import as_numpy_view


def all_finite(x: Array) -> Any:
    """Whether every entry of `x` is finite, or NotImplemented for memory with gaps."""
    view = as_numpy_view(x)
    if view is None or not (view.flags.c_contiguous and view.flags.writeable):
        return NotImplemented
    if view.dtype.kind != "f" or view.itemsize < 4:
        return NotImplemented
    numbers = view.reshape(-1)
    prepare(_zero_times, view.dtype, partial(_zero_times, numbers[:0]))
    return bool(_zero_times(numbers) == 0.0)


@compiled(SUMS)
def _zero_times(x: Any) -> Any:
    """The sum of 0 x_i, which is NaN unless all are finite, and never overflows."""
    total = x.dtype.type(0.0)
    for i in range(x.size):
        total += x[i] * x.dtype.type(0.0)
    return total

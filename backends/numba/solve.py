"""The numba backend's twins of `solve` and `solve_ragged`: they hand rows of NumPy memory to the kernels."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from phiball.backends.arrays import Array, detach, is_torch
from phiball.backends.numba import kernels, powers, short_rows
from phiball.backends.numba.compilation import prepare
from phiball.backends.numba.threads import over_rows

KERNELS: dict[str | None, Callable[..., None]] = {
    "entropic": kernels.entropic,
    "quadratic": kernels.quadratic,
    "three_halves": kernels.three_halves,
    "indicator": kernels.indicator,
    "power": powers.power,
}
SHORT: dict[str | None, Callable[..., None]] = {  # for rows of one length, at most 16, and the uniform law
    "quadratic": short_rows.quadratic_short,
    "indicator": short_rows.indicator_short,
}


def solve(f: Array, eta: Array, p: Array | None, d: Any) -> Any:
    """(value, mu, weights, gap) as the reference gives them, or NotImplemented for other problems.

    Takes NumPy arrays and torch tensors in main memory, the uniform law, and the divergences that
    a kernel exists for; torch tensors share their memory and are not copied.
    """
    m = f.shape[-1]
    kernel = _kernel_for(d, m)
    losses, etas = as_numpy_view(f), as_numpy_view(eta)
    if kernel is None or p is not None or losses is None or etas is None or not losses.size:
        return NotImplemented
    rows, etas = contiguous(losses).reshape(-1), contiguous(etas).reshape(-1)
    offsets = np.arange(0, rows.size + 1, m)
    out = _run(kernel, rows, offsets, etas, d)
    if out is NotImplemented:
        return NotImplemented
    value, mu, weights, gap = out
    shape = losses.shape[:-1]
    shaped = value.reshape(shape), mu.reshape(shape), weights.reshape(losses.shape), gap.reshape(shape)
    return tuple(to_library(x, f) for x in shaped)


def solve_ragged(f: Array, offsets: Array, eta: Array, p: Array | None, d: Any) -> Any:
    """The same for rows of different lengths: row r is f[offsets[r] : offsets[r + 1]]."""
    kernel = _kernel_for(d)
    losses, ends, etas = as_numpy_view(f), as_numpy_view(offsets), as_numpy_view(eta)
    if kernel is None or p is not None or losses is None or ends is None or etas is None:
        return NotImplemented
    out = _run(kernel, contiguous(losses), contiguous(ends.astype(np.int64, copy=False)), contiguous(etas), d)
    return out if out is NotImplemented else tuple(to_library(x, f) for x in out)


def _run(kernel: Callable[..., None], f: Any, offsets: Any, eta: Any, d: Any) -> Any:
    """(value, mu, weights, gap) of flat rows, or NotImplemented if the kernel finds something amiss."""
    n = len(offsets) - 1
    value, mu, gap = np.empty((3, n), dtype=f.dtype)
    weights = np.empty_like(f)
    out = value, mu, weights, gap
    work = partial(kernel, f, offsets, eta, None, True, float(d.parameter or 0.0), float(d.slope1), out)
    prepare(kernel, f.dtype, partial(work, 0, 0))  # no rows: it compiles and does nothing
    over_rows(work, n, f.size)
    if not np.isfinite(value).all():  # a loss that is not finite, or an overflow of the losses over eta
        return NotImplemented
    return out


def _kernel_for(d: Any, m: int | None = None) -> Callable[..., None] | None:
    """The kernel for rows of m entries, or of different lengths."""
    orders = {1.5: "three_halves", 2.0: "quadratic"}
    name = orders.get(d.parameter, "power") if d.family == "cressie_read" else d.family
    return SHORT[name] if m is not None and m <= 16 and name in SHORT else KERNELS.get(name)


def as_numpy_view(x: Array) -> Any:
    """`x` as a NumPy array on the same memory, or None where it has none."""
    if isinstance(x, np.ndarray):
        return x
    if is_torch(x) and x.is_cpu:
        return detach(x).numpy()
    return None


def contiguous(x: Any) -> Any:
    """`x` if it is contiguous and writeable, which is the one type the kernels are compiled for."""
    return x if x.flags.c_contiguous and x.flags.writeable else x.copy(order="C")


def to_library(x: Any, like: Array) -> Array:
    """The NumPy array `x` as one of the library of `like`, on the same memory."""
    if isinstance(like, np.ndarray):
        return x
    import torch

    return torch.from_numpy(x)

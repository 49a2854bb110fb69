"""The numba backend's twin of `solve`: hands rows of NumPy memory to the compiled kernels."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from phiball.backends.arrays import Array, detach, library
from phiball.backends.numba import kernels, short_rows
from phiball.backends.numba.primitives import prepare
from phiball.backends.numba.threads import over_rows

_KERNELS: dict[str | None, Callable[..., None]] = {
    "entropic": kernels.entropic,
    "quadratic": kernels.quadratic,
    "three_halves": kernels.three_halves,
    "indicator": kernels.indicator,
}
_SHORT: dict[str | None, Callable[..., None]] = {
    "quadratic": short_rows.quadratic_short,
    "indicator": short_rows.indicator_short,
}


def solve(f: Array, eta: Array, p: Array | None, d: Any) -> Any:
    """(value, mu, weights, gap) as the reference gives them, or NotImplemented for other problems.

    Takes NumPy arrays and torch tensors in main memory, the uniform law, and the divergences that
    a kernel exists for; torch tensors share their memory and are not copied.
    """
    kernel = _kernel_for(d, f.shape[-1])
    if kernel is None or p is not None:
        return NotImplemented
    losses, etas = as_numpy_view(f), as_numpy_view(eta)
    if losses is None or etas is None or not losses.size:
        return NotImplemented
    shape, m = losses.shape[:-1], losses.shape[-1]
    rows, etas = contiguous(losses).reshape(-1, m), contiguous(etas).reshape(-1)
    n = rows.shape[0]
    value, mu, gap = np.empty((3, n), dtype=rows.dtype)
    weights = np.empty_like(rows)
    work = partial(kernel, rows, etas, float(d.parameter or 0.0), float(d.slope1), (value, mu, weights, gap))
    prepare(kernel, rows.dtype, partial(work, 0, 0))  # no rows: it compiles and does nothing
    over_rows(work, n, rows.size)
    if not np.isfinite(value).all():  # a loss that is not finite, or an overflow of the losses over eta
        return NotImplemented
    return tuple(to_library(out.reshape((*shape, *out.shape[1:])), f) for out in (value, mu, weights, gap))


def _kernel_for(d: Any, m: int) -> Callable[..., None] | None:
    name = (
        {1.5: "three_halves", 2.0: "quadratic"}.get(d.parameter) if d.family == "cressie_read" else d.family
    )
    return _SHORT.get(name) if m <= 16 and name in _SHORT else _KERNELS.get(name)


def as_numpy_view(x: Array) -> Any:
    """`x` as a NumPy array on the same memory, or None where it has none."""
    if isinstance(x, np.ndarray):
        return x
    if library(x) == "torch" and x.device.type == "cpu":
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

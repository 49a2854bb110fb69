"""The numba backend's twin of `solve`: hands rows of NumPy memory to the compiled kernels."""

from __future__ import annotations

import logging
from collections.abc import Callable
from threading import Timer
from typing import Any

import numpy as np

from phiball.backends.arrays import Array, detach, library
from phiball.backends.numba import kernels as numba_kernels
from phiball.backends.numba import short_rows as numba_short
from phiball.backends.numba.threads import over_rows

_KERNELS: dict[str | None, Callable[..., None]] = {
    "entropic": numba_kernels.entropic,
    "quadratic": numba_kernels.quadratic,
    "three_halves": numba_kernels.three_halves,
    "indicator": numba_kernels.indicator,
}
_SHORT: dict[str | None, Callable[..., None]] = {
    "quadratic": numba_short.quadratic_short,
    "indicator": numba_short.indicator_short,
}
_compiled: set[tuple[str, str]] = set()


def solve(f: Array, eta: Array, p: Array | None, d: Any) -> Any:
    """(value, mu, weights, gap) as the reference gives them, or NotImplemented for other problems.

    Takes NumPy arrays and torch tensors in main memory, the uniform law, and the divergences that
    a kernel exists for; torch tensors share their memory and are not copied.
    """
    kernel = _kernel_for(d, f.shape[-1])
    if kernel is None or p is not None:
        return NotImplemented
    losses, etas = _memory(f), _memory(eta)
    if losses is None or etas is None or not losses.size:
        return NotImplemented
    shape, m = losses.shape[:-1], losses.shape[-1]
    rows, etas = _plain(losses).reshape(-1, m), _plain(etas).reshape(-1)
    n = rows.shape[0]
    value, mu, gap = np.empty((3, n), dtype=rows.dtype)
    weights = np.empty_like(rows)
    parameter, slope1 = float(d.parameter or 0.0), float(d.slope1)

    def work(bell: Any, queue: Any) -> None:
        kernel(rows, etas, parameter, slope1, (value, mu, weights, gap), bell, queue)

    key = (kernel.__name__, rows.dtype.str)
    if key not in _compiled:
        _first_call(kernel, rows[:1], etas[:1], parameter, slope1, key)
    over_rows(work, n, rows.size)
    if not np.isfinite(value).all():  # a loss that is not finite, or an overflow of the losses over eta
        return NotImplemented
    born = _birth(f)
    return tuple(
        born(out.reshape(want))
        for out, want in ((value, shape), (mu, shape), (weights, (*shape, m)), (gap, shape))
    )


def _kernel_for(d: Any, m: int) -> Callable[..., None] | None:
    name = (
        {1.5: "three_halves", 2.0: "quadratic"}.get(d.parameter) if d.family == "cressie_read" else d.family
    )
    return _SHORT.get(name) if m <= 16 and name in _SHORT else _KERNELS.get(name)


def _memory(x: Array) -> Any:
    """`x` as a NumPy array on the same memory, or None where it has none."""
    if isinstance(x, np.ndarray):
        return x
    if library(x) == "torch" and x.device.type == "cpu":
        return detach(x).numpy()
    return None


def _plain(x: Any) -> Any:
    """`x` if it is contiguous and writeable, which is the one type the kernels are compiled for."""
    return x if x.flags.c_contiguous and x.flags.writeable else x.copy(order="C")


def _birth(like: Array) -> Callable[[Any], Array]:
    """What turns a NumPy array into one of the library of `like`, on the same memory."""
    if isinstance(like, np.ndarray):
        return lambda out: out
    import torch

    born: Callable[[Any], Array] = torch.from_numpy
    return born


def _first_call(
    kernel: Callable[..., None], rows: Any, etas: Any, parameter: float, slope1: float, key: Any
) -> None:
    """Compile the kernel, or load it from the disk, before threads need it; say so if it takes long."""
    message = "preparing the Numba kernel %r: it is compiled once, and later loaded from a cache"
    notice = Timer(1.0, lambda: logging.getLogger("phiball").warning(message, key[0]))
    notice.daemon = True
    notice.start()
    try:
        one = np.empty(1, dtype=rows.dtype)
        outputs = one, one.copy(), np.empty_like(rows), one.copy()
        kernel(rows, etas, parameter, slope1, outputs, np.zeros(16, dtype=np.int64), np.array([0, 64]))
    finally:
        notice.cancel()
    _compiled.add(key)

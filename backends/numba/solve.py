"""Numba implementations of `solve`, `solve_ragged` and `all_finite`, for arrays in main memory."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from phiball.backends.arrays import Array, detach, is_torch
from phiball.backends.numba import closed_form, powers
from phiball.backends.numba.compilation import compiled
from phiball.backends.numba.primitives import REORDER_SUMS
from phiball.backends.numba.threads import over_rows


def solve(f: Array, eta: Array, p: Array | None, d: Any, check: bool = False) -> Any:
    """Solve inner problems like the reference in refimpl/inner/solvers.py: (value, mu, weights, gap).

    Takes NumPy arrays and torch tensors in main memory, which are not copied. Returns NotImplemented for
    other arrays, for divergences without a kernel and for invalid input: the reference then solves the
    problem or raises the error.
    """
    m = f.shape[-1]
    kernel = _kernel_for(d)
    losses, etas = as_numpy_view(f), as_numpy_view(eta)
    if kernel is None or losses is None or etas is None or not losses.size:
        return NotImplemented
    distribution, p_per_row = None, False
    if p is not None:
        distribution = as_numpy_view(p)
        if distribution is None or distribution.itemsize < losses.itemsize:
            return NotImplemented
        p_per_row = distribution.size != m
        if p_per_row and distribution.shape != losses.shape:
            distribution = np.broadcast_to(distribution, losses.shape)
        distribution = contiguous(distribution).reshape(-1)
    rows, etas = contiguous(losses).reshape(-1), contiguous(etas).reshape(-1)
    offsets = np.arange(0, rows.size + 1, m)
    out = _run(kernel, rows, offsets, etas, distribution, p_per_row, d)
    if out is NotImplemented:
        return NotImplemented
    value, mu, weights, gap = out
    shape = losses.shape[:-1]
    shaped = value.reshape(shape), mu.reshape(shape), weights.reshape(losses.shape), gap.reshape(shape)
    return tuple(to_library(x, f) for x in shaped)


def solve_ragged(f: Array, offsets: Array, eta: Array, p: Array | None, d: Any, check: bool = False) -> Any:
    """`solve` for rows of different lengths: row r is the slice offsets[r] : offsets[r + 1] of f and of p."""
    kernel = _kernel_for(d)
    losses, ends, etas = as_numpy_view(f), as_numpy_view(offsets), as_numpy_view(eta)
    distribution = None if p is None else as_numpy_view(p)
    if kernel is None or losses is None or ends is None or etas is None:
        return NotImplemented
    if p is not None and (distribution is None or distribution.itemsize < losses.itemsize):
        return NotImplemented
    ends = contiguous(ends.astype(np.int64, copy=False))
    distribution = None if distribution is None else contiguous(distribution)
    out = _run(kernel, contiguous(losses), ends, contiguous(etas), distribution, True, d)
    return out if out is NotImplemented else tuple(to_library(x, f) for x in out)


def _run(
    kernel: tuple[Callable[..., None], Any], f: Any, offsets: Any, eta: Any, p: Any, p_per_row: bool, d: Any
) -> Any:
    """(value, mu, weights, gap) for rows stored one after the other, or NotImplemented.

    `kernel` is the result of `_kernel_for`; closed_form.py explains the other arguments.
    """
    n = len(offsets) - 1
    numbers = np.empty((3, n), dtype=f.dtype)
    value, mu, gap = numbers
    weights = np.empty_like(f)
    out = value, mu, weights, gap
    function, parameter = kernel
    work = partial(function, (f, offsets, eta), p, int(p_per_row), parameter, float(d.slope1), out)
    key = (function, f.dtype, None if p is None else p.dtype, parameter is None)
    over_rows(work, n, f.size, key)
    # NaN marks rows that the kernel declined: the reference solves the batch or raises an error.
    return out if np.isfinite(numbers).all() else NotImplemented


def _kernel_for(d: Any) -> tuple[Callable[..., None], Any] | None:
    """The kernel for a divergence, and its parameter; None if there is no kernel."""
    order = 2.0 if d.family == "quadratic" else d.parameter
    if d.family == "entropic":
        return closed_form.solve_entropic, 0.0
    if d.family in ("absolute", "hinge"):
        return closed_form.solve_kinked, float(d.slope0)
    if d.family == "indicator":
        return closed_form.solve_indicator, float(d.parameter)
    if d.family in ("quadratic", "cressie_read"):
        special = {2.0: (powers.solve_small_powers, None), 1.5: (powers.solve_small_powers, True)}
        return special.get(order, (powers.solve_power, float(order)))
    return None


def as_numpy_view(x: Array) -> Any:
    """`x` as a NumPy array on the same memory, or None if it is not in main memory."""
    if isinstance(x, np.ndarray):
        return x
    if is_torch(x) and x.is_cpu:
        return detach(x).resolve_neg().numpy()
    return None


def contiguous(x: Any) -> Any:
    """`x`, copied unless it is contiguous and writeable, as kernels require."""
    return x if x.flags.c_contiguous and x.flags.writeable else x.copy(order="C")


def to_library(x: Any, like: Array) -> Array:
    """The NumPy array `x` as a NumPy array or torch tensor, like `like`, on the same memory."""
    if isinstance(like, np.ndarray):
        return x
    import torch

    return torch.from_numpy(x)


def all_finite(x: Array) -> Any:
    """Whether all entries of `x` are finite; NotImplemented unless it is a contiguous array of floats."""
    view = as_numpy_view(x)
    if view is None or view.dtype.kind != "f" or view.itemsize < 4:
        return NotImplemented
    if not (view.flags.c_contiguous and view.flags.writeable):
        return NotImplemented
    return bool(_sum_of_zeros(view.reshape(-1)) == 0.0)


@compiled(REORDER_SUMS)
def _sum_of_zeros(x: Any) -> Any:
    """The sum of 0 * x_i: zero if all x_i are finite, otherwise NaN."""
    total = x.dtype.type(0.0)
    for i in range(x.size):
        total += x[i] * x.dtype.type(0.0)
    return total

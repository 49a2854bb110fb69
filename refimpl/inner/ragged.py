"""Inner problems of different lengths in one call: the groups of a data set, the levels of an estimate."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from phiball.backends import (
    Array,
    array_namespace,
    detach,
    device,
    ignore_float_warnings,
    is_array_api_obj,
    kernel,
    tracks_derivatives,
)
from phiball.refimpl.inner.divergences import Divergence, valid_divergence
from phiball.refimpl.inner.half import halved, is_half, single
from phiball.refimpl.inner.solvers import solve
from phiball.refimpl.inner.worst_case import WorstCase, check_value, worst_case
from phiball.refimpl.validation import check_same_array_type, valid_array, valid_eta

Solution = tuple[Array, Array, Array, Array]


def worst_case_ragged(
    losses: Array,
    offsets: Array,
    eta: float | Array,
    divergence: Divergence,
    *,
    p: Array | None = None,
    check: bool = True,
) -> WorstCase:
    """Solve inner problems of different lengths, whose losses lie one after the other in a flat array.

    Arguments:
    - `losses` (N,): row r is losses[offsets[r] : offsets[r + 1]]; in half precision as in `worst_case`.
    - `offsets` (n + 1,): integers that increase from 0 to N, as an array of the library of the losses or as
      a list.
    - `eta`: a positive number, or an array (n,), one a row.
    - `divergence`: phi, for example `ENTROPIC`.
    - `p` (N,): a reference distribution for each row, in the places of its losses; uniform by default.
    - `check`: False skips the test for NaN and infinities in the losses.

    Returns `value` (n,), `mu` (n,), `weights` (N,) and `gap` (n,), as `worst_case` gives them for each row.
    With torch they carry the same derivatives; rows of one length are then solved together.

    >>> import numpy as np
    >>> from phiball.refimpl import QUADRATIC
    >>> losses = np.array([0.0, 1.0, 0.0, 0.5, 1.0])  # a row of two, and one of three
    >>> solution = worst_case_ragged(losses, [0, 2, 5], np.array([0.5, 0.2]), QUADRATIC)
    >>> print(solution.value.round(4), solution.weights.round(4))
    [0.75   0.8042] [0.     1.     0.     0.0833 0.9167]
    """
    if is_half(losses):
        solution = worst_case_ragged(
            single(losses), offsets, single(eta), divergence, p=single(p), check=check
        )
        return halved(solution, losses.dtype)
    valid_divergence(divergence)
    valid_array("losses", losses)
    if losses.ndim != 1 or losses.shape[0] == 0:
        raise ValueError(
            f"losses has shape {tuple(losses.shape)}; expected a flat array of at least one loss"
        )
    offsets = _valid_offsets(offsets, losses)
    eta = valid_eta(eta, losses, (offsets.shape[0] - 1,), rows="(len(offsets) - 1,)")
    if p is not None:
        valid_array("p", p)
        check_same_array_type("p", p, losses)
        if p.shape != losses.shape:
            raise ValueError(f"p has shape {tuple(p.shape)}; expected that of losses, {tuple(losses.shape)}")
        with ignore_float_warnings():  # what overflows is no distribution
            p = array_namespace(losses).astype(p, losses.dtype, copy=False)
    if tracks_derivatives(losses, eta, p):

        def differentiable(f: Array, eta: Array, p: Array | None) -> Solution:
            solution = worst_case(f, eta, divergence, p=p, check=check)
            return solution.value, solution.mu, solution.weights, solution.gap

        return WorstCase(*_by_length(differentiable, losses, offsets, eta, p))
    f, eta, p = detach(losses), detach(eta), None if p is None else detach(p)
    value, mu, weights, gap = solve_ragged(f, offsets, eta, p, divergence)
    if check:
        check_value(value, f, divergence)
        check_value(mu + gap, f, divergence, what="a multiplier or a gap")
    return WorstCase(value, mu, weights, gap)


@kernel
def solve_ragged(f: Array, offsets: Array, eta: Array, p: Array | None, d: Divergence) -> Solution:
    """`solve` for rows of different lengths: f is flat, and row r is f[offsets[r] : offsets[r + 1]]."""
    return _by_length(lambda f, eta, p: solve(f, eta, p, d), f, offsets, eta, p)


def _by_length(
    solver: Callable[[Array, Array, Array | None], Solution],
    f: Array,
    offsets: Array,
    eta: Array,
    p: Array | None,
) -> Solution:
    """(value, mu, weights, gap), where the rows of each length are solved together."""
    xp = array_namespace(f)
    starts = offsets[:-1]
    lengths = offsets[1:] - starts
    rows, places, solutions = [], [], []
    for length in map(int, xp.unique_values(lengths)):
        (row,) = xp.nonzero(lengths == length)
        place = xp.take(starts, row)[:, None] + xp.arange(length, device=device(f))
        flat = xp.reshape(place, (-1,))
        take = partial(_rows, flat, place.shape)
        solutions.append(solver(take(f), xp.take(eta, row), None if p is None else take(p)))
        rows.append(row)
        places.append(flat)
    back, back_entries = xp.argsort(xp.concat(rows)), xp.argsort(xp.concat(places))
    value, mu, gap = (xp.take(xp.concat([s[k] for s in solutions]), back) for k in (0, 1, 3))
    weights = xp.concat([xp.reshape(s[2], (-1,)) for s in solutions])
    return value, mu, xp.take(weights, back_entries), gap


def _rows(flat: Array, shape: tuple[int, ...], x: Array) -> Array:
    xp = array_namespace(x)
    return xp.reshape(xp.take(x, flat), shape)


def _valid_offsets(offsets: Array, losses: Array) -> Array:
    """`offsets` as an array of integers, or an error unless they increase from 0 to the number of losses."""
    xp = array_namespace(losses)
    if isinstance(offsets, (list, tuple)):
        offsets = xp.asarray(offsets, device=device(losses))
    if not is_array_api_obj(offsets):
        raise TypeError(
            f"offsets is of type {type(offsets).__name__}; expected a list of integers, or an array of the "
            "library of the losses"
        )
    check_same_array_type("offsets", offsets, losses)
    if not xp.isdtype(offsets.dtype, "integral"):
        raise TypeError(f"offsets has dtype {offsets.dtype}; expected integers")
    if offsets.ndim != 1 or offsets.shape[0] < 2:
        raise ValueError(
            f"offsets has shape {tuple(offsets.shape)}; expected (n + 1,) for n rows, at least one"
        )
    first, last = int(offsets[0]), int(offsets[-1])
    if (first, last) != (0, losses.shape[0]):
        raise ValueError(
            f"offsets goes from {first} to {last}; expected from 0 to the number of losses, {losses.shape[0]}"
        )
    offsets = xp.astype(offsets, xp.int64, copy=False)
    if not xp.all(offsets[1:] > offsets[:-1]):
        row = int(xp.argmin(offsets[1:] - offsets[:-1]))
        raise ValueError(
            f"offsets goes from {int(offsets[row])} to {int(offsets[row + 1])} at row {row}; expected at "
            "least one loss a row"
        )
    return offsets

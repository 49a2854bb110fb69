"""Drawing the perturbed points of a batch, for data points of different levels.

Points are drawn in blocks whose size depends only on the batch. So the draws for a given seed do not depend
on the number of points that the caller evaluates at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from phiball.backends import Array, Rng, array_namespace, device, to_numpy
from phiball.refimpl.printing import one_line
from phiball.refimpl.sampling.streaming import concat, indices, regroup
from phiball.refimpl.types import LevelGroup, PreparedProposal

MAX_COORDINATES = 1 << 22  # largest number of coordinates drawn per block


@dataclass(frozen=True)
class PerturbedPoints:
    """M perturbed points, ordered by group, then by data point.

    - `groups`: the data points, grouped by level.
    - `points` (M,) + event: the perturbed points; `index` (M,): the data point that each belongs to.
    - `log_weights` (M,): the log of the reference density over the sampling density; None means zeros.
    - `eta`: a number, or an array with one entry per data point, in the order of `groups`.
    """

    groups: list[LevelGroup]
    points: Array
    index: Array
    log_weights: Array | None
    eta: float | Array
    __repr__ = one_line

    def __len__(self) -> int:
        return int(self.index.shape[0])

    def _slice(self, groups: list[LevelGroup], points: slice, rows: slice) -> PerturbedPoints:
        """The part for `groups`: the given slices of the perturbed points and of the data points."""
        return PerturbedPoints(
            groups,
            self.points[points, ...],
            self.index[points],
            None if self.log_weights is None else self.log_weights[points],
            self.eta if isinstance(self.eta, (int, float)) else self.eta[rows],
        )


def draw_points(groups: list[LevelGroup], prepared: PreparedProposal, rng: Rng) -> Iterator[PerturbedPoints]:
    """Yield the perturbed points of all groups, in blocks of at most MAX_COORDINATES coordinates.

    The points of one data point are never split across blocks.
    """
    max_points = MAX_COORDINATES // max(1, prod(prepared.x.shape[1:]))
    if sum(len(group.members) << group.level for group in groups) <= max_points:
        yield _draw_block(groups, prepared, rng)
        return
    sized = ((group, len(group.members), 1 << group.level) for group in groups)
    for block in regroup(sized, max(1, max_points), _slice_group):
        yield _draw_block(block, prepared, rng)


def rechunk(blocks: Iterable[PerturbedPoints], chunk: int) -> Iterator[PerturbedPoints]:
    """Regroup blocks into chunks of at most `chunk` points; a data point with more points is one chunk."""
    sized = (
        (part, len(group.members), 1 << group.level)
        for block in blocks
        for part in _by_group(block)
        for group in part.groups
    )
    for parts in regroup(sized, chunk, _slice_rows):
        yield concat_draws(parts)


def concat_draws(parts: list[PerturbedPoints]) -> PerturbedPoints:
    """Join the draws of several blocks."""
    if len(parts) == 1:
        return parts[0]
    weighted = parts[0].log_weights is not None
    return PerturbedPoints(
        [group for part in parts for group in part.groups],
        concat([part.points for part in parts]),
        concat([part.index for part in parts]),
        concat([part.log_weights for part in parts]) if weighted else None,
        parts[0].eta if isinstance(parts[0].eta, (int, float)) else concat([part.eta for part in parts]),
    )


def _draw_block(groups: list[LevelGroup], prepared: PreparedProposal, rng: Rng) -> PerturbedPoints:
    """Draw the points of `groups`, in one call of `prepared.draw` if the points are independent."""
    x = prepared.x
    if len(groups) > 1 and not prepared.independent:
        return concat_draws([_draw_block([group], prepared, rng) for group in groups])
    rows, n = _rows(groups, x)
    points, log_weights = prepared.draw(rows, n, rng)
    xp = array_namespace(x)
    index = indices(x) if rows is None else rows
    eta = prepared.eta
    if not isinstance(eta, (int, float)):
        eta = xp.take(eta, on_device(concat_members(groups), x, xp.int64))
    return PerturbedPoints(
        groups,
        xp.reshape(points, (-1, *x.shape[1:])),
        index if n == 1 else xp.repeat(index, n),
        None if log_weights is None else xp.reshape(log_weights, (-1,)),
        eta,
    )


def _rows(groups: list[LevelGroup], x: Array) -> tuple[Array | None, int]:
    """The arguments (rows, n) of `prepared.draw`; rows is None for all data points in order."""
    if len(groups) > 1:
        counts = [len(group.members) for group in groups]
        sizes = repeat_host([1 << group.level for group in groups], counts)
        return on_device(repeat_host(concat_members(groups), sizes), x), 1
    (group,) = groups
    if isinstance(group.members, range) and group.members == range(x.shape[0]):
        return None, 1 << group.level
    return on_device(to_numpy(group.members), x, array_namespace(x).int64), 1 << group.level


def _by_group(draws: PerturbedPoints) -> Iterator[PerturbedPoints]:
    """Split draws into one part per group."""
    start = row = 0
    for group in draws.groups:
        rows, points = len(group.members), len(group.members) << group.level
        yield draws._slice([group], slice(start, start + points), slice(row, row + rows))
        start, row = start + points, row + rows


def _slice_rows(draws: PerturbedPoints, rows: slice) -> PerturbedPoints:
    """The draws of the data points at the positions `rows`; `draws` must have a single group."""
    (group,) = draws.groups
    points = slice(rows.start << group.level, rows.stop << group.level)
    return draws._slice([_slice_group(group, rows)], points, rows)


def _slice_group(group: LevelGroup, rows: slice) -> LevelGroup:
    return group if rows == slice(0, len(group.members)) else replace(group, members=group.members[rows])


# Counts and indices are computed in NumPy on the host, because they determine shapes.


def concat_members(groups: list[LevelGroup]) -> Array:
    """The members of all groups, as a NumPy array."""
    return concat([to_numpy(group.members) for group in groups])


def repeat_host(values: list[Any] | Array, times: list[int] | Array) -> Array:
    """A NumPy array in which each values[k] occurs times[k] times, in order."""
    values = to_numpy(values)
    return array_namespace(values).repeat(values, to_numpy(times))


def on_device(values: Array, like: Array, dtype: Any = None) -> Array:
    """Convert a NumPy array to the library and the device of `like`."""
    return array_namespace(like).asarray(values, dtype=dtype, device=device(like))

"""The perturbed points of a batch at all levels: drawn together, and their inner problems solved together.

Points are drawn in blocks that depend on the batch alone, so that the draws of one seed do not depend on the
memory that the caller grants.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from math import isfinite, prod
from typing import Any

from phiball.backends import Array, Rng, array_namespace, detach, device, to_numpy, tracks_derivatives
from phiball.refimpl.inner.divergences import Divergence
from phiball.refimpl.inner.solvers import check_overflow, solve_ragged
from phiball.refimpl.inner.solvers import solve as inner_solve
from phiball.refimpl.inner.worst_case import worst_case
from phiball.refimpl.printing import one_line
from phiball.refimpl.sampling.estimators import normalised, signed_weights
from phiball.refimpl.sampling.streaming import joined, packed
from phiball.refimpl.types import LevelGroup, PreparedProposal
from phiball.refimpl.validation import check_eta

NUMBERS = 1 << 22  # coordinates that are drawn at a time


@dataclass(frozen=True)
class PerturbedPoints:
    """The perturbed points of some data points, group after group, data point after data point.

    - `groups`: the levels, with the data points that are here.
    - `points` (M,) + event, `index` (M,): the points, and the data point that each comes from.
    - `log_weights` (M,): the log of the reference density over that which they were drawn from; None for 0.
    - `eta`: a number, or one for each data point that is here.
    """

    groups: list[LevelGroup]
    points: Array
    index: Array
    log_weights: Array | None
    eta: float | Array
    __repr__ = one_line

    def __len__(self) -> int:
        return int(self.index.shape[0])

    @property
    def single(self) -> bool:
        """Whether there is one group, with one point for each data point."""
        return len(self.groups) == 1 and self.groups[0].level == 0

    def some(self, groups: list[LevelGroup], points: slice, rows: slice) -> PerturbedPoints:
        """The data points of `groups`, which have these places among the points and the data points."""
        return PerturbedPoints(
            groups,
            self.points[points, ...],
            self.index[points],
            None if self.log_weights is None else self.log_weights[points],
            self.eta if isinstance(self.eta, (int, float)) else self.eta[rows],
        )


def draw(groups: list[LevelGroup], prepared: PreparedProposal, rng: Rng) -> Iterator[PerturbedPoints]:
    """The perturbed points of all groups, in as few blocks as NUMBERS allows; data points are whole."""
    most = NUMBERS // max(1, prod(prepared.x.shape[1:]))
    if sum(len(group.members) << group.level for group in groups) <= most:
        yield _draw_block(groups, prepared, rng)
        return
    sized = ((group, len(group.members), 1 << group.level) for group in groups)
    for block in packed(sized, max(1, most), _some_members):
        yield _draw_block(block, prepared, rng)


def in_chunks(blocks: Iterable[PerturbedPoints], chunk: int) -> Iterator[PerturbedPoints]:
    """The same points in the same order, at most `chunk` at a time; a data point with more stands alone."""
    sized = (
        (part, len(group.members), 1 << group.level)
        for block in blocks
        for part in _by_group(block)
        for group in part.groups
    )
    for parts in packed(sized, chunk, _some_rows):
        yield together(parts)


def together(parts: list[PerturbedPoints]) -> PerturbedPoints:
    """Several of them, one after the other."""
    if len(parts) == 1:
        return parts[0]
    weighted = parts[0].log_weights is not None
    return PerturbedPoints(
        [group for part in parts for group in part.groups],
        joined([part.points for part in parts]),
        joined([part.index for part in parts]),
        joined([part.log_weights for part in parts]) if weighted else None,
        parts[0].eta if isinstance(parts[0].eta, (int, float)) else joined([part.eta for part in parts]),
    )


def solve(
    losses: Array, draws: PerturbedPoints, divergence: Divergence, share: float, *, self_normalised: bool
) -> tuple[Array, Array]:
    """The sum over the data points of their values, and the weights (M,) of their points, times `share`."""
    xp = array_namespace(losses)
    if draws.single:
        value = mean_value(losses, draws, divergence, share, self_normalised=self_normalised)
        return value, xp.full_like(losses, share * draws.groups[0].weight)
    eta, log_w = draws.eta, draws.log_weights
    if isinstance(eta, (int, float)):
        check_eta(eta, losses)
    else:
        eta = xp.astype(eta, losses.dtype, copy=False)
    if log_w is not None:
        log_w = xp.astype(log_w, losses.dtype, copy=False)
        if not self_normalised:
            sizes = [1 << group.level for group in draws.groups]
            times = _repeated(sizes, [len(group.members) for group in draws.groups])
            each = eta if isinstance(eta, (int, float)) else xp.repeat(eta, _moved(times, losses))
            losses, log_w = losses + each * log_w, None
    if len(draws.groups) > 1:
        return _solve_ragged(losses, draws.groups, eta, divergence, share, log_w)
    (group,) = draws.groups
    shape = (len(group.members), 1 << group.level)
    rows = xp.reshape(losses, shape)
    if group.telescoping or log_w is not None or tracks_derivatives(losses):
        values, weights = signed_weights(
            rows,
            eta,
            divergence,
            telescoping=group.telescoping,
            log_p=None if log_w is None else xp.reshape(log_w, shape),
        )
        value = xp.sum(values)
    else:
        values, _, weights, _ = inner_solve(rows, _each(eta, shape[0], losses), None, divergence)
        value = _total(values, rows, divergence)
    share *= group.weight
    return share * value, share * xp.reshape(weights, (-1,))


def mean_value(
    losses: Array, draws: PerturbedPoints, divergence: Divergence, share: float, *, self_normalised: bool
) -> Array:
    """The value of `solve` where each data point has one point, with the gradient of the losses.

    That point has all the weight, whatever phi is.
    """
    xp = array_namespace(losses)
    if isinstance(draws.eta, (int, float)):
        check_eta(draws.eta, losses)
    share *= draws.groups[0].weight
    value = share * _total(losses, losses, divergence)
    if draws.log_weights is None or self_normalised:
        return value
    return value + share * xp.astype(xp.sum(draws.eta * draws.log_weights), losses.dtype, copy=False)


def _solve_ragged(
    losses: Array,
    groups: list[LevelGroup],
    eta: float | Array,
    divergence: Divergence,
    share: float,
    log_p: Array | None,
) -> tuple[Array, Array]:
    """`solve` by one call: the rows are those of all data points, and after them their halves."""
    xp = array_namespace(losses)
    blocks = [(len(group.members), 1 << group.level, share * group.weight) for group in groups]
    if any(group.telescoping for group in groups):
        # What has no halves comes once more as it is, and counts for nothing.
        halved = [group.telescoping and group.level > 0 for group in groups]
        cuts = [1 + half for half in halved]
        blocks += [
            (count * cut, size // cut, -scale / 2 if cut == 2 else 0.0)
            for (count, size, scale), cut in zip(blocks, cuts, strict=True)
        ]
        losses = xp.concat([losses, losses])
        log_p = None if log_p is None else xp.concat([log_p, log_p])
        if not isinstance(eta, (int, float)):
            times = _repeated(cuts, [len(group.members) for group in groups])
            eta = xp.concat([eta, xp.repeat(eta, _moved(times, losses))])
    rows, sizes, factors = (list(column) for column in zip(*blocks, strict=True))
    lengths, factor = _repeated(sizes, rows), _repeated(factors, rows)
    offsets = _moved(_offsets(lengths), losses)
    if log_p is not None or tracks_derivatives(losses):
        p = None if log_p is None else _distributions(log_p, rows, sizes, xp=xp)
        solution = worst_case(losses, eta, divergence, p=p, offsets=offsets)
        values, weights = solution.value, solution.weights
    else:
        eta = _each(eta, lengths.shape[0], losses)
        values, _, weights, _ = solve_ragged(losses, offsets, eta, None, divergence)
    value = _total(_moved(factor, losses, losses.dtype) * values, losses, divergence)
    weights = _moved(_repeated(factor, lengths), losses, losses.dtype) * weights
    count = sum(len(group.members) << group.level for group in groups)
    return value, weights if len(blocks) == len(groups) else weights[:count] + weights[count:]


def _each(eta: float | Array, n: int, like: Array) -> Array:
    """eta for each of n rows."""
    if not isinstance(eta, (int, float)):
        return eta
    return array_namespace(like).full((n,), eta, dtype=like.dtype, device=like.device)


def _total(values: Array, losses: Array, divergence: Divergence) -> Array:
    """The sum of the values, or an error unless they are finite: then the losses are, too."""
    total = array_namespace(values).sum(values)
    if not isfinite(float(detach(total))):
        check_overflow(values, losses, divergence)
    return total


def _distributions(log_p: Array, rows: list[int], sizes: list[int], *, xp: Any) -> Array:
    """The weights of each row, normalised, in the places of its points."""
    distributions, start = [], 0
    for count, size in zip(rows, sizes, strict=True):
        part = xp.reshape(log_p[start : start + count * size], (count, size))
        distributions.append(xp.reshape(normalised(part), (-1,)))
        start += count * size
    return xp.concat(distributions)


def _draw_block(groups: list[LevelGroup], prepared: PreparedProposal, rng: Rng) -> PerturbedPoints:
    x = prepared.x
    xp = array_namespace(x)
    counts = [len(group.members) for group in groups]
    if len(groups) > 1 and prepared.independent:
        members = _repeated(
            _joined_members(groups), _repeated([1 << group.level for group in groups], counts)
        )
        index = _moved(members, x)
        parts = [(index, *prepared.draw(index, 1, rng))]
    else:
        parts = []
        for group in groups:
            every = isinstance(group.members, range) and group.members == range(x.shape[0])
            places = prepared.every if every else None
            places = _moved(to_numpy(group.members), x, xp.int64) if places is None else places
            n = 1 << group.level
            index = places if n == 1 else xp.repeat(places, n)
            parts.append((index, *prepared.draw(places, n, rng)))
    log_weights = [xp.reshape(log_w, (-1,)) for _, _, log_w in parts if log_w is not None]
    eta = prepared.eta
    if not isinstance(eta, (int, float)):
        eta = xp.take(eta, _moved(_joined_members(groups), x, xp.int64))
    return PerturbedPoints(
        groups,
        joined([xp.reshape(points, (-1, *x.shape[1:])) for _, points, _ in parts]),
        joined([index for index, _, _ in parts]),
        joined(log_weights) if log_weights else None,
        eta,
    )


def _by_group(draws: PerturbedPoints) -> Iterator[PerturbedPoints]:
    start = row = 0
    for group in draws.groups:
        rows, points = len(group.members), len(group.members) << group.level
        yield draws.some([group], slice(start, start + points), slice(row, row + rows))
        start, row = start + points, row + rows


def _some_rows(draws: PerturbedPoints, rows: slice) -> PerturbedPoints:
    """Some of the data points, where there is one group."""
    (group,) = draws.groups
    places = slice(rows.start << group.level, rows.stop << group.level)
    return draws.some([_some_members(group, rows)], places, rows)


def _some_members(group: LevelGroup, rows: slice) -> LevelGroup:
    return group if rows == slice(0, len(group.members)) else replace(group, members=group.members[rows])


# Lengths, factors and indices are made on the host, because they decide on shapes.


def _joined_members(groups: list[LevelGroup]) -> Array:
    return joined([to_numpy(group.members) for group in groups])


def _repeated(values: list[Any] | Array, times: list[int] | Array) -> Array:
    values = to_numpy(values)
    return array_namespace(values).repeat(values, to_numpy(times))


def _offsets(lengths: Array) -> Array:
    host = array_namespace(lengths)
    return host.cumulative_sum(lengths, include_initial=True)


def _moved(values: Array, like: Array, dtype: Any = None) -> Array:
    """An array of the host as one of the library and on the device of `like`."""
    return array_namespace(like).asarray(values, dtype=dtype, device=device(like))

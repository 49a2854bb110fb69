"""Data that comes in batches: one pass, in bounded memory, with the numbers of the data held at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from math import lcm
from typing import Any, TypeAlias

from phiball.backends import Array, array_namespace, detach, is_array_api_obj
from phiball.refimpl.distributions.balls import Ball
from phiball.refimpl.printing import one_line
from phiball.refimpl.sampling.streaming import TILE, indices, joined, valid_data
from phiball.refimpl.types import Distribution

Data: TypeAlias = Iterable[Any]
"""An iterator of batches: arrays (n,) + event, or pairs of these with labels (n,), as a DataLoader has."""

_COLLECTIONS = (list, tuple, str, bytes, Mapping, Set)


@dataclass(frozen=True)
class Points:
    """Some data points `z` (k,) + event, and `i` (k,), what the loss gets: their indices, or their labels."""

    z: Array
    i: Array
    __repr__ = one_line


def is_stream(z: Any) -> bool:
    """Whether `z` comes in batches: an iterator, a DataLoader or a Dask array, and no array in memory."""
    if _is_dask(z):
        return True
    if isinstance(z, (list, tuple)) and z and all(getattr(part, "ndim", 0) > 1 for part in z):
        raise TypeError(f"z is a {type(z).__name__} of arrays; expected an array, or iter(z) for batches")
    known = is_array_api_obj(z) or hasattr(z, "__array__") or isinstance(z, _COLLECTIONS)
    return isinstance(z, Iterable) and not known


def _is_dask(z: Any) -> bool:
    return hasattr(z, "dask") and hasattr(z, "numblocks")


def blocks(
    z: Array | Data, distribution: Distribution, n: int, chunk: int, *, labels: bool, evaluate: bool
) -> Iterator[Points]:
    """The data points in blocks: all at once if z is an array, and else batches that are cut and joined anew.

    A block holds whole tiles of n points a data point, some `chunk` data points, and whole chunks of them if
    the caller is to `evaluate` the data points themselves. So the random numbers that are drawn, and the
    calls of the loss, are those of the data held at once, whatever the batches are. With `labels`, the
    batches are pairs (z, y), and the loss gets y.
    """
    if not isinstance(labels, bool):
        raise TypeError(
            f"labels is {type(labels).__name__}; expected True or False: y comes with the batches"
        )
    if not is_stream(z):
        if labels:
            raise ValueError("labels is True for one array z; expected batches (z, y), or labels=False")
        z = valid_data(z)
        yield Points(z, indices(z))
        return
    tile = max(1, TILE // n)
    size = lcm(tile, chunk) if evaluate else tile * max(1, chunk // tile)
    held: list[Points] = []
    count = start = 0
    for batch in _batches(z):
        part = _points(batch, start, labels)
        if (
            isinstance(distribution, Ball)
            and distribution.feature_scale is not None
            and distribution.feature_scale.per_point(part.z.ndim - 1)
        ):
            raise ValueError(
                "ball has sizes for each data point; expected the same for all of them, for data in batches "
                "(or measure each batch with its own ball, and merge)"
            )
        if held and part.z.shape[1:] != held[0].z.shape[1:]:
            raise ValueError(
                f"a batch of z has points of shape {tuple(part.z.shape[1:])}; expected that of the batch "
                f"before, {tuple(held[0].z.shape[1:])}"
            )
        start += part.z.shape[0]
        held.append(part)
        count += part.z.shape[0]
        while count >= size:
            whole = _joined(held)
            yield _rows(whole, slice(0, size))
            held, count = [_rows(whole, slice(size, count))] if count > size else [], count - size
    if held:
        yield _joined(held)
    if start == 0:
        raise ValueError("z has no batches; expected at least one (an iterator can be used only once)")


def _batches(z: Any) -> Iterator[Any]:
    if _is_dask(z):
        for k in range(z.numblocks[0]):
            yield z.blocks[k].compute()
        return
    yield from z


def _points(batch: Any, start: int, labels: bool) -> Points:
    """A batch with its indices, which begin at `start`, or with its labels."""
    paired = isinstance(batch, (list, tuple))
    if paired and len(batch) != 2:
        raise ValueError(
            f"a batch of z is a {type(batch).__name__} of {len(batch)}; expected an array, or a pair (z, y)"
        )
    if paired and not labels:
        raise ValueError(
            "a batch of z is a pair (z, y), and the loss could get labels or indices; expected labels=True, "
            "for loss(x, y) with the label y of each point, or batches of z alone, for loss(x, i)"
        )
    if labels and not paired:
        raise ValueError(
            f"a batch of z is {type(batch).__name__}, and labels is True; expected a pair (z, y)"
        )
    if not paired:
        z = valid_data(batch, name="a batch of z")
        return Points(z, indices(z) + start)
    z, y = batch
    z = valid_data(z, name="a batch of z")
    if not is_array_api_obj(y) or tuple(y.shape) != tuple(z.shape[:1]):
        shape = tuple(y.shape) if is_array_api_obj(y) else type(y).__name__
        raise ValueError(f"the labels of a batch of z have shape {shape}; expected {tuple(z.shape[:1])}")
    array_namespace(z, y)
    return Points(z, detach(y))


def _joined(held: list[Points]) -> Points:
    return Points(joined([p.z for p in held]), joined([p.i for p in held]))


def _rows(points: Points, rows: slice) -> Points:
    return Points(points.z[rows, ...], points.i[rows])

"""Data that comes in batches: one pass, in bounded memory, with the numbers of the data held at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from math import lcm
from typing import Any, TypeAlias

from phiball.backends import Array, array_namespace, detach, is_array_api_obj, without_gradient
from phiball.refimpl.printing import one_line
from phiball.refimpl.sampling.streaming import TILE, indices, joined, valid_data
from phiball.refimpl.types import Loss

Data: TypeAlias = Iterable[Any]
"""An iterator of batches: arrays (n,) + event, or pairs of these with labels (n,), as a DataLoader has."""

_COLLECTIONS = (list, tuple, str, bytes, Mapping, Set)


@dataclass(frozen=True)
class Points:
    """Some data points `z` (k,) + event, with their indices or, if `labelled`, their labels, `i` (k,)."""

    z: Array
    i: Array
    labelled: bool = False
    __repr__ = one_line


def is_stream(z: Any) -> bool:
    """Whether `z` comes in batches: an iterator, a DataLoader or a Dask array, and no array in memory."""
    if _is_dask(z):
        return True
    known = is_array_api_obj(z) or hasattr(z, "__array__") or isinstance(z, _COLLECTIONS)
    return isinstance(z, Iterable) and not known


def _is_dask(z: Any) -> bool:
    return hasattr(z, "dask") and hasattr(z, "numblocks")


def plain(loss: Loss) -> Loss:
    """The loss without its gradient: the graph of a pass over all batches would hold all of them."""

    def value(x: Array, i: Array) -> Array:
        with without_gradient():
            return loss(x, i)

    return value if callable(loss) else loss


def blocks(z: Array | Data, n: int, chunk: int, *, evaluate: bool) -> Iterator[Points]:
    """The data points in blocks: all at once if z is an array, and else batches that are cut and joined anew.

    A block holds whole tiles of n points a data point, some `chunk` data points, and whole chunks of them if
    the caller is to `evaluate` the data points themselves. So the random numbers that are drawn, and the
    calls of the loss, are those of the data held at once, whatever the batches are.
    """
    if not is_stream(z):
        z = valid_data(z)
        yield Points(z, indices(z))
        return
    tile = max(1, TILE // n)
    size = lcm(tile, chunk) if evaluate else tile * max(1, chunk // tile)
    held: list[Points] = []
    count = start = 0
    for batch in _batches(z):
        part = _points(batch, start)
        start += part.z.shape[0]
        if held and held[-1].labelled != part.labelled:
            raise ValueError("some batches of z have labels and others have none; expected all alike")
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


def _points(batch: Any, start: int) -> Points:
    """A batch with its indices, which begin at `start`, or with its labels."""
    if not isinstance(batch, (list, tuple)):
        z = valid_data(batch, name="a batch of z")
        return Points(z, indices(z) + start)
    if len(batch) != 2:
        raise ValueError(f"a batch of z has {len(batch)} parts; expected an array, or a pair (z, y)")
    z, y = batch
    z = valid_data(z, name="a batch of z")
    if not is_array_api_obj(y) or tuple(y.shape) != tuple(z.shape[:1]):
        shape = tuple(y.shape) if is_array_api_obj(y) else type(y).__name__
        raise ValueError(f"the labels of a batch of z have shape {shape}; expected {tuple(z.shape[:1])}")
    array_namespace(z, y)
    return Points(z, detach(y), labelled=True)


def _joined(held: list[Points]) -> Points:
    return Points(joined([p.z for p in held]), joined([p.i for p in held]), held[0].labelled)


def _rows(points: Points, rows: slice) -> Points:
    return Points(points.z[rows, ...], points.i[rows], points.labelled)

"""Data in batches: one pass in bounded memory, with the same results as for one large array."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field
from math import lcm
from typing import Any, TypeAlias

from phiball.backends import Array, array_namespace, detach, is_array_api_obj
from phiball.refimpl.distributions.balls import Ball
from phiball.refimpl.printing import one_line
from phiball.refimpl.sampling.streaming import TILE, concat, indices, valid_data
from phiball.refimpl.types import Distribution, Loss

Data: TypeAlias = Iterable[Any]
"""Batches, as from a DataLoader: arrays (n,) + event, or pairs (x, y) with labels y (n, ...)."""

_COLLECTIONS = (list, tuple, str, bytes, Mapping, Set)


@dataclass(frozen=True)
class Block:
    """Consecutive data points: `x` (k,) + event, their indices `i` (k,), and labels `y` (k, ...) or None."""

    x: Array
    i: Array
    y: Array | None = None
    __repr__ = one_line

    def local_loss(self, loss: Any) -> Loss:
        """A function loss(x, i) whose index i counts the data points of this block alone."""
        if self.y is not None:
            return loss.with_labels(self.y)  # type: ignore[no-any-return]
        return lambda x, i: loss(x, array_namespace(x).take(self.i, i, axis=0))


@dataclass(frozen=True)
class StreamLoss:
    """A loss on a stream of blocks; it collects the labels of the blocks added so far."""

    loss: Any
    labels: list[Array] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Validate the loss."""
        if not callable(self.loss):
            raise TypeError(f"loss is {self.loss!r}; expected a function loss(x, i)")

    def add(self, block: Block) -> None:
        """Add the labels of the next block."""
        if block.y is not None:
            self.labels.append(block.y)

    def __call__(self, x: Array, i: Array) -> Array:
        """The losses (k,) at points x (k,) + event; the index i (k,) counts the data points of all blocks."""
        if not self.labels:
            return self.loss(x, i)
        self.labels[:] = [concat(self.labels)]
        return self.loss.with_labels(self.labels[0])(x, i)


def is_stream(x: Any) -> bool:
    """Whether `x` comes in batches: an iterator, a DataLoader or a Dask array."""
    if _is_dask(x):
        return True
    if isinstance(x, (list, tuple)) and x and all(getattr(part, "ndim", 0) > 1 for part in x):
        raise TypeError(f"x is a {type(x).__name__} of arrays; pass one array, or iter(x) for batches")
    known = is_array_api_obj(x) or hasattr(x, "__array__") or isinstance(x, _COLLECTIONS)
    return isinstance(x, Iterable) and not known


def _is_dask(x: Any) -> bool:
    return hasattr(x, "dask") and hasattr(x, "numblocks")


def blocks(
    x: Array | Data, reference: Distribution, n: int, chunk: int, *, loss: Loss, evaluate: bool
) -> Iterator[Block]:
    """Yield the data points in blocks: one block for an array, blocks of equal size for a stream.

    `n` is the number of points drawn per data point. `evaluate` says that the loss is also evaluated at the
    data points. Batches must be pairs (x, y) if the loss is a `pointwise_loss` without labels, and arrays
    otherwise.

    For any batch size, the draws and the calls of the loss are the same as for one array, because a block of
    a stream consists of whole tiles. A tile is TILE // n data points (at least one), whose points are drawn
    at once. A block has about `chunk` data points. If `evaluate`, it also consists of whole chunks: its size
    is the least common multiple of a tile and `chunk`.
    """
    if not is_stream(x):
        x = valid_data(x)
        yield Block(x, indices(x))
        return
    tile = max(1, TILE // n)
    size = lcm(tile, chunk) if evaluate else tile * max(1, chunk // tile)
    needs_labels = callable(getattr(loss, "with_labels", None)) and getattr(loss, "y", None) is None
    pending: list[Block] = []
    count = start = 0
    for batch in _batches(x):
        part = _block(batch, start, needs_labels)
        if (
            isinstance(reference, Ball)
            and reference.feature_scale is not None
            and reference.feature_scale.per_point(part.x.ndim - 1)
        ):
            raise ValueError(
                "feature_scale differs between data points, which batches do not support: use one for all "
                "data points, or compute the risk of each batch with its own ball, and merge the risks"
            )
        if pending and part.x.shape[1:] != pending[0].x.shape[1:]:
            raise ValueError(
                f"a batch of x has points of shape {tuple(part.x.shape[1:])}; expected the shape in "
                f"the previous batch, {tuple(pending[0].x.shape[1:])}"
            )
        start += part.x.shape[0]
        pending.append(part)
        count += part.x.shape[0]
        while count >= size:
            whole = _concat_blocks(pending)
            yield _rows(whole, slice(0, size))
            pending, count = [_rows(whole, slice(size, count))] if count > size else [], count - size
    if pending:
        yield _concat_blocks(pending)
    if start == 0:
        raise ValueError("x has no batches; expected at least one (an iterator can be used only once)")


def _batches(x: Any) -> Iterator[Any]:
    """The batches of an iterable, or the computed blocks of a Dask array."""
    if _is_dask(x):
        for k in range(x.numblocks[0]):
            yield x.blocks[k].compute()
        return
    yield from x


def _block(batch: Any, start: int, needs_labels: bool) -> Block:
    """Validate a batch; its indices begin at `start`, and it has labels exactly if the loss needs them."""
    paired = isinstance(batch, (list, tuple))
    if paired and len(batch) != 2:
        raise ValueError(
            f"a batch of x is a {type(batch).__name__} of {len(batch)} items; expected x or (x, y)"
        )
    if paired and not needs_labels:
        raise ValueError(
            "a batch of x is a pair (x, y), but the loss takes no labels; expected pointwise_loss(model) "
            "without y, or batches of x alone"
        )
    if needs_labels and not paired:
        raise ValueError(
            f"a batch of x is of type {type(batch).__name__}, and the loss has no labels; expected pairs "
            "(x, y), or pointwise_loss(model, y)"
        )
    y: Any = None
    x, y = batch if paired else (batch, None)
    x = valid_data(x, name="a batch of x")
    i = indices(x) + start
    if not paired:
        return Block(x, i)
    if not is_array_api_obj(y) or tuple(y.shape[:1]) != tuple(x.shape[:1]):
        shape = tuple(y.shape) if is_array_api_obj(y) else type(y).__name__
        raise ValueError(f"the labels of a batch have shape {shape}; expected {x.shape[0]} labels")
    array_namespace(x, y)
    return Block(x, i, detach(y))


def _concat_blocks(pending: list[Block]) -> Block:
    labels = [block.y for block in pending if block.y is not None]
    return Block(
        concat([block.x for block in pending]),
        concat([block.i for block in pending]),
        concat(labels) if labels else None,
    )


def _rows(block: Block, rows: slice) -> Block:
    return Block(block.x[rows, ...], block.i[rows], None if block.y is None else block.y[rows, ...])

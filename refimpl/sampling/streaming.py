"""Drawing perturbed points and evaluating their losses in bounded memory.

Points are drawn in tiles of TILE points, in a fixed order. So the draws depend only on `rng`, not on the
number of points evaluated at a time (`chunk`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from inspect import signature
from typing import TypeVar

from phiball.backends import Array, Rng, array_namespace, detach, device, to_single, without_gradient
from phiball.refimpl.distributions.balls import Ball
from phiball.refimpl.types import Distribution, Loss
from phiball.refimpl.validation import all_finite, check_array, check_same_array_type, valid_eta

TILE = 1024  # points drawn at a time
CHUNK = 8192  # default number of points evaluated at a time

Piece = TypeVar("Piece")


def valid_data(x: Array, *, name: str = "x") -> Array:
    """`x`, detached; raise unless it has shape (N,) + event with N >= 1, and finite entries."""
    check_array(name, x)
    if x.ndim == 0 or x.shape[0] == 0:
        raise ValueError(
            f"{name} has shape {tuple(x.shape)}; expected (N,) + event, with at least one data point"
        )
    if not all_finite(x):
        raise ValueError(f"{name} contains NaN or infinity; expected finite numbers")
    return detach(x)


def check_reference(reference: Distribution) -> None:
    """Raise unless the reference distribution can be sampled."""
    if isinstance(reference, type) or not callable(getattr(reference, "sample", None)):
        raise TypeError(
            f"reference is {reference!r}; expected a Ball such as Ball(2, 0.45), a Gaussian, or another "
            "distribution with a method `sample`"
        )


def each_eta(eta: float | Array, x: Array) -> Array:
    """Return `eta` as an array (N,), one entry for each data point."""
    xp = array_namespace(x)
    rows = xp.zeros((x.shape[0], 1), dtype=x.dtype, device=device(x))
    return valid_eta(detach(eta), rows, rows="(N,)")


def evaluate(loss: Loss | None, x: Array, i: Array, *, half: bool = False) -> Array:
    """Return loss(x, i); raise unless it has one floating-point number for each x.

    With `half`, accept losses in half precision and return them in float32.
    """
    if not callable(loss):
        raise TypeError(f"loss is {loss!r}; expected a function loss(x, i)")
    try:
        f = loss(x, i)
    except TypeError as error:
        if _accepts_two(loss):
            raise
        raise TypeError(f"loss is {loss!r}; expected a function of two arguments, loss(x, i)") from error
    if half:
        f = to_single(f)
    check_array("loss(x, i)", f)
    check_same_array_type("loss(x, i)", f, x, other="x")
    if tuple(f.shape) != (x.shape[0],):
        raise ValueError(
            f"loss(x, i) has shape {tuple(f.shape)}; expected ({x.shape[0]},), one loss for each x "
            "(reduction='none' in torch's losses)"
        )
    return f


def _accepts_two(function: Loss) -> bool:
    """Whether a function accepts two arguments; True if its signature is unknown."""
    try:
        signature(function).bind(None, None)
    except ValueError:  # a built-in without a signature
        return True
    except TypeError:
        return False
    return True


def sample_tiles(
    x: Array, index: Array, reference: Distribution, n: int, rng: Rng
) -> Iterator[tuple[Array, ...]]:
    """Yield (points, i): n points around each x in order, at most TILE points at a time.

    `points` has shape (k,) + event. i (k,) is the entry of `index` (N,) that belongs to the data point around
    which the point was drawn.
    """
    xp = array_namespace(x)

    def draw(position: Array, m: int) -> tuple[Array, ...]:
        own = (
            reference.rows(xp.take(index, position), event_ndim=x.ndim - 1)
            if isinstance(reference, Ball)
            else reference
        )
        return (own.sample(xp.take(x, position, axis=0), m, rng=rng, event_ndim=x.ndim - 1),)

    return draw_tiles(x, index, n, draw)


def draw_tiles(
    x: Array, index: Array, n: int, draw: Callable[[Array, int], tuple[Array, ...]]
) -> Iterator[tuple[Array, ...]]:
    """Yield (points, i, ...) like `sample_tiles`, with points from the function `draw`.

    draw(positions, m) returns m points around each of the k data points at `positions`, as an array
    (k, m) + event, and optional arrays (k, m) + rest. These are yielded after (points, i), as (k m,) + rest.
    """
    xp = array_namespace(x)
    all_positions = indices(x)
    for rows in slices(x.shape[0], max(1, TILE // n)):
        positions, own_index = all_positions[rows], index[rows]
        for columns in slices(n, TILE):
            m = columns.stop - columns.start
            points, *more = (xp.reshape(a, (-1, *a.shape[2:])) for a in draw(positions, m))
            i = xp.reshape(xp.broadcast_to(own_index[:, None], (positions.shape[0], m)), (-1,))
            yield points, i, *more


def regroup(
    pieces: Iterable[tuple[Piece, int, int]], chunk: int, cut: Callable[[Piece, slice], Piece]
) -> Iterator[list[Piece]]:
    """Pack pieces into lists of at most `chunk` points, in order.

    `pieces` yields (piece, rows, size): the piece has `rows` rows of `size` points each. cut(piece, slice)
    selects rows. Rows are never split: a row of more than `chunk` points forms its own list.
    """
    pending: list[Piece] = []
    room = chunk
    for piece, rows, size in pieces:
        start = 0
        while start < rows:
            count = min(max(room // size, 0 if pending else 1), rows - start)
            if count:
                pending.append(cut(piece, slice(start, start + count)))
                start += count
                room -= count * size
            if not count or room <= 0:
                yield pending
                pending, room = [], chunk
    if pending:
        yield pending


def evaluate_chunks(
    loss: Loss, pieces: Iterable[tuple[Array, ...]], chunk: int
) -> Iterator[tuple[Array, Array, Array, *tuple[Array, ...]]]:
    """Yield (x, i, f, ...) for pieces (x, i, ...), with f = loss(x, i), at most `chunk` points at a time.

    The losses are detached, and losses in half precision are converted to float32.
    """
    sized = ((piece, piece[0].shape[0], 1) for piece in pieces)
    for pending in regroup(sized, chunk, lambda piece, rows: tuple(a[rows, ...] for a in piece)):
        x, i, *more = _concat_columns(pending)
        with without_gradient():
            f = detach(evaluate(loss, x, i, half=True)) + 0.0  # copy: a view of x would keep x in memory
        yield x, i, f, *more


def regroup_rows(pieces: Iterable[tuple[Array, ...]], n: int) -> Iterator[tuple[Array, ...]]:
    """Regroup a stream of tuples of arrays (k,) + rest, with varying k, into arrays (rows, n) + rest.

    The total number of entries must be a multiple of n.
    """
    pending: list[tuple[Array, ...]] = []
    count = 0
    for piece in pieces:
        pending.append(piece)
        count += piece[0].shape[0]
        if count < n:
            continue
        whole = count - count % n
        columns = _concat_columns(pending)
        xp = array_namespace(columns[0])
        yield tuple(xp.reshape(a[:whole, ...], (whole // n, n, *a.shape[1:])) for a in columns)
        pending = [tuple(a[whole:, ...] for a in columns)] if whole < count else []
        count -= whole


def _concat_columns(rows: list[tuple[Array, ...]]) -> tuple[Array, ...]:
    """Concatenate the first arrays of all tuples, the second arrays, and so on."""
    return tuple(concat(list(arrays)) for arrays in zip(*rows, strict=True))


def concat(arrays: list[Array]) -> Array:
    """Concatenate arrays along the first axis; one array is returned without a copy."""
    return arrays[0] if len(arrays) == 1 else array_namespace(arrays[0]).concat(arrays)


def slices(n: int, size: int) -> Iterator[slice]:
    """Yield slices of length at most `size` that cover 0, ..., n - 1."""
    for start in range(0, n, size):
        yield slice(start, min(start + size, n))


def indices(x: Array) -> Array:
    """0, ..., N - 1 on the device of x (N, ...)."""
    xp = array_namespace(x)
    return xp.arange(x.shape[0], dtype=xp.int64, device=device(x))

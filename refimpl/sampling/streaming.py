"""Drawing perturbed points and evaluating their losses in bounded memory.

Points are drawn in tiles of a fixed size and order, so the draws depend on the seed and not on the number of
points that are evaluated at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from inspect import signature
from typing import TypeVar

from phiball.backends import Array, Rng, array_namespace, detach, device, to_single, without_gradient
from phiball.refimpl.distributions.balls import Ball
from phiball.refimpl.types import Distribution, Loss
from phiball.refimpl.validation import all_finite, check_same_array_type, valid_array, valid_eta, valid_rng

TILE = 1024  # points that are drawn at a time
CHUNK = 8192  # points that are evaluated at a time, by default

Piece = TypeVar("Piece")


def valid_data(z: Array, *, name: str = "z") -> Array:
    """Return `z` detached, or raise unless it has shape (N,) + event with N >= 1 and finite entries."""
    valid_array(name, z)
    if z.ndim == 0 or z.shape[0] == 0:
        raise ValueError(
            f"{name} has shape {tuple(z.shape)}; expected (N,) + event, with at least one data point"
        )
    if not all_finite(z):
        raise ValueError(f"{name} contains NaN or infinity; expected finite numbers")
    return detach(z)


def valid_sampling(distribution: Distribution, rng: Rng) -> None:
    """Raise unless `distribution` can be sampled with `rng`."""
    if not callable(getattr(distribution, "sample", None)):
        raise TypeError(
            f"ball is {distribution!r}; expected a Ball such as Ball(2, 0.45), or a distribution with a "
            "sample method"
        )
    valid_rng(rng)


def each_eta(eta: float | Array, z: Array) -> Array:
    """`eta` as an array (N,), one for each data point, or an error."""
    xp = array_namespace(z)
    rows = xp.zeros((z.shape[0], 1), dtype=z.dtype, device=device(z))
    return valid_eta(detach(eta), rows, rows="(N,)")


def evaluate(loss: Loss | None, x: Array, i: Array, *, half: bool = False) -> Array:
    """Return loss(x, i), or raise unless it is one floating-point number for each x.

    `half`: True accepts losses in half precision, and converts them to float32.
    """
    if not callable(loss):
        raise TypeError(f"loss is {loss!r}; expected a function loss(x, i)")
    try:
        f = loss(x, i)
    except TypeError as error:
        if _takes_two(loss):
            raise
        raise TypeError(f"loss is {loss!r}; expected a function of two arguments, loss(x, i)") from error
    if half:
        f = to_single(f)
    valid_array("loss(x, i)", f)
    check_same_array_type("loss(x, i)", f, x, other="x")
    if tuple(f.shape) != (x.shape[0],):
        raise ValueError(
            f"loss(x, i) has shape {tuple(f.shape)}; expected ({x.shape[0]},), one loss for each x "
            "(reduction='none' in torch's losses)"
        )
    return f


def _takes_two(function: Loss) -> bool:
    """Whether the signature of a function accepts two arguments."""
    try:
        signature(function).bind(None, None)
    except ValueError:  # a built-in without a signature
        return True
    except TypeError:
        return False
    return True


def tiles(
    z: Array, index: Array, distribution: Distribution, n: int, rng: Rng
) -> Iterator[tuple[Array, ...]]:
    """Yield (x, i): n points of the distribution around each z in turn, at most TILE points at a time.

    `index` (N,) holds the i of each z.
    """
    xp = array_namespace(z)

    def draw(place: Array, m: int) -> tuple[Array, ...]:
        here = (
            distribution.rows(xp.take(index, place), event_ndim=z.ndim - 1)
            if isinstance(distribution, Ball)
            else distribution
        )
        return (here.sample(xp.take(z, place, axis=0), m, rng, event_ndim=z.ndim - 1),)

    return tiled(z, index, n, draw)


def tiled(
    z: Array, index: Array, n: int, draw: Callable[[Array, int], tuple[Array, ...]]
) -> Iterator[tuple[Array, ...]]:
    """Yield (x, i, ...), where draw(places, m) returns m points for each data point at `places` (k,).

    Its arrays, the points and any others, have shape (k, m) + rest. They are yielded with one point per
    row, at most TILE points at a time.
    """
    xp = array_namespace(z)
    every = indices(z)
    for rows in slices(z.shape[0], max(1, TILE // n)):
        places, which = every[rows], index[rows]
        for columns in slices(n, TILE):
            m = columns.stop - columns.start
            x, *along = (xp.reshape(a, (-1, *a.shape[2:])) for a in draw(places, m))
            i = xp.reshape(xp.broadcast_to(which[:, None], (places.shape[0], m)), (-1,))
            yield x, i, *along


def packed(
    pieces: Iterable[tuple[Piece, int, int]], chunk: int, cut: Callable[[Piece, slice], Piece]
) -> Iterator[list[Piece]]:
    """Regroup pieces, in their order, into lists of at most `chunk` points.

    A piece is given as (piece, rows, size), for `rows` rows of `size` points; cut(piece, rows) returns some
    of its rows. A row is never divided: one that exceeds a chunk is a list of its own.
    """
    held: list[Piece] = []
    room = chunk
    for piece, rows, size in pieces:
        start = 0
        while start < rows:
            fitting = min(max(room // size, 0 if held else 1), rows - start)
            if fitting:
                held.append(cut(piece, slice(start, start + fitting)))
                start += fitting
                room -= fitting * size
            if not fitting or room <= 0:
                yield held
                held, room = [], chunk
    if held:
        yield held


def evaluated(
    loss: Loss, pieces: Iterable[tuple[Array, ...]], chunk: int
) -> Iterator[tuple[Array, Array, Array, *tuple[Array, ...]]]:
    """Yield (x, i, f, ...): the pieces (x, i, ...) with their losses f, at most `chunk` points at a time.

    The losses carry no graph, and are float32 if the loss returns half precision.
    """
    sized = ((piece, piece[0].shape[0], 1) for piece in pieces)
    for held in packed(sized, chunk, lambda piece, rows: tuple(a[rows, ...] for a in piece)):
        x, i, *along = _joined(held)
        with without_gradient():
            # A copy, because a loss that is a view of x would keep x in memory.
            f = detach(evaluate(loss, x, i, half=True)) + 0.0
        yield x, i, f, *along


def in_rows(pieces: Iterable[tuple[Array, ...]], n: int) -> Iterator[tuple[Array, ...]]:
    """Regroup a stream of arrays into rows of n: each array has shape (rows, n) + rest."""
    held: list[tuple[Array, ...]] = []
    count = 0
    for piece in pieces:
        held.append(piece)
        count += piece[0].shape[0]
        if count < n:
            continue
        whole = count - count % n
        columns = _joined(held)
        xp = array_namespace(columns[0])
        yield tuple(xp.reshape(a[:whole, ...], (whole // n, n, *a.shape[1:])) for a in columns)
        held = [tuple(a[whole:, ...] for a in columns)] if whole < count else []
        count -= whole


def _joined(held: list[tuple[Array, ...]]) -> tuple[Array, ...]:
    return tuple(joined(list(arrays)) for arrays in zip(*held, strict=True))


def joined(arrays: list[Array]) -> Array:
    """Concatenate arrays along the first axis."""
    return arrays[0] if len(arrays) == 1 else array_namespace(arrays[0]).concat(arrays)


def slices(n: int, size: int) -> Iterator[slice]:
    """Divide 0, ..., n - 1 into slices of at most `size`."""
    for start in range(0, n, size):
        yield slice(start, min(start + size, n))


def indices(z: Array) -> Array:
    """0, ..., N - 1, in the library and on the device of z."""
    xp = array_namespace(z)
    return xp.arange(z.shape[0], dtype=xp.int64, device=device(z))

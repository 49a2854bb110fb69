"""Sizes of the coordinates of a ball: each moves on a scale of its own, and one of size 0 not at all.

The ball of a norm with sizes sigma is the image of the plain ball under b -> sigma b, in the coordinates that
have a size. Everything about it follows by this change of coordinates: the uniform distribution is the image
of the uniform distribution, a tilt s becomes sigma s, and so does a gradient.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any, NamedTuple

from phiball.backends import Array, array_namespace, device, is_array_api_obj, to_numpy, to_single
from phiball.refimpl.validation import broadcasts


class Part(NamedTuple):
    """The rows that move the same number m of coordinates, as arrays on the host.

    - `rows` (k,): which they are, or None for all.
    - `columns` (1 or k, m): the coordinates that move, or None for all.
    - `places` (1 or k, d): where each coordinate is among them, m for one that does not move.
    - `sizes` (1 or k, m): the sizes of those that move.
    """

    rows: Array | None
    columns: Array | None
    places: Array
    sizes: Array


class FeatureScale:
    """The sizes of the coordinates, as an array on the host that never changes.

    Arguments:
    - `values`: a number, or an array or nested sequence of numbers that are not negative, or of booleans.

    It compares by value, and can be a key.
    """

    __slots__ = ("_key", "values")

    def __init__(self, values: Any) -> None:
        try:
            host = to_numpy(to_single(values) if is_array_api_obj(values) else values)
            xp = array_namespace(host)
            real = xp.isdtype(host.dtype, ("real floating", "integral", "bool"))
            host = xp.astype(host, xp.float64) if real else None
        except (TypeError, ValueError):
            host = None
        if host is None:
            raise TypeError(f"scale is {values!r}; expected an array of numbers, one size per coordinate")
        if prod(host.shape) == 0 or not bool(xp.all((host >= 0) & xp.isfinite(host))):
            raise ValueError(
                f"scale is {values!r}; expected finite numbers that are not negative, 0 for what stays"
            )
        self.values = host
        self._key = (tuple(host.shape), host.tobytes())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FeatureScale) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    def __repr__(self) -> str:
        """The sizes if they are few, or else their shape and how many of them are 0."""
        if self.values.size <= 12:
            return repr(self.values.tolist())
        xp = array_namespace(self.values)
        still = int(xp.count_nonzero(self.values == 0))
        return f"<sizes of shape {tuple(self.values.shape)}, {still} of them 0>"

    def __reduce__(self) -> tuple[Any, ...]:
        return FeatureScale, (self.values,)

    @property
    def largest(self) -> float:
        """The largest size."""
        return float(array_namespace(self.values).max(self.values))

    @property
    def flattened(self) -> list[float]:
        """All sizes, in their order."""
        return [float(size) for size in array_namespace(self.values).reshape(self.values, (-1,))]

    def per_point(self, event_ndim: int) -> bool:
        """Whether the data points have sizes of their own."""
        return bool(self.values.ndim > event_ndim)

    def rows(self, index: Array) -> FeatureScale:
        """The sizes of these data points, where each has its own along the first axis."""
        if self.values.shape[0] == 1:
            return self
        return FeatureScale(array_namespace(self.values).take(self.values, to_numpy(index), axis=0))

    def masked(self, mask: Any) -> FeatureScale:
        """The sizes where the mask is not 0, and 0 elsewhere; the shapes broadcast."""
        mask = FeatureScale(mask).values
        try:
            return FeatureScale(self.values * (mask != 0))
        except ValueError:
            raise ValueError(
                f"mask has shape {tuple(mask.shape)} and scale {tuple(self.values.shape)}; expected shapes "
                "that broadcast"
            ) from None

    def flat(self, shape: tuple[int, ...], event_ndim: int) -> Array:
        """The sizes (1 or rows, d) on the host for points batch + event of this shape, or an error."""
        cut = len(shape) - event_ndim
        whole = tuple(shape[cut:]) if not self.per_point(event_ndim) else tuple(shape)
        per_point = self.per_point(event_ndim) and self.values.ndim != len(shape)  # never along another axis
        if per_point or not broadcasts(tuple(self.values.shape), whole):
            raise ValueError(
                f"scale has shape {tuple(self.values.shape)}; expected one that broadcasts to a point, "
                f"{tuple(shape[cut:])}, or to all of them, {tuple(shape)}"
            )
        xp = array_namespace(self.values)
        # A copy: torch warns of memory that it may not write to.
        return xp.reshape(xp.broadcast_to(self.values, whole) + 0.0, (-1, prod(shape[cut:])))

    def like(self, x: Array, event_ndim: int) -> Array:
        """The sizes as an array like x that broadcasts to it."""
        sizes = self.flat(tuple(x.shape), event_ndim)
        cut = x.ndim - event_ndim
        shape = x.shape if self.per_point(event_ndim) else x.shape[cut:]
        return _moved(array_namespace(sizes).reshape(sizes, tuple(shape)), x, x.dtype)

    def divide(self, v: Array, event_ndim: int) -> tuple[Array, Array]:
        """v/sigma, 0 where sigma is, and whether each v, batch, moves a coordinate that must not."""
        xp = array_namespace(v)
        sizes = self.like(v, event_ndim)
        moves = sizes > 0
        share = xp.where(moves, v / xp.where(moves, sizes, xp.ones_like(sizes)), xp.zeros_like(v))
        axes = tuple(range(v.ndim - event_ndim, v.ndim))
        return share, xp.any(~moves & (v != 0), axis=axes) if axes else ~moves & (v != 0)

    def moving(self, shape: tuple[int, ...], event_ndim: int) -> Array:
        """The number (1 or rows,) of coordinates that move, on the host."""
        sizes = self.flat(shape, event_ndim)
        return array_namespace(sizes).count_nonzero(sizes, axis=-1)

    def spread(self, z: Array, event_ndim: int, draw: Callable[..., Any], *along: Array) -> tuple[Array, ...]:
        """Perturbations of the scaled ball, batch + (n, d), and what comes along with them, batch + (n,).

        `draw` takes zeros (k, m) and each of `along`, of the shape of z, as sigma times its coordinates that
        move, (k, m). It returns perturbations (k, n, m) of the plain ball, and arrays (k, n) of numbers.
        """
        xp = array_namespace(z)
        batch = tuple(z.shape[: z.ndim - event_ndim])
        sizes = self.flat(tuple(z.shape), event_ndim)
        rows = prod(batch)
        flat = [xp.reshape(a, (rows, sizes.shape[-1])) for a in along]
        parts = _parts(sizes)
        results = []
        for part in parts:
            k = rows if part.rows is None else part.rows.shape[0]
            size = _moved(part.sizes, z, z.dtype)
            zeros = xp.zeros((k, size.shape[-1]), dtype=z.dtype, device=device(z))
            b, *rest = draw(zeros, *(size * _columns(_rows(a, part.rows), part.columns) for a in flat))
            b *= size[:, None, :]
            if part.columns is not None:
                still = xp.zeros((*b.shape[:-1], 1), dtype=b.dtype, device=device(b))
                b = _columns(xp.concat([b, still], axis=-1), part.places)
            results.append((b, *rest))
        return tuple(xp.reshape(a, (*batch, *a.shape[1:])) for a in _assembled(parts, results))

    def reduce(self, v: Array, event_ndim: int, function: Callable[[Array], Array]) -> Array:
        """function(sigma v), batch, where it takes the coordinates that move, (k, m), and returns (k,)."""
        xp = array_namespace(v)
        sizes = self.flat(tuple(v.shape), event_ndim)
        parts = _parts(sizes)
        flat = xp.reshape(v, (-1, sizes.shape[-1]))
        results = [
            (function(_moved(part.sizes, v, v.dtype) * _columns(_rows(flat, part.rows), part.columns)),)
            for part in parts
        ]
        return xp.reshape(_assembled(parts, results)[0], tuple(v.shape[: v.ndim - event_ndim]))


def _parts(sizes: Array) -> list[Part]:
    """The rows of sizes (R, d) by how many coordinates move."""
    xp = array_namespace(sizes)
    moves = sizes > 0
    counts = xp.count_nonzero(moves, axis=-1)
    kinds = xp.unique_values(counts)
    parts = []
    for m in kinds:
        rows = None if kinds.shape[0] == 1 else xp.nonzero(counts == m)[0]
        size, here = (sizes, moves) if rows is None else (sizes[rows, :], moves[rows, :])
        if int(m) == sizes.shape[-1]:
            parts.append(Part(rows, None, here, size))
            continue
        taken = max(1, int(m))  # where nothing moves, one coordinate is taken along, with its size of 0
        columns = xp.argsort(xp.astype(~here, xp.int8), axis=-1, stable=True)[:, :taken]
        places = xp.where(here, xp.cumulative_sum(xp.astype(here, xp.int64), axis=-1) - 1, taken)
        parts.append(Part(rows, columns, places, xp.take_along_axis(size, columns, axis=-1)))
    return parts


def _assembled(parts: list[Part], results: list[tuple[Array, ...]]) -> tuple[Array, ...]:
    """The results of the parts, row after row, in the order of the rows."""
    if len(parts) == 1:
        return results[0]
    host = array_namespace(parts[0].sizes)
    order = host.argsort(host.concat([part.rows for part in parts]))
    xp = array_namespace(results[0][0])
    columns = [xp.concat(list(column)) for column in zip(*results, strict=True)]
    return tuple(xp.take(column, _moved(order, column), axis=0) for column in columns)


def _rows(x: Array, rows: Array | None) -> Array:
    return x if rows is None else array_namespace(x).take(x, _moved(rows, x), axis=0)


def _columns(x: Array, columns: Array | None) -> Array:
    """The entries of x (k, ..., d) along its last axis that `columns` (1 or k, c) says."""
    if columns is None:
        return x
    xp = array_namespace(x)
    index = _moved(columns, x)
    if columns.shape[0] == 1:
        return xp.take(x, index[0, :], axis=-1)
    index = xp.reshape(index, (x.shape[0], *([1] * (x.ndim - 2)), columns.shape[1]))
    return xp.take_along_axis(x, xp.broadcast_to(index, (*x.shape[:-1], columns.shape[1])), axis=-1)


def _moved(values: Array, like: Array, dtype: Any = None) -> Array:
    """An array of the host as one of the library and on the device of `like`."""
    return array_namespace(like).asarray(values, dtype=dtype, device=device(like))

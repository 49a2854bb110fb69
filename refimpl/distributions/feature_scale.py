"""Per-coordinate scales of a ball; a coordinate of scale 0 is fixed.

The ball with scales sigma is the image of the plain ball under b -> sigma b, in the coordinates with a
positive scale. Its properties follow by this change of coordinates: the uniform distribution maps to the
uniform distribution, and a tilt or a gradient s becomes sigma s.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any, NamedTuple

from phiball.backends import Array, array_namespace, device, is_array_api_obj, to_numpy, to_single
from phiball.refimpl.validation import broadcasts


class Part(NamedTuple):
    """The rows with the same number m of free coordinates, as NumPy arrays.

    - `rows` (k,): their indices, or None for all rows.
    - `columns` (1 or k, m): the free coordinates, or None for all.
    - `positions` (1 or k, d): the position of each coordinate among the free ones, m for a fixed one.
    - `scales` (1 or k, m): the scales of the free coordinates.
    """

    rows: Array | None
    columns: Array | None
    positions: Array
    scales: Array


class FeatureScale:
    """Per-coordinate scales, as an immutable NumPy array.

    Arguments:
    - `values`: a number, or an array or nested sequence of nonnegative numbers or booleans.

    It is compared by value and hashable.
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
            raise TypeError(f"feature_scale is {values!r}; expected an array of numbers, one per coordinate")
        if prod(host.shape) == 0 or not bool(xp.all((host >= 0) & xp.isfinite(host))):
            raise ValueError(
                f"feature_scale is {values!r}; expected finite nonnegative numbers, 0 for fixed coordinates"
            )
        self.values = host
        self._key = (tuple(host.shape), host.tobytes())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FeatureScale) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    def __repr__(self) -> str:
        """The values if they are few, otherwise their shape and the number of zeros."""
        if self.values.size <= 12:
            return repr(self.values.tolist())
        xp = array_namespace(self.values)
        fixed = int(xp.count_nonzero(self.values == 0))
        return f"<shape {tuple(self.values.shape)}, {fixed} of them 0>"

    def __reduce__(self) -> tuple[Any, ...]:
        return FeatureScale, (self.values,)

    @property
    def largest(self) -> float:
        """The largest scale."""
        return float(array_namespace(self.values).max(self.values))

    @property
    def flattened(self) -> list[float]:
        """All scales, in order."""
        return [float(scale) for scale in array_namespace(self.values).reshape(self.values, (-1,))]

    def per_point(self, event_ndim: int) -> bool:
        """Whether the scales differ between data points."""
        return bool(self.values.ndim > event_ndim)

    def rows(self, index: Array) -> FeatureScale:
        """The scales of these data points, along the first axis."""
        if self.values.shape[0] == 1:
            return self
        return FeatureScale(array_namespace(self.values).take(self.values, to_numpy(index), axis=0))

    def masked(self, mask: Any) -> FeatureScale:
        """The scales where the mask is not 0, and 0 elsewhere; the shapes broadcast."""
        mask = FeatureScale(mask).values
        try:
            return FeatureScale(self.values * (mask != 0))
        except ValueError:
            raise ValueError(
                f"mask has shape {tuple(mask.shape)} and feature_scale {tuple(self.values.shape)}; expected "
                "shapes that broadcast"
            ) from None

    def flat(self, shape: tuple[int, ...], event_ndim: int) -> Array:
        """The scales (1 or rows, d) in NumPy for points batch + event of this shape."""
        cut = len(shape) - event_ndim
        whole = tuple(shape[cut:]) if not self.per_point(event_ndim) else tuple(shape)
        per_point = self.per_point(event_ndim) and self.values.ndim != len(shape)
        if per_point or not broadcasts(tuple(self.values.shape), whole):
            raise ValueError(
                f"feature_scale has shape {tuple(self.values.shape)}; expected one that broadcasts to "
                f"{tuple(shape[cut:])}, a point, or to {tuple(shape)}, all points"
            )
        xp = array_namespace(self.values)
        # A copy, because torch warns about read-only memory.
        return xp.reshape(xp.broadcast_to(self.values, whole) + 0.0, (-1, prod(shape[cut:])))

    def like(self, x: Array, event_ndim: int) -> Array:
        """The scales as an array like x that broadcasts to x."""
        scales = self.flat(tuple(x.shape), event_ndim)
        cut = x.ndim - event_ndim
        shape = x.shape if self.per_point(event_ndim) else x.shape[cut:]
        return _to_library(array_namespace(scales).reshape(scales, tuple(shape)), x, x.dtype)

    def divide(self, v: Array, event_ndim: int) -> tuple[Array, Array]:
        """v/sigma, 0 where sigma is 0, and whether each v, batch, moves a fixed coordinate."""
        xp = array_namespace(v)
        scales = self.like(v, event_ndim)
        free = scales > 0
        share = xp.where(free, v / xp.where(free, scales, xp.ones_like(scales)), xp.zeros_like(v))
        axes = tuple(range(v.ndim - event_ndim, v.ndim))
        return share, xp.any(~free & (v != 0), axis=axes) if axes else ~free & (v != 0)

    def moving(self, shape: tuple[int, ...], event_ndim: int) -> Array:
        """The number (1 or rows,) of free coordinates, in NumPy."""
        scales = self.flat(shape, event_ndim)
        return array_namespace(scales).count_nonzero(scales, axis=-1)

    def spread(self, x: Array, event_ndim: int, draw: Callable[..., Any], *along: Array) -> tuple[Array, ...]:
        """Perturbations of the scaled ball, batch + (n, d), and further arrays of `draw`, batch + (n,).

        `draw` takes zeros (k, m) and, for each of `along` with the shape of x, sigma times its free
        coordinates (k, m). It returns perturbations (k, n, m) of the plain ball, and arrays (k, n).
        """
        xp = array_namespace(x)
        batch = tuple(x.shape[: x.ndim - event_ndim])
        scales = self.flat(tuple(x.shape), event_ndim)
        rows = prod(batch)
        flat = [xp.reshape(a, (rows, scales.shape[-1])) for a in along]
        parts = _parts(scales)
        results = []
        for part in parts:
            k = rows if part.rows is None else part.rows.shape[0]
            scale = _to_library(part.scales, x, x.dtype)
            zeros = xp.zeros((k, scale.shape[-1]), dtype=x.dtype, device=device(x))
            b, *rest = draw(zeros, *(scale * _columns(_rows(a, part.rows), part.columns) for a in flat))
            b *= scale[:, None, :]
            if part.columns is not None:
                fixed = xp.zeros((*b.shape[:-1], 1), dtype=b.dtype, device=device(b))
                b = _columns(xp.concat([b, fixed], axis=-1), part.positions)
            results.append((b, *rest))
        return tuple(xp.reshape(a, (*batch, *a.shape[1:])) for a in _assembled(parts, results))

    def reduce(self, v: Array, event_ndim: int, function: Callable[[Array], Array]) -> Array:
        """function(sigma v), batch; the function takes the free coordinates (k, m) and returns (k,)."""
        xp = array_namespace(v)
        scales = self.flat(tuple(v.shape), event_ndim)
        parts = _parts(scales)
        flat = xp.reshape(v, (-1, scales.shape[-1]))
        results = [
            (function(_to_library(part.scales, v, v.dtype) * _columns(_rows(flat, part.rows), part.columns)),)
            for part in parts
        ]
        return xp.reshape(_assembled(parts, results)[0], tuple(v.shape[: v.ndim - event_ndim]))


def _parts(scales: Array) -> list[Part]:
    """Group the rows of scales (R, d) by the number of free coordinates."""
    xp = array_namespace(scales)
    free = scales > 0
    counts = xp.count_nonzero(free, axis=-1)
    kinds = xp.unique_values(counts)
    parts = []
    for m in kinds:
        rows = None if kinds.shape[0] == 1 else xp.nonzero(counts == m)[0]
        scale, here = (scales, free) if rows is None else (scales[rows, :], free[rows, :])
        if int(m) == scales.shape[-1]:
            parts.append(Part(rows, None, here, scale))
            continue
        taken = max(1, int(m))  # if all are fixed, keep one coordinate of scale 0
        columns = xp.argsort(xp.astype(~here, xp.int8), axis=-1, stable=True)[:, :taken]
        positions = xp.where(here, xp.cumulative_sum(xp.astype(here, xp.int64), axis=-1) - 1, taken)
        parts.append(Part(rows, columns, positions, xp.take_along_axis(scale, columns, axis=-1)))
    return parts


def _assembled(parts: list[Part], results: list[tuple[Array, ...]]) -> tuple[Array, ...]:
    """The results of the parts, in the order of the rows."""
    if len(parts) == 1:
        return results[0]
    host = array_namespace(parts[0].scales)
    order = host.argsort(host.concat([part.rows for part in parts]))
    xp = array_namespace(results[0][0])
    columns = [xp.concat(list(column)) for column in zip(*results, strict=True)]
    return tuple(xp.take(column, _to_library(order, column), axis=0) for column in columns)


def _rows(x: Array, rows: Array | None) -> Array:
    return x if rows is None else array_namespace(x).take(x, _to_library(rows, x), axis=0)


def _columns(x: Array, columns: Array | None) -> Array:
    """Take `columns` (1 or k, c) along the last axis of x (k, ..., d)."""
    if columns is None:
        return x
    xp = array_namespace(x)
    index = _to_library(columns, x)
    if columns.shape[0] == 1:
        return xp.take(x, index[0, :], axis=-1)
    index = xp.reshape(index, (x.shape[0], *([1] * (x.ndim - 2)), columns.shape[1]))
    return xp.take_along_axis(x, xp.broadcast_to(index, (*x.shape[:-1], columns.shape[1])), axis=-1)


def _to_library(values: Array, like: Array, dtype: Any = None) -> Array:
    """Convert a NumPy array to the library and device of `like`."""
    return array_namespace(like).asarray(values, dtype=dtype, device=device(like))

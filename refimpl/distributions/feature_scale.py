"""Per-coordinate scales of a ball; a coordinate of scale 0 is fixed.

The ball with scales sigma is the image of the ball without scales (the plain ball) under b -> sigma b. This
map preserves uniform distributions, and a tilt or gradient s on the scaled ball is sigma s on the plain ball.
Fixed coordinates are left out: the plain ball has one dimension per free coordinate.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any, NamedTuple

from phiball.backends import Array, array_namespace, device, is_array_api_obj, to_numpy, to_single
from phiball.refimpl.validation import broadcasts


class RowGroup(NamedTuple):
    """The k data points (rows) with the same number m of free coordinates, as NumPy arrays.

    - `rows` (k,): the indices of the rows, or None for all rows.
    - `columns` (1 or k, m): the indices of the free coordinates, or None if all are free.
    - `positions` (1 or k, d): the position of each coordinate in `columns`, or the number of columns if it is
      fixed. Not used if `columns` is None.
    - `scales` (1 or k, m): the scales of the free coordinates.
    """

    rows: Array | None
    columns: Array | None
    positions: Array
    scales: Array


class FeatureScale:
    """Per-coordinate scales, stored as a NumPy array; hashable, and compared by value.

    Arguments:
    - `values`: a number, or an array or nested sequence of nonnegative numbers or booleans.
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
        """The scales of the data points `index` (k,)."""
        if self.values.shape[0] == 1:
            return self
        return FeatureScale(array_namespace(self.values).take(self.values, to_numpy(index), axis=0))

    def masked(self, mask: Any) -> FeatureScale:
        """These scales where the mask is not 0, and 0 elsewhere; mask and scales broadcast."""
        mask = FeatureScale(mask).values
        try:
            return FeatureScale(self.values * (mask != 0))
        except ValueError:
            raise ValueError(
                f"mask has shape {tuple(mask.shape)} and feature_scale {tuple(self.values.shape)}; expected "
                "shapes that broadcast"
            ) from None

    def flat(self, shape: tuple[int, ...], event_ndim: int) -> Array:
        """The scales for points of this shape, batch + event: a NumPy array (rows, d), or (1, d) if common.

        `rows` is the number of points in the batch, and d the number of coordinates of a point.
        """
        cut = len(shape) - event_ndim
        whole = tuple(shape[cut:]) if not self.per_point(event_ndim) else tuple(shape)
        per_point = self.per_point(event_ndim) and self.values.ndim != len(shape)
        if per_point or not broadcasts(tuple(self.values.shape), whole):
            raise ValueError(
                f"feature_scale has shape {tuple(self.values.shape)}; expected one that broadcasts to "
                f"the shape of a point, {tuple(shape[cut:])}, or of all points, {tuple(shape)}"
            )
        xp = array_namespace(self.values)
        # `+ 0.0` copies, because torch warns about read-only memory.
        return xp.reshape(xp.broadcast_to(self.values, whole) + 0.0, (-1, prod(shape[cut:])))

    def like(self, x: Array, event_ndim: int) -> Array:
        """The scales as an array like x that broadcasts to x."""
        scales = self.flat(tuple(x.shape), event_ndim)
        cut = x.ndim - event_ndim
        shape = x.shape if self.per_point(event_ndim) else x.shape[cut:]
        return _to_library(array_namespace(scales).reshape(scales, tuple(shape)), x, x.dtype)

    def divide(self, v: Array, event_ndim: int) -> tuple[Array, Array]:
        """Return v/sigma, with 0 at fixed coordinates, and a mask (batch).

        The mask is True for the points of v that are nonzero at a fixed coordinate.
        """
        xp = array_namespace(v)
        scales = self.like(v, event_ndim)
        free = scales > 0
        ratio = xp.where(free, v / xp.where(free, scales, xp.ones_like(scales)), xp.zeros_like(v))
        axes = tuple(range(v.ndim - event_ndim, v.ndim))
        return ratio, xp.any(~free & (v != 0), axis=axes) if axes else ~free & (v != 0)

    def moving(self, shape: tuple[int, ...], event_ndim: int) -> Array:
        """The number of free coordinates of each point, as a NumPy array (rows,), or (1,) if common."""
        scales = self.flat(shape, event_ndim)
        return array_namespace(scales).count_nonzero(scales, axis=-1)

    def spread(self, x: Array, event_ndim: int, draw: Callable[..., Any], *along: Array) -> tuple[Array, ...]:
        """Draw perturbations of the scaled ball with `draw`, a sampler of the plain ball.

        `spread` calls draw(centres, *scaled) for each group of k data points with m free coordinates. The
        centres are zeros (k, m). `scaled` has one array (k, m) for each array a of `along`, which has the
        shape of x: the free coordinates of sigma a. `draw` returns perturbations (k, n, m), and optional
        arrays (k, n).

        Returns perturbations of shape batch + (n, d), and the optional arrays with shape batch + (n,).
        """
        xp = array_namespace(x)
        batch = tuple(x.shape[: x.ndim - event_ndim])
        scales = self.flat(tuple(x.shape), event_ndim)
        rows = prod(batch)
        flat = [xp.reshape(a, (rows, scales.shape[-1])) for a in along]
        groups = _group_rows(scales)
        results = []
        for group in groups:
            k = rows if group.rows is None else group.rows.shape[0]
            scale = _to_library(group.scales, x, x.dtype)
            zeros = xp.zeros((k, scale.shape[-1]), dtype=x.dtype, device=device(x))
            b, *rest = draw(
                zeros, *(scale * _take_columns(_take_rows(a, group.rows), group.columns) for a in flat)
            )
            b *= scale[:, None, :]
            if group.columns is not None:
                fixed = xp.zeros((*b.shape[:-1], 1), dtype=b.dtype, device=device(b))
                b = _take_columns(xp.concat([b, fixed], axis=-1), group.positions)
            results.append((b, *rest))
        return tuple(xp.reshape(a, (*batch, *a.shape[1:])) for a in _in_row_order(groups, results))

    def reduce(self, v: Array, event_ndim: int, function: Callable[[Array], Array]) -> Array:
        """Apply `function`, from (k, m) to (k,), to the free coordinates of sigma v; returns shape batch."""
        xp = array_namespace(v)
        scales = self.flat(tuple(v.shape), event_ndim)
        groups = _group_rows(scales)
        flat = xp.reshape(v, (-1, scales.shape[-1]))
        results = [
            (
                function(
                    _to_library(group.scales, v, v.dtype)
                    * _take_columns(_take_rows(flat, group.rows), group.columns)
                ),
            )
            for group in groups
        ]
        return xp.reshape(_in_row_order(groups, results)[0], tuple(v.shape[: v.ndim - event_ndim]))


def _group_rows(scales: Array) -> list[RowGroup]:
    """Group the rows of `scales` (rows, d) by their number of free coordinates."""
    xp = array_namespace(scales)
    free = scales > 0
    counts = xp.count_nonzero(free, axis=-1)
    unique_counts = xp.unique_values(counts)
    groups = []
    for m in unique_counts:
        rows = None if unique_counts.shape[0] == 1 else xp.nonzero(counts == m)[0]
        scale, free_here = (scales, free) if rows is None else (scales[rows, :], free[rows, :])
        if int(m) == scales.shape[-1]:
            groups.append(RowGroup(rows, None, free_here, scale))
            continue
        width = max(1, int(m))  # if all coordinates are fixed, keep one of scale 0
        columns = xp.argsort(xp.astype(~free_here, xp.int8), axis=-1, stable=True)[:, :width]
        positions = xp.where(free_here, xp.cumulative_sum(xp.astype(free_here, xp.int64), axis=-1) - 1, width)
        groups.append(RowGroup(rows, columns, positions, xp.take_along_axis(scale, columns, axis=-1)))
    return groups


def _in_row_order(groups: list[RowGroup], results: list[tuple[Array, ...]]) -> tuple[Array, ...]:
    """Join the results of all groups, in the order of the rows."""
    if len(groups) == 1:
        return results[0]
    host = array_namespace(groups[0].scales)
    order = host.argsort(host.concat([group.rows for group in groups]))
    xp = array_namespace(results[0][0])
    columns = [xp.concat(list(column)) for column in zip(*results, strict=True)]
    return tuple(xp.take(column, _to_library(order, column), axis=0) for column in columns)


def _take_rows(x: Array, rows: Array | None) -> Array:
    return x if rows is None else array_namespace(x).take(x, _to_library(rows, x), axis=0)


def _take_columns(x: Array, columns: Array | None) -> Array:
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

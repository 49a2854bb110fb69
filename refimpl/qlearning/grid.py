"""Distributions of perturbed states: neighbourhoods of discrete states, and grids of continuous states."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, isfinite, prod

from phiball.backends import Array, array_namespace, device, is_array_api_obj
from phiball.refimpl.printing import one_line
from phiball.refimpl.validation import check_array, check_same_array_type, valid_distribution


@dataclass(frozen=True)
class Neighbourhood:
    """The reference distributions beta(s; rho) of the perturbed state, for each of n states (Section 6.2).

    Arguments:
    - `index` (n, k) int64: row i contains the states that a perturbation of state i can reach. Here state i
      is either state i of a table, or entry i of a batch of continuous states.
    - `weight` (n, k): the probabilities of these states. Rows must sum to one up to rounding, and are
      normalised. Pad shorter rows with weight zero. An index may occur twice.

    >>> import numpy as np
    >>> walk = Neighbourhood(np.array([[0, 1], [0, 1]]), np.array([[0.75, 0.25], [0.5, 0.5]]))
    >>> walk.weight[0]
    array([0.75, 0.25])
    """

    index: Array
    weight: Array
    __repr__ = one_line

    def __post_init__(self) -> None:
        check_index("index", self.index)
        check_array("weight", self.weight)
        check_same_array_type("weight", self.weight, self.index, other="index")
        if self.index.ndim != 2 or self.index.shape[1] == 0 or self.index.shape != self.weight.shape:
            raise ValueError(
                f"index has shape {tuple(self.index.shape)} and weight {tuple(self.weight.shape)}; expected "
                "one shape (n, k), with k at least 1"
            )
        xp = array_namespace(self.index)
        if not xp.all(self.index >= 0):
            raise ValueError(f"index contains {int(xp.min(self.index))}; expected nonnegative state numbers")
        object.__setattr__(self, "weight", valid_distribution("weight", self.weight))


@dataclass(frozen=True)
class Grid:
    """A grid of equal boxes that discretises continuous states.

    Arguments:
    - `low`, `high`: the range of each of d dimensions.
    - `bins`: the number of boxes in each dimension.

    A state outside the range belongs to the nearest box. Boxes are numbered from 0 in C order.

    >>> import numpy as np
    >>> grid = Grid(low=(0.0, -1.0), high=(1.0, 1.0), bins=(2, 4))
    >>> grid.n_states, int(grid.cell(np.array([0.7, 5.0])))
    (8, 7)
    """

    low: tuple[float, ...]
    high: tuple[float, ...]
    bins: tuple[int, ...]

    def __post_init__(self) -> None:
        low, high = _finite_numbers("low", self.low), _finite_numbers("high", self.high)
        if not isinstance(self.bins, Sequence) or not all(
            isinstance(n, int) and not isinstance(n, bool) and n >= 1 for n in self.bins
        ):
            raise ValueError(f"bins is {self.bins!r}; expected whole numbers of at least 1")
        if not 0 < len(low) == len(high) == len(self.bins):
            raise ValueError(
                f"low, high and bins have {len(low)}, {len(high)} and {len(self.bins)} entries; expected one "
                "entry per dimension"
            )
        if not all(a < b for a, b in zip(low, high, strict=True)):
            raise ValueError(f"low is {self.low!r} and high {self.high!r}; expected low below high")
        for name, value in (("low", low), ("high", high), ("bins", tuple(self.bins))):
            object.__setattr__(self, name, value)

    @property
    def n_states(self) -> int:
        """The number of boxes."""
        return prod(self.bins)

    @property
    def width(self) -> tuple[float, ...]:
        """The size of a box in each dimension."""
        return tuple((b - a) / n for a, b, n in zip(self.low, self.high, self.bins, strict=True))

    def cell(self, x: Array) -> Array:
        """The number of the box that contains each state x (..., d): int64 of shape (...).

        >>> import numpy as np
        >>> Grid((0.0,), (1.0,), (4,)).cell(np.array([[-3.0], [0.3], [1.0]]))
        array([0, 1, 3])
        """
        self._check_states(x)
        xp = array_namespace(x)
        number = xp.zeros(x.shape[:-1], dtype=xp.int64, device=device(x))
        for j, n in enumerate(self.bins):
            number = number * n + _clip_to_int(xp.floor(self._units(x, j)), n - 1)
        return number

    def neighbourhood_at(self, x: Array, radius: float | Sequence[float]) -> Neighbourhood:
        """The exact distribution of the box that contains x + b, with b uniform on an linf ball.

        Arguments:
        - `x` (n, d): continuous states.
        - `radius`: the ball's radius, or one per dimension; zero means no perturbation in that dimension.

        Returns a `Neighbourhood` whose row i belongs to x[i]. The probability of a box is the product over
        dimensions of the fraction of [x_j - rho_j, x_j + rho_j] that lies in it. So the expectation of
        Section 6.2 is a finite sum, over at most 2^d boxes if rho is at most half a box width.

        >>> import numpy as np
        >>> near = Grid((0.0,), (4.0,), (4,)).neighbourhood_at(np.array([[1.75], [0.25]]), 0.5)
        >>> near.index.tolist(), near.weight.tolist()
        ([[1, 2], [0, 1]], [[0.75, 0.25], [1.0, 0.0]])
        """
        self._check_states(x)
        if x.ndim != 2:
            raise ValueError(f"x has shape {tuple(x.shape)}; expected (n, {len(self.bins)})")
        return self._distribution([self._units(x, j) for j in range(len(self.bins))], radius)

    def neighbourhood(self, radius: float | Sequence[float], *, like: Array) -> Neighbourhood:
        """`neighbourhood_at` of the centres of all boxes, for a table whose states are the boxes.

        Arguments:
        - `radius`: as in `neighbourhood_at`.
        - `like`: an array with the library, device and dtype of the result.

        With a radius of at most half a box width, a perturbed centre never leaves its box: use
        `neighbourhood_at` if the continuous state is known.

        >>> import numpy as np
        >>> near = Grid((0.0,), (3.0,), (3,)).neighbourhood(1.0, like=np.empty(0))
        >>> near.index.tolist(), near.weight.tolist()
        ([[0, 1, 2], [0, 1, 2], [0, 1, 2]], [[0.75, 0.25, 0.0], [0.25, 0.5, 0.25], [0.0, 0.25, 0.75]])
        """
        check_array("like", like)
        xp = array_namespace(like)
        number = xp.arange(self.n_states, dtype=xp.int64, device=device(like))
        units, left = [], self.n_states
        for n in self.bins:
            left //= n
            units.append(xp.astype((number // left) % n, like.dtype) + 0.5)
        return self._distribution(units, radius)

    def _check_states(self, x: Array) -> None:
        check_array("x", x)
        xp = array_namespace(x)
        if x.ndim == 0 or x.shape[-1] != len(self.bins):
            raise ValueError(f"x has shape {tuple(x.shape)}; expected (..., {len(self.bins)})")
        if not xp.all(xp.isfinite(x)):
            raise ValueError("x contains NaN or infinity; expected finite states")

    def _units(self, x: Array, j: int) -> Array:
        """Coordinate j of the states, in box widths from the lower end."""
        return (x[..., j] - self.low[j]) / self.width[j]

    def _distribution(self, units: list[Array], radius: float | Sequence[float]) -> Neighbourhood:
        """`neighbourhood_at` of n states, given by their coordinates in `units` (d arrays of shape (n,))."""
        radii = _finite_numbers(
            "radius", radius if isinstance(radius, Sequence) else (radius,) * len(self.bins)
        )
        if len(radii) != len(self.bins) or not all(r >= 0 for r in radii):
            raise ValueError(
                f"radius is {radius!r}; expected a nonnegative number, or {len(self.bins)} of them"
            )
        xp = array_namespace(units[0])
        n = units[0].shape[0]
        index = xp.zeros((n, 1), dtype=xp.int64, device=device(units[0]))
        weight = xp.ones((n, 1), dtype=units[0].dtype, device=device(units[0]))
        for u, r, h, m in zip(units, radii, self.width, self.bins, strict=True):
            cells, part = _overlaps(u, r / h, m)
            index = xp.reshape(index[:, :, None] * m + cells[:, None, :], (n, -1))
            weight = xp.reshape(weight[:, :, None] * part[:, None, :], (n, -1))
        return Neighbourhood(index, weight)


def _overlaps(u: Array, a: float, n: int) -> tuple[Array, Array]:
    """The boxes (m, k) that may meet [u - a, u + a], for u (m,), and the fraction of the interval in each.

    There are n boxes of width one: box i is [i, i + 1], but the first and the last are unbounded.
    """
    xp = array_namespace(u)
    k = min(n, ceil(2 * a) + 1)
    first = _clip_to_int(xp.floor(u - a), n - k)
    cells = first[:, None] + xp.arange(k, dtype=xp.int64, device=device(u))[None, :]
    below = xp.zeros_like(u)[:, None]
    if k == 1:
        return cells, below + 1
    edges = xp.astype(cells[:, 1:], u.dtype)
    # The distribution function at the edges between the boxes, with 0 and 1 at the outer ends.
    inner = xp.clip((edges - u[:, None] + a) / (2 * a), 0.0, 1.0)
    at = xp.concat([below, inner, below + 1], axis=1)
    return cells, at[:, 1:] - at[:, :-1]


def _clip_to_int(x: Array, top: int) -> Array:
    """x clipped to 0, ..., top as int64; clipping first avoids overflow in the cast."""
    xp = array_namespace(x)
    return xp.astype(xp.clip(x, 0.0, float(top)), xp.int64)


def _finite_numbers(name: str, values: Sequence[float]) -> tuple[float, ...]:
    try:
        numbers = tuple(float(v) for v in values)
    except (TypeError, ValueError):
        raise TypeError(f"{name} is {values!r}; expected a sequence of numbers") from None
    if not all(isfinite(v) for v in numbers):
        raise ValueError(f"{name} is {values!r}; expected finite numbers")
    return numbers


def check_index(name: str, x: Array) -> None:
    """Raise unless `x` is an int64 array."""
    if not is_array_api_obj(x):
        raise TypeError(f"{name} is of type {type(x).__name__}; expected an array of int64")
    if x.dtype != array_namespace(x).int64:
        raise TypeError(f"{name} has dtype {x.dtype}; expected int64")

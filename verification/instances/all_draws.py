"""All draws of a small law in one batch: each data point says by its number which draw it takes.

With them the mean over a batch is an expectation, and unbiasedness an equation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from phiball.backends import Array, Rng, array_namespace, to_numpy


@dataclass(frozen=True)
class ListedLaw:
    """A law on the points 0, ..., k - 1: a data point (c, i) takes the digits of c to base k, i its number.

    A data point that is asked for one point several times in a row takes one digit after the other.

    - `k`: the number of points, all equally likely as they are drawn.
    - `tilt`: the slope s0 of the tilt that makes them so: the reference law has weights exp(-s0 j).
    """

    k: int
    tilt: float = 0.0

    def sample(self, z: Array, n: int, rng: Rng, *, event_ndim: int = 1) -> Array:
        """The next n digits of each z (N, 2), as points (N, n, 2), whose second coordinate is the number."""
        code, number = to_numpy(z)[:, 0].astype(int), to_numpy(z)[:, 1]
        begins = np.concatenate([[True], number[1:] != number[:-1]])
        row = np.arange(len(code))
        asked = row - np.maximum.accumulate(np.where(begins, row, 0))
        digits = code[:, None] // self.k ** (asked[:, None] * n + np.arange(n)) % self.k
        points = np.stack([digits, np.broadcast_to(number[:, None], digits.shape)], axis=-1)
        return array_namespace(z).asarray(points, dtype=z.dtype)

    def sample_tilted(
        self, z: Array, s: Array, n: int, rng: Rng, *, event_ndim: int = 1
    ) -> tuple[Array, Array]:
        """The same points, and the log of the reference density over that of the tilt s."""
        points = self.sample(z, n, rng)
        places = np.arange(self.k)
        nu = np.exp(-self.tilt * places)
        slope = to_numpy(s)[:, :1]
        moment = np.log(np.exp(slope * places) @ (nu / nu.sum()))
        log_w = moment[:, None] - slope * to_numpy(points)[:, :, 0]
        return points, array_namespace(z).asarray(log_w, dtype=z.dtype)

    @property
    def log_ratio(self) -> Any:
        """log(nu/q) at the points, for q uniform."""
        nu = np.exp(-self.tilt * np.arange(self.k))
        return np.log(self.k * nu / nu.sum())


class EvenNumbers(Rng):
    """Uniform numbers that are not random: row r has the midpoint of cell r mod `cells`.

    A permutation leads to the same cells, so that each data point meets each cell in a batch of all pairs.
    """

    def __init__(self, cells: int) -> None:
        super().__init__(0)
        self.cells = cells

    def uniform(self, shape: tuple[int, ...], *, like: Array, low: float = 0.0, high: float = 1.0) -> Array:
        """((r mod cells) + 1/2)/cells, or 1/2 for a single number."""
        if shape == ():
            return array_namespace(like).asarray(0.5, dtype=like.dtype)
        number = np.arange(int(np.prod(shape))) % self.cells
        return array_namespace(like).asarray(((number + 0.5) / self.cells).reshape(shape), dtype=like.dtype)

    def permutation(self, n: int, *, like: Array) -> Array:
        """Row r goes to a place of its own in cell r mod `cells`."""
        number = np.arange(n)
        places = number % self.cells * (n // self.cells) + number // self.cells
        return array_namespace(like).asarray(places)


def batch_of_all_draws(k: int, level: int) -> tuple[Any, EvenNumbers]:
    """The data points (N, 2) of all draws of 2^level points of k, each with each level, and their source.

    P(l) = 2^-l/(2 - 2^-L) is a number of 2^(L+1) - 1 equal cells.
    """
    cells = 2 ** (level + 1) - 1
    codes = np.repeat(np.arange(k ** (2**level)), cells)
    return np.stack([codes, np.arange(len(codes))], axis=1).astype(float), EvenNumbers(cells)

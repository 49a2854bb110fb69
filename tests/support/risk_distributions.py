"""Distributions and losses whose robust risk is known."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from phiball.backends import Array, Rng, array_namespace
from tests.support.arrays import Arrays


def first(x: Array, i: Array) -> Array:
    """The loss x_0."""
    return x[:, 0]


class Counted:
    """The loss x_0 x_1, which records the number of points in each call."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def __call__(self, x: Array, i: Array) -> Array:
        self.sizes.append(x.shape[0])
        return x[:, 0] * x[:, 1]


@dataclass(frozen=True)
class Fixed:
    """A distribution whose `sample` returns given points: one row of `points` per data point."""

    points: Any

    def sample(self, x: Array, n_samples: int, *, rng: Rng, event_ndim: int = 1) -> Array:
        # See `fixed`: the first coordinate of a data point is its index.
        xp = array_namespace(x)
        return xp.take(self.points, xp.astype(x[:, 0], xp.int64), axis=0)


def fixed(losses: Any, arrays: Arrays) -> tuple[Array, Fixed]:
    """Data points and a distribution such that `first` has the values losses[k] around data point k."""
    z = arrays.asarray(np.arange(len(losses))[:, None])
    return z, Fixed(arrays.asarray(np.asarray(losses)[:, :, None]))

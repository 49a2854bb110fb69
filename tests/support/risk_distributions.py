"""Distributions and losses whose robust risk is known."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from phiball.backends import Array, Rng, array_namespace
from tests.support.arrays import Arrays

Z = 4.75  # standard errors, exceeded with probability 2e-6


def first(x: Array, i: Array) -> Array:
    """The first coordinate: uniform on [0, 1] in the ball of radius 1/2 around 1/2."""
    return x[:, 0]


class Counted:
    """The loss x_0 x_1, which records the number of points of each call."""

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
        # The first coordinate of a data point is its index.
        xp = array_namespace(x)
        return xp.take(self.points, xp.astype(x[:, 0], xp.int64), axis=0)


def fixed(losses: Any, arrays: Arrays) -> tuple[Array, Fixed]:
    """(z, distribution) such that the loss `first` on data point k takes the values losses[k]."""
    z = arrays.asarray(np.arange(len(losses))[:, None])
    return z, Fixed(arrays.asarray(np.asarray(losses)[:, :, None]))

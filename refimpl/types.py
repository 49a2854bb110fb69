"""The contracts that users implement: losses, gradients, reference laws, estimators and proposals.

N data points have shape (N,) + event, where event is the shape of one point: (d,) for a vector, (channels,
height, width) for an image. k perturbed points have shape (k,) + event, and i (k,) int64 holds the data point
that each comes from, so that their labels are y[i].
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from phiball.backends import Array, Rng
from phiball.refimpl.inner.divergences import Divergence

Loss: TypeAlias = Callable[[Array, Array], Array]
"""loss(x, i): the losses (k,) of points x (k,) + event, each of its own point alone."""

Gradient: TypeAlias = Callable[[Array, Array], Array]
"""gradient(x, i): the gradients of the losses of points x (k,) + event in x itself, of the shape of x."""


class Law(Protocol):
    """A reference law nu_z: a Ball, a Gaussian, or anything else with their `sample`."""

    def sample(self, z: Array, n: int, rng: Rng, *, event_ndim: int = 1) -> Array:
        """Draw `n` independent points of nu_z for each z (batch + event); shape batch + (n,) + event."""


@dataclass(frozen=True)
class LevelGroup:
    """The data points that get one level, and how their solutions count.

    - `level`: l, for 2^l perturbed points per data point;
    - `members`: the places of the data points in the batch;
    - `scale`: what multiplies their values and weights, 1/P(l) for RT-MLMC;
    - `telescoping`: whether the mean of the two halves is subtracted (see `signed_weights`).
    """

    level: int
    members: tuple[int, ...]
    scale: float
    telescoping: bool


class Estimator(Protocol):
    """How many perturbed points each data point of a batch gets: SG, RTMLMC, or your own."""

    def assign_levels(self, n: int, rng: Rng, *, like: Array) -> list[LevelGroup]:
        """Assign a level to each of n data points; every place 0, ..., n - 1 is in exactly one group.

        Random numbers are drawn from `rng` in the library and on the device of `like`.
        """


@dataclass(frozen=True)
class PreparedProposal:
    """A proposal made ready for a batch of data points.

    - `x` (N,) + event: the data points;
    - `eta`: the weight of the divergence, one number or (N,), one for each data point;
    - `draw(index, n, rng)`: n points of each data point of `index` (k,), shape (k, n) + event, and the log of
      the reference density over the density that they were drawn from, (k, n).
    """

    x: Array
    eta: float | Array
    draw: Callable[[Array, int, Rng], tuple[Array, Array]]


class Proposal(Protocol):
    """How perturbed points are drawn and weighted: Uniform, Tilted, or your own."""

    @property
    def self_normalised(self) -> bool:
        """Whether the weights of a data point's points are made to sum to one."""

    def valid_for(self, law: Law, divergence: Divergence) -> None:
        """Raise unless points can be drawn for that law and weighted for that divergence."""

    def prepare(
        self, law: Law, x: Array, eta: float | Array, gradient: Gradient, rng: Rng, chunk: int
    ) -> PreparedProposal:
        """Get ready for the data points x (N,) + event, at most `chunk` points per call of `gradient`."""

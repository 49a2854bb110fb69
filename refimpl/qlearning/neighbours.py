"""The value of a landing from its neighbourhood: by the full sum, from a sample, or by random levels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from phiball.backends import Array, Rng, array_namespace, device
from phiball.refimpl.inner.divergences import Divergence
from phiball.refimpl.qlearning.bellman import Maximum, valid_table, value_of
from phiball.refimpl.qlearning.grid import Neighbourhood
from phiball.refimpl.sampling.estimators import RTMLMC
from phiball.refimpl.validation import valid_count, valid_rng


class Neighbours(Protocol):
    """How the value of a landing is computed from the neighbourhoods of n states."""

    def __call__(
        self,
        Q: Array,
        distribution: Neighbourhood,
        eta: float,
        d: Divergence,
        maximum: Maximum,
        rng: Rng | None,
    ) -> Array:
        """V(s) of `robust_value`, or an estimate of it, for each row of `distribution`."""
        ...


@dataclass(frozen=True)
class ExactNeighbours:
    """Compute V(s) by the finite sum over the whole neighbourhood, without random numbers.

    An instance is what `q_update` and `q_learning` take as `neighbours`.

    >>> import numpy as np
    >>> from phiball.refimpl import ENTROPIC
    >>> from phiball.qlearning import Maximum, Neighbourhood
    >>> alone = Neighbourhood(np.array([[1]]), np.array([[1.0]]))
    >>> ExactNeighbours()(np.array([[0.0], [3.0]]), alone, 1.0, ENTROPIC, Maximum.OUTSIDE, None)
    array([3.])
    """

    def __call__(
        self,
        Q: Array,
        distribution: Neighbourhood,
        eta: float,
        d: Divergence,
        maximum: Maximum,
        rng: Rng | None,
    ) -> Array:
        """V(s) for each row of `distribution`."""
        valid_table(Q, distribution)
        return value_of(Q, distribution.index, distribution.weight, eta, d, maximum)


@dataclass(frozen=True)
class SampledNeighbours:
    """Estimate V(s) from 2^level draws of the neighbourhood: the SG estimator.

    Arguments:
    - `level`: a whole number, zero or more.

    Its mean is above V(s) and falls to it as the level grows: the minimum over distributions is taken after the draw,
    and so is a maximum over actions that stands OUTSIDE.

    Reference: Section 6.2.

    >>> import numpy as np
    >>> from phiball.backends import rng
    >>> from phiball.refimpl import ENTROPIC
    >>> from phiball.qlearning import Maximum, Neighbourhood
    >>> coin = Neighbourhood(np.array([[0, 1]]), np.array([[0.5, 0.5]]))
    >>> Q = np.array([[0.0], [1.0]])
    >>> V = SampledNeighbours(12)(Q, coin, 1.0, ENTROPIC, Maximum.OUTSIDE, rng(0))
    >>> bool(abs(V[0] - 0.379885) < 0.05)
    True
    """

    level: int

    def __post_init__(self) -> None:
        valid_count("level", self.level, 0)

    def __call__(
        self,
        Q: Array,
        distribution: Neighbourhood,
        eta: float,
        d: Divergence,
        maximum: Maximum,
        rng: Rng | None,
    ) -> Array:
        """An estimate of V(s) for each row of `distribution`."""
        valid_table(Q, distribution)
        return _on_points(Q, _draw(distribution, 2**self.level, Q, valid_rng(rng)), eta, d, maximum)


@dataclass(frozen=True)
class TelescopedNeighbours:
    """Estimate V(s) at a random level, by what it adds to the level below: the RT-MLMC estimator.

    Arguments:
    - `level`: L, a whole number, zero or more.

    Level l has probability P(l) = 2^-l/(2 - 2^-L). The estimate is V on 2^l draws minus the average of V on
    their two halves, divided by P(l); at level 0 it is V on one draw, divided by P(0). Its mean is that of
    SampledNeighbours(level), for (L+1)/(2 - 2^-L) draws on average.

    V includes the maximum over actions. One level is drawn per call, for all rows.

    Reference: Section 6.2.

    >>> import numpy as np
    >>> from phiball.backends import rng
    >>> from phiball.refimpl import ENTROPIC
    >>> from phiball.qlearning import Maximum, Neighbourhood
    >>> alone = Neighbourhood(np.array([[0]]), np.array([[1.0]]))
    >>> V = TelescopedNeighbours(0)(np.array([[2.0]]), alone, 1.0, ENTROPIC, Maximum.OUTSIDE, rng(0))
    >>> V
    array([2.])
    """

    level: int

    def __post_init__(self) -> None:
        valid_count("level", self.level, 0)

    def __call__(
        self,
        Q: Array,
        distribution: Neighbourhood,
        eta: float,
        d: Divergence,
        maximum: Maximum,
        rng: Rng | None,
    ) -> Array:
        """An estimate of V(s) for each row of `distribution`."""
        valid_table(Q, distribution)
        rng = valid_rng(rng)
        (group,) = RTMLMC(self.level).assign_levels(1, rng, like=Q)
        points = _draw(distribution, 2**group.level, Q, rng)
        added = _on_points(Q, points, eta, d, maximum)
        if group.level:
            half = 2 ** (group.level - 1)
            first = _on_points(Q, points[:, :half], eta, d, maximum)
            added = added - (first + _on_points(Q, points[:, half:], eta, d, maximum)) / 2
        return group.weight * added


EXACT = ExactNeighbours()


def _on_points(Q: Array, points: Array, eta: float, d: Divergence, maximum: Maximum) -> Array:
    xp = array_namespace(Q)
    weight = xp.full(points.shape, 1 / points.shape[1], dtype=Q.dtype, device=device(Q))
    return value_of(Q, points, weight, eta, d, maximum)


def _draw(distribution: Neighbourhood, n: int, like: Array, rng: Rng) -> Array:
    """n draws from each row of `distribution`: states, (rows, n) int64."""
    xp = array_namespace(like)
    cumulative = xp.astype(xp.cumulative_sum(distribution.weight, axis=-1), like.dtype)
    total = cumulative[:, -1:]
    u = rng.uniform((distribution.index.shape[0], n), like=like) * total
    slot = xp.sum(xp.astype(cumulative[:, None, :] <= u[:, :, None], xp.int64), axis=-1)
    last = xp.sum(xp.astype(cumulative < total, xp.int64), axis=-1, keepdims=True)
    # Where rounding takes u to the total, the last state that has weight.
    return xp.take_along_axis(distribution.index, xp.where(slot < last, slot, last), axis=1)

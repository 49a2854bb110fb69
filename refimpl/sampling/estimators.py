"""Gradient estimators of the regularized risk, as signed weights on perturbed points (Section 3.1).

F^l(theta) is the risk with nu_z replaced by 2^l sampled points z'_i, Eq. (F:ell). By Danskin's theorem its
gradient is the mean over data points of sum_i gamma_i grad f(z'_i), with the worst-case weights gamma. So an
estimator is given by the weights of the sampled points of each data point:

    SG:       gamma on 2^L points                                               Eq. (SG:estimator)
    RT-MLMC:  (gamma - (gamma' + gamma'')/2) / P(l) on 2^l points, l random     Eq. (RTMLMC:estimator)

where gamma' and gamma'' are the worst-case weights on the first and second half of the points. At level 0
nothing is subtracted (the paper's Eq. (G:ell) leaves G^0 undefined). Both estimators have the expectation
grad F^L. `phiball.sampling.signed_weights` computes the weights.
"""

from __future__ import annotations

from bisect import bisect
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

from phiball.backends import Array, Rng, active, array_namespace, as_rng, is_abstract, to_numpy
from phiball.refimpl.types import LevelGroup
from phiball.refimpl.validation import valid_count


@dataclass(frozen=True)
class SG:
    """The stochastic gradient estimator: 2^level perturbed points for every data point.

    Arguments:
    - `level`: L, a whole number from 0 to 30.

    Reference: Eq. (SG:estimator) of Section 3.

    >>> SG(7).evaluations
    128.0
    """

    level: int

    def __post_init__(self) -> None:
        """Validate the level."""
        _valid_level(self.level)

    def assign_levels(self, n: int, rng: Rng, *, like: Array) -> list[LevelGroup]:
        """Assign the same level to all n data points."""
        return [LevelGroup(self.level, range(n), 1.0, False)]

    @property
    def evaluations(self) -> float:
        """The number of perturbed points per data point, 2^level."""
        return 2.0**self.level


@dataclass(frozen=True)
class RTMLMC:
    r"""The multilevel estimator with random truncation: level $l$ has probability $2^{-l}/(2 - 2^{-L})$.

    Arguments:
    - `level`: L, a whole number from 0 to 30.
    - `allocation`: "random" draws the level of each data point independently, as in the paper. "stratified"
      draws the levels of a batch by systematic sampling. This changes neither the distribution of a data
      point's level nor the expectation of the estimate. Between batches, the cost varies half as much, and
      the number of data points at level 0 by at most one.

    It has the same expectation as SG at the same level, with (L+1)/(2 - 2^-L) perturbed points per data point
    on average: 4.02 instead of 128 for L = 7. (The paper says L/(2 - 2^-L).) It is noisy: even the estimate
    of a constant loss is random, because only data points of level 0 contribute to it.

    Reference: Eq. (RTMLMC:estimator) of Section 3.

    >>> round(RTMLMC(7).evaluations, 2)
    4.02
    """

    level: int
    allocation: str = "random"

    def __post_init__(self) -> None:
        """Validate the level and the allocation."""
        _valid_level(self.level)
        if self.allocation not in ("random", "stratified"):
            raise ValueError(f"allocation is {self.allocation!r}; expected 'random' or 'stratified'")

    @property
    def probabilities(self) -> tuple[float, ...]:
        """The probability P(l) of each level l = 0, ..., L."""
        total = 2 - 2.0**-self.level
        return tuple(2.0**-k / total for k in range(self.level + 1))

    @property
    def evaluations(self) -> float:
        """The mean number of perturbed points per data point, (L+1)/(2 - 2^-L)."""
        return (self.level + 1) / (2 - 2.0**-self.level)

    def draw_level(self, rng: Any = None) -> Level:
        """Draw one level for all data points of a batch: an estimator of fixed shapes, for jax.jit.

        It has the same expectation as independent levels, and a larger variance.

        >>> RTMLMC(7).draw_level(rng=0)
        Level(level=0, weight=1.9921875)
        """
        u = float(as_rng(rng).uniform((), like=active().namespace.zeros(())))
        level = bisect(list(accumulate(self.probabilities[:-1])), u)
        return Level(level, 1 / self.probabilities[level])

    def assign_levels(self, n: int, rng: Rng, *, like: Array) -> list[LevelGroup]:
        """Assign a random level to each of n data points, and group them by level."""
        draws = rng.uniform((n,), like=like) if self.allocation == "random" else rng.permutation(n, like=like)
        if is_abstract(draws):
            raise TypeError(
                "RTMLMC draws levels, and so shapes, at random, which jax.jit does not support; expected "
                "SG(level), or RTMLMC(level).draw_level(rng), drawn outside and passed as a static argument"
            )
        u = to_numpy(draws)
        if self.allocation == "stratified":
            u = (u + to_numpy(rng.uniform((), like=like))) / n
        host = array_namespace(u)  # levels determine shapes, so they are computed in NumPy
        p = self.probabilities
        levels = host.searchsorted(host.asarray(list(accumulate(p[:-1])), dtype=u.dtype), u, side="right")
        order = host.argsort(levels, stable=True)
        ends = host.searchsorted(levels[order], host.arange(self.level + 2)).tolist()
        return [
            LevelGroup(k, order[start:stop], 1 / p[k], True)
            for k, (start, stop) in enumerate(pairwise(ends))
            if start < stop
        ]


@dataclass(frozen=True)
class Level:
    """One level of RT-MLMC for all data points, drawn by `RTMLMC.draw_level`.

    - `level`: l; each data point has 2^l perturbed points.
    - `weight`: 1/P(l), the factor of the estimate.

    >>> Level(3, weight=16.0).evaluations
    8.0
    """

    level: int
    weight: float

    def assign_levels(self, n: int, rng: Rng, *, like: Array) -> list[LevelGroup]:
        """Assign the level to all n data points."""
        return [LevelGroup(self.level, range(n), self.weight, True)]

    @property
    def evaluations(self) -> float:
        """The number of perturbed points per data point, 2^level."""
        return 2.0**self.level


def _valid_level(level: int) -> None:
    if valid_count("level", level, 0) > 30:
        raise ValueError(f"level is {level!r}; expected at most 30, which is a billion points")

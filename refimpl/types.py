"""Protocols that users implement: losses, gradients, reference distributions, estimators and proposals.

N data points have shape (N,) + event, where event is the shape of one point: (d,) for a vector, (channels,
height, width) for an image. k perturbed points have shape (k,) + event. The index i (k,) int64 says to which
data point each perturbed point belongs, so that the labels are y[i].
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from phiball.backends import Array, Rng
from phiball.refimpl.inner.divergences import Divergence
from phiball.refimpl.printing import one_line

__all__ = ["Distribution", "Estimator", "Gradient", "LevelGroup", "Loss", "PreparedProposal", "Proposal"]

Loss: TypeAlias = Callable[[Array, Array], Array]
"""A function loss(x, i): the losses (k,) of points x (k,) + event; each loss depends only on its own point.

>>> import numpy as np
>>> y = np.array([1.0, -1.0])
>>> loss: Loss = lambda x, i: np.maximum(0, 1 - y[i] * x[:, 0])
>>> loss(np.array([[0.5], [0.5]]), np.array([0, 1])).tolist()
[0.5, 1.5]
"""

Gradient: TypeAlias = Callable[[Array, Array], Array]
"""A function gradient(x, i): the gradient of each loss of loss(x, i) in its own point, of the shape of x.

It is needed only for libraries without automatic differentiation.

>>> import numpy as np
>>> gradient: Gradient = lambda x, i: 2 * x  # of the loss |x|^2
>>> gradient(np.array([[1.0, 2.0]]), np.array([0])).tolist()
[[2.0, 4.0]]
"""


class Distribution(Protocol):
    """A reference distribution nu_z: a Ball, a Gaussian, or another class with the method `sample`.

    >>> import numpy as np
    >>> from phiball import ENTROPIC, robust_risk
    >>> class Laplace:
    ...     def sample(self, x, n_samples, *, rng, event_ndim=1):
    ...         batch, event = x.shape[: x.ndim - event_ndim], x.shape[x.ndim - event_ndim :]
    ...         shape = (*batch, n_samples, *event)
    ...         b = rng.exponential(shape, like=x) - rng.exponential(shape, like=x)
    ...         return np.expand_dims(x, axis=len(batch)) + b
    >>> cosine, x = lambda x, i: np.cos(x[:, 0]), np.zeros((5, 1))
    >>> risk = robust_risk(cosine, x, Laplace(), 1.0, ENTROPIC, n_samples=100, rng=0)
    >>> bool(risk.value < 1)
    True
    """

    def sample(self, x: Array, n_samples: int, *, rng: Rng, event_ndim: int = 1) -> Array:
        """Draw `n_samples` independent points around each x, of shape batch + (n_samples,) + event.

        x has shape batch + event; its last `event_ndim` axes make up one point.
        """


@dataclass(frozen=True)
class LevelGroup:
    """Data points of the same level, and how their solutions enter the estimate.

    - `level`: l; each data point has 2^l perturbed points.
    - `members`: the positions of the data points in the batch, as a tuple, a range or a NumPy array.
    - `weight`: a factor of the values and weights of these data points, 1/P(l) for RT-MLMC.
    - `telescoping`: as in `phiball.sampling.signed_weights`.

    >>> import numpy as np
    >>> from phiball import SG, rng
    >>> SG(3).assign_levels(2, rng(0), like=np.empty(0))
    [LevelGroup(level=3, members=range(0, 2), weight=1.0, telescoping=False)]
    """

    level: int
    members: Sequence[int] | Array
    weight: float
    telescoping: bool


class Estimator(Protocol):
    """A rule for the number of perturbed points of each data point: SG, RTMLMC, or your own class.

    >>> import numpy as np
    >>> from phiball import ENTROPIC, Ball, RegularizedLoss, rng
    >>> from phiball.refimpl.types import LevelGroup
    >>> class TwoLevels:  # 4 perturbed points for even data points, 16 for odd ones
    ...     def assign_levels(self, n, rng, *, like):
    ...         even, odd = tuple(range(0, n, 2)), tuple(range(1, n, 2))
    ...         return [LevelGroup(2, even, 1.0, False), LevelGroup(4, odd, 1.0, False)]
    >>> objective = RegularizedLoss(Ball(2, 1.0), 1.0, ENTROPIC, TwoLevels())
    >>> len(objective.points(lambda x, i: x[:, 0], np.zeros((6, 3)), rng=rng(0)).points)
    60
    """

    def assign_levels(self, n: int, rng: Rng, *, like: Array) -> list[LevelGroup]:
        """Assign a level to each of n data points: each position 0, ..., n - 1 is in exactly one group.

        Draw random numbers with the library and on the device of `like`.
        """


@dataclass(frozen=True)
class PreparedProposal:
    """A proposal prepared for a batch of data points.

    - `x` (N,) + event: the data points.
    - `eta`: the price of the divergence, a number or an array (N,).
    - `draw`: a function draw(rows, n, rng) for the data points at the positions `rows` (k,), or all if `rows`
      is None. It returns n points for each, of shape (k, n) + event, and log(nu/q) (k, n), the log of the
      reference density over the sampling density; None means zeros.
    - `independent`: True if the n points of a data point are independent. Then one call with n = 1 may draw
      the points of several levels: each data point of level l occurs 2^l times in `rows`.

    >>> import numpy as np
    >>> from phiball import Ball, Uniform, rng
    >>> x, i = np.zeros((5, 3)), np.arange(5)
    >>> prepared = Uniform().prepare(Ball(2, 0.5), x, i, 1.0, lambda x, i: x[:, 0], rng(0), 100)
    >>> points, log_w = prepared.draw(np.array([0, 4]), 8, rng(0))
    >>> points.shape, log_w
    ((2, 8, 3), None)
    """

    x: Array
    eta: float | Array
    draw: Callable[[Array | None, int, Rng], tuple[Array, Array | None]]
    independent: bool = False
    __repr__ = one_line


class Proposal(Protocol):
    """A rule for drawing and weighting perturbed points: Uniform, Tilted, or your own class.

    >>> from phiball import ENTROPIC, Ball, Tilted
    >>> proposal: Proposal = Tilted()
    >>> proposal.check(Ball(2, 0.5), ENTROPIC)
    """

    @property
    def self_normalised(self) -> bool:
        """Whether the importance weights of the points of a data point are normalized to sum to one."""

    def check(self, reference: Distribution, divergence: Divergence) -> None:
        """Raise unless points can be drawn from the reference and weighted for the divergence."""

    def prepare(
        self,
        reference: Distribution,
        x: Array,
        i: Array,
        eta: float | Array,
        loss: Loss,
        rng: Rng,
        chunk: int,
    ) -> PreparedProposal:
        """Prepare to draw around the data points x (N,) + event, with indices i (N,).

        If needed, loss(x, i) is evaluated for at most `chunk` points at a time.
        """

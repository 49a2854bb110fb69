"""How perturbed points are drawn: from the reference distribution itself, or from its tilt towards larger losses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import isfinite, prod
from typing import Any

from phiball.backends import (
    Array,
    Rng,
    array_namespace,
    detach,
    device,
    differentiates,
    ignore_float_warnings,
    input_gradient,
    library,
)
from phiball.refimpl.distributions.balls import Ball
from phiball.refimpl.inner.divergences import Divergence
from phiball.refimpl.numerics import largest
from phiball.refimpl.sampling.streaming import indices, joined, slices
from phiball.refimpl.types import Distribution, Gradient, Loss, PreparedProposal
from phiball.refimpl.validation import (
    all_finite,
    check_same_array_type,
    valid_array,
    valid_count,
    valid_number,
)


@dataclass(frozen=True)
class Uniform:
    """Draw perturbations from the reference distribution itself, as in the paper.

    Arguments:
    - `antithetic`: True draws pairs z + b, z - b.
    - `qmc`: True draws scrambled Sobol points; see `Ball.sample` for both.

    Both lower the variance of the estimate. They change the objective F^L a little, because the 2^L points of
    a data point then depend on each other; its limit F is the same. Each half of a level has the distribution of the
    level below, so that RT-MLMC still has the expectation of SG.

    >>> import numpy as np
    >>> from phiball.backends import rng
    >>> from phiball.refimpl import ENTROPIC, SG, Ball, RegularizedLoss, Uniform
    >>> objective = RegularizedLoss(Ball(2, 1.0), 1.0, ENTROPIC, SG(4), Uniform(antithetic=True))
    >>> objective(lambda x, i: x[:, 0], np.zeros((5, 3)), rng=rng(0)).shape
    ()
    """

    antithetic: bool = False
    qmc: bool = False

    @property
    def self_normalised(self) -> bool:
        """False: all weights are one."""
        return False

    def valid_for(self, distribution: Distribution, divergence: Divergence) -> None:
        """Raise unless the distribution can be drawn in this way."""
        if not isinstance(distribution, Ball) and self != Uniform():
            raise ValueError(
                f"proposal is {self!r}; expected Uniform() for a distribution that is not a Ball"
            )

    def prepare(
        self,
        distribution: Distribution,
        x: Array,
        eta: float | Array,
        gradient: Gradient,
        rng: Rng,
        chunk: int,
    ) -> PreparedProposal:
        """Prepare the draws from the distribution, for data points x (N,) + event."""
        how = {"antithetic": self.antithetic, "qmc": self.qmc} if self.antithetic or self.qmc else {}
        every = indices(x)
        sample: Callable[..., Array] = distribution.sample
        if type(distribution) is Ball:
            distribution.check_centres(detach(x))
            sample = distribution.draw  # x has been checked

        def draw(index: Array, n: int, rng: Rng) -> tuple[Array, None]:
            draws = sample if index is every else _rows_of(distribution, sample, index, x.ndim - 1)
            return draws(_rows(x, index, every), n, rng=rng, event_ndim=x.ndim - 1, **how), None

        return PreparedProposal(x, eta, draw, every, independent=not how)


@dataclass(frozen=True)
class Tilted:
    r"""Draw perturbations from the worst case of the linearised loss, with exact importance weights.

    With $g$ the gradient of the loss at the data point, points $z + b$ have the density $q$ proportional to
    $e^{g^\top b/\eta}$ on the ball, so that

    $$\mathbb{E}_\nu e^{f/\eta}
    = \mathbb{E}_\nu e^{g^\top b/\eta}\; \mathbb{E}_q e^{(f(z + b) - g^\top b)/\eta}$$

    leaves only the curvature of $f$ to chance. A small eta gives the point of the fast gradient method, a
    large one the paper's uniform sampling. This is not in the paper.

    Arguments:
    - `kappa`: None keeps eta. A number sets eta_z = rho |g|_* / (kappa d) for each data point, d its
      dimension (and eta where g is 0): the scale of the loss does not matter then. Start at 1.
    - `retilt`: how many times the gradient is taken again, at a point drawn from the tilt before.
    - `start`: None takes the gradient at the data point, "uniform" at a point drawn from the ball around it.
    - `self_normalised`: False adds eta log(nu/q) to the losses, which is exact for `ENTROPIC` and refused for
      other divergences. True normalises the weights of each data point's points: biased, for any divergence.

    refimpl/TRAINING.md says what each costs and where it helps. In training, points and weights are
    constants: the gradient is sum_i w_i grad f(z'_i).

    >>> import numpy as np
    >>> from phiball.backends import rng
    >>> from phiball.refimpl import ENTROPIC, SG, Ball, RegularizedLoss, Tilted
    >>> objective = RegularizedLoss(Ball(2, 1.0), 1.0, ENTROPIC, SG(0), Tilted())
    >>> loss, slope = lambda x, i: x[:, 0], lambda x, i: np.asarray([[1.0, 0.0, 0.0]]) + 0 * x
    >>> value = objective(loss, np.zeros((1, 3)), rng=rng(0), input_gradient=slope)
    >>> print(round(float(value), 4))  # log E exp(b_1), exact from one point as the loss is linear
    0.0986
    """

    kappa: float | None = None
    retilt: int = 0
    self_normalised: bool = False
    start: str | None = None
    gradient: Gradient | None = None

    def __post_init__(self) -> None:
        """Validate the settings."""
        if self.start not in (None, "uniform"):
            raise ValueError(f"start is {self.start!r}; expected None, or 'uniform' for a random start")
        if self.kappa is not None:
            valid_number("kappa", self.kappa, above=0.0)
        valid_count("retilt", self.retilt, 0)

    def valid_for(self, distribution: Distribution, divergence: Divergence) -> None:
        """Raise unless the distribution can be tilted, and the weights are exact for the divergence."""
        if not callable(getattr(distribution, "sample_tilted", None)):
            raise TypeError(f"ball is {distribution!r}; expected a Ball or a Gaussian, which can be tilted")
        if isinstance(distribution, Ball) and distribution.norm not in (1.0, 2.0, float("inf")):
            raise ValueError(f"ball is {distribution!r}; expected norm 1, 2 or inf, which can be tilted")
        if self.kappa is not None and not (isinstance(distribution, Ball) and distribution.radius > 0):
            raise ValueError(
                f"kappa is {self.kappa!r}; expected None for {distribution!r}, which has no radius"
            )
        if divergence.family != "entropic" and not self.self_normalised:
            raise ValueError(
                f"divergence is {divergence.name}; expected ENTROPIC, for which tilted points are weighed "
                "exactly, or Tilted(self_normalised=True), which is biased"
            )

    def prepare(
        self,
        distribution: Distribution,
        x: Array,
        eta: float | Array,
        gradient: Gradient,
        rng: Rng,
        chunk: int,
    ) -> PreparedProposal:
        """Take the gradients at the starts of x (N,) + event, and `retilt` times again at tilted points."""
        every = indices(x)
        sample = distribution.sample_tilted  # type: ignore[attr-defined]
        if type(distribution) is Ball:
            distribution.check_centres(detach(x))
            sample = distribution.draw_tilted  # x and s have been checked
        at = detach(x)
        if self.start is not None:
            at = distribution.sample(at, 1, rng=rng, event_ndim=x.ndim - 1)[:, 0, ...]
        g = _gradients(gradient, at, every, chunk)
        if self.kappa is not None and isinstance(distribution, Ball):
            eta = self._scale_free(distribution, self.kappa, g, eta)
        s = _tilt(distribution, g, eta)

        def draw(index: Array, n: int, rng: Rng) -> tuple[Array, Array]:
            z, aimed = _rows(x, index, every), _rows(s, index, every)
            draws = sample if index is every else _rows_of(distribution, sample, index, x.ndim - 1)
            points, log_w = draws(z, aimed, n, rng=rng, event_ndim=x.ndim - 1)
            return points, log_w

        for _ in range(self.retilt):
            points, _ = draw(every, 1, rng)
            s = _tilt(distribution, _gradients(gradient, detach(points[:, 0, ...]), every, chunk), eta)
        return PreparedProposal(x, eta, draw, every, independent=True)

    @staticmethod
    def _scale_free(distribution: Ball, kappa: float, g: Array, eta: float | Array) -> Array:
        """rho |g|_* / (kappa d), or eta where that is 0."""
        xp = array_namespace(g)
        size = distribution.radius * distribution.dual_norm(g, event_ndim=g.ndim - 1)
        d: Any = prod(g.shape[1:])
        if (
            distribution.feature_scale is not None
        ):  # coordinates that do not move are no dimensions; without any, size is 0
            d = xp.asarray(
                distribution.feature_scale.moving(tuple(g.shape), g.ndim - 1), dtype=g.dtype, device=device(g)
            )
            d = xp.where(d > 0, d, xp.ones_like(d))
        own = size / (kappa * d)
        return xp.where(own > 0, own, eta * xp.ones_like(own))


def input_gradients(loss: Loss, gradient: Gradient | None) -> Gradient:
    """The caller's gradient function, or else the one that the library of x derives from the loss."""
    if gradient is None:
        return partial(_derived, loss)
    if not callable(gradient):
        raise TypeError(f"input_gradient is {gradient!r}; expected a function gradient(x, i), or None")
    return gradient


def _derived(loss: Loss, x: Array, i: Array) -> Array:
    if not differentiates(x):
        raise TypeError(
            f"input_gradient is None and x a {library(x)} array, which has no automatic differentiation; "
            "expected input_gradient=..., a function that gives the gradients of the losses in x"
        )
    return input_gradient(loss, x, i)


def _gradients(gradient: Gradient, x: Array, i: Array, chunk: int) -> Array:
    """gradient(x, i) in pieces of at most `chunk` points, checked."""
    xp = array_namespace(x)
    if x.shape[0] <= chunk:
        parts = [gradient(x, i)]
    else:
        parts = [gradient(x[rows, ...], i[rows]) for rows in slices(x.shape[0], chunk)]
    for part in parts:
        valid_array("input_gradient(x, i)", part)
        check_same_array_type("input_gradient(x, i)", part, x, other="x")
    g = detach(joined(parts))
    if tuple(g.shape) != tuple(x.shape):
        raise ValueError(
            f"input_gradient(x, i) has shape {tuple(g.shape)}; expected that of x, {tuple(x.shape)}"
        )
    return xp.astype(g, x.dtype, copy=False)


def _tilt(distribution: Distribution, g: Array, eta: float | Array) -> Array:
    """g/eta, checked; eta is a number, or one for each g."""
    xp = array_namespace(g)
    with ignore_float_warnings():
        s = g / (eta if isinstance(eta, (int, float)) else xp.reshape(eta, (-1, *([1] * (g.ndim - 1)))))
    top = largest(s)
    if not isfinite(top):
        if not all_finite(g):
            raise ValueError("input_gradient(x, i) contains NaN or infinity; expected finite numbers")
        raise ValueError(f"input_gradient(x, i)/eta overflows {s.dtype}; expected a larger eta")
    if isinstance(distribution, Ball):
        distribution.check_reach(s, top, event_ndim=s.ndim - 1)
    return s


def _rows_of(
    distribution: Distribution, sample: Callable[..., Any], index: Array, event_ndim: int
) -> Callable[..., Any]:
    """The method `sample` of a distribution for these data points, which may have a ball of their own size each."""
    if not isinstance(distribution, Ball) or distribution.feature_scale is None:
        return sample
    return getattr(distribution.rows(index, event_ndim=event_ndim), sample.__name__)  # type: ignore[no-any-return]


def _rows(x: Array, index: Array, every: Array) -> Array:
    """The x of these data points, without a copy if they are all."""
    return x if index is every else array_namespace(x).take(x, index, axis=0)

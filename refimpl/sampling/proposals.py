"""Proposals, which draw the perturbed points: from the reference, or tilted towards larger losses."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite, prod
from typing import Any

from phiball.backends import Array, Rng, array_namespace, detach, device, ignore_float_warnings
from phiball.refimpl.distributions.balls import Ball
from phiball.refimpl.inner.divergences import Divergence
from phiball.refimpl.numerics import largest
from phiball.refimpl.sampling.gradients import check_gradient, loss_gradients
from phiball.refimpl.sampling.streaming import concat, slices
from phiball.refimpl.types import Distribution, Gradient, Loss, PreparedProposal
from phiball.refimpl.validation import all_finite, valid_count, valid_number


@dataclass(frozen=True)
class Uniform:
    """Draw perturbations from the reference distribution itself, as in the paper.

    Arguments:
    - `antithetic`: True draws pairs z + b, z - b.
    - `qmc`: True draws scrambled Sobol points; see `Ball.sample` for both.

    Both options reduce the variance of the estimate. Its expectation F^L, the risk with 2^L points per data
    point, changes slightly, because these points are then dependent; the limit of F^L for large L does not
    change. RT-MLMC still has the same expectation as SG.

    >>> import numpy as np
    >>> from phiball import SG, Ball, RegularizedLoss, Uniform
    >>> objective = RegularizedLoss(Ball(2, 1.0), 1.0, "entropic", SG(4), Uniform(antithetic=True))
    >>> objective(lambda x, i: x[:, 0], np.zeros((5, 3)), rng=0).shape
    ()
    """

    antithetic: bool = False
    qmc: bool = False

    @property
    def self_normalised(self) -> bool:
        """False, because all weights are one."""
        return False

    def check(self, reference: Distribution, divergence: Divergence) -> None:
        """Raise unless the reference distribution supports these options."""
        if not isinstance(reference, Ball) and self != Uniform():
            raise ValueError(f"proposal is {self!r}, which needs a Ball as the reference; expected Uniform()")

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
        """Prepare to draw from the reference distribution; the loss is not evaluated."""
        options = {"antithetic": self.antithetic, "qmc": self.qmc} if self.antithetic or self.qmc else {}
        event_ndim = x.ndim - 1
        method = _method_name(reference, x, "draw", "sample")

        def draw(rows: Array | None, n: int, rng: Rng) -> tuple[Array, None]:
            sample = getattr(_reference_of(reference, rows, event_ndim), method)
            return sample(_take(x, rows), n, rng=rng, event_ndim=event_ndim, **options), None

        return PreparedProposal(x, eta, draw, independent=not options)


@dataclass(frozen=True)
class Tilted:
    r"""Draw perturbations from the worst case of the linearized loss, with exact importance weights.

    With $g$ the gradient of the loss $f$ at the data point $z$, the perturbation $b$ has a density $q$
    proportional to $e^{g^\top b/\eta}$ on the ball, so that

    $$\mathbb{E}_\nu e^{f/\eta}
    = \mathbb{E}_\nu e^{g^\top b/\eta}\; \mathbb{E}_q e^{(f(z + b) - g^\top b)/\eta}$$

    where the first factor is known exactly. For a linear $f$, the second expectation is over a constant, so
    that one point is enough. As eta decreases, $q$ concentrates at the point of the fast gradient method; as
    eta grows, it becomes uniform. This is not in the paper.

    Arguments:
    - `kappa`: None uses the given eta. A positive number, such as 1, replaces eta by radius |g|_* / (kappa d)
      for each data point with g != 0, where |g|_* is the dual norm and d the dimension. The perturbations
      then do not depend on the scale of the loss.
    - `retilt`: how many times the gradient is recomputed, at a point drawn with the previous tilt.
    - `start`: None takes the gradient at the data point, "uniform" at a uniform point of the ball.
    - `self_normalised`: False adds eta log(nu/q) to the losses, which is exact for `ENTROPIC`; other
      divergences raise an error. True normalizes the importance weights of the points drawn around each
      data point, which works for every divergence but is biased.
    - `gradient`: a function gradient(x, i) that returns the gradients of the losses in x. None uses torch or
      JAX.

    docs/guides/training.md compares costs. In training, the drawn points z'_i and their weights w_i
    are constants: the gradient is sum_i w_i grad f(z'_i).

    >>> import numpy as np
    >>> from phiball import SG, Ball, RegularizedLoss, Tilted
    >>> proposal = Tilted(gradient=lambda x, i: np.asarray([[1.0, 0.0, 0.0]]) + 0 * x)
    >>> objective = RegularizedLoss(Ball(2, 1.0), 1.0, "entropic", SG(0), proposal)
    >>> value = objective(lambda x, i: x[:, 0], np.zeros((1, 3)), rng=0)
    >>> print(round(float(value), 4))  # log E exp(b_1), exact from one point because the loss is linear
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
        if self.gradient is not None and not callable(self.gradient):
            raise TypeError(f"gradient is {self.gradient!r}; expected a function gradient(x, i), or None")

    def check(self, reference: Distribution, divergence: Divergence) -> None:
        """Raise unless the reference can be tilted, and the weights are exact or self-normalized."""
        if not callable(getattr(reference, "sample_tilted", None)):
            raise TypeError(f"reference is {reference!r}; expected a Ball or a Gaussian, which can be tilted")
        if isinstance(reference, Ball) and reference.norm not in (1.0, 2.0, float("inf")):
            raise ValueError(f"reference is {reference!r}; expected norm 1, 2 or inf, which can be tilted")
        if self.kappa is not None and not (isinstance(reference, Ball) and reference.radius > 0):
            raise ValueError(f"kappa is {self.kappa!r}; expected None for {reference!r}, which has no radius")
        if divergence.family != "entropic" and not self.self_normalised:
            raise ValueError(
                f"divergence is {divergence.name}; expected ENTROPIC, for which tilted points have exact "
                "weights, or Tilted(self_normalised=True), which is biased"
            )

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
        """Compute the gradients at the starting points, and `retilt` times again at tilted points."""
        check_gradient(self.gradient, x)
        event_ndim = x.ndim - 1
        method = _method_name(reference, x, "draw_tilted", "sample_tilted")
        start = detach(x)
        if self.start is not None:
            start = reference.sample(start, 1, rng=rng, event_ndim=event_ndim)[:, 0, ...]
        g = self._gradients(loss, start, i, chunk)
        if self.kappa is not None and isinstance(reference, Ball):
            eta = _scale_free_eta(reference, self.kappa, g, eta)
        tilt = _tilt(reference, g, eta)

        def draw(rows: Array | None, n: int, rng: Rng) -> tuple[Array, Array]:
            sample = getattr(_reference_of(reference, rows, event_ndim), method)
            points, log_w = sample(_take(x, rows), _take(tilt, rows), n, rng=rng, event_ndim=event_ndim)
            return points, log_w

        for _ in range(self.retilt):
            points, _ = draw(None, 1, rng)
            tilt = _tilt(reference, self._gradients(loss, detach(points[:, 0, ...]), i, chunk), eta)
        return PreparedProposal(x, eta, draw, independent=True)

    def _gradients(self, loss: Loss, x: Array, i: Array, chunk: int) -> Array:
        """The gradients of the losses at x, computed for at most `chunk` points at a time."""
        if x.shape[0] <= chunk:
            return loss_gradients(loss, self.gradient, x, i)[1]
        cuts = slices(x.shape[0], chunk)
        return concat([loss_gradients(loss, self.gradient, x[cut, ...], i[cut])[1] for cut in cuts])


def _scale_free_eta(ball: Ball, kappa: float, g: Array, eta: float | Array) -> Array:
    """radius |g|_* / (kappa d) for each g, or eta where this is 0."""
    xp = array_namespace(g)
    size = ball.radius * ball.dual_norm(g, event_ndim=g.ndim - 1)
    d: Any = prod(g.shape[1:])
    if ball.feature_scale is not None:  # d counts the free coordinates; if there are none, size is 0
        moving = ball.feature_scale.moving(tuple(g.shape), g.ndim - 1)
        d = xp.asarray(moving, dtype=g.dtype, device=device(g))
        d = xp.where(d > 0, d, xp.ones_like(d))
    own_eta = size / (kappa * d)
    return xp.where(own_eta > 0, own_eta, eta * xp.ones_like(own_eta))


def _tilt(reference: Distribution, g: Array, eta: float | Array) -> Array:
    """The tilt g/eta, where eta is a number or an array (N,); raise unless it is finite."""
    xp = array_namespace(g)
    with ignore_float_warnings():
        s = g / (eta if isinstance(eta, (int, float)) else xp.reshape(eta, (-1, *([1] * (g.ndim - 1)))))
    top = largest(s)
    if not isfinite(top):
        if not all_finite(g):
            raise ValueError("gradient(x, i) contains NaN or infinity; expected finite numbers")
        raise ValueError(f"gradient(x, i)/eta overflows {s.dtype}: increase eta")
    if isinstance(reference, Ball):
        reference.check_tilt(s, top, event_ndim=s.ndim - 1)
    return s


def _method_name(reference: Distribution, x: Array, unchecked: str, checked: str) -> str:
    """The sampling method to call: `unchecked` for a Ball, after checking x here, `checked` otherwise."""
    if type(reference) is not Ball:
        return checked
    reference.check_centres(detach(x))
    return unchecked


def _reference_of(reference: Distribution, rows: Array | None, event_ndim: int) -> Distribution:
    """The reference, restricted to the data points `rows` if each data point has its own feature_scale."""
    if rows is None or not isinstance(reference, Ball) or reference.feature_scale is None:
        return reference
    return reference.rows(rows, event_ndim=event_ndim)


def _take(x: Array, rows: Array | None) -> Array:
    """The rows of x, or x itself if `rows` is None."""
    return x if rows is None else array_namespace(x).take(x, rows, axis=0)

"""A loss that makes any model robust: the regularised risk of a batch, with its stochastic gradient.

    F(theta) = E_z R(theta; z),  R(theta; z) = inf over mu of  mu + eta E_nu_z[ phi*((f_theta - mu)/eta) ]

One forward pass over the perturbed points of all data points, whatever their levels; the inner problems are
solved on the losses; one backward pass gives sum_i w_i grad f(z'_i), which is the estimator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from phiball.backends import (
    Array,
    Rng,
    array_namespace,
    backward,
    detach,
    is_array_api_obj,
    weighted_sum,
    without_gradient,
)
from phiball.backends.distributed import in_process_group, synchronised_once
from phiball.refimpl.inner.divergences import ENTROPIC, Divergence, valid_divergence
from phiball.refimpl.printing import one_line
from phiball.refimpl.sampling.draws import PerturbedPoints, draw, in_chunks, mean_value, solve, together
from phiball.refimpl.sampling.estimators import SG
from phiball.refimpl.sampling.half_points import in_single, rounded
from phiball.refimpl.sampling.proposals import Uniform, input_gradients
from phiball.refimpl.sampling.streaming import CHUNK, evaluate, slices, valid_data
from phiball.refimpl.training.index_check import check_index
from phiball.refimpl.types import Distribution, Estimator, Gradient, Loss, Proposal
from phiball.refimpl.validation import (
    check_same_array_type,
    valid_array,
    valid_count,
    valid_number,
    valid_rng,
)

_GRADIENTS = 256  # of the loss in theta, that `RegularizedLoss.gradient` holds at a time


@dataclass(frozen=True)
class SignedPoints:
    """An estimate of the risk of a batch, as weights on perturbed points.

    - `points` (M,) + event: the perturbed points.
    - `index` (M,): the data point that each comes from.
    - `losses` (M,): the losses at the points.
    - `weights` (M,): signed weights; the gradient is sum_i weights_i grad f(points_i).
    - `log_weights` (M,): the log of the reference density over the density that the points were drawn from.
    - `value` (): the estimate of the risk, which has the expectation of F^L.
    """

    points: Array
    index: Array
    losses: Array
    weights: Array
    log_weights: Array
    value: Array
    __repr__ = one_line


@dataclass(frozen=True)
class RegularizedLoss:
    r"""The regularised adversarial risk of a batch: the loss that a model is trained with.

    $$F(\theta) = \mathbb{E}_z \Big[ \inf_\mu \mu
    + \eta\, \mathbb{E}_{\nu_z} [\phi^*((f_\theta - \mu)/\eta)] \Big]$$

    Arguments:
    - `ball`: the reference distribution, for example `Ball(2, 0.45)`.
    - `eta`: the weight of the divergence, a positive number in the units of the loss.
    - `divergence`: phi, by default `ENTROPIC`.
    - `estimator`: `RTMLMC(level)` or `SG(level)`, by default `SG(2)`, four points per data point.
    - `proposal`: how perturbations are drawn, `Uniform()` or `Tilted()`.
    - `check_index`: True lets the first call check that the loss takes labels by the index.

    It is called as objective(loss, x, rng=rng), with data x (N,) + event. The function loss(x', i) returns
    the losses (M,) of perturbed points x' (M,) + event; i (M,) is the data point that each comes from, so
    that its label is y[i]. The result is a scalar: its value estimates the risk, its gradient is the
    estimator. Weights are treated as constants, which is exact for first derivatives.

    `Tilted` needs the gradient of the loss at the data points; pass `input_gradient(x', i)` where the library
    of x cannot derive it. refimpl/TRAINING.md covers second derivatives, half precision, the index check and
    training without torch.

    Reference: Eq. (SG:estimator) and (RTMLMC:estimator) of Section 3.

    >>> import numpy as np
    >>> from phiball.backends import rng
    >>> from phiball.refimpl import ENTROPIC, SG, Ball, RegularizedLoss
    >>> objective = RegularizedLoss(Ball(2, 1.0), eta=1.0, divergence=ENTROPIC, estimator=SG(10))
    >>> value = objective(lambda x, i: x[:, 0], np.zeros((50, 3)), rng=rng(0))
    >>> print(round(float(value), 2))  # log E exp(b_1) is 0.0986 on this ball
    0.1
    """

    ball: Distribution
    eta: float
    divergence: Divergence = ENTROPIC
    estimator: Estimator = field(default_factory=lambda: SG(2))
    proposal: Proposal = field(default_factory=Uniform)
    check_index: bool = field(default=True, compare=False, repr=False)

    def __post_init__(self) -> None:
        """Validate the parts of the objective."""
        valid_divergence(self.divergence)
        object.__setattr__(self, "eta", valid_number("eta", self.eta, above=0.0))
        for name, kind, verb in [
            ("ball", "a reference distribution such as Ball(2, 0.45)", "sample"),
            ("estimator", "SG(level) or RTMLMC(level)", "assign_levels"),
            ("proposal", "Uniform() or Tilted()", "prepare"),
        ]:
            value = getattr(self, name)
            if isinstance(value, type) or not callable(getattr(value, verb, None)):
                raise TypeError(f"{name} is {value!r}; expected {kind}")
        self.proposal.valid_for(self.ball, self.divergence)

    def __call__(self, loss: Loss, x: Array, *, rng: Rng, input_gradient: Gradient | None = None) -> Array:
        """Estimate the risk of the batch x, as a scalar whose gradient is the estimator.

        Arguments:
        - `loss`: a function loss(x', i) of perturbed points (M,) + event that returns losses (M,).
        - `x` (N,) + event: the data points.
        - `rng`: from `phiball.backends.rng`.
        - `input_gradient`: for `Tilted`, the gradients of the losses in x'; None derives them with torch.
        """
        x, loss, input_gradient = in_single(x, loss, input_gradient)
        n = _batch(x, rng)
        draws = together(list(self._draws(x, rng, input_gradients(loss, input_gradient))))
        self._check_index(loss, draws, n)
        losses = _losses(loss, draws.points, draws.index)
        if draws.single:
            normalised = self.proposal.self_normalised
            return mean_value(losses, draws, self.divergence, 1 / n, self_normalised=normalised)
        value, weights = self._solve(detach(losses), draws, n)
        linear = weighted_sum(weights, losses)
        return value + (linear - detach(linear))  # adds 0, with the gradient of the estimator

    def points(
        self, loss: Loss, x: Array, *, rng: Rng, input_gradient: Gradient | None = None
    ) -> SignedPoints:
        """The perturbed points behind the estimate, with their losses and signed weights.

        The arguments are those of the plain call, objective(loss, x, rng=rng).
        """
        data = x
        x, loss, input_gradient = in_single(x, loss, input_gradient)
        n = _batch(x, rng)
        xp = array_namespace(x)
        draws = together(list(self._draws(x, rng, input_gradients(loss, input_gradient))))
        losses = detach(_losses(loss, draws.points, draws.index))
        value, weights = self._solve(losses, draws, n)
        log_weights = draws.log_weights
        if log_weights is None:
            log_weights = xp.zeros(losses.shape, dtype=x.dtype, device=x.device)
        points = rounded(draws.points, data)
        return SignedPoints(points, draws.index, losses, weights, log_weights, value)

    def gradient(
        self,
        theta: Array,
        loss: Callable[[Array, Array, Array], Array],
        gradient: Callable[[Array, Array, Array], Array],
        x: Array,
        *,
        rng: Rng,
        input_gradient: Callable[[Array, Array, Array], Array] | None = None,
    ) -> Array:
        """Estimate the gradient in theta from functions, without automatic differentiation.

        Arguments:
        - `theta`: the parameters, an array of any shape.
        - `loss`: a function loss(theta, x', i) that returns losses (M,).
        - `gradient`: a function gradient(theta, x', i) that returns their gradients in theta, of shape
          (M,) + theta.shape.
        - `x` (N,) + event: the data points; `rng`: from `phiball.backends.rng`.
        - `input_gradient`: for `Tilted`, a function input_gradient(theta, x', i) that returns the gradients
          in x', of its shape.

        Returns an array of the shape of theta. The gradients of one block of data points are in memory at a
        time.
        """
        n = _batch(x, rng)
        valid_array("theta", theta)
        check_same_array_type("theta", theta, x, other="x")
        xp = array_namespace(x)
        total = xp.zeros_like(theta)

        def at_theta(a: Array, i: Array) -> Array:
            return loss(theta, a, i)

        slope = None if input_gradient is None else partial(input_gradient, theta)
        blocks = self._draws(x, rng, input_gradients(at_theta, slope))
        for draws in in_chunks(blocks, _GRADIENTS):
            points, index = draws.points, draws.index
            _, weights = self._solve(detach(_losses(at_theta, points, index)), draws, n)
            gradients = gradient(theta, points, index)
            if tuple(gradients.shape) != (points.shape[0], *theta.shape):
                raise ValueError(
                    f"gradient gave shape {tuple(gradients.shape)}; expected "
                    f"{(points.shape[0], *theta.shape)}: one gradient in theta a perturbed point"
                )
            weights = xp.reshape(weights, (-1, *([1] * theta.ndim)))
            total = total + xp.sum(xp.astype(weights, theta.dtype, copy=False) * gradients, axis=0)
        return total

    def backward(
        self,
        loss: Loss,
        x: Array,
        *,
        rng: Rng,
        chunk: int,
        grad_scale: float | Array = 1.0,
        input_gradient: Gradient | None = None,
    ) -> Array:
        """Accumulate the gradient of objective(loss, x, rng=rng), with at most `chunk` points in memory.

        Arguments:
        - `chunk`: the largest number of perturbed points per forward and backward pass.
        - `grad_scale`: multiplies the gradient, for accumulation over batches or a gradient scaler.
        - The others are those of the plain call, whose draws it repeats.

        Returns the value, without gradient. Data points are taken whole, as many as fit in a chunk, and each
        chunk takes one forward and one backward pass, so that dropout and batch statistics see one pass. A
        data point with more than `chunk` perturbed points of its own is evaluated twice: without a graph to
        solve its inner problem, and with one, piece by piece. Under torch's DistributedDataParallel the
        gradients are averaged once, after the last chunk, whatever the number of chunks of each process.
        """
        chunk = valid_count("chunk", chunk)
        if not is_array_api_obj(grad_scale):
            grad_scale = valid_number("scale", grad_scale)
        x, loss, input_gradient = in_single(x, loss, input_gradient)
        n = _batch(x, rng)
        xp = array_namespace(x)
        if detach(x) is not x:
            raise ValueError(
                "x requires a gradient, whose graph serves one backward pass; expected the plain call, "
                "objective(...).backward(), or x.detach()"
            )
        total = xp.zeros((), dtype=x.dtype, device=x.device)
        slope = input_gradients(loss, input_gradient)
        with synchronised_once() as release:
            for draws, last in _until_last(in_chunks(self._draws(x, rng, slope, chunk), chunk)):
                self._check_index(loss, draws, min(n, chunk))
                before_last_pass = release if last else _nothing
                if len(draws) <= chunk:
                    before_last_pass()
                    losses = _losses(loss, draws.points, draws.index)
                    value, weights = self._solve(detach(losses), draws, n)
                    backward(weighted_sum(weights, losses) * grad_scale)
                else:
                    value = self._backward_twice(loss, draws, n, chunk, grad_scale, before_last_pass, xp=xp)
                total = total + xp.astype(value, x.dtype, copy=False)
        return total

    def _backward_twice(
        self,
        loss: Loss,
        draws: PerturbedPoints,
        n: int,
        chunk: int,
        scale: float | Array,
        before_last_pass: Callable[[], None],
        *,
        xp: Any,
    ) -> Array:
        points, index = draws.points, draws.index
        cuts = list(slices(len(draws), chunk))
        with without_gradient():
            losses = xp.concat([_losses(loss, points[cut, ...], index[cut]) for cut in cuts])
        value, weights = self._solve(losses, draws, n)
        for cut in cuts:
            if cut is cuts[-1]:
                before_last_pass()
            backward(weighted_sum(weights[cut], _losses(loss, points[cut, ...], index[cut])) * scale)
        return value

    def _check_index(self, loss: Loss, draws: PerturbedPoints, n: int) -> None:
        """On the first call, raise if the loss takes no notice of the index."""
        if not self.check_index or "_checked" in self.__dict__ or draws.single or n == 1:
            return
        object.__setattr__(self, "_checked", True)
        if len(draws) <= CHUNK:
            check_index(loss, draws.points, draws.index)

    def _draws(self, x: Array, rng: Rng, slope: Gradient, chunk: int = CHUNK) -> Iterator[PerturbedPoints]:
        """The perturbed points of all data points."""
        groups = self.estimator.assign_levels(x.shape[0], rng, like=detach(x))
        return draw(groups, self.proposal.prepare(self.ball, x, self.eta, slope, rng, chunk), rng)

    def _solve(self, losses: Array, draws: PerturbedPoints, n: int) -> tuple[Array, Array]:
        """What these points add to the value of a batch of n data points, and to its weights."""
        return solve(losses, draws, self.divergence, 1 / n, self_normalised=self.proposal.self_normalised)


def _losses(loss: Loss, points: Array, index: Array) -> Array:
    """loss(points, index), in single precision where it came in half: that cannot hold the weights."""
    return evaluate(loss, points, index, half=True)


def _nothing() -> None:
    return


def _until_last(chunks: Iterator[PerturbedPoints]) -> Iterator[tuple[PerturbedPoints, bool]]:
    """The chunks, each with whether it is the last, which is said only beside other processes."""
    if not in_process_group():
        yield from ((draws, False) for draws in chunks)
        return
    held = next(chunks)
    for following in chunks:
        yield held, False
        held = following
    yield held, True


def _batch(x: Array, rng: Rng) -> int:
    """The number of data points, after the checks of x and rng."""
    valid_data(x, name="x")
    valid_rng(rng)
    return int(x.shape[0])

"""The regularized adversarial risk of a batch, as a training loss whose gradient is an estimator.

    F(theta) = E_z R(theta; z),  R(theta; z) = inf over mu of  mu + eta E_nu_z[ phi*((f_theta - mu)/eta) ]

A call evaluates the model once at the perturbed points of all data points, and solves the inner problem of
each data point. One backward pass then gives the estimator sum_i w_i grad f(z'_i), where z'_i are the
perturbed points and w_i their signed weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from phiball.backends import (
    Array,
    Rng,
    array_namespace,
    as_rng,
    backward,
    detach,
    device,
    is_array_api_obj,
    is_half,
    weighted_sum,
    without_gradient,
)
from phiball.backends.process_group import in_process_group, sync_gradients_once
from phiball.refimpl.inner.divergences import ENTROPIC, Divergence, as_divergence
from phiball.refimpl.printing import one_line
from phiball.refimpl.sampling.draws import PerturbedPoints, concat_draws, draw_points, rechunk
from phiball.refimpl.sampling.estimators import SG
from phiball.refimpl.sampling.pointwise_loss import ExampleLoss, PointwiseLoss, pointwise_loss
from phiball.refimpl.sampling.precision import half_gradient_to_single, half_to_single, to_half_like
from phiball.refimpl.sampling.proposals import Uniform
from phiball.refimpl.sampling.streaming import CHUNK, evaluate, indices, slices, valid_data
from phiball.refimpl.sampling.weights import solve_draws
from phiball.refimpl.types import Distribution, Estimator, Loss, Proposal
from phiball.refimpl.validation import check_array, check_same_array_type, valid_count, valid_number

_GRADIENT_CHUNK = 256  # gradients that `RegularizedLoss.gradient` has in memory at a time


@dataclass(frozen=True)
class SignedPoints:
    """An estimate of the risk of a batch: M perturbed points with signed weights.

    - `points` (M,) + event: the perturbed points.
    - `index` (M,): the data point that each belongs to.
    - `losses` (M,): the losses at the points.
    - `weights` (M,): signed weights; the gradient is sum_i weights_i grad f(points_i).
    - `log_weights` (M,): the log of the reference density over the sampling density.
    - `value` (): the estimate of the risk.
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
    r"""A training loss: the regularized adversarial risk of a batch.

    $$F(\theta) = \mathbb{E}_z \Big[ \inf_\mu \mu
    + \eta\, \mathbb{E}_{\nu_z} [\phi^*((f_\theta - \mu)/\eta)] \Big]$$

    Arguments:
    - `reference`: the reference distribution, for example `Ball(2, 0.45)`.
    - `eta`: the price of the divergence, a positive number in the units of the loss.
    - `divergence`: phi, or its name, by default "entropic".
    - `estimator`: `RTMLMC(level)` or `SG(level)`; by default `SG(2)`, with four points per data point.
    - `proposal`: how perturbations are drawn, `Uniform()` or `Tilted()`.

    Call it as objective(model, x, y), with data points x (N,) + event and labels or targets y (N, ...), or as
    objective(loss, x), where loss(x', i) returns the losses (M,) of perturbed points x' (M,) + event that
    belong to the data points i (M,). The result is a scalar: its value estimates the risk, its gradient is
    the estimator. The weights are treated as constants, which is exact for first derivatives.

    docs/guides/training.md covers second derivatives, half precision and training without torch.

    Reference: Eq. (SG:estimator) and (RTMLMC:estimator) of Section 3.

    >>> import numpy as np
    >>> from phiball import SG, Ball, RegularizedLoss
    >>> objective = RegularizedLoss(Ball(2, 1.0), eta=1.0, divergence="entropic", estimator=SG(10))
    >>> value = objective(lambda x, i: x[:, 0], np.zeros((50, 3)), rng=0)
    >>> print(round(float(value), 2))  # log E exp(b_1) is 0.0986 on this ball
    0.1
    """

    reference: Distribution
    eta: float
    divergence: Divergence | str = ENTROPIC
    estimator: Estimator = field(default_factory=lambda: SG(2))
    proposal: Proposal = field(default_factory=Uniform)

    def __post_init__(self) -> None:
        """Validate the parts of the objective."""
        divergence = as_divergence(self.divergence)
        object.__setattr__(self, "divergence", divergence)
        object.__setattr__(self, "eta", valid_number("eta", self.eta, above=0.0))
        for name, kind, method in [
            ("reference", "a reference distribution such as Ball(2, 0.45)", "sample"),
            ("estimator", "SG(level) or RTMLMC(level)", "assign_levels"),
            ("proposal", "Uniform() or Tilted()", "prepare"),
        ]:
            value = getattr(self, name)
            if isinstance(value, type) or not callable(getattr(value, method, None)):
                raise TypeError(f"{name} is {value!r}; expected {kind}")
        self.proposal.check(self.reference, divergence)

    def __call__(
        self,
        model: Callable[..., Array],
        x: Array,
        y: Array | None = None,
        *,
        rng: Any = None,
        loss: ExampleLoss | None = None,
    ) -> Array:
        """Estimate the risk of the batch x, as a scalar whose gradient is the estimator.

        Arguments:
        - `model`: a function of points, such as a torch module; or, without y, a function loss(x', i) of
          perturbed points (M,) + event that returns losses (M,).
        - `x` (N,) + event: the data points.
        - `y` (N, ...): their labels or targets.
        - `rng`: an integer, a generator, a key of JAX (needed inside jax.jit), an `Rng`, or None for fresh
          entropy.
        - `loss`: a function loss(outputs, y) that returns one loss per example. None uses the cross-entropy
          for integer labels, and the squared error for floating-point targets.
        """
        function, x, draws = self._draw(as_loss(model, x, y, loss), x, as_rng(rng))
        points = concat_draws(list(draws))
        losses = evaluate(function, points.points, points.index, half=True)
        value, weights = self._solve(detach(losses), points, x.shape[0])
        linear = weighted_sum(weights, losses)
        return value + (linear - detach(linear))  # adds 0, to attach the gradient

    def points(
        self,
        model: Callable[..., Array],
        x: Array,
        y: Array | None = None,
        *,
        rng: Any = None,
        loss: ExampleLoss | None = None,
    ) -> SignedPoints:
        """Return the perturbed points behind the estimate, with their losses and signed weights.

        The arguments are those of objective(model, x, y).
        """
        function, data, draws = self._draw(as_loss(model, x, y, loss), x, as_rng(rng))
        found = concat_draws(list(draws))
        losses = detach(evaluate(function, found.points, found.index, half=True))
        value, weights = self._solve(losses, found, data.shape[0])
        log_weights = found.log_weights
        if log_weights is None:
            log_weights = array_namespace(data).zeros(losses.shape, dtype=data.dtype, device=device(data))
        return SignedPoints(to_half_like(found.points, x), found.index, losses, weights, log_weights, value)

    def gradient(
        self,
        theta: Array,
        loss: Callable[[Array, Array, Array], Array],
        gradient: Callable[[Array, Array, Array], Array],
        x: Array,
        *,
        rng: Any = None,
    ) -> Array:
        """Estimate the gradient in theta without automatic differentiation.

        Arguments:
        - `theta`: the parameters, an array of any shape.
        - `loss`: a function loss(theta, x', i) that returns losses (M,).
        - `gradient`: a function gradient(theta, x', i) that returns the gradients of the losses in theta, of
          shape (M,) + theta.shape.
        - `x` (N,) + event: the data points; `rng`: as in objective(model, x, y).

        Returns an array of the shape of theta. A `Tilted` proposal also needs a function gradient(x, i), at
        the same theta.
        """
        check_array("theta", theta)
        check_same_array_type("theta", theta, x, other="x")
        xp = array_namespace(x)
        total = xp.zeros_like(theta)
        at_theta, _, blocks = self._draw(lambda a, i: loss(theta, a, i), x, as_rng(rng))
        for draws in rechunk(blocks, _GRADIENT_CHUNK):
            points, index = draws.points, draws.index
            losses = detach(evaluate(at_theta, points, index, half=True))
            _, weights = self._solve(losses, draws, x.shape[0])
            gradients = gradient(theta, points, index)
            if tuple(gradients.shape) != (points.shape[0], *theta.shape):
                raise ValueError(
                    f"gradient(theta, x, i) has shape {tuple(gradients.shape)}; expected "
                    f"{(points.shape[0], *theta.shape)}, one gradient in theta per perturbed point"
                )
            weights = xp.reshape(weights, (-1, *([1] * theta.ndim)))
            total = total + xp.sum(xp.astype(weights, theta.dtype, copy=False) * gradients, axis=0)
        return total

    def backward(
        self,
        model: Callable[..., Array],
        x: Array,
        y: Array | None = None,
        *,
        chunk: int,
        rng: Any = None,
        grad_scale: float | Array = 1.0,
        loss: ExampleLoss | None = None,
    ) -> Array:
        """Accumulate the gradient of objective(model, x, y), with at most `chunk` points in memory.

        Arguments:
        - `chunk`: the largest number of perturbed points per forward and backward pass.
        - `grad_scale`: a factor of the gradient, for accumulation over batches or a gradient scaler.
        - The other arguments are those of objective(model, x, y); the same `rng` draws the same points.

        Returns the value, without gradient. Each chunk takes one forward and one backward pass, and contains
        all points of its data points. A data point with more than `chunk` perturbed points is evaluated
        twice: without a graph, to solve its inner problem, and with a graph, piece by piece. Under torch's
        DistributedDataParallel the gradients are averaged once, after the last chunk, even if processes have
        different numbers of chunks.
        """
        chunk = valid_count("chunk", chunk)
        if not is_array_api_obj(grad_scale):
            grad_scale = valid_number("grad_scale", grad_scale)
        function, x, blocks = self._draw(as_loss(model, x, y, loss), x, as_rng(rng), chunk)
        if detach(x) is not x:
            raise ValueError(
                "x requires a gradient, which objective.backward does not compute: pass x.detach(), or use "
                "objective(...).backward()"
            )
        xp, n = array_namespace(x), x.shape[0]
        total = xp.zeros((), dtype=x.dtype, device=device(x))
        with sync_gradients_once() as release:
            for draws, last in _mark_last(rechunk(blocks, chunk)):
                before_last_pass = release if last else _do_nothing
                if len(draws) <= chunk:
                    before_last_pass()
                    losses = evaluate(function, draws.points, draws.index, half=True)
                    value, weights = self._solve(detach(losses), draws, n)
                    backward(weighted_sum(weights, losses) * grad_scale)
                else:
                    value = self._backward_twice(function, draws, n, chunk, grad_scale, before_last_pass)
                total = total + xp.astype(value, x.dtype, copy=False)
        return total

    def _backward_twice(
        self,
        loss: Loss,
        draws: PerturbedPoints,
        n: int,
        chunk: int,
        grad_scale: float | Array,
        before_last_pass: Callable[[], None],
    ) -> Array:
        """`backward` for one data point with more than `chunk` points: solve first, then differentiate."""
        cuts = list(slices(len(draws), chunk))

        def evaluate_cut(cut: slice) -> Array:
            return evaluate(loss, draws.points[cut, ...], draws.index[cut], half=True)

        with without_gradient():
            losses = [evaluate_cut(cut) for cut in cuts]
        value, weights = self._solve(array_namespace(losses[0]).concat(losses), draws, n)
        for cut in cuts:
            if cut is cuts[-1]:
                before_last_pass()
            backward(weighted_sum(weights[cut], evaluate_cut(cut)) * grad_scale)
        return value

    def _draw(
        self, loss: Loss, x: Array, rng: Rng, chunk: int = CHUNK
    ) -> tuple[Loss, Array, Iterator[PerturbedPoints]]:
        """(loss, x, draws): the loss and x after `half_to_single`, and an iterator of perturbed points."""
        proposal = self.proposal
        if is_half(x):
            proposal = half_gradient_to_single(proposal, x)
            x, loss = half_to_single(x, loss)
        valid_data(x, name="x")
        groups = self.estimator.assign_levels(x.shape[0], rng, like=detach(x))
        prepared = proposal.prepare(self.reference, x, indices(x), self.eta, loss, rng, chunk)
        return loss, x, draw_points(groups, prepared, rng)

    def _solve(self, losses: Array, draws: PerturbedPoints, n: int) -> tuple[Array, Array]:
        """The contribution of `draws` to the value of a batch of n data points, and the signed weights."""
        divergence: Any = self.divergence  # a Divergence, since __post_init__
        return solve_draws(losses, draws, divergence, 1 / n, self_normalised=self.proposal.self_normalised)


def as_loss(model: Callable[..., Array], x: Array, y: Array | None, loss: ExampleLoss | None) -> Loss:
    """pointwise_loss(model, y, loss); if y is None, `model` itself, which must then be a loss(x, i)."""
    if y is None:
        if loss is not None:
            raise ValueError("loss is given without y; pass the labels y, or pointwise_loss(model, y, loss)")
        function = model
    else:
        function = pointwise_loss(model, y, loss)
    labels = function.y if isinstance(function, PointwiseLoss) else None
    if labels is not None and is_array_api_obj(x) and x.ndim and labels.shape[0] != x.shape[0]:
        raise ValueError(f"y has {labels.shape[0]} labels for {x.shape[0]} points x; expected one for each")
    return function


def _do_nothing() -> None:
    return


def _mark_last(chunks: Iterator[PerturbedPoints]) -> Iterator[tuple[PerturbedPoints, bool]]:
    """Yield (chunk, is_last); is_last is always False outside a process group, where it is not needed."""
    if not in_process_group():
        yield from ((draws, False) for draws in chunks)
        return
    current = next(chunks)
    for following in chunks:
        yield current, False
        current = following
    yield current, True

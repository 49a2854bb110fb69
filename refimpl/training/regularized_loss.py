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
    without_gradient,
)
from phiball.refimpl.inner.divergences import Divergence, valid_divergence
from phiball.refimpl.printing import one_line
from phiball.refimpl.sampling.estimators import signed_weights
from phiball.refimpl.sampling.proposals import Uniform, input_gradients
from phiball.refimpl.sampling.streaming import CHUNK, evaluate, joined, packed, slices, valid_data
from phiball.refimpl.types import Estimator, Gradient, Law, LevelGroup, Loss, Proposal
from phiball.refimpl.validation import (
    check_same_array_type,
    valid_array,
    valid_count,
    valid_number,
    valid_rng,
)

# Perturbed points are drawn in blocks of about this many, so that the draws of one seed do not depend on the
# memory that the caller grants.
_BLOCK = 256


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
class _Piece:
    """Some data points of one group: their perturbed points (k, n) + event, log-weights (k, n) and eta."""

    group: LevelGroup
    members: tuple[int, ...]
    points: Array
    log_weights: Array
    eta: float | Array

    @property
    def evaluations(self) -> int:
        return len(self.members) << self.group.level

    def part(self, rows: slice) -> _Piece:
        """Some of the data points."""
        return _Piece(
            self.group,
            self.members[rows],
            self.points[rows, ...],
            self.log_weights[rows, :],
            self.eta if isinstance(self.eta, (int, float)) else self.eta[rows],
        )


@dataclass(frozen=True)
class RegularizedLoss:
    r"""The regularised adversarial risk of a batch: the loss that a model is trained with.

    $$F(\theta) = \mathbb{E}_z \Big[ \inf_\mu \mu
    + \eta\, \mathbb{E}_{\nu_z} [\phi^*((f_\theta - \mu)/\eta)] \Big]$$

    Arguments:
    - `ball`: the reference law, for example `Ball(2, 0.45)`.
    - `eta`: the weight of the divergence, a positive number.
    - `divergence`: phi, for example `ENTROPIC`.
    - `estimator`: `RTMLMC(level)` or `SG(level)`.
    - `proposal`: how perturbations are drawn, `Uniform()` or `Tilted()`.

    It is called as objective(loss, x, rng=rng), with data x (N,) + event. The function loss(x', i) returns
    the losses (M,) of perturbed points x' (M,) + event; i (M,) is the data point that each comes from, so
    that its label is y[i]. The result is a scalar whose value estimates the risk, and whose gradient is the
    estimator:

        objective = RegularizedLoss(Ball(2, 0.45), eta=0.9, divergence=ENTROPIC, estimator=RTMLMC(7))
        loss = objective(lambda x, i: F.cross_entropy(model(x), y[i], reduction="none"), x, rng=rng)
        loss.backward()

    The inner problems are solved on losses without a gradient, and their weights are taken as fixed. This is
    exact for first derivatives. Second derivatives are those of the losses under fixed weights: the Hessian
    without the term of the weights that move with the losses. For the whole, call `worst_case` on the losses.

    The mode and the parameters of the model and the data stay as they are, and nothing is clamped. Without
    torch, `gradient` does the same from a gradient function. A `Tilted` proposal calls the loss once more, at
    the data points, and differentiates it there. If the library of x cannot do so, pass a function
    `input_gradient(x', i)` that returns one gradient for each x', of its shape.

    Reference: Eq. (SG:estimator) and (RTMLMC:estimator) of Section 3.

    >>> import numpy as np
    >>> from phiball.backends import rng
    >>> from phiball.refimpl import ENTROPIC, SG, Ball, RegularizedLoss
    >>> objective = RegularizedLoss(Ball(2, 1.0), eta=1.0, divergence=ENTROPIC, estimator=SG(10))
    >>> z = np.zeros((50, 3))
    >>> value = objective(lambda x, i: x[:, 0], z, rng=rng(0))  # log E exp(b_1) is 0.0986 on this ball
    >>> print(round(float(value), 2))
    0.1
    """

    ball: Law
    eta: float
    divergence: Divergence
    estimator: Estimator
    proposal: Proposal = field(default_factory=Uniform)

    def __post_init__(self) -> None:
        """Validate the parts of the objective."""
        valid_divergence(self.divergence)
        object.__setattr__(self, "eta", valid_number("eta", self.eta, above=0.0))
        for name, kind, verb in [
            ("ball", "a reference law such as Ball(2, 0.45)", "sample"),
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
        n = _batch(x, rng)
        xp = array_namespace(x)
        pieces = list(self._pieces(x, rng, input_gradients(loss, input_gradient)))
        _, _, losses = _evaluate(loss, pieces, x, xp=xp)
        value, weights = self._solve(detach(losses), pieces, xp=xp)
        linear = xp.sum(weights * losses) / n
        return value / n + (linear - detach(linear))  # adds 0, with the gradient of the estimator

    def points(
        self, loss: Loss, x: Array, *, rng: Rng, input_gradient: Gradient | None = None
    ) -> SignedPoints:
        """The perturbed points behind the estimate, with their losses and signed weights.

        The arguments are those of the plain call, objective(loss, x, rng=rng).
        """
        n = _batch(x, rng)
        xp = array_namespace(x)
        pieces = list(self._pieces(x, rng, input_gradients(loss, input_gradient)))
        points, index, losses = _evaluate(loss, pieces, x, xp=xp)
        losses = detach(losses)
        value, weights = self._solve(losses, pieces, xp=xp)
        log_weights = xp.concat([xp.reshape(piece.log_weights, (-1,)) for piece in pieces])
        return SignedPoints(points, index, losses, weights / n, log_weights, value / n)

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
        for piece in self._pieces(x, rng, input_gradients(at_theta, slope)):
            points, index, losses = _evaluate(at_theta, [piece], x, xp=xp)
            _, weights = self._solve(detach(losses), [piece], xp=xp)
            gradients = gradient(theta, points, index)
            if tuple(gradients.shape) != (points.shape[0], *theta.shape):
                raise ValueError(
                    f"gradient gave shape {tuple(gradients.shape)}; expected "
                    f"{(points.shape[0], *theta.shape)}: one gradient in theta a perturbed point"
                )
            weights = xp.reshape(weights, (-1, *([1] * theta.ndim)))
            total = total + xp.sum(xp.astype(weights, theta.dtype, copy=False) * gradients, axis=0)
        return total / n

    def backward(
        self,
        loss: Loss,
        x: Array,
        *,
        rng: Rng,
        chunk: int,
        scale: float | Array = 1.0,
        input_gradient: Gradient | None = None,
    ) -> Array:
        """Accumulate the gradient of objective(loss, x, rng=rng), with at most `chunk` points in memory.

        Arguments:
        - `chunk`: the largest number of perturbed points per forward and backward pass.
        - `scale`: multiplies the gradient, for accumulation over batches or a gradient scaler.
        - The others are those of the plain call, whose draws it repeats.

        Returns the value, without gradient. Data points are taken whole, as many as fit in a chunk, and each
        chunk takes one forward and one backward pass, so that dropout and batch statistics see one pass. A
        data point with more than `chunk` perturbed points of its own is evaluated twice: without a graph to
        solve its inner problem, and with one, piece by piece.
        """
        chunk = valid_count("chunk", chunk)
        if not is_array_api_obj(scale):
            scale = valid_number("scale", scale)
        n = _batch(x, rng)
        xp = array_namespace(x)
        if detach(x) is not x:
            raise ValueError(
                "x requires a gradient, whose graph serves one backward pass; expected the plain call, "
                "objective(...).backward(), or x.detach()"
            )
        total = xp.zeros((), dtype=x.dtype, device=x.device)
        slope = input_gradients(loss, input_gradient)
        drawn = self._pieces(x, rng, slope, chunk)
        sized = ((piece, len(piece.members), 1 << piece.group.level) for piece in drawn)
        for pieces in packed(sized, chunk, _Piece.part):
            if sum(piece.evaluations for piece in pieces) <= chunk:
                _, _, losses = _evaluate(loss, pieces, x, xp=xp)
                value, weights = self._solve(detach(losses), pieces, xp=xp)
                backward(xp.sum(weights * losses) * (scale / n))
            else:
                value = self._backward_twice(loss, pieces[0], x, chunk, scale / n, xp=xp)
            total = total + xp.astype(value, x.dtype, copy=False) / n
        return total

    def _backward_twice(
        self, loss: Loss, piece: _Piece, x: Array, chunk: int, scale: float | Array, *, xp: Any
    ) -> Array:
        points = xp.reshape(piece.points, (piece.evaluations, *x.shape[1:]))
        index = _index([piece], x, xp=xp)
        cuts = list(slices(piece.evaluations, chunk))
        with without_gradient():
            losses = xp.concat([_losses(loss, points[cut, ...], index[cut], xp=xp) for cut in cuts])
        value, weights = self._solve(losses, [piece], xp=xp)
        for cut in cuts:
            backward(xp.sum(weights[cut] * _losses(loss, points[cut, ...], index[cut], xp=xp)) * scale)
        return value

    def _pieces(self, x: Array, rng: Rng, slope: Gradient, chunk: int = CHUNK) -> Iterator[_Piece]:
        """The perturbed points of all data points, in blocks that depend on nothing but the batch."""
        xp = array_namespace(x)
        groups = self.estimator.assign_levels(x.shape[0], rng, like=x)
        prepared = self.proposal.prepare(self.ball, x, self.eta, slope, rng, chunk)
        for group in groups:
            step = max(1, _BLOCK >> group.level)
            for start in range(0, len(group.members), step):
                members = group.members[start : start + step]
                index = xp.asarray(members, dtype=xp.int64, device=x.device)
                points, log_weights = prepared.draw(index, 1 << group.level, rng)
                eta = prepared.eta if isinstance(prepared.eta, (int, float)) else xp.take(prepared.eta, index)
                yield _Piece(group, members, points, log_weights, eta)

    def _solve(self, losses: Array, pieces: list[_Piece], *, xp: Any) -> tuple[Array, Array]:
        """The sum over the data points of their values, and the weights (M,) of all perturbed points."""
        value, weights, start = xp.zeros((), dtype=losses.dtype, device=losses.device), [], 0
        while start < losses.shape[0]:
            group = pieces[0].group
            same = [piece for piece in pieces if piece.group is group]
            pieces = pieces[len(same) :]
            stop = start + sum(piece.evaluations for piece in same)
            rows = xp.reshape(losses[start:stop], (-1, 1 << group.level))
            log_w = xp.astype(joined([piece.log_weights for piece in same]), rows.dtype, copy=False)
            eta = same[0].eta
            if not isinstance(eta, (int, float)):
                eta = xp.astype(joined([piece.eta for piece in same]), rows.dtype, copy=False)
            if not self.proposal.self_normalised:
                rows = rows + (eta if isinstance(eta, (int, float)) else eta[:, None]) * log_w
            values, signed = signed_weights(
                rows,
                eta,
                self.divergence,
                telescoping=group.telescoping,
                log_p=log_w if self.proposal.self_normalised else None,
            )
            value = value + group.scale * xp.sum(values)
            weights.append(group.scale * xp.reshape(signed, (-1,)))
            start = stop
        return value, xp.concat(weights)


def _evaluate(loss: Loss, pieces: list[_Piece], x: Array, *, xp: Any) -> tuple[Array, Array, Array]:
    """All perturbed points in a row, the data point of each, and their losses."""
    points = joined([xp.reshape(piece.points, (piece.evaluations, *x.shape[1:])) for piece in pieces])
    index = _index(pieces, x, xp=xp)
    return points, index, _losses(loss, points, index, xp=xp)


def _index(pieces: list[_Piece], x: Array, *, xp: Any) -> Array:
    owners = [k for piece in pieces for k in piece.members for _ in range(1 << piece.group.level)]
    return xp.asarray(owners, dtype=xp.int64, device=x.device)


def _losses(loss: Loss, points: Array, index: Array, *, xp: Any) -> Array:
    """loss(points, index), in single precision where it came in half: that cannot hold the weights."""

    def single(x: Array, i: Array) -> Array:
        f = loss(x, i)
        if is_array_api_obj(f):
            check_same_array_type("loss(x, i)", f, x, other="x")
            half = f.dtype not in (xp.float32, xp.float64) and xp.isdtype(f.dtype, "real floating")
            f = xp.astype(f, xp.float32) if half else f
        return f

    return evaluate(single if callable(loss) else loss, points, index)


def _batch(x: Array, rng: Rng) -> int:
    """The number of data points, after the checks of x and rng."""
    valid_data(x, name="x")
    valid_rng(rng)
    return int(x.shape[0])

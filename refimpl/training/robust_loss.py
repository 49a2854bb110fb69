"""`RobustLoss`, a training loss configured by the attack's norm and radius alone."""

from __future__ import annotations

from collections.abc import Callable
from math import inf, prod
from typing import Any

from phiball.backends import Array, Rng, array_namespace, as_rng, is_abstract
from phiball.refimpl.distributions.balls import Ball
from phiball.refimpl.distributions.norms import as_norm, norm_name
from phiball.refimpl.inner.divergences import ENTROPIC
from phiball.refimpl.sampling.estimators import SG
from phiball.refimpl.sampling.gradients import check_gradient, loss_gradients
from phiball.refimpl.sampling.pointwise_loss import ExampleLoss
from phiball.refimpl.sampling.precision import half_to_single
from phiball.refimpl.sampling.proposals import Tilted, Uniform
from phiball.refimpl.training.regularized_loss import RegularizedLoss, as_loss
from phiball.refimpl.types import Gradient, Proposal
from phiball.refimpl.validation import valid_number

# For each norm: the ball's radius divided by the attack's radius, and kappa, the strength of the tilt. In l1
# and l2 a point moves along the gradient by about the attack's radius, half of the ball's; the rest is noise.
# In linf a ball wider than the attack is worse on images. `phiball run settings` compares other settings.
SETTINGS = {1.0: (2.0, 1.0), 2.0: (2.0, 1.0), inf: (1.0, 10.0)}
_FALLBACK_ETA = 1e6  # for data points with gradient 0, which cannot be tilted
_STATE_VERSION = 2


class RobustLoss:
    """A loss that trains a model to withstand attacks of a given norm and radius.

    Arguments:
    - `radius`: how far the attack may move a data point, a nonnegative number.
    - `norm`: "l2", "linf" or "l1"; or 2, inf or 1.
    - `rng`: an integer, a generator of NumPy or torch, an `Rng`, or None for fresh entropy.
    - `clip`, `feature_scale`: as in `Ball`, for data in a box and for features in different units. Features
      of scale 0 do not move: use it for categories.

    Call it as robust(model, x, y), with labels or targets y, or as robust(loss, x) with a function loss(x',
    i). It is a `RegularizedLoss` with one tilted point per data point. The eta of each data point is
    proportional to the size of its gradient. A step takes two passes through the model, like the fast
    gradient method. `explain()` describes the settings; `state_dict` and `load_state_dict` are for
    checkpoints.

    >>> import torch
    >>> from phiball import RobustLoss
    >>> model = torch.nn.Linear(2, 3)
    >>> robust = RobustLoss(0.5, rng=0)
    >>> robust(model, torch.zeros(4, 2), torch.tensor([0, 1, 2, 0])).backward()
    >>> model.weight.grad.shape
    torch.Size([3, 2])
    """

    def __init__(
        self,
        radius: float,
        norm: str | float = "l2",
        *,
        rng: Any = None,
        clip: tuple[float, float] | None = None,
        feature_scale: Any = None,
    ) -> None:
        self.radius = valid_number("radius", radius, least=0.0)
        p = as_norm(norm)
        if p not in SETTINGS:
            raise ValueError(f"norm is {norm!r}; expected 'l2', 'linf' or 'l1'")
        self.norm = norm_name(p)
        radius_ratio, self._kappa = SETTINGS[p]
        self.ball = Ball(p, radius_ratio * self.radius, clip, feature_scale)
        self.rng: Rng = as_rng(rng)
        self._calls = 0
        self._shape: tuple[int, ...] = ()
        self._size: float | Array = 0.0  # the mean dual norm of the gradients in the last batch
        self._moving: float | None = None  # the mean number of free coordinates, if there is a mask

    def __repr__(self) -> str:
        """The attack, and the number of calls."""
        return f"RobustLoss(radius={self.radius:g}, norm={self.norm!r}), called {self._calls} times"

    @property
    def objective(self) -> RegularizedLoss:
        """The underlying `RegularizedLoss`."""
        return self._objective(self.ball, Tilted(kappa=self._kappa))

    def _objective(self, ball: Ball, proposal: Proposal) -> RegularizedLoss:
        if self.radius == 0:
            return RegularizedLoss(ball, 1.0, ENTROPIC, SG(0), Uniform())
        return RegularizedLoss(ball, _FALLBACK_ETA, ENTROPIC, SG(0), proposal)

    def __call__(
        self,
        model: Callable[..., Array],
        x: Array,
        y: Array | None = None,
        *,
        loss: ExampleLoss | None = None,
        mask: Any = None,
        gradient: Gradient | None = None,
        rng: Any = None,
    ) -> Array:
        """Estimate the risk of the batch x, as a scalar whose gradient trains the model.

        Arguments:
        - `model`: a function of points, such as a torch module; or, without y, a function loss(x', i) of
          points (N,) + event that returns losses (N,).
        - `x` (N,) + event: the data points.
        - `y` (N, ...): their labels or targets.
        - `loss`: a function loss(outputs, y) that returns one loss per example. None uses the cross-entropy
          for integer labels, and the squared error for floating-point targets.
        - `mask`: zero or False where x must not move, of a shape that broadcasts to x; None lets all of x
          move. For padded sequences of embeddings x (N, words, d), the mask has shape (N, words, 1).
        - `gradient`: a function gradient(x', i) that returns the gradients of the losses in x'; None uses
          torch or JAX.
        - `rng`: random numbers for this call (inside jax.jit, a JAX key); None uses the `rng` of this loss.
        """
        function = as_loss(model, x, y, loss)
        x, function, gradient = half_to_single(x, function, gradient)
        ball = self.ball if mask is None else self.ball.masked(mask)

        def measured_gradient(points: Array, i: Array) -> Array:
            check_gradient(gradient, points)
            _, g = loss_gradients(function, gradient, points, i)
            if is_abstract(g):
                return g
            sizes = ball.dual_norm(g, event_ndim=points.ndim - 1)
            self._size, self._shape = array_namespace(sizes).mean(sizes), tuple(points.shape)
            self._moving = None if mask is None else _moving(ball, self._shape)
            return g

        objective = self._objective(ball, Tilted(kappa=self._kappa, gradient=measured_gradient))
        value = objective(function, x, rng=self.rng if rng is None else rng)
        self._calls += 1
        return value

    def explain(self) -> str:
        """Describe the settings and the reasons for them; after a call, also the measured gradients.

        >>> from phiball import RobustLoss
        >>> print(RobustLoss(0.5).explain().splitlines()[0])
        Trains against l2 attacks of radius 0.5.
        """
        if self.radius == 0:
            return "Trains on the data themselves: the attack has radius 0."
        kappa, ball = self._kappa, self.ball
        if ball.radius > self.radius:
            how = (
                "It moves along the gradient of the loss, plus noise: the ball is "
                f"{ball.radius / self.radius:g} times as wide as the attack."
            )
        else:
            how = (
                "It is strongly tilted along the gradient of the loss: coordinates with large slopes move to "
                "the border of the attack, the others are noise."
            )
        lines = [
            f"Trains against {self.norm} attacks of radius {self.radius:g}.",
            f"- One perturbed point per data point, in the {self.norm} ball of radius {ball.radius:g}. {how} "
            "More points cost more and hardly help.",
            "- eta, the price of the divergence, is set for each data point: the radius of the ball times "
            "the size of the gradient in the dual norm, divided by "
            f"{'' if kappa == 1 else f'{kappa:g} times '}the number of coordinates that move. The tilt "
            "then depends neither on the units of the loss nor on the progress of training.",
            "- The entropic divergence, for which one tilted point is exact to first order.",
            "- Two passes through the model: for the gradients in x, and at the perturbed points.",
        ]
        if ball.feature_scale is not None:
            lines.append(
                f"- Coordinates move in proportion to {ball.feature_scale!r}; those of scale 0 stay."
            )
        if ball.clip is not None:
            lines.append(f"- Points are clipped to the box {ball.clip}.")
        if self._shape:
            size, d = float(self._size), prod(self._shape[1:])
            moving = _moving(ball, self._shape) if self._moving is None else self._moving
            lines.append(
                f"- Measured at the last of {self._calls} calls, on {self._shape[0]} points of {d} "
                f"coordinates{'' if moving == d else f', of which {moving:.3g} move'}: gradients of mean "
                f"size {size:.3g} in the dual norm, which give eta "
                f"{ball.radius * size / (kappa * max(moving, 1)):.3g}."
            )
        else:
            lines.append("- Gradients are measured at the first call outside jax.jit.")
        return "\n".join(lines)

    def state_dict(self) -> dict[str, Any]:
        """The state for a checkpoint, in plain values that torch.save can store.

        >>> from phiball import RobustLoss
        >>> robust, other = RobustLoss(0.5, rng=7), RobustLoss(0.5)
        >>> other.load_state_dict(robust.state_dict())
        >>> other.rng
        rng(7)
        """
        return {
            "version": _STATE_VERSION,
            "radius": self.radius,
            "norm": self.norm,
            "clip": self.ball.clip,
            "feature_scale": None
            if self.ball.feature_scale is None
            else self.ball.feature_scale.values.tolist(),
            "rng": self.rng.state(),
            "calls": self._calls,
            "shape": self._shape,
            "size": float(self._size),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a `state_dict` of a loss with the same norm, radius, clip and feature_scale."""
        known = {"version", "radius", "norm", "clip", "feature_scale", "rng", "calls", "shape", "size"}
        if not isinstance(state, dict):
            raise ValueError(f"state is {type(state).__name__}; expected the result of state_dict()")
        if set(state) != known or state["version"] != _STATE_VERSION:
            found = f"version {state.get('version')!r} and the entries {', '.join(map(str, state))}"
            raise ValueError(f"state has {found}; expected the result of state_dict()")
        if (state["radius"], state["norm"]) != (self.radius, self.norm):
            raise ValueError(
                f"state is for {state['norm']} attacks of radius {state['radius']:g}; expected {self.norm} "
                f"and {self.radius:g}, as in this loss"
            )
        own = self.state_dict()
        clip = state["clip"] if state["clip"] is None else tuple(state["clip"])
        for name, value in (("clip", clip), ("feature_scale", state["feature_scale"])):
            if value != own[name]:
                raise ValueError(f"state has {name} = {value}; expected {own[name]}, as in this loss")
        self.rng = Rng.restore(state["rng"])
        self._calls, self._shape, self._size = state["calls"], tuple(state["shape"]), state["size"]


def _moving(ball: Ball, shape: tuple[int, ...]) -> float:
    """The number of free coordinates of a point, averaged over the points of an array of this shape."""
    if ball.feature_scale is None:
        return float(prod(shape[1:]))
    counts = ball.feature_scale.moving(shape, len(shape) - 1)
    return float(counts.sum()) / len(counts)

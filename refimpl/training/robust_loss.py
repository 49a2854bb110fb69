"""Robust training without a decision: a loss that is set up by the attack that it shall withstand."""

from __future__ import annotations

from math import inf, prod
from typing import Any

from phiball.backends import Array, Rng, array_namespace, as_rng, detach, to_single
from phiball.refimpl.distributions.balls import Ball
from phiball.refimpl.inner.divergences import ENTROPIC
from phiball.refimpl.sampling.estimators import SG
from phiball.refimpl.sampling.proposals import Tilted, input_gradients
from phiball.refimpl.training.regularized_loss import RegularizedLoss
from phiball.refimpl.types import Gradient, Loss
from phiball.refimpl.validation import valid_number

NORMS = {"l1": 1.0, "l2": 2.0, "linf": inf}
# The radius of the ball over that of the attack, and how strongly points are tilted, by norm. In l1 and l2 a
# point goes about the attack's radius along the gradient, half of the ball's, and noise does the rest. In
# linf a wider ball is too much for images, whose gradients are uneven. `phiball run settings`
# compares these with others.
CHOICES = {1.0: (2.0, 1.0), 2.0: (2.0, 1.0), inf: (1.0, 10.0)}
_FALLBACK = 1e6  # eta of a data point whose gradient is 0, and which has no direction to be tilted to
_VERSION = 2


class RobustLoss:
    """The loss to train a model with, so that it withstands attacks of a given size: no other decision.

    Arguments:
    - `radius`: how far the attack may move a data point, a number that is not negative.
    - `norm`: in which norm, "l2", "linf" or "l1"; or 2, inf or 1.
    - `seed`: a whole number, a generator of torch or NumPy, from which a seed is drawn, or an `Rng`.
    - `clip`, `feature_scale`: those of `Ball`, for data in a box, and for features of different sizes; a size of 0
      is for what must not move, such as categories.

    It is called as robust(loss, x), where loss(x', i) returns the losses of points x', with labels y[i]. It
    is a `RegularizedLoss` with one tilted point per data point, and an eta for each data point that is set by
    the size of its gradient. A step takes two passes through the model, as with the fast gradient method.
    `explain()` says what was chosen; `state_dict` and `load_state_dict` make it a part of a checkpoint.

    >>> import torch
    >>> from phiball.refimpl import RobustLoss
    >>> w = torch.tensor([3.0, 4.0], requires_grad=True)
    >>> robust = RobustLoss(0.5)
    >>> value = robust(lambda x, i: x @ w, torch.zeros(2, 2))  # a linear loss of slope 5
    >>> value.requires_grad, bool(0 < value < 2 * 0.5 * 5)
    (True, True)
    """

    def __init__(
        self,
        radius: float,
        norm: str | float = "l2",
        *,
        rng: Any = 0,
        clip: tuple[float, float] | None = None,
        feature_scale: Any = None,
    ) -> None:
        self.radius = valid_number("radius", radius, least=0.0)
        kinds = NORMS | {p: p for p in NORMS.values()}
        if isinstance(norm, bool) or norm not in kinds:
            raise ValueError(f"norm is {norm!r}; expected 'l2', 'linf' or 'l1'")
        self.norm = {p: name for name, p in NORMS.items()}[kinds[norm]]
        wider, self._kappa = CHOICES[kinds[norm]]
        self.ball = Ball(kinds[norm], wider * self.radius, clip, feature_scale)
        self.rng: Rng = as_rng(rng)
        self._calls = 0
        self._shape: tuple[int, ...] = ()
        self._size: float | Array = 0.0  # the mean of |g|_* over the last batch
        self._moving: float | None = None  # coordinates that move, if a mask says so

    def __repr__(self) -> str:
        """The attack, and how often it was called."""
        return f"RobustLoss(radius={self.radius:g}, norm={self.norm!r}), called {self._calls} times"

    @property
    def objective(self) -> RegularizedLoss:
        """The `RegularizedLoss` that it is."""
        if self.radius == 0:
            return RegularizedLoss(self.ball, 1.0, ENTROPIC, SG(0))
        return RegularizedLoss(self.ball, _FALLBACK, ENTROPIC, SG(0), Tilted(kappa=self._kappa))

    def __call__(
        self, loss: Loss, x: Array, *, mask: Any = None, input_gradient: Gradient | None = None
    ) -> Array:
        """Estimate the risk of the batch x, as a scalar whose gradient trains the model.

        Arguments:
        - `loss`: a function loss(x', i) of points (N,) + event that returns losses (N,), with labels y[i].
        - `x` (N,) + event: the data points.
        - `mask`: where x may move, of a shape that broadcasts to it; None for everywhere. For padded
          sequences of embeddings (N, words, numbers) it is (N, words, 1).
        - `input_gradient`: a function gradient(x', i) of the gradients of the losses in x'; None derives them
          with torch.
        """
        slope = input_gradients(loss, input_gradient)
        objective = self.objective
        if mask is not None:
            objective = RegularizedLoss(
                self.ball.masked(mask), objective.eta, ENTROPIC, SG(0), objective.proposal
            )
        ball: Any = objective.ball

        def measured(points: Array, i: Array) -> Array:
            g = slope(points, i)
            if tuple(getattr(g, "shape", ())) == tuple(points.shape):
                sizes = ball.dual_norm(to_single(detach(g)), event_ndim=points.ndim - 1)
                self._size, self._shape = array_namespace(sizes).mean(sizes), tuple(points.shape)
                self._moving = None if mask is None else _moving(ball, self._shape)
            return g

        value = objective(loss, x, rng=self.rng, input_gradient=measured)
        self._calls += 1
        return value

    def explain(self) -> str:
        """What was chosen and why, in words; after a call, also what was measured.

        >>> from phiball.refimpl import RobustLoss
        >>> print(RobustLoss(0.5).explain().splitlines()[0])
        Trains against l2 attacks of radius 0.5.
        """
        if self.radius == 0:
            return "Trains plainly: the attack has radius 0, and moves nothing."
        kappa, ball = self._kappa, self.ball
        if ball.radius > self.radius:
            how = (
                f"It is tilted along the gradient of the loss, and the rest of the way is noise: so the ball "
                f"is {ball.radius / self.radius:g} times as wide as the attack."
            )
        else:
            how = (
                "It is tilted along the gradient of the loss, strongly: coordinates with large slopes go to "
                "the border of the attack, and the others are noise."
            )
        lines = [
            f"Trains against {self.norm} attacks of radius {self.radius:g}.",
            f"- One perturbed point per data point, in the {self.norm} ball of radius {ball.radius:g}. {how} "
            "More points cost more and hardly help.",
            "- eta, the price of the adversary, is set for each data point: the radius of the ball times the "
            "size of the gradient in the dual norm, divided by "
            f"{'' if kappa == 1 else f'{kappa:g} times '}the number of coordinates that move. The tilt "
            "depends neither on the units of the loss nor on how much the model has learnt.",
            "- The entropic divergence, for which one tilted point is exact to first order.",
            "- Two passes through the model: for the gradients in x, and at the perturbed points.",
        ]
        if ball.feature_scale is not None:
            lines.append(f"- Coordinates move by their sizes, {ball.feature_scale!r}; those of size 0 stay.")
        if ball.clip is not None:
            lines.append(f"- Points are moved back to the box {ball.clip}.")
        if self._calls:
            size, d = float(self._size), prod(self._shape[1:])
            moving = _moving(ball, self._shape) if self._moving is None else self._moving
            lines.append(
                f"- Measured at the last of {self._calls} calls, on {self._shape[0]} points of {d} "
                f"coordinates{'' if moving == d else f', of which {moving:.3g} move'}: gradients of size "
                f"{size:.3g} (in the dual norm), which make eta "
                f"{ball.radius * size / (kappa * max(moving, 1)):.3g}."
            )
        else:
            lines.append("- Nothing measured yet: call it first.")
        return "\n".join(lines)

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint needs to go on with the same numbers: plain values, which torch.save takes.

        >>> from phiball.refimpl import RobustLoss
        >>> robust, other = RobustLoss(0.5, rng=7), RobustLoss(0.5)
        >>> other.load_state_dict(robust.state_dict())
        >>> other.rng
        rng(7)
        """
        return {
            "version": _VERSION,
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
        """Go on from a `state_dict`, which must be that of a loss for the same attack."""
        known = {"version", "radius", "norm", "clip", "feature_scale", "rng", "calls", "shape", "size"}
        if not isinstance(state, dict):
            raise ValueError(f"state is {type(state).__name__}; expected what state_dict() returned")
        if set(state) != known or state["version"] != _VERSION:
            found = f"version {state.get('version')!r} and the entries {', '.join(map(str, state))}"
            raise ValueError(f"state has {found}; expected what state_dict() returned")
        if (state["radius"], state["norm"]) != (self.radius, self.norm):
            raise ValueError(
                f"state is of {state['norm']} attacks of radius {state['radius']:g}; expected {self.norm} "
                f"and {self.radius:g}, those of this loss"
            )
        own = self.state_dict()
        clip = state["clip"] if state["clip"] is None else tuple(state["clip"])
        for name, value in (("clip", clip), ("feature_scale", state["feature_scale"])):
            if value != own[name]:
                raise ValueError(f"state has the {name} {value}; expected {own[name]}, that of this loss")
        self.rng = Rng.restore(state["rng"])
        self._calls, self._shape, self._size = state["calls"], tuple(state["shape"]), state["size"]


def _moving(ball: Ball, shape: tuple[int, ...]) -> float:
    """How many coordinates of a point move, on average over the points."""
    if ball.feature_scale is None:
        return float(prod(shape[1:]))
    counts = ball.feature_scale.moving(shape, len(shape) - 1)
    return float(counts.sum()) / len(counts)

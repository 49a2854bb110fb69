"""`check_loss`, which checks that a loss looks up the label of each point by its index."""

from __future__ import annotations

from phiball.backends import Array, array_namespace, as_rng, to_single, without_gradient
from phiball.refimpl.numerics import largest
from phiball.refimpl.sampling.streaming import evaluate, indices, valid_data
from phiball.refimpl.types import Loss
from phiball.refimpl.validation import check_finite

# Tolerances relative to the largest loss. In another order of the points, the losses are rounded differently:
# by one or two percent for models in half precision.
_REORDER_TOL, _REPEAT_TOL = 3e-2, 1e-3


def check_loss(loss: Loss, x: Array) -> None:
    """Raise unless loss(x, i) uses the label y[i] for each point.

    Arguments:
    - `loss`: a function loss(x, i). Switch its model to evaluation mode first.
    - `x` (N,) + event: at least two data points, with different labels.

    The loss is evaluated at the points in two different orders, without a gradient. If it uses y[i], each
    point has the same loss in both orders.

    >>> import numpy as np
    >>> from phiball.training import check_loss
    >>> x, y = np.zeros((5, 3)), np.arange(5.0)
    >>> check_loss(lambda x, i: (x[:, 0] - y[i]) ** 2, x)
    >>> check_loss(lambda x, i: (x[:, 0] - y) ** 2, x)
    Traceback (most recent call last):
    ValueError: loss(x, i) depends on the order of its points; expected labels y[i], never y itself
    """
    valid_data(to_single(x), name="x")
    if x.shape[0] < 2:
        raise ValueError("x has one data point; expected at least two")
    xp, i = array_namespace(x), indices(x)
    cycle = as_rng(0).permutation(x.shape[0], like=i)
    order = xp.take(xp.roll(cycle, -1), xp.argsort(cycle))  # a random order in which every point moves
    with without_gradient():
        first, again = (evaluate(loss, x, i, half=True) for _ in range(2))
        moved = evaluate(loss, xp.take(x, order, axis=0), xp.take(i, order, axis=0), half=True)
    check_finite("loss(x, i)", first)
    if _differ(first, again, _REPEAT_TOL):
        raise ValueError(
            "loss(x, i) differs between two calls at the same points: switch the model to evaluation mode"
        )
    if _differ(xp.take(first, order, axis=0), moved, _REORDER_TOL):
        raise ValueError(
            "loss(x, i) depends on the order of its points; expected labels y[i], never y itself"
        )


def _differ(f: Array, g: Array, tol: float) -> bool:
    """Whether two vectors of losses differ by more than `tol` times the largest loss."""
    return not largest(f - g) <= tol * largest(f)

"""Whether a loss takes the labels of its points by their index: a check against training on wrong labels."""

from __future__ import annotations

from phiball.backends import Array, array_namespace, is_traced, rng, undisturbed
from phiball.refimpl.numerics import largest
from phiball.refimpl.sampling.streaming import evaluate
from phiball.refimpl.types import Loss

# In another order, points are rounded in another way. Relative to the losses, models in half precision may
# differ by a percent or two; wrong labels differ by more, if only at some of the points.
_ROUNDING, _REPEATABLE = 3e-2, 1e-3


def check_index(loss: Loss, points: Array, index: Array) -> bool:
    """Raise if the losses of the points change with their order; return whether this could be told.

    The loss is called twice, with the points as they are and in another order, in a way that leaves no trace
    in a model or in random numbers. Nothing can be told of a loss that differs from call to call, or of a
    model that does not run in evaluation mode, as the check has it; these pass.
    """
    if is_traced(points):
        return False
    xp = array_namespace(points)
    order = rng(0).permutation(points.shape[0], like=points)
    try:
        with undisturbed(points):
            first = evaluate(loss, points, index, half=True)
            moved = evaluate(loss, xp.take(points, order, axis=0), xp.take(index, order, axis=0), half=True)
            if is_traced(first) or _differ(first, moved) is None:
                return False
            if not _differ(xp.take(first, order, axis=0), moved, _ROUNDING):
                return True
            if _differ(first, evaluate(loss, points, index, half=True), _REPEATABLE):
                return False
    except Exception:  # what is wrong with the loss comes up again, where it is called in earnest
        return False
    raise ValueError(
        "loss(x, i) changes when its points come in another order, so that their labels are not taken by the "
        "index; expected y[i] for the label of each point, never y itself or y repeated (check_index=False "
        "turns this check off)"
    )


def _differ(f: Array, g: Array, share: float = 0.0) -> bool | None:
    """Whether two vectors of losses differ by more than a share of the largest; None if one is not finite."""
    xp = array_namespace(f)
    if not xp.all(xp.isfinite(f) & xp.isfinite(g)):
        return None
    return largest(f - g) > share * largest(f)

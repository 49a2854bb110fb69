"""A lower bound on the objective F over all linear models, which certifies that a fit is optimal."""

from __future__ import annotations

from math import inf

from phiball.backends import Array, array_namespace, device
from phiball.refimpl.linear.linear_objective import Evaluation, LinearObjective
from phiball.refimpl.linear.multinomial_objective import MultinomialObjective

Objective = LinearObjective | MultinomialObjective
_FLAT = 1e-15  # the slope of F in the intercept is zero up to rounding below this


def lower_bound(objective: Objective, params: Array, point: Evaluation) -> float:
    """A lower bound on F over all coefficients and intercepts; -inf without a ridge.

    `point` is the objective at `params`. Write F = L + sum_j q_j theta_j^2/2, where L is convex; q is the
    ridge, or more if F is more convex. Tangent planes of L lie below L. Take tangents at (theta, c_j) for
    several intercepts c_j, and average them such that their slopes in the intercept cancel:
    L(theta', c') >= A + h.(theta' - theta) for every theta' and c'. With the squares added, the minimum of
    the right-hand side over theta' is A - h.theta - sum_j h_j^2/(2 q_j).
    """
    xp = array_namespace(params)
    ridge = objective.convexity()
    if not bool(xp.all(ridge > 0)):
        return -inf
    d = ridge.shape[0]
    free, slope = params.shape[0] - d, point.gradient[d:]
    largest = float(xp.max(xp.abs(slope))) if free else 0.0
    if largest <= _FLAT:
        return point.value - float(xp.sum(point.gradient[:d] ** 2 / ridge)) / 2
    eye = xp.eye(free, dtype=params.dtype, device=device(params))
    steps = xp.concat([eye, -eye]) if free == 1 else eye - 1 / free
    width = 4 * largest / max(point.curvature, 1e-300)
    # Use a short width if F has almost no curvature in the intercept, as at a quantile between two examples.
    width = (width if width < 1 else 1e-8) + 1e-13 * (1 + float(xp.max(xp.abs(params[d:]))))
    for _ in range(30):
        intercepts = params[d:] + width * steps
        planes = [objective(xp.concat([params[:d], intercepts[k, :]])) for k in range(steps.shape[0])]
        slopes = xp.stack([plane.gradient for plane in planes])
        mixture = _mixture(slopes[:, d:])
        if mixture is not None:
            values = xp.asarray([plane.value for plane in planes], dtype=params.dtype, device=device(params))
            heights = values - xp.sum(slopes[:, d:] * intercepts, axis=1)
            h = mixture @ slopes[:, :d]
            return float(mixture @ heights) - float(xp.sum(h**2 / ridge)) / 2
        width = 4 * width
    return -inf


def _mixture(slopes: Array) -> Array | None:
    """Convex weights (k,) whose mean of the slopes (k, k - 1) or, if they sum to 0, (k, k) is 0; or None."""
    xp, k = array_namespace(slopes), slopes.shape[0]
    one = xp.ones_like(slopes[:, :1])
    top = xp.max(xp.abs(slopes))  # tiny: without the division, the matrix would be ill-conditioned
    if not bool(top > 0):
        return one[:, 0] / k
    rows = xp.concat([slopes[:, : k - 1] / top, one], axis=1).T
    try:
        found = xp.linalg.solve(rows, xp.concat([0 * one[1:, 0], one[0, :]]))
    except Exception:
        return None
    return found if bool(xp.all(found >= 0)) else None

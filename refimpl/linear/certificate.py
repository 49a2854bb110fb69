"""A lower bound on the objective F over all linear models, which certifies that a fit is optimal."""

from __future__ import annotations

from math import inf

from phiball.backends import Array, array_namespace, device
from phiball.refimpl.linear.linear_objective import Evaluation, LinearObjective
from phiball.refimpl.linear.multinomial_objective import MultinomialObjective
from phiball.refimpl.linear.problem import LinearProblem

Objective = LinearObjective | MultinomialObjective
_FLAT = 1e-15  # the slope of F in the intercept is zero up to rounding below this


def lower_bound(objective: Objective, params: Array, point: Evaluation, problem: LinearProblem) -> float:
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
    free = _intercepts(objective, params, problem)
    coefficients = params.shape[0] - free
    if not free:
        return point.value - float(xp.sum(point.gradient**2 / ridge)) / 2
    directions = (
        [[1.0], [-1.0]]
        if free == 1
        else [[float(k == j) - 1 / free for k in range(free)] for j in range(free)]
    )
    largest = float(xp.max(xp.abs(point.gradient[coefficients:])))
    if largest <= _FLAT:
        rest = point.gradient[:coefficients]
        return point.value - float(xp.sum(rest**2 / ridge)) / 2
    width = 4 * largest / max(point.curvature, 1e-300)
    # Use a short width if F has almost no curvature in the intercept, as at a quantile between two examples.
    width = (width if width < 1 else 1e-8) + 1e-13 * (1 + float(xp.max(xp.abs(params[coefficients:]))))
    for _ in range(30):
        planes = []
        for direction in directions:
            step = xp.asarray(
                [0.0] * coefficients + [width * v for v in direction],
                dtype=params.dtype,
                device=device(params),
            )
            planes.append((params + step, objective(params + step)))
        slopes = [[float(g) for g in found.gradient[coefficients:]] for _, found in planes]
        rows = [[slope[k] for slope in slopes] for k in range(len(planes) - 1)] + [[1.0] * len(planes)]
        mixture = _solve(rows, params)
        if mixture is not None and min(mixture) >= 0:
            return _mixed(planes, mixture, params, ridge)
        width = 4 * width
    return -inf


def _intercepts(objective: Objective, params: Array, problem: LinearProblem) -> int:
    """The number of entries of `params` that the ridge does not penalize."""
    if not problem.intercept:
        return 0
    return objective.classes if isinstance(objective, MultinomialObjective) else 1


def _solve(rows: list[list[float]], like: Array) -> list[float] | None:
    """The solution of rows @ weights = (0, ..., 0, 1); None if the matrix is singular."""
    xp = array_namespace(like)
    made = {"dtype": like.dtype, "device": device(like)}
    # Slopes are tiny: rescale all rows but the last, so that the matrix is well conditioned.
    top = max(abs(v) for row in rows[:-1] for v in row)
    if not top > 0:
        return [1 / len(rows)] * len(rows)
    rows = [[v / top for v in row] for row in rows[:-1]] + rows[-1:]
    right = xp.asarray([0.0] * (len(rows) - 1) + [1.0], **made)
    try:
        found = xp.linalg.solve(xp.asarray(rows, **made), right)
    except Exception:
        return None
    numbers = [float(v) for v in found]
    return numbers if all(v == v for v in numbers) else None


def _mixed(
    planes: list[tuple[Array, Evaluation]],
    mixture: list[float],
    params: Array,
    ridge: Array,
) -> float:
    """The lower bound of F from the average of the tangent planes with weights `mixture`."""
    xp, coefficients = array_namespace(params), ridge.shape[0]
    theta = params[:coefficients]
    square = float(xp.sum(ridge * theta**2)) / 2
    height, slope = 0.0, xp.zeros_like(theta)
    for a, (at, found) in zip(mixture, planes, strict=True):
        loss = found.value - square
        h = found.gradient[:coefficients] - ridge * theta
        shift = float(found.gradient[coefficients:] @ at[coefficients:])
        height += a * (loss - shift)
        slope = slope + a * h
    # L(theta') >= height + slope.(theta' - theta); with the ridge, the minimum is at theta' = -slope/ridge.
    return height + square - float(xp.sum((slope + ridge * theta) ** 2 / ridge)) / 2

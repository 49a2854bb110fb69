"""Minimization of a smooth convex function by Newton's method or, without exact Hessians, by L-BFGS."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from phiball.backends import Array, array_namespace, ignore_float_warnings
from phiball.refimpl.linear.certificate import Objective
from phiball.refimpl.linear.linear_objective import Evaluation

_MEMORY = 10
_ARMIJO = 1e-4
_HALVINGS, _SHORT = 12, 1 / 8
_LEAST, _MOST = 1e-9, 1e6  # damping, relative to the size of the matrix

Pairs = list[tuple[Array, Array, float]]


def minimize(
    objective: Objective, x: Array, *, tol: float, max_iter: int
) -> tuple[Array, Evaluation, int, bool]:
    """Minimize `objective` from x: (x, its evaluation, iterations, whether it has converged).

    It stops when the largest entry of the gradient is at most `tol`. If the objective has only an
    approximate Hessian, L-BFGS with ten pairs corrects it. If no step, or only a short one, decreases the
    value, the Hessian is damped: near a smoothed kink it may be almost singular.
    """
    point = objective(x)
    pairs: Pairs = []
    damping = 0.0
    for iteration in range(max_iter):
        if _largest(point.gradient) <= tol:
            return x, point, iteration, True
        direction = -_two_loops(point.gradient, pairs, partial(point.inverse, damping=damping))
        step, found = _line_search(objective, x, point, direction)
        if found is None or step < _SHORT:
            damping = max(10 * damping, _LEAST)
            pairs = []
        elif step == 1:
            damping = damping / 10 if damping > 10 * _LEAST else 0.0
        if found is None:
            if damping > _MOST:
                return x, point, iteration, False
            continue
        s, change = step * direction, found.gradient - point.gradient
        curvature = float(s @ change)
        if not objective.newton and curvature > 1e-14 * float(s @ s) ** 0.5 * float(change @ change) ** 0.5:
            pairs = [*pairs, (s, change, curvature)][-_MEMORY:]
        x, point = x + s, found
    return x, point, max_iter, _largest(point.gradient) <= tol


def _line_search(
    objective: Objective, x: Array, point: Evaluation, direction: Array
) -> tuple[float, Evaluation | None]:
    """The first step among 1, 1/2, ... that satisfies Armijo's condition, and its evaluation, or (0, None).

    A step is also accepted if it increases the value by no more than rounding, and makes the slope along the
    direction at least 10 % flatter.
    """
    slope = float(point.gradient @ direction)
    step, rounding = 1.0, 1e-14 * (1 + abs(point.value))
    if not slope < 0:
        return 0.0, None
    for _ in range(_HALVINGS):
        with ignore_float_warnings():
            new = objective(x + step * direction)
        level = new.value <= point.value + rounding
        flatter = abs(float(new.gradient @ direction)) <= 0.9 * abs(slope)
        if new.value <= point.value + _ARMIJO * step * slope or (level and flatter):
            return step, new
        step = step / 2
    return 0.0, None


def _two_loops(g: Array, pairs: Pairs, inverse: Callable[[Array], Array]) -> Array:
    """The two-loop recursion of L-BFGS, with `inverse` as the initial matrix."""
    taken = []
    for s, change, curvature in reversed(pairs):
        alpha = float(s @ g) / curvature
        taken.append(alpha)
        g = g - alpha * change
    g = inverse(g)
    for (s, change, curvature), alpha in zip(pairs, reversed(taken), strict=True):
        g = g + (alpha - float(change @ g) / curvature) * s
    return g


def _largest(g: Array) -> float:
    return float(array_namespace(g).max(array_namespace(g).abs(g)))

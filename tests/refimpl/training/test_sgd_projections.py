"""Projections: exact by the certificate of their optimality; the gradient mapping; errors."""

from __future__ import annotations

from math import inf, nan
from typing import Any

import cvxpy as cp
import numpy as np
import pytest

from phiball.backends import Array
from phiball.refimpl import Ball, gradient_mapping, onto_ball, onto_box, onto_simplex
from tests.support.arrays import Arrays

# The largest v.y over y in the set: p is the projection of x iff p lies in the set and
# (x - p).y <= (x - p).p for all of its y.
SUPPORT: dict[str, Any] = {
    "box": lambda v: np.sum(np.maximum(-0.5 * v, 0.8 * v), axis=-1),
    "l1": lambda v: 0.7 * np.max(np.abs(v), axis=-1),
    "l2": lambda v: 0.7 * np.linalg.norm(v, axis=-1),
    "linf": lambda v: 0.7 * np.sum(np.abs(v), axis=-1),
    "simplex": lambda v: np.max(v, axis=-1),
}
OUTSIDE: dict[str, Any] = {
    "box": lambda p: np.max(np.maximum(-0.5 - p, p - 0.8), axis=-1),
    "l1": lambda p: np.sum(np.abs(p), axis=-1) - 0.7,
    "l2": lambda p: np.linalg.norm(p, axis=-1) - 0.7,
    "linf": lambda p: np.max(np.abs(p), axis=-1) - 0.7,
    "simplex": lambda p: np.maximum(np.abs(np.sum(p, axis=-1) - 1), np.max(-p, axis=-1)),
}
PROJECTIONS: dict[str, Any] = {
    "box": onto_box(-0.5, 0.8),
    "l1": onto_ball(Ball(1, 0.7)),
    "l2": onto_ball(Ball(2, 0.7)),
    "linf": onto_ball(Ball(inf, 0.7)),
    "simplex": onto_simplex,
}


@pytest.mark.parametrize("scale", [0.1, 1.0, 100.0])
@pytest.mark.parametrize("name", PROJECTIONS)
def test_a_projection_is_the_nearest_point(name: str, scale: float, arrays: Arrays) -> None:
    x = scale * np.random.default_rng(0).normal(size=(5, 4, 6))
    given = arrays.asarray(x)
    found = PROJECTIONS[name](given)
    assert found.dtype == arrays.dtype
    p = arrays.numpy(found).astype(np.float64)
    v = arrays.numpy(given).astype(np.float64) - p
    # p comes from a threshold at the size of x, with a rounding or two a coordinate.
    unit = 2 * arrays.eps * max(1, np.max(np.abs(x)))
    assert np.all(OUTSIDE[name](p) <= 6 * unit)
    assert np.all(SUPPORT[name](v) - np.sum(v * p, axis=-1) <= unit * (1 + np.sum(np.abs(v), axis=-1)))
    again = arrays.numpy(PROJECTIONS[name](found))
    np.testing.assert_allclose(again, p, atol=6 * unit)
    np.testing.assert_array_equal(arrays.numpy(given), arrays.numpy(arrays.asarray(x)))


@pytest.mark.parametrize("name", ["l1", "l2", "linf"])
def test_what_lies_inside_stays(name: str, arrays: Arrays) -> None:
    x = arrays.asarray(0.1 * np.random.default_rng(0).uniform(-1, 1, size=(4, 6)))
    np.testing.assert_array_equal(arrays.numpy(PROJECTIONS[name](x)), arrays.numpy(x))


def test_against_a_conic_solver() -> None:
    x = np.random.default_rng(1).normal(size=6)
    y = cp.Variable(6)
    for name, inside in (
        ("simplex", [y >= 0, cp.sum(y) == 1]),
        ("l1", [cp.norm1(y) <= 0.7]),
        ("l2", [cp.norm2(y) <= 0.7]),
    ):
        cp.Problem(cp.Minimize(cp.sum_squares(y - x)), inside).solve(solver="CLARABEL")
        np.testing.assert_allclose(PROJECTIONS[name](x), y.value, atol=1e-5)


def test_bounds_of_every_kind(arrays: Arrays) -> None:
    x = arrays.asarray([[-3.0, 0.0, 3.0], [-0.1, 0.2, 0.3]])
    low, high = arrays.asarray([-1.0, 0.1, -inf]), arrays.asarray([[0.0], [1.0]])
    same = {
        (-inf, inf): arrays.numpy(x),
        (0, 1): np.clip(arrays.numpy(x), 0, 1),
        (-inf, 0.25): np.minimum(arrays.numpy(x), 0.25),
    }
    for (a, b), true in same.items():
        np.testing.assert_array_equal(arrays.numpy(onto_box(a, b)(x)), true)
    found = arrays.numpy(onto_box(low, 2.0)(x))
    np.testing.assert_array_equal(found, np.clip(arrays.numpy(x), arrays.numpy(low), 2.0))
    found = arrays.numpy(onto_box(-1.0, high)(x))
    np.testing.assert_array_equal(found, np.clip(arrays.numpy(x), -1.0, arrays.numpy(high)))
    wide = arrays.asarray([-1.0, 0.5, 1.0], dtype=arrays.xp.float64)
    assert onto_box(wide, inf)(x).dtype == arrays.dtype


def test_a_centre_and_matrices(arrays: Arrays) -> None:
    x = arrays.asarray(np.full((2, 2, 2), 3.0))
    centre = arrays.asarray(np.ones((2, 2)))
    # whole matrices: |x - 1| = 4 in the Frobenius norm; rows: |x - 1| = 2 sqrt 2
    found = arrays.numpy(onto_ball(Ball(2, 1.0), centre, event_ndim=2)(x))
    np.testing.assert_allclose(found, np.full((2, 2, 2), 1.5), atol=4 * arrays.eps)
    found = arrays.numpy(onto_ball(Ball(2, 1.0), centre)(x))
    np.testing.assert_allclose(found, np.full((2, 2, 2), 1 + 0.5**0.5), atol=4 * arrays.eps)


# --- the gradient mapping -------------------------------------------------------------------------------


def test_the_mapping_is_the_gradient_without_a_constraint(arrays: Arrays) -> None:
    draw = np.random.default_rng(0)
    g, theta = arrays.asarray(draw.normal(size=(4, 3))), arrays.asarray(draw.normal(size=(4, 3)))
    found = arrays.numpy(gradient_mapping(g, theta, step_size=0.5))
    np.testing.assert_allclose(
        found, arrays.numpy(g), atol=20 * arrays.eps
    )  # theta is rounded, over the step


@pytest.mark.parametrize("step_size", [0.1, 0.5, 4.0])
def test_the_mapping_in_a_box(step_size: float, arrays: Arrays) -> None:
    """At a face, what points outwards vanishes; near it, the step ends there."""
    theta = np.array([0.0, 0.0, 1.0, 1.0, 0.5, 0.875])
    g = np.array([1.0, -1.0, 1.0, -1.0, 0.25, -0.5])
    true = np.array(
        [0, max(-1, -1 / step_size), min(1, 1 / step_size), 0, 0.25, max(-0.5, -0.125 / step_size)]
    )
    true[4] = min(0.25, 0.5 / step_size)
    found = gradient_mapping(
        arrays.asarray(g), arrays.asarray(theta), step_size=step_size, project=onto_box(0.0, 1.0)
    )
    np.testing.assert_allclose(arrays.numpy(found), true, atol=4 * arrays.eps / step_size)


def test_the_mapping_vanishes_at_a_minimum_on_the_border() -> None:
    """Of |theta - x|^2/2 over the simplex, where the gradient does not."""
    x = np.array([2.0, 1.5, -1.0])
    theta = onto_simplex(x)
    assert np.linalg.norm(theta - x) > 1
    for step_size in (0.1, 1.0, 3.0):
        mapping = gradient_mapping(theta - x, theta, step_size=step_size, project=onto_simplex)
        np.testing.assert_allclose(mapping, 0, atol=1e-14 / step_size)


# --- errors -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("low", "high", "error", "message"),
    [
        (1.0, 0.0, ValueError, r"low is 1\.0 and high 0\.0; expected low <= high"),
        (np.array([0.0, 2.0]), 1.0, ValueError, r"low is array\(\[0\., 2\.\]\) and high 1\.0; expected low"),
        (nan, 1.0, ValueError, "low is nan; expected numbers, not NaN"),
        (0.0, np.array([nan]), ValueError, r"high is array\(\[nan\]\); expected numbers, not NaN"),
        ("0", 1.0, TypeError, "low is '0'; expected a number or an array"),
        (0.0, None, TypeError, "high is None; expected a number or an array"),
        (True, 2.0, TypeError, "low is True; expected a number or an array"),
        (np.array([0]), 1.0, TypeError, "low has dtype int64; expected float32 or float64"),
    ],
)
def test_a_box_checks_its_bounds(low: Any, high: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        onto_box(low, high)


def test_a_box_checks_theta() -> None:
    box = onto_box(np.zeros((3, 2)), 1.0)
    with pytest.raises(
        ValueError, match=r"low has shape \(3, 2\); expected one that broadcasts to .* \(2,\)"
    ):
        box(np.zeros(2))
    with pytest.raises(TypeError, match="theta is 3, of type int; expected an array"):
        box(3)
    torch = pytest.importorskip("torch", reason="torch: not installed")
    with pytest.raises(
        TypeError, match="low is a numpy array and theta a torch array; expected arrays of one"
    ):
        box(torch.zeros((3, 2)))


def test_a_ball_is_checked() -> None:
    with pytest.raises(TypeError, match=r"ball is 1\.0; expected a Ball such as Ball\(2, 1\.0\)"):
        onto_ball(1.0)  # type: ignore[arg-type]
    for ball in (Ball(3, 1.0), Ball(2, 1.0, clip=(0.0, 1.0))):
        with pytest.raises(
            ValueError, match=r"ball is Ball.*; expected norm 1, 2 or inf, no clip and no scale"
        ):
            onto_ball(ball)
    with pytest.raises(TypeError, match="centre is 0, of type int; expected an array"):
        onto_ball(Ball(2, 1.0), 0)
    with pytest.raises(ValueError, match=r"event_ndim is 2; expected a whole number from 0 to 1"):
        onto_ball(Ball(2, 1.0), event_ndim=2)(np.ones(3))
    with pytest.raises(TypeError, match="theta is None, of type NoneType; expected an array"):
        onto_ball(Ball(2, 1.0))(None)


def test_the_simplex_checks_theta() -> None:
    for shape in ((), (0,), (2, 0)):
        with pytest.raises(ValueError, match=r"theta has shape .*; expected at least one entry per row"):
            onto_simplex(np.ones(shape))
    for bad in (nan, inf):
        with pytest.raises(ValueError, match="theta contains NaN or infinity; expected finite numbers"):
            onto_simplex(np.array([1.0, bad]))
    with pytest.raises(TypeError, match="theta has dtype int64; expected float32 or float64"):
        onto_simplex(np.array([1, 2]))


def test_the_mapping_checks_its_arguments() -> None:
    one = np.ones(2)
    with pytest.raises(ValueError, match=r"step_size is 0\.0; expected a positive number"):
        gradient_mapping(one, one, step_size=0.0)
    with pytest.raises(ValueError, match=r"gradient has shape \(3,\); expected that of theta, \(2,\)"):
        gradient_mapping(np.ones(3), one, step_size=1.0)
    with pytest.raises(TypeError, match="theta is None, of type NoneType; expected an array"):
        gradient_mapping(one, None, step_size=1.0)


def test_the_simplex_of_one_entry_is_a_point(arrays: Arrays) -> None:
    found: Array = onto_simplex(arrays.asarray([[-3.0], [7.0]]))
    assert arrays.numpy(found).tolist() == [[1.0], [1.0]]

"""Projected SGD, mirror descent, projections and the gradient mapping."""

from math import inf, log, nan
from typing import Any

import numpy as np
import pytest
from scipy.stats import chisquare

from phiball.backends import Array, array_namespace, rng
from phiball.refimpl import Ball
from phiball.refimpl.optimize import (
    gradient_mapping,
    mirror_descent,
    onto_ball,
    onto_box,
    onto_simplex,
    projected_sgd,
)
from tests.support.arrays import Arrays


def iterates(theta: Any, scale: Any, target: Any, step: Any, steps: int) -> Any:
    """The iterates of projected descent on sum scale (theta - target)^2/2 in the box [-0.5, 0.3]."""
    seen = [np.clip(theta, -0.5, 0.3)]
    for t in range(1, steps):
        seen.append(np.clip(seen[-1] - step(t) * scale * (seen[-1] - target), -0.5, 0.3))
    return np.stack(seen)


@pytest.mark.parametrize("shape", [(), (2, 3)])
def test_projected_sgd_follows_the_algorithm(shape: tuple[int, ...], arrays: Arrays) -> None:
    draw = np.random.default_rng(0)
    theta0, scale = draw.normal(size=shape), draw.uniform(0.5, 1.5, size=shape)
    target = draw.uniform(0.2, 1.0, size=shape)  # mostly outside, so that the projection acts
    given, factor, goal = arrays.asarray(theta0), arrays.asarray(scale), arrays.asarray(target)
    for step_size in (0.1, lambda t: 0.3 / t):
        box = onto_box(-0.5, 0.3)
        run = projected_sgd(lambda t: factor * (t - goal), given, step_size=step_size, steps=20, project=box)
        seen = iterates(theta0, scale, target, step_size if callable(step_size) else lambda t: 0.1, 20)
        for found, true in ((run.theta, np.mean(seen, axis=0)), (run.last, seen[-1])):
            assert found.dtype == arrays.dtype
            assert tuple(found.shape) == shape
            # Each of 20 steps has two rounding errors.
            np.testing.assert_allclose(arrays.numpy(found), true, atol=40 * arrays.eps)
    np.testing.assert_array_equal(arrays.numpy(given), arrays.numpy(arrays.asarray(theta0)))


def test_t_iterates_need_t_minus_1_gradients() -> None:
    """With one iterate, the result is the projected start."""
    times: list[int] = []
    seen: list[Any] = []

    def gradient(theta: Any) -> Any:
        seen.append(theta.copy())
        return theta.astype(np.float64)  # iterates keep the dtype of theta0

    theta0 = np.ones(1, dtype=np.float32)
    run = projected_sgd(gradient, theta0, step_size=lambda t: times.append(t) or 0.5, steps=5)
    assert run.theta.dtype == run.last.dtype == np.float32
    assert times == [1, 2, 3, 4]
    np.testing.assert_array_equal(np.ravel(seen), [1, 0.5, 0.25, 0.125])
    run = projected_sgd(
        lambda theta: 1 / 0, np.array([2.0, -2.0]), step_size=1.0, steps=1, project=onto_box(-1.0, 5.0)
    )
    assert run.theta.tolist() == run.last.tolist() == [2.0, -1.0]
    assert projected_sgd(gradient, theta0, step_size=1.0, steps=1).last is not theta0


def test_long_averages_are_accurate_in_single_precision(arrays: Arrays) -> None:
    """The iterates 1 + (t - 1) 2^-14 are exact in single precision."""
    minus = arrays.asarray([-1.0])
    run = projected_sgd(lambda theta: minus, arrays.asarray([1.0]), step_size=2.0**-14, steps=1001)
    assert abs(float(run.theta[0]) - (1 + 500 * 2.0**-14)) <= arrays.eps


def test_gradient_function_may_modify_its_argument(doubles: Arrays) -> None:
    """The function gets a copy."""
    if doubles.backend == "jax":
        pytest.skip("JAX arrays are immutable")

    def modifying_gradient(theta: Array) -> Array:
        v = theta + 0.0
        theta[...] = 7.0
        return v

    run = projected_sgd(modifying_gradient, doubles.asarray([1.0]), step_size=0.5, steps=3)
    assert float(run.last[0]) == 0.25
    assert float(run.theta[0]) == pytest.approx(1.75 / 3)


def test_gradient_function_may_use_autograd() -> None:
    torch = pytest.importorskip("torch", reason="torch: not installed")
    theta0 = torch.tensor([1.0, 2.0], dtype=torch.float64, requires_grad=True)

    def gradient(theta: Array) -> Array:
        theta.requires_grad_()
        (v,) = torch.autograd.grad(torch.sum(theta**2) / 2, theta, create_graph=True)
        return v

    for run in (
        projected_sgd(gradient, theta0, step_size=0.5, steps=4),
        mirror_descent(gradient, theta0.detach() / 3, step_size=0.5, steps=4),
    ):
        assert not run.theta.requires_grad
        assert not run.last.requires_grad
    assert projected_sgd(gradient, theta0, step_size=0.5, steps=4).last.tolist() == [0.125, 0.25]
    assert theta0.grad is None


def test_random_iterate_is_uniform_over_all_iterates() -> None:
    """The iterates of projected SGD are 1, ..., 6, and those of mirror descent 1/2, 1/3 and 1/5."""
    method: dict[str, Any] = {"step_size": 1.0, "steps": 6, "average": False, "rng": rng(5)}
    runs = [projected_sgd(lambda theta: -np.ones(1), np.ones(1), **method) for _ in range(240)]
    counts = np.bincount([int(run.theta[0]) for run in runs], minlength=7)
    assert counts[0] == 0
    assert len(counts) == 7
    assert chisquare(counts[1:]).pvalue > 1e-6
    assert all(float(run.last[0]) == 6 for run in runs)
    cost = np.array([0.0, log(2)])
    method = {"step_size": 1.0, "steps": 3, "average": False, "rng": rng(0)}
    runs = [mirror_descent(lambda theta: cost, np.array([0.5, 0.5]), **method) for _ in range(40)]
    assert {round(1 / float(run.theta[1])) for run in runs} == {2, 3, 5}


def test_mirror_descent_is_exponential_weighting(arrays: Arrays) -> None:
    """In each row, theta_(t+1) is proportional to theta_t exp(-step_size gradient(theta_t))."""
    draw = np.random.default_rng(0)
    theta0, cost = draw.dirichlet(np.ones(4), size=3), draw.normal(size=(3, 4))
    v = arrays.asarray(cost)
    run = mirror_descent(lambda theta: v * theta, arrays.asarray(theta0), step_size=0.8, steps=11)
    path = [theta0]
    for _ in range(10):
        moved = path[-1] * np.exp(-0.8 * cost * path[-1])
        path.append(moved / moved.sum(axis=-1, keepdims=True))
    np.testing.assert_allclose(arrays.numpy(run.last), path[-1], atol=100 * arrays.eps)
    np.testing.assert_allclose(arrays.numpy(run.theta), np.mean(path, axis=0), atol=100 * arrays.eps)
    run = mirror_descent(np.sign, np.full(3, 0.33334, dtype=np.float32), step_size=1.0, steps=1)
    assert abs(float(np.sum(run.theta)) - 1) < 1e-6  # the start is rescaled to sum to one


def test_mirror_descent_recovers_from_underflow(arrays: Arrays) -> None:
    """The first gradient makes the second entry underflow, and the later ones increase it again."""
    down, up = arrays.asarray([0.0, 1e4]), arrays.asarray([1e3, 0.0])
    calls: list[int] = []

    def gradient(theta: Array) -> Array:
        calls.append(1)
        return down if len(calls) == 1 else up

    run = mirror_descent(gradient, arrays.asarray([0.5, 0.5]), step_size=1.0, steps=3)
    assert float(run.last[1]) == 1.0
    assert bool(array_namespace(run.theta).all(run.theta > 0))


# For each set: its projection, its support function max v.y over y in the set, and the violation by p.
# A point p is the projection of x if and only if it lies in the set and (x - p).p is the support of x - p.
PROJECTIONS: dict[str, Any] = {
    "box": (
        onto_box(-0.5, 0.8),
        lambda v: np.sum(np.maximum(-0.5 * v, 0.8 * v), axis=-1),
        lambda p: np.max(np.maximum(-0.5 - p, p - 0.8), axis=-1),
    ),
    "simplex": (
        onto_simplex,
        lambda v: np.max(v, axis=-1),
        lambda p: np.maximum(np.abs(np.sum(p, axis=-1) - 1), np.max(-p, axis=-1)),
    ),
}


@pytest.mark.parametrize("name", PROJECTIONS)
def test_projection_is_the_nearest_point(name: str, arrays: Arrays) -> None:
    project, support, outside = PROJECTIONS[name]
    for scale in (0.1, 1.0, 100.0):
        x = scale * np.random.default_rng(0).normal(size=(5, 4, 6))
        given = arrays.asarray(x)
        found = project(given)
        assert found.dtype == arrays.dtype
        p = arrays.numpy(found).astype(np.float64)
        v = arrays.numpy(given).astype(np.float64) - p
        # p is computed from a threshold of the size of x, with one or two roundings per coordinate.
        unit = 2 * arrays.eps * max(1, np.max(np.abs(x)))
        assert np.all(outside(p) <= 6 * unit)
        assert np.all(support(v) - np.sum(v * p, axis=-1) <= unit * (1 + np.sum(np.abs(v), axis=-1)))
        np.testing.assert_allclose(arrays.numpy(project(found)), p, atol=6 * unit)
        np.testing.assert_array_equal(arrays.numpy(given), arrays.numpy(arrays.asarray(x)))


def test_bounds_of_a_box_may_be_infinite_or_arrays(doubles: Arrays) -> None:
    x = doubles.asarray([[-3.0, 0.0, 3.0], [-0.1, 0.2, 0.3]])
    low, high = doubles.asarray([-1.0, 0.1, -inf]), doubles.asarray([[0.0], [1.0]])
    same = {
        (-inf, inf): doubles.numpy(x),
        (0, 1): np.clip(doubles.numpy(x), 0, 1),
        (-inf, 0.25): np.minimum(doubles.numpy(x), 0.25),
    }
    for (a, b), true in same.items():
        np.testing.assert_array_equal(doubles.numpy(onto_box(a, b)(x)), true)
    found = doubles.numpy(onto_box(low, 2.0)(x))
    np.testing.assert_array_equal(found, np.clip(doubles.numpy(x), doubles.numpy(low), 2.0))
    found = doubles.numpy(onto_box(-1.0, high)(x))
    np.testing.assert_array_equal(found, np.clip(doubles.numpy(x), -1.0, doubles.numpy(high)))
    single = doubles.asarray([[-3.0, 0.0, 3.0]], dtype=doubles.xp.float32)
    assert onto_box(low, inf)(single).dtype == single.dtype


def test_rows_or_matrices_are_projected_onto_balls_around_a_centre(doubles: Arrays) -> None:
    x, centre = doubles.asarray(np.full((2, 2, 2), 3.0)), doubles.asarray(np.ones((2, 2)))
    # |x - 1| is 4 for matrices (Frobenius norm) and 2 sqrt 2 for their rows.
    for event_ndim, exact in ((2, 1.5), (1, 1 + 0.5**0.5)):
        found = doubles.numpy(onto_ball(Ball(2, 1.0), centre, event_ndim=event_ndim)(x))
        np.testing.assert_allclose(found, np.full((2, 2, 2), exact), atol=4 * doubles.eps)


def test_gradient_mapping_in_a_box_agrees_with_values_computed_by_hand(doubles: Arrays) -> None:
    """Components that point out of the box vanish; without a projection, the mapping is the gradient."""
    theta = np.array([0.0, 0.0, 1.0, 1.0, 0.5, 0.875])
    g = np.array([1.0, -1.0, 1.0, -1.0, 0.25, -0.5])
    given, at = doubles.asarray(g), doubles.asarray(theta)
    for size in (0.1, 0.5, 4.0):
        inner = min(0.25, 0.5 / size)
        true = np.array([0, max(-1, -1 / size), min(1, 1 / size), 0, inner, max(-0.5, -0.125 / size)])
        found = gradient_mapping(given, at, step_size=size, project=onto_box(0.0, 1.0))
        np.testing.assert_allclose(doubles.numpy(found), true, atol=4 * doubles.eps / size)
        found = gradient_mapping(given, at, step_size=size)
        np.testing.assert_allclose(doubles.numpy(found), g, atol=8 * doubles.eps / size)


def test_gradient_mapping_vanishes_at_the_projection_onto_the_simplex() -> None:
    """The objective is |theta - x|^2/2, whose gradient at the projection is not zero."""
    x = np.array([2.0, 1.5, -1.0])
    theta = onto_simplex(x)
    np.testing.assert_allclose(theta, [0.75, 0.25, 0.0], atol=1e-15)
    for step_size in (0.1, 1.0, 3.0):
        mapping = gradient_mapping(theta - x, theta, step_size=step_size, project=onto_simplex)
        np.testing.assert_allclose(mapping, 0, atol=1e-14 / step_size)
    assert onto_simplex(np.array([[-3.0], [7.0]])).tolist() == [[1.0], [1.0]]


ONE, BALL = np.ones(2), Ball(2, 1.0)


def descend(method: Any = projected_sgd, gradient: Any = np.sign, theta0: Any = None, **more: Any) -> Any:
    start = np.full(2, 0.5) if theta0 is None else theta0
    return method(gradient, start, **{"step_size": 1.0, "steps": 3, **more})


@pytest.mark.parametrize("method", [projected_sgd, mirror_descent])
def test_invalid_arguments_of_descent_raise(method: Any) -> None:
    cases: list[tuple[Any, Any, str]] = [
        ({"step_size": 0.0}, ValueError, r"step_size is 0\.0; expected a positive number"),
        ({"step_size": "1"}, TypeError, "step_size is '1'; expected a number"),
        ({"step_size": lambda t: -t}, ValueError, r"step_size\(t\) is -1; expected a positive number"),
        ({"steps": 0}, ValueError, "steps is 0; expected"),
        ({"average": 1}, TypeError, "average is 1; expected True or False"),
        ({"average": False, "rng": "a"}, TypeError, "rng is 'a'; expected a whole number"),
        ({"gradient": None}, TypeError, "gradient is None; expected"),
        ({"gradient": lambda t: None}, TypeError, r"gradient\(theta\) is None, of type NoneType; expected"),
        ({"gradient": lambda t: t[:1]}, ValueError, r"gradient\(theta\) has shape \(1,\)"),
        ({"gradient": lambda t: t.astype(int)}, TypeError, r"gradient\(theta\) has dtype int64; expected"),
        ({"gradient": lambda t: t * nan}, ValueError, r"gradient\(theta\) contains NaN .* at t = 1;"),
        ({"theta0": [0.5, 0.5]}, TypeError, r"theta0 is \[0\.5, 0\.5\], of type list; expected an array"),
        ({"theta0": np.array([0.5, nan])}, ValueError, "theta0 contains NaN or infinity; expected finite"),
    ]
    for wrong, error, message in cases:
        with pytest.raises(error, match=message):
            descend(method, **wrong)


def test_invalid_projections_and_starts_raise() -> None:
    torch = pytest.importorskip("torch", reason="torch: not installed")
    cases: list[tuple[Any, Any, str]] = [
        (lambda: descend(project=3), TypeError, "project is 3; expected"),
        (lambda: descend(project=lambda t: t[:1]), ValueError, r"project\(theta\) has shape \(1,\)"),
        (lambda: descend(mirror_descent, theta0=np.array([0.5, 0.4])), ValueError, "the open simplex"),
        (lambda: descend(mirror_descent, theta0=np.array([1.0, 0.0])), ValueError, "the open simplex"),
        (lambda: descend(mirror_descent, theta0=np.array([0.5, 0.500002])), ValueError, "the open simplex"),
        (lambda: descend(mirror_descent, theta0=np.ones((3, 0))), ValueError, "at least one entry per row"),
        (lambda: descend(gradient=lambda t: torch.ones(2)), TypeError, "a torch array and theta a numpy"),
        (lambda: onto_box(ONE, 2.0)(torch.ones(2)), TypeError, "low is a numpy array and theta a torch"),
        (lambda: onto_box(1.0, 0.0), ValueError, r"low is 1\.0 and high 0\.0; expected low <= high"),
        (lambda: onto_box(nan, 1.0), ValueError, "low is nan; expected numbers, not NaN"),
        (lambda: onto_box("0", 1.0), TypeError, "low is '0'; expected"),
        (lambda: onto_box(True, 2.0), TypeError, "low is True; expected"),
        (lambda: onto_box(np.array([0]), 1.0), TypeError, "low has dtype int64; expected float32 or float64"),
        (lambda: onto_box(np.zeros((3, 2)), 1.0)(ONE), ValueError, r"low has shape \(3, 2\); expected one"),
        (lambda: onto_box(0.0, 1.0)(3), TypeError, "theta is 3, of type int; expected an array"),
        (lambda: onto_ball(1.0), TypeError, r"ball is 1\.0; expected a Ball such as Ball\(2, 1\.0\)"),
        (lambda: onto_ball(Ball(3, 1.0)), ValueError, "expected norm 1, 2 or inf"),
        (lambda: onto_ball(BALL, 0), TypeError, "centre is 0, of type int; expected an array"),
        (lambda: onto_ball(BALL, event_ndim=2)(ONE), ValueError, "event_ndim is 2; expected a whole number"),
        (lambda: onto_simplex(np.ones((2, 0))), ValueError, r"theta has shape \(2, 0\); expected at least"),
        (lambda: onto_simplex(np.array([1.0, inf])), ValueError, "theta contains NaN or infinity"),
        (lambda: gradient_mapping(ONE, ONE, step_size=0.0), ValueError, r"step_size is 0\.0; expected a"),
        (lambda: gradient_mapping(ONE[:1], ONE, step_size=1.0), ValueError, r"gradient has shape \(1,\)"),
        (lambda: gradient_mapping(ONE, None, step_size=1.0), TypeError, "theta is None, of type NoneType"),
        (lambda: gradient_mapping(ONE, ONE, step_size=1.0, project=3), TypeError, "project is 3; expected"),
    ]
    for call, error, message in cases:
        with pytest.raises(error, match=message):
            call()


@pytest.mark.filterwarnings("ignore:overflow")
def test_diverging_iterates_raise() -> None:
    with pytest.raises(ValueError, match=r"step_size is 1e\+300, and the iterates diverge"):
        projected_sgd(lambda theta: 1e300 * theta, np.ones(1), step_size=1e300, steps=2)
    with pytest.raises(ValueError, match=r"NaN or infinity at t = 2; .*reduce step_size"):
        projected_sgd(lambda theta: 1e300 * theta, np.ones(1), step_size=1.0, steps=9)

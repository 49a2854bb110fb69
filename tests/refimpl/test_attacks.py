"""Attacks: exact where theory says so, near brute force elsewhere."""

from __future__ import annotations

from functools import partial
from math import inf
from typing import Any

import cvxpy as cp
import numpy as np
import pytest

from phiball.backends import Array, rng
from phiball.refimpl import Ball, fgm, ifgm, pgm, white_noise
from tests.support.arrays import Arrays
from tests.support.attacks import ATTACKS, linear, size
from tests.support.laws import ANY_NORM, NORMS

# --- linear losses ---------------------------------------------------------------------------------


@pytest.mark.parametrize("norm", ANY_NORM)
@pytest.mark.parametrize("event", [(), (7,), (2, 3, 4)])
def test_fgm_maximises_a_linear_loss(norm: float, event: tuple[int, ...], arrays: Arrays) -> None:
    """The maximum of g.b over the ball is rho ||g||_q with 1/p + 1/q = 1, by Hoelder's inequality."""
    draw = np.random.default_rng(0)
    g, z = draw.normal(size=(2, 6, *event))
    ball, gradient = Ball(norm, 0.3), arrays.asarray(g)
    x = fgm(lambda x, i: gradient, arrays.asarray(z), ball)
    q = 1.0 if norm == inf else inf if norm == 1 else norm / (norm - 1)
    moved = arrays.numpy(x).astype(np.float64) - np.asarray(z, dtype=np.dtype(str(arrays.numpy(x).dtype)))
    gain = np.sum((g * moved).reshape(6, -1), axis=-1)
    # x is rounded once a coordinate, at the size of z, and the step a few times
    np.testing.assert_allclose(gain, 0.3 * size(g, q), atol=8 * arrays.eps * np.max(size(g, 1) * 4))


@pytest.mark.parametrize("norm", NORMS)
def test_iterated_steps_reach_the_same_maximum(norm: float, arrays: Arrays) -> None:
    g, z = np.random.default_rng(0).normal(size=(2, 6, 7))
    gradient, ball = arrays.asarray(g), Ball(norm, 0.3)
    once = arrays.numpy(fgm(lambda x, i: gradient, arrays.asarray(z), ball))
    for attack in (ifgm, pgm):
        many = arrays.numpy(attack(lambda x, i: gradient, arrays.asarray(z), ball))
        np.testing.assert_allclose(many, once, atol=100 * arrays.eps)  # a rounding for each of 15 steps


def test_the_index_counts_the_points(arrays: Arrays) -> None:
    seen = []

    def gradient(x: Array, i: Array) -> Array:
        seen.append(i)
        return x

    z = arrays.asarray(np.ones((4, 2)))
    fgm(gradient, z, Ball(2, 0.1))
    pgm(gradient, z, Ball(2, 0.1), steps=1, loss=lambda x, i: (seen.append(i), x[:, 0])[1])
    assert len(seen) == 4
    for i in seen:
        assert i.dtype == arrays.xp.int64
        assert arrays.numpy(i).tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("name", ["fgm", "ifgm", "pgm"])
@pytest.mark.parametrize("norm", NORMS)
def test_points_without_a_gradient_stay(norm: float, name: str, arrays: Arrays) -> None:
    g, z = np.random.default_rng(0).normal(size=(2, 4, 3))
    g[1] = 0
    gradient = arrays.asarray(g)
    x = arrays.numpy(ATTACKS[name](lambda x, i: gradient, arrays.asarray(z), Ball(norm, 0.3)))
    same = np.all(x == arrays.numpy(arrays.asarray(z)), axis=-1)
    assert same.tolist() == [False, True, False, False]


# --- concave losses --------------------------------------------------------------------------------


def concave(seed: int, diagonal: bool) -> tuple[Any, Any, Any]:
    """A, t, z of -(x - t)'A(x - t)/2, with t near enough for some maximisers to lie inside."""
    draw = np.random.default_rng(seed)
    root = np.diag(draw.uniform(0.7, 1.5, size=4)) if diagonal else draw.normal(size=(4, 4))
    z = draw.normal(size=(5, 4))
    return root @ root.T + 0.3 * np.eye(4), z + draw.normal(size=(5, 4)) * [[0.1], [0.1], [1], [2], [3]], z


def maximum(A: Any, t: Any, z: Any, ball: Ball) -> float:
    x = cp.Variable(4)
    inside = [cp.norm(x - z, "inf" if ball.norm == inf else int(ball.norm)) <= ball.radius]
    problem = cp.Problem(cp.Maximize(-cp.quad_form(x - t, cp.psd_wrap(A)) / 2), inside)
    return float(problem.solve(solver="CLARABEL"))


@pytest.mark.parametrize("norm", NORMS)
def test_pgm_maximises_a_concave_loss(norm: float, doubles: Arrays) -> None:
    """The best of n normalised steps of length rho/sqrt(n) is within L rho/sqrt(n) in l2, L the slope.

    (The projected subgradient method, ||x* - z|| <= rho.) In linf and l1 a step moves a coordinate
    by its own sign, which climbs a sum over coordinates, to within a step of its maximiser.
    """
    A, t, z = concave(0, diagonal=norm != 2)
    xp, n, radius = doubles.xp, 400, 0.6
    a, target = doubles.asarray(A), doubles.asarray(t)
    ball = Ball(norm, radius)
    step = radius / n**0.5
    x = pgm(
        lambda x, i: (target - x) @ a,
        doubles.asarray(z),
        ball,
        steps=n,
        step=step,
        loss=lambda x, i: -xp.sum((x - target) @ a * (x - target), axis=-1) / 2,
    )
    moved = doubles.numpy(x) - t
    values = -np.sum(moved @ A * moved, axis=-1) / 2
    for k in range(5):
        best = maximum(A, t[k], z[k], ball)
        dual = {1.0: inf, 2.0: 2, inf: 1}[norm]
        # The largest slope in the ball; for l1 and linf the norms differ from l2 by up to sqrt(4), twice.
        slope = np.linalg.norm(A @ (t[k] - z[k]), dual)
        slope += radius * np.linalg.norm(A, 2) * (1 if norm == 2 else 4)
        assert values[k] <= best + 1e-6  # what Clarabel leaves
        assert values[k] >= best - slope * step
        assert values[k] > -(z[k] - t[k]) @ A @ (z[k] - t[k]) / 2


@pytest.mark.parametrize("steps", [10, 100])
def test_sign_steps_solve_a_separable_problem_to_a_step(steps: int, arrays: Arrays) -> None:
    """Each coordinate of the maximiser of -sum a_j (x_j - t_j)^2 is t_j, cut to the interval."""
    draw = np.random.default_rng(0)
    z, t, a = draw.normal(size=(8, 5)), draw.normal(size=(8, 5)), draw.uniform(0.1, 3, size=(8, 5))
    target, scale = arrays.asarray(t), arrays.asarray(a)
    x = arrays.numpy(ifgm(lambda x, i: scale * (target - x), arrays.asarray(z), Ball(inf, 0.7), steps=steps))
    assert np.max(np.abs(x - np.clip(t, z - 0.7, z + 0.7))) <= 2.5 * 0.7 / steps + 8 * arrays.eps


# --- losses with many maxima -----------------------------------------------------------------------


def test_restarts_come_near_brute_force_on_a_line(doubles: Arrays) -> None:
    """sin 5x + x/4 on intervals of length 2: a quarter or more of each leads to its highest point.

    So 50 starts miss it with a probability below 1e-6 a point. To be a step h away from it costs
    max|f''| h^2/2 = 12.5 h^2.
    """
    xp, z = doubles.xp, np.linspace(-3, 3, 25)
    x = pgm(
        lambda x, i: 5 * xp.cos(5 * x) + 0.25,
        doubles.asarray(np.tile(z, 10)),
        Ball(2, 1.0),
        steps=40,
        rng=rng(0),
        restarts=5,
        loss=lambda x, i: xp.sin(5 * x) + 0.25 * x,
    )
    at = doubles.numpy(x).reshape(10, 25)
    found = np.max(np.sin(5 * at) + 0.25 * at, axis=0)
    grid = z[:, None] + np.linspace(-1, 1, 20001)
    best = np.max(np.sin(5 * grid) + 0.25 * grid, axis=-1)
    assert np.all(np.abs(at - z) <= 1 + 1e-12)
    assert np.all(found >= best - 12.5 * (2.5 / 40) ** 2)
    assert np.all(found <= best + 12.5 * 1e-4**2 / 4 + 1e-12)


def waves(x: Any, xp: Any) -> Any:
    return xp.sin(3 * x[..., 0]) * xp.cos(2 * x[..., 1]) + 0.3 * x[..., 0] * x[..., 1]


def slopes(x: Any, xp: Any) -> Any:
    u, v = x[..., 0], x[..., 1]
    return xp.stack(
        [3 * xp.cos(3 * u) * xp.cos(2 * v) + 0.3 * v, -2 * xp.sin(3 * u) * xp.sin(2 * v) + 0.3 * u], axis=-1
    )


@pytest.mark.parametrize("norm", NORMS)
def test_restarts_come_near_brute_force_in_the_plane(norm: float, doubles: Arrays) -> None:
    """Runs end within a step h of a local maximiser, so within h times the largest slope of its loss.

    (Euclidean length of a step: h in l2 and l1, h sqrt(2) in linf; the slope is at most
    sqrt(9 + 4) + 0.3 |x| < 6.) A share of 0.09 or more of the starts lead to the highest, so that
    150 starts miss it with a probability below 1e-6 a point.
    """
    z = np.random.default_rng(0).uniform(-2, 2, size=(10, 2))
    ball, steps = Ball(norm, 1.5), 50
    x = pgm(
        lambda x, i: slopes(x, doubles.xp),
        doubles.asarray(np.tile(z, (50, 1))),
        ball,
        steps=steps,
        rng=rng(0),
        restarts=3,
        loss=lambda x, i: waves(x, doubles.xp),
    )
    found = np.max(waves(doubles.numpy(x), np).reshape(50, 10), axis=0)
    points = np.stack(np.meshgrid(*[np.linspace(-1.5, 1.5, 301)] * 2), axis=-1).reshape(-1, 2)
    points = points[np.linalg.norm(points, norm, axis=-1) <= 1.5]
    best = np.max(waves(z[:, None] + points, np), axis=-1)
    slack = 6 * (2**0.5 if norm == inf else 1) * 2.5 * 1.5 / steps
    assert np.all(found >= best - slack)
    assert np.all(found <= best + 6 * 0.01)  # no point of the ball is further from the grid
    # One run alone misses some of them, or restarts would not be tested.
    alone = pgm(lambda x, i: slopes(x, doubles.xp), doubles.asarray(z), ball, steps=steps)
    assert np.any(waves(doubles.numpy(alone), np) < best - slack)


# --- the best of all iterates ----------------------------------------------------------------------


@pytest.mark.parametrize("random", [False, True])
def test_the_best_iterate_is_kept(random: bool, arrays: Arrays) -> None:
    """With steps so long that the loss goes up and down, each point keeps its own best."""
    xp, seen, calls = arrays.xp, [], []

    def loss(x: Array, i: Array) -> Array:
        f = waves(x, xp)
        seen.append(arrays.numpy(f))
        return f

    def gradient(x: Array, i: Array) -> Array:
        calls.append(1)
        return slopes(x, xp)

    z = arrays.asarray(np.random.default_rng(0).uniform(-2, 2, size=(9, 2)))
    options: dict[str, Any] = {"rng": rng(0), "restarts": 3} if random else {}
    x = pgm(gradient, z, Ball(2, 1.0), steps=4, step=0.9, loss=loss, **options)
    record = np.stack(seen)
    assert record.shape == ((16, 9) if random else (5, 9))
    assert len(calls) == (12 if random else 4)
    assert np.all(arrays.numpy(loss(x, xp.arange(9, **arrays.at))) == np.max(record, axis=0))
    assert len(set(np.argmax(record, axis=0).tolist())) > 2  # the best is at different times


def test_never_worse_than_z(arrays: Arrays) -> None:
    """A gradient of the wrong sign finds nothing better, and z comes back."""
    z = arrays.asarray(np.random.default_rng(0).normal(size=(5, 3)))
    loss = partial(linear, lambda x, i: arrays.xp.ones_like(x))
    for source in (None, rng(0)):
        x = pgm(lambda x, i: -arrays.xp.ones_like(x), z, Ball(inf, 0.3), loss=loss, rng=source)
        f, before = arrays.numpy(loss(x, None)), arrays.numpy(loss(z, None))
        assert np.all(f >= before)
        if source is None:
            assert np.all(arrays.numpy(x) == arrays.numpy(z))


def test_without_a_loss_the_last_iterate_comes_back(doubles: Arrays) -> None:
    z = doubles.asarray([0.0])
    x = ifgm(lambda x, i: -x + 0.05, z, Ball(2, 1.0), steps=2, step=0.8)  # to 0.8, and back
    np.testing.assert_allclose(doubles.numpy(x), [0.0], atol=1e-15)


# --- steps -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("attack", [ifgm, pgm])
@pytest.mark.parametrize(("step", "reached"), [(0.1, 1.5), (None, 3.0), (10.0, 3.0)])
def test_both_readings_of_the_step(attack: Any, step: float | None, reached: float, doubles: Arrays) -> None:
    """Fifteen steps of 0.1 go 1.5 and no further; steps that grow with the radius reach its border."""
    z = doubles.asarray(np.zeros((1, 2)))
    x = attack(lambda x, i: doubles.xp.ones_like(x), z, Ball(2, 3.0), step=step)
    np.testing.assert_allclose(size(doubles.numpy(x), 2), [reached], rtol=1e-13)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize(("step", "length"), [(None, 2.5 * 0.4 / 8), (0.03, 0.03)])
def test_length_of_a_step(norm: float, step: float | None, length: float, doubles: Arrays) -> None:
    """In the norm of the ball, from one point at which the gradient is taken to the next."""
    at = []

    def gradient(x: Array, i: Array) -> Array:
        at.append(doubles.numpy(x))
        return doubles.xp.ones_like(x) * x

    pgm(gradient, doubles.asarray(np.full((2, 3), 0.1)), Ball(norm, 0.4), steps=8, step=step)
    np.testing.assert_allclose(size(at[1] - at[0], norm), length, rtol=1e-12)


def test_fgm_with_a_step_of_its_own(doubles: Arrays) -> None:
    z = doubles.asarray(np.zeros((1, 2)))
    x = fgm(lambda x, i: doubles.xp.ones_like(x), z, Ball(inf, 0.45), step=0.1)
    np.testing.assert_allclose(doubles.numpy(x), [[0.1, 0.1]], rtol=1e-15)


@pytest.mark.parametrize(("step", "length"), [(None, 1.25 * 0.4), (0.3, 0.3)])
def test_fgm_from_a_random_start(step: float | None, length: float, arrays: Arrays) -> None:
    z = np.random.default_rng(0).normal(size=(6, 5)).astype(np.float32)
    at = []

    def gradient(x: Array, i: Array) -> Array:
        at.append(arrays.numpy(x))
        return x

    x = arrays.numpy(fgm(gradient, arrays.asarray(z), Ball(inf, 0.4), step=step, rng=rng(5)))
    (start,) = at
    assert np.all(start == arrays.numpy(white_noise(arrays.asarray(z), Ball(inf, 0.4), rng(5))))
    moved = np.clip(start + length * np.sign(start), z - 0.4, z + 0.4)
    np.testing.assert_allclose(x, moved, atol=8 * arrays.eps)


def test_runs_start_from_points_of_their_own(doubles: Arrays) -> None:
    z, at = doubles.asarray(np.zeros((3, 4))), []

    def gradient(x: Array, i: Array) -> Array:
        at.append(doubles.numpy(x))
        return x

    options = {"steps": 1, "restarts": 3, "loss": lambda x, i: x[:, 0]}
    pgm(gradient, z, Ball(2, 1.0), rng=rng(0), **options)
    pgm(gradient, z, Ball(2, 1.0), rng=rng(0), **options)
    pgm(gradient, z, Ball(2, 1.0), rng=rng(1), **options)
    starts = np.concatenate(at)
    assert np.all(starts[:9] == starts[9:18])  # the same seed
    assert len(np.unique(starts[[*range(9), *range(18, 27)]], axis=0)) == 18

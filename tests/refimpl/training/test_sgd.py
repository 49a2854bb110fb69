"""Projected descent and mirror descent: iterates, averages, picks, and the corrected lemmas."""

from __future__ import annotations

from math import log, sqrt
from typing import Any

import numpy as np
import pytest
from scipy.stats import chisquare
from scipy.stats import t as student

from phiball.backends import Array, array_namespace, rng
from phiball.refimpl import convex_plan, gradient_mapping, mirror_descent, onto_box, projected_sgd
from phiball.refimpl.sampling.estimators import SG
from tests.support.arrays import Arrays


def upper(values: Any) -> float:
    """What the mean of independent values lies below, at an error of one in a million."""
    n = len(values)
    return float(np.mean(values) + student.isf(1e-6, n - 1) * np.std(values, ddof=1) / sqrt(n))


# --- what is computed, on every backend ---------------------------------------------------------------


def by_hand(theta: Any, scale: Any, target: Any, step: Any, steps: int) -> Any:
    """The iterates of descent on sum scale (theta - target)^2/2 in the box [-0.5, 0.3]."""
    seen = [np.clip(theta, -0.5, 0.3)]
    for t in range(1, steps):
        seen.append(np.clip(seen[-1] - step(t) * scale * (seen[-1] - target), -0.5, 0.3))
    return np.stack(seen)


@pytest.mark.parametrize("shape", [(), (3,), (2, 3)])
def test_iterates_are_those_of_the_algorithm(shape: tuple[int, ...], arrays: Arrays) -> None:
    draw = np.random.default_rng(0)
    theta0, scale = draw.normal(size=shape), draw.uniform(0.5, 1.5, size=shape)
    target = draw.uniform(0.2, 1.0, size=shape)  # most of it outside, so that the projection acts on the way
    given, factor, goal = arrays.asarray(theta0), arrays.asarray(scale), arrays.asarray(target)
    for step_size in (0.1, lambda t: 0.3 / t):
        run = projected_sgd(
            lambda theta: factor * (theta - goal),
            given,
            step_size=step_size,
            steps=20,
            project=onto_box(-0.5, 0.3),
        )
        seen = by_hand(theta0, scale, target, step_size if callable(step_size) else lambda t: 0.1, 20)
        for found, true in ((run.theta, np.mean(seen, axis=0)), (run.last, seen[-1])):
            assert found.dtype == arrays.dtype
            assert tuple(found.shape) == shape
            np.testing.assert_allclose(arrays.numpy(found), true, atol=40 * arrays.eps)  # two a step
    np.testing.assert_array_equal(arrays.numpy(given), arrays.numpy(arrays.asarray(theta0)))


def test_one_step_is_the_start_and_no_gradient(arrays: Arrays) -> None:
    def never(theta: Array) -> Array:
        raise AssertionError

    theta0 = arrays.asarray([2.0, -2.0])
    run = projected_sgd(never, theta0, step_size=1.0, steps=1, project=onto_box(-1.0, 5.0))
    assert arrays.numpy(run.theta).tolist() == [2.0, -1.0]
    assert arrays.numpy(run.last).tolist() == [2.0, -1.0]
    assert projected_sgd(never, theta0, step_size=1.0, steps=1).last is not theta0


def test_the_number_of_gradients_and_the_times(doubles: Arrays) -> None:
    times: list[int] = []
    seen: list[Any] = []

    def gradient(theta: Array) -> Array:
        seen.append(doubles.numpy(theta).copy())
        return theta

    projected_sgd(gradient, doubles.asarray([1.0]), step_size=lambda t: times.append(t) or 0.5, steps=5)
    assert times == [1, 2, 3, 4]
    np.testing.assert_array_equal(np.ravel(seen), [1, 0.5, 0.25, 0.125])


def test_long_averages_keep_their_digits(arrays: Arrays) -> None:
    """theta_t = 1 + (t - 1) 2^-14 in single precision too: the mean of 1001 of them is known."""
    minus = arrays.asarray([-1.0])
    run = projected_sgd(lambda theta: minus, arrays.asarray([1.0]), step_size=2.0**-14, steps=1001)
    assert abs(float(run.theta[0]) - (1 + 500 * 2.0**-14)) <= arrays.eps


def test_a_gradient_may_write_to_what_it_gets(doubles: Arrays) -> None:
    """It has a copy of its own, so that torch's automatic differentiation may mark it, too."""

    def writes(theta: Array) -> Array:
        v = theta + 0.0
        theta[...] = 7.0
        return v

    run = projected_sgd(writes, doubles.asarray([1.0]), step_size=0.5, steps=3)
    assert float(run.last[0]) == 0.25
    assert float(run.theta[0]) == pytest.approx(1.75 / 3)


def test_automatic_differentiation() -> None:
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


def test_the_gradient_is_taken_in_the_precision_of_theta(arrays: Arrays) -> None:
    other = arrays.asarray([1.0], dtype=arrays.xp.float64)
    run = projected_sgd(lambda theta: other, arrays.asarray([1.0]), step_size=0.5, steps=3)
    assert run.theta.dtype == run.last.dtype == arrays.dtype
    assert float(run.last[0]) == 0.0


# --- a random iterate -----------------------------------------------------------------------------------


def test_every_iterate_is_picked_equally_often(doubles: Arrays) -> None:
    """theta_t = t: 240 picks of 6, by a chi-square test at one in a million."""
    minus, source = doubles.asarray([-1.0]), rng(5)
    how: dict[str, Any] = {"step_size": 1.0, "steps": 6, "average": False, "rng": source}
    runs = [projected_sgd(lambda theta: minus, doubles.asarray([1.0]), **how) for _ in range(240)]
    counts = np.bincount([int(run.theta[0]) for run in runs], minlength=7)
    assert counts[0] == 0
    assert len(counts) == 7
    assert chisquare(counts[1:]).pvalue > 1e-6
    assert all(float(run.last[0]) == 6 for run in runs)


def test_mirror_descent_picks_too(doubles: Arrays) -> None:
    zero = doubles.asarray([0.0, log(2)])
    how: dict[str, Any] = {"step_size": 1.0, "steps": 3, "average": False, "rng": rng(0)}
    runs = [mirror_descent(lambda theta: zero, doubles.asarray([0.5, 0.5]), **how) for _ in range(40)]
    assert {round(1 / float(run.theta[1])) for run in runs} == {2, 3, 5}


# --- mirror descent -----------------------------------------------------------------------------------


def test_mirror_descent_is_exponential_weighting(arrays: Arrays) -> None:
    """With a fixed cost, theta_t is the softmax of log theta_1 - (t - 1) step cost; rows are independent."""
    draw = np.random.default_rng(0)
    theta0, cost = draw.dirichlet(np.ones(4), size=3), draw.normal(size=(3, 4))
    v = arrays.asarray(cost)
    run = mirror_descent(lambda theta: v, arrays.asarray(theta0), step_size=0.2, steps=11)
    w = theta0 * np.exp(-0.2 * np.arange(11)[:, None, None] * cost)
    w /= np.sum(w, axis=-1, keepdims=True)
    np.testing.assert_allclose(arrays.numpy(run.last), w[-1], atol=100 * arrays.eps)
    np.testing.assert_allclose(arrays.numpy(run.theta), np.mean(w, axis=0), atol=100 * arrays.eps)


def test_an_entry_comes_back_from_underflow(arrays: Arrays) -> None:
    """Cost (0, 1) drives the second entry far below the smallest number; then the first one costs."""
    down, up = arrays.asarray([0.0, 1e4]), arrays.asarray([1e3, 0.0])
    calls: list[int] = []

    def gradient(theta: Array) -> Array:
        calls.append(1)
        return down if len(calls) == 1 else up

    run = mirror_descent(gradient, arrays.asarray([0.5, 0.5]), step_size=1.0, steps=3)
    assert float(run.last[1]) == 1.0
    assert bool(array_namespace(run.theta).all(run.theta > 0))


def test_the_mirror_bound_holds_with_a_large_dimension() -> None:
    """M sqrt(2 log(d)/T) with costs of +-1, one of them cheaper; Euclidean steps promise sqrt(d/T) only."""
    d, T, draw = 200, 400, np.random.default_rng(0)
    mean = np.zeros(d)
    mean[0] = -0.5
    run = mirror_descent(
        lambda theta: np.where(draw.uniform(size=theta.shape) < (1 + mean) / 2, 1.0, -1.0),
        np.full((40, d), 1 / d),
        step_size=sqrt(2 * log(d) / T),
        steps=T,
    )
    gaps = run.theta @ mean + 0.5
    assert upper(gaps) <= sqrt(2 * log(d) / T)
    assert float(np.mean(gaps)) > 0.3 * sqrt(2 * log(d) / T)  # the bound is not idle


# --- the corrected lemma, and the paper's -------------------------------------------------------------


def slope(theta: Any) -> Any:
    """Of F = 0.01 |theta|."""
    return 0.01 * np.sign(theta)


@pytest.mark.parametrize(("T", "gap"), [(1, 0.01), (100, 0.009505)])
def test_the_printed_lemma_fails(T: int, gap: float) -> None:
    """D_* = F(theta_1) - F* = 0.01, M = 0.01: the gap is above D_* M/sqrt T (F1); with D = 1 it is not."""
    M = 0.01
    for D, holds in ((0.01, False), (1.0, True)):
        run = projected_sgd(slope, np.ones(1), step_size=D / (M * sqrt(T)), steps=T)
        found = 0.01 * abs(float(run.theta[0]))
        assert (found <= D * M / sqrt(T)) == holds
        if not holds:
            assert found == pytest.approx(gap)


def test_the_printed_second_moment_fails() -> None:
    """The proof's M = 2 L_f^2 asks for one step at delta = 0.002, and the gap is 0.01 (F2)."""
    delta = 0.002
    M = 2 * 0.01**2
    T = max(1, int(np.ceil(4 * M**2 * (0.01 + delta / 2) ** 2 / delta**2)))
    assert T == 1
    run = projected_sgd(slope, np.ones(1), step_size=0.01 / (M * sqrt(T)), steps=T)
    assert 0.01 * abs(float(run.theta[0])) > delta
    plan = convex_plan(delta, lipschitz=0.01, diameter=1.0, idf=0.0, estimator=SG)
    assert plan.steps in (25, 26)  # (D M/delta)^2 = 25, give or take the rounding
    run = projected_sgd(slope, np.ones(1), step_size=plan.step_size, steps=plan.steps)
    assert 0.01 * abs(float(run.theta[0])) <= delta


@pytest.mark.parametrize("seed", range(10))
def test_the_corrected_lemma(seed: int) -> None:
    """F = E|theta.a - y| on a box, one row (a, y) at a time: the mean gap is at most D M/sqrt T."""
    draw = np.random.default_rng(seed)
    d, rows, runs, T = 3, 6, 200, int(draw.integers(2, 60))
    a = draw.normal(size=(rows, d))
    target = draw.uniform(-0.5, 0.5, size=d)  # F* = 0 there
    start = draw.uniform(-1, 1, size=d)
    M, D = sqrt(np.mean(np.sum(a * a, axis=-1))), float(np.linalg.norm(start - target))

    def gradient(theta: Any) -> Any:
        row = a[draw.integers(rows, size=runs)]
        return np.sign(np.sum((theta - target) * row, axis=-1, keepdims=True)) * row

    run = projected_sgd(
        gradient, np.tile(start, (runs, 1)), step_size=D / (M * sqrt(T)), steps=T, project=onto_box(-1.0, 1.0)
    )
    gaps = np.mean(np.abs((run.theta - target) @ a.T), axis=-1)
    assert upper(gaps) <= D * M / sqrt(T)


@pytest.mark.parametrize("seed", range(10))
def test_the_smooth_lemma(seed: int) -> None:
    """E|mapping|^2 <= 8 S D/T + 6 sigma^2 with a step of 1/(2S), on boxed waves with noise (F7)."""
    draw = np.random.default_rng(seed)
    S, sigma, T = draw.uniform(0.2, 5), draw.uniform(0, 2), int(draw.integers(1, 40))
    box, runs, seen = onto_box(-2.0, 1.0), 400, []

    def slope(theta: Any) -> Any:
        return S * np.sin(theta)  # F = S (1 - cos theta), nonconvex, and S-smooth

    def gradient(theta: Any) -> Any:
        seen.append(theta)
        return slope(theta) + sigma * draw.normal(size=theta.shape)

    start = np.full((runs, 1), -1.9)
    run = projected_sgd(gradient, start, step_size=1 / (2 * S), steps=T, project=box)
    theta = np.stack([*seen, run.last])
    mapping = gradient_mapping(slope(theta), theta, step_size=1 / (2 * S), project=box)
    D = S * (1 - np.cos(1.9))
    assert upper(np.mean(mapping**2, axis=(0, 2))) <= 8 * S * D / T + 6 * sigma**2

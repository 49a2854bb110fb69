"""The sampled regulariser against its known mean, and the bad arguments of all of them."""

from __future__ import annotations

import re
from collections.abc import Callable
from math import inf, nan, sqrt
from typing import Any

import numpy as np
import pytest

from phiball.backends import rng, use
from phiball.refimpl import (
    ENTROPIC,
    HINGE,
    QUADRATIC,
    Ball,
    Gaussian,
    indicator,
    r1,
    r2,
    r3,
    surrogate,
    surrogate_estimate,
)
from tests.support.arrays import Arrays
from tests.support.divergences import select
from tests.support.laws import NORMS


@pytest.mark.parametrize("norm", NORMS)
def test_the_estimate_has_the_known_mean(norm: float, doubles: Arrays) -> None:
    """Quadratic, all points active: the value on n points is their variance/(2 eta), low by 1/n."""
    g = doubles.asarray(np.tile([0.3, -0.1], (20_000, 1)))
    ball, n = Ball(norm, 1.0), 4  # rho ||g||_* <= 0.4, so |f - mean f| < eta
    value = doubles.numpy(surrogate_estimate(g, ball, 1.0, QUADRATIC, samples=n, rng=rng(1)))
    exact = 0.1 * {1: 2 / 12, 2: 1 / 4, inf: 1 / 3}[norm] / 2
    error = value.mean() - (1 - 1 / n) * exact
    assert abs(error) < 4.75 * value.std() / sqrt(value.size)  # one in a million
    assert value.mean() < exact  # low


def test_the_estimate_approaches_the_exact_value(arrays: Arrays) -> None:
    g = arrays.asarray(np.reshape([1.0, -2.0, 0.5, 0.3], (1, 2, 2)))
    for divergence in select(core=True):
        value = surrogate_estimate(g, Ball(2, 0.5), 0.6, divergence, samples=40_000, rng=rng(3))
        exact = surrogate(g, Ball(2, 0.5), 0.6, divergence)
        assert value.dtype == arrays.dtype
        # g.b has spread 0.5 |g|/sqrt(6) = 0.5, and the density stays below 5: 5 * 0.5 * 4.75/200 = 0.06.
        np.testing.assert_allclose(arrays.numpy(value), arrays.numpy(exact), atol=0.06)


def test_another_law_can_be_sampled() -> None:
    """The entropic risk of g.b, b normal: |g|^2 scale^2/(2 eta)."""
    g = np.tile([0.3, 0.4], (50, 1))
    value = surrogate_estimate(g, Gaussian(0.5), 1.0, ENTROPIC, samples=20_000, rng=rng(0))
    # The mean of exp has relative spread below 0.26 over a million draws; the bias is 0.07/2/20000.
    assert value.mean() == pytest.approx(0.25 * 0.25 / 2, abs=4.75 * 0.26 / 1000 + 2e-6)


def test_the_same_seed_gives_the_same_estimate(arrays: Arrays) -> None:
    g = arrays.asarray([[1.0, 2.0]])
    one, two, other = (
        float(surrogate_estimate(g, Ball(1, 1.0), 1.0, HINGE, samples=10, rng=rng(seed))[0])
        for seed in (4, 4, 5)
    )
    assert one == two != other


G = np.array([[1.0, 2.0]])


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda: surrogate(G, Ball(inf, 1.0), 1.0, HINGE),
            ValueError,
            "no exact value is known; expected norm 2",
        ),
        (lambda: surrogate(G, Ball(inf, 1.0), 1.0, HINGE), ValueError, "surrogate_estimate"),
        (
            lambda: surrogate(G, Ball(3, 1.0), 1.0, ENTROPIC),
            ValueError,
            "divergence is entropic, ball.norm is 3",
        ),
        (lambda: surrogate(G, Ball(1, 1.0), 1.0, QUADRATIC), ValueError, "rho ||g||_*/eta reaches 2 > 1"),
        (
            lambda: surrogate(G, Gaussian(1.0), 1.0, HINGE),
            TypeError,
            "ball is Gaussian(scale=1.0); expected a Ball",
        ),
        (lambda: surrogate(G, Ball(2, 1.0, (0, 1)), 1.0, HINGE), ValueError, "expected one without clip"),
        (lambda: surrogate(G, Ball(2, 1.0), 0.0, HINGE), ValueError, "eta is 0.0; expected a positive"),
        (
            lambda: surrogate(G, Ball(2, 1.0), np.ones(3), HINGE),
            ValueError,
            "eta has shape (3,); expected a number",
        ),
        (
            lambda: surrogate(G, Ball(2, 1.0), 1.0, "kl"),
            TypeError,
            "divergence is 'kl'; expected a Divergence",
        ),
        (lambda: surrogate([[1.0]], Ball(2, 1.0), 1.0, HINGE), TypeError, "g is [[1.0]], of type list"),
        (
            lambda: surrogate(np.array(1.0), Ball(2, 1.0), 1.0, HINGE),
            ValueError,
            "g has shape (); expected (N,)",
        ),
        (lambda: surrogate(np.ones((0, 2)), Ball(2, 1.0), 1.0, HINGE), ValueError, "g has shape (0, 2)"),
        (lambda: surrogate(np.array([[nan]]), Ball(2, 1.0), 1.0, HINGE), ValueError, "g contains NaN"),
        (lambda: surrogate(np.array([[1]]), Ball(2, 1.0), 1.0, HINGE), TypeError, "g has dtype int64"),
        (lambda: r1(G, Ball(2, 1.0), 0.0, HINGE), ValueError, "C is 0.0; expected a positive number"),
        (lambda: r1(G, Ball(2, 1.0), True, HINGE), TypeError, "C is True; expected a number"),
        (lambda: r1(G, 1.0, 1.0, HINGE), TypeError, "ball is 1.0; expected a Ball"),
        (lambda: r2(G, 1.0), TypeError, "ball is 1.0; expected a Ball"),
        (lambda: r2(G, Ball(2, 1.0, (0, 1))), ValueError, "expected one without clip"),
        (lambda: r2(np.array([[inf]]), Ball(2, 1.0)), ValueError, "g contains NaN or infinity"),
        (lambda: r3(G, Ball(2, 1.0), 1.0, HINGE), ValueError, "divergence is hinge, with phi''(1) = inf"),
        (lambda: r3(G, Ball(2, 1.0), 1.0, indicator(0.5)), ValueError, "with phi''(1) = 0"),
        (lambda: r3(G, Ball(2, 1.0), -1.0, QUADRATIC), ValueError, "eta is -1.0"),
        (lambda: r3(G, None, 1.0, QUADRATIC), TypeError, "ball is None; expected a Ball"),
    ],
)
def test_bad_arguments(call: Callable[[], Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=re.escape(message)):
        call()


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"samples": 0}, ValueError, "samples is 0; expected a whole number of at least 1"),
        ({"rng": 3}, TypeError, "rng is 3; expected what"),
        ({"ball": 1.0}, TypeError, "ball is 1.0; expected a Ball"),
        ({"ball": Ball(2, 1.0, (0, 1))}, ValueError, "expected one without clip"),
        ({"eta": -1}, ValueError, "eta is -1"),
        ({"divergence": None}, TypeError, "divergence is None"),
        ({"g": np.array([[nan]])}, ValueError, "g contains NaN"),
    ],
)
def test_bad_arguments_of_the_estimate(change: dict[str, Any], error: type[Exception], message: str) -> None:
    good: dict[str, Any] = {"g": G, "ball": Ball(2, 1.0), "eta": 1.0, "divergence": HINGE}
    with use("numpy"), pytest.raises(error, match=re.escape(message)):
        surrogate_estimate(**({**good, "samples": 8, "rng": rng(0)} | change))

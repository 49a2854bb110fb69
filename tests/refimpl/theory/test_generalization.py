"""The bounds of Section 5, against scipy, closed forms, brute force and an exact population."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from math import inf, log, nan, sqrt
from typing import Any

import numpy as np
import pytest
from scipy import integrate

from phiball.backends import rng
from phiball.refimpl import (
    HINGE,
    QUADRATIC,
    Ball,
    covering_bound,
    excess_order,
    generalization_bound,
    linear_capacity,
    linear_covering,
    network_capacity,
    ramp_loss,
    regularized_adversarial_risk,
    worst_case,
)
from phiball.refimpl.theory.generalization import CoveringBound
from tests.support.divergences import on_each

LINEAR = partial(linear_covering, K=2, d=2, Lambda=1.0, Psi=1.0, rho=0.1, varrho=1.0)


# --- Proposition (cover) ----------------------------------------------------------------------------


def brute(n: int, log_covering: Callable[[float], float]) -> float:
    """inf over a grid of alpha, the integral by scipy in eps itself."""
    return min(
        8 * alpha + 24 / sqrt(n) * integrate.quad(lambda e: sqrt(log_covering(e)), alpha, 1, limit=500)[0]
        for alpha in np.exp(np.linspace(log(1e-7), 0, 600))
    )


@pytest.mark.slow
@pytest.mark.parametrize("n", [10, 1000, 100_000])
@pytest.mark.parametrize(
    "log_covering",
    [
        LINEAR,
        lambda eps: 4 / eps**2,
        lambda eps: 0.01 / eps,
        lambda eps: 30 * (1 - eps) ** 2,
        lambda eps: 2.0,
    ],
)
def test_the_infimum_over_alpha(n: int, log_covering: Callable[[float], float]) -> None:
    bound = covering_bound(n, 0.1, log_covering)
    found, grid = bound.approximation + bound.complexity, brute(n, log_covering)
    assert found <= grid * (1 + 1e-9)
    # Between grid points 2.7 % apart the bracket is flat to second order; 8e-7 is its first alpha.
    assert found >= grid * (1 - 2e-3) - 8e-7
    assert bound.approximation == 8 * bound.alpha


@pytest.mark.parametrize(("A", "n"), [(1.0, 1000), (0.04, 500), (25.0, 10**6)])
def test_a_power_has_a_closed_form(A: float, n: int) -> None:
    """log N = A/eps^2: alpha = 3 sqrt(A/n), integral sqrt(A) log(1/alpha)."""
    bound = covering_bound(n, 0.05, lambda eps: A / eps**2)
    alpha = 3 * sqrt(A / n)
    assert bound.alpha == pytest.approx(alpha, rel=1e-14)
    assert bound.complexity == pytest.approx(24 / sqrt(n) * sqrt(A) * log(1 / alpha), rel=1e-12)
    assert bound.confidence == pytest.approx(3 * sqrt(log(40) / n), rel=1e-15)
    assert bound.total == bound.approximation + bound.complexity + bound.confidence


@pytest.mark.slow
def test_covering_numbers_that_jump() -> None:
    """log N = log ceil(1/(2 eps)), the covering number of [0, 1]: a sum over its steps."""
    bound = covering_bound(10_000, 0.1, lambda eps: log(np.ceil(max(0.5 / eps, 1) * (1 - 1e-15))))
    edges = [1.0, *(0.5 / k for k in range(1, 200_000))]  # log N = log(k + 1) on (1/(2 (k+1)), 1/(2 k))
    exact = sum((edges[k] - edges[k + 1]) * sqrt(log(k + 1)) for k in range(1, len(edges) - 1))
    exact += edges[-1] * sqrt(log(2e5))  # the rest, up to its slow growth
    assert bound.complexity == pytest.approx(24 / 100 * exact, rel=1e-6)


def test_a_finite_class() -> None:
    """I3: 33 classifiers: .354 at n = 2e4, and 7.08, which says nothing, at n = 50."""
    few, many = (covering_bound(n, 0.1, lambda eps: log(33)) for n in (50, 20_000))
    assert many.alpha == 0
    assert many.total == pytest.approx(24 * sqrt(log(33) / 2e4) + 3 * sqrt(log(20) / 2e4), rel=1e-12)
    assert (round(many.total, 3), many.vacuous) == (0.354, False)
    assert (round(few.total, 2), few.vacuous) == (7.08, True)


def test_i5_the_linear_class() -> None:
    totals = [covering_bound(n, 0.1, LINEAR).total for n in (10**4, 10**5, 10**6)]
    assert [round(total, 3) for total in totals] == [0.819, 0.259, 0.082]
    for n, total in zip((10**4, 10**5, 10**6), totals, strict=True):
        integral = integrate.quad(lambda e: sqrt(LINEAR(e)), 0, 1, epsabs=1e-12)[0]
        assert total == pytest.approx(24 / sqrt(n) * integral + 3 * sqrt(log(20) / n), rel=1e-9)


def test_alpha_is_at_most_one() -> None:
    bound = covering_bound(9, 0.1, lambda eps: 100 / eps)
    assert (bound.alpha, bound.approximation, bound.complexity, bound.vacuous) == (1.0, 8.0, 0.0, True)


def test_vacuous_from_one_on() -> None:
    assert CoveringBound(0.0, 0.5, 0.25, 0.25).vacuous
    assert not CoveringBound(0.0, 0.5, 0.25, 0.24).vacuous


# --- The two classes ------------------------------------------------------------------------------------


def test_linear_covering_covers() -> None:
    """W on a lattice: a change of r in |W|_F moves the loss by 2 r (Psi + sqrt(d) rho)/varrho at most."""
    assert LINEAR(0.5) == pytest.approx(4 * log(1 + 4 * (1 + sqrt(2) * 0.1) / 0.5), rel=1e-15)
    draws, reach = np.random.default_rng(0), 1 + sqrt(2) * 0.1
    W = draws.normal(size=(2000, 2, 2, 2))
    W, V = (w / np.maximum(1, np.linalg.norm(w, axis=(-2, -1), keepdims=True)) for w in np.moveaxis(W, 1, 0))
    x = draws.normal(size=(2000, 2))
    x = x / np.linalg.norm(x, axis=-1, keepdims=True) + draws.uniform(-0.1, 0.1, size=x.shape)
    y = draws.integers(2, size=2000)
    change = np.abs(
        ramp_loss(np.einsum("nij,nj->ni", W, x), y, varrho=1.0)
        - ramp_loss(np.einsum("nij,nj->ni", V, x), y, varrho=1.0)
    )
    ratio = change / (2 * reach * np.linalg.norm(W - V, axis=(-2, -1)))
    assert 0.3 < np.max(ratio) <= 1


def test_capacities_by_hand() -> None:
    assert linear_capacity(d=9, Lambda=2.0, Psi=0.5, rho=0.1, varrho=0.25) == pytest.approx(
        2 * 3 * (0.5 + 0.3) / 0.25
    )
    one = network_capacity(d=9, s=[2.0], a=[2.0], Psi=0.5, rho=0.1, varrho=0.25)
    assert one == pytest.approx(linear_capacity(d=9, Lambda=2.0, Psi=0.5, rho=0.1, varrho=0.25))
    two = network_capacity(d=4, s=[2.0, 3.0], a=[4.0, 9.0], Psi=1.0, rho=0.0, varrho=0.5)
    assert two == pytest.approx(2 * 2 / 0.5 * 6 * sqrt(4 + 9))


def test_the_order_is_that_of_the_covering_number() -> None:
    """I6: log N = A^2/eps^2 at alpha = 1/n integrates to A log n, with eps^2 and not the printed eps."""
    A, n = network_capacity(d=4, s=[2.0, 3.0], a=[4.0, 9.0], Psi=1.0, rho=0.1, varrho=0.5), 10_000
    integral = integrate.quad(lambda e: A / e, 1 / n, 1, limit=200)[0]
    tail = 3 * sqrt(log(20) / n) + 8 / n
    assert excess_order(n, 0.1, A, constant=24 * log(n)) == pytest.approx(
        tail + 24 / sqrt(n) * integral, rel=1e-9
    )
    assert excess_order(n, 0.1, A) == pytest.approx(tail + A / 100, rel=1e-15)
    assert excess_order(1, 0.1, 2.0) == pytest.approx(3 * sqrt(log(20)) + 8 + 2)


# --- The robust loss as a function of the losses -------------------------------------------------


@on_each(core=True)
def test_i1_the_map_is_nonexpansive(d: Any) -> None:
    draws = np.random.default_rng(5)
    f, g = draws.random((2, 4000, 6))
    g[:400] = f[:400] + draws.random((400, 1)) * (1 - f[:400].max(-1, keepdims=True))  # a constant: ratio 1
    eta = 10 ** draws.uniform(-2, 1, 4000)
    T, U = (worst_case(h, eta, d).value for h in (f, g))
    distance = np.max(np.abs(f - g), axis=-1)
    assert np.all(np.abs(T - U) <= distance + 1e-12)
    np.testing.assert_allclose(np.abs(T - U)[:400], distance[:400], atol=1e-12)
    assert np.all((T >= -1e-15) & (T <= 1 + 1e-15))


def test_i3_no_violation_on_an_exact_population() -> None:
    """33 thresholds on 81 points, labels wrong with probability 0.1, and 300 samples of 20,000."""
    x, thresholds, n = np.linspace(-1, 1, 81), np.linspace(-0.8, 0.8, 33), 20_000
    b = 0.1 * (np.arange(101) - 50) / 50
    margin = (x[:, None] + b)[None] - thresholds[:, None, None]  # (33, 81, 101)
    logits = np.stack([-margin, margin], axis=-1)
    robust = np.stack(
        [
            worst_case(ramp_loss(logits, np.full(margin.shape, y), varrho=0.5), 0.2, QUADRATIC).value
            for y in (0, 1)
        ],
        axis=-1,
    ).reshape(33, 162)
    right = (x > 0).astype(int)
    p = np.where(np.arange(2) == right[:, None], 0.9, 0.1).reshape(162) / 81
    population = robust @ p
    samples = np.random.default_rng(7).multinomial(n, p, size=300) / n
    gap = np.max(population[None] - samples @ robust.T, axis=-1)
    bound = covering_bound(n, 0.1, lambda eps: log(33)).total
    assert np.sum(gap > bound) == 0
    # Hoeffding for 33 classifiers and 300 samples, at one in a million: what is really possible.
    assert 0 < np.max(gap) < sqrt(log(33 * 300 * 1e6) / (2 * n)) < bound


# --- Bad arguments -------------------------------------------------------------------------------------

T, Y = np.zeros((2, 3)), np.array([0, 1])
GOOD: dict[str, Any] = {"K": 2, "d": 2, "Lambda": 1.0, "Psi": 1.0, "rho": 0.1, "varrho": 1.0}
BOUND = covering_bound(100, 0.1, lambda eps: 1.0)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: covering_bound(0, 0.1, LINEAR), ValueError, "n is 0; expected a whole number"),
        (lambda: covering_bound(1.5, 0.1, LINEAR), ValueError, "n is 1.5; expected a whole number"),
        (lambda: covering_bound(9, 0.0, LINEAR), ValueError, "delta is 0.0; expected a number in (0, 1)"),
        (lambda: covering_bound(9, 1, LINEAR), ValueError, "delta is 1; expected a number in (0, 1)"),
        (lambda: covering_bound(9, 0.1, 3.0), TypeError, "log_covering is 3.0; expected a function"),
        (lambda: covering_bound(9, 0.1, lambda e: -1), ValueError, "log_covering(1.0) is -1.0; expected"),
        (lambda: covering_bound(9, 0.1, lambda e: nan), ValueError, "log_covering(1.0) is nan; expected"),
        (lambda: linear_covering(0.0, **GOOD), ValueError, "eps is 0.0; expected a positive number"),
        (lambda: linear_covering(0.1, **GOOD | {"K": 1}), ValueError, "K is 1; expected a whole number"),
        (lambda: linear_covering(0.1, **GOOD | {"d": 0}), ValueError, "d is 0; expected a whole number"),
        (
            lambda: linear_covering(0.1, **GOOD | {"Lambda": 0}),
            ValueError,
            "Lambda is 0; expected a positive",
        ),
        (
            lambda: linear_covering(0.1, **GOOD | {"Psi": -1.0}),
            ValueError,
            "Psi is -1.0; expected a positive",
        ),
        (
            lambda: linear_covering(0.1, **GOOD | {"rho": -1.0}),
            ValueError,
            "rho is -1.0; expected a finite number",
        ),
        (lambda: linear_covering(0.1, **GOOD | {"varrho": inf}), ValueError, "varrho is inf; expected a pos"),
        (
            lambda: network_capacity(d=1, s=[1.0], a=[], Psi=1.0, rho=0.1, varrho=1.0),
            ValueError,
            "s has 1 entries and a 0; expected one for each layer",
        ),
        (
            lambda: network_capacity(d=1, s=[0.0], a=[1.0], Psi=1.0, rho=0.1, varrho=1.0),
            ValueError,
            "s is 0.0; expected a positive number",
        ),
        (lambda: excess_order(9, 0.1, -1.0), ValueError, "capacity is -1.0; expected a positive number"),
        (lambda: excess_order(9, 0.1, 1.0, constant=0), ValueError, "constant is 0; expected a positive"),
        (lambda: excess_order(9, 2.0, 1.0), ValueError, "delta is 2.0; expected a number in (0, 1)"),
        (lambda: ramp_loss([1.0], Y, varrho=1.0), TypeError, "logits is [1.0], of type list"),
        (lambda: ramp_loss(np.zeros((2, 1)), Y, varrho=1.0), ValueError, "logits has shape (2, 1); expected"),
        (lambda: ramp_loss(T, [0, 1], varrho=1.0), TypeError, "labels is of type list; expected an array"),
        (
            lambda: ramp_loss(T, np.zeros(2), varrho=1.0),
            TypeError,
            "labels has dtype float64; expected whole",
        ),
        (
            lambda: ramp_loss(T, np.zeros(3, int), varrho=1.0),
            ValueError,
            "labels has shape (3,); expected (2,)",
        ),
        (lambda: ramp_loss(T, np.array([0, 3]), varrho=1.0), ValueError, "labels leaves 0, ..., 2; expected"),
        (
            lambda: ramp_loss(T, np.array([-1, 0]), varrho=1.0),
            ValueError,
            "labels leaves 0, ..., 2; expected",
        ),
        (lambda: ramp_loss(T, Y, varrho=0.0), ValueError, "varrho is 0.0; expected a positive number"),
        (lambda: generalization_bound(1.1, BOUND), ValueError, "risk is 1.1; expected a number in [0, 1]"),
        (lambda: generalization_bound(nan, BOUND), ValueError, "risk is nan; expected a number in [0, 1]"),
        (lambda: generalization_bound("a", BOUND), TypeError, "risk is 'a'; expected a number in [0, 1]"),
        (lambda: generalization_bound(0.5, 0.1), TypeError, "bound is 0.1; expected what covering_bound"),
        (
            lambda: regularized_adversarial_risk(
                None, np.zeros((1, 1)), Ball(2, 1.0), 1.0, HINGE, samples=4, rng=rng(0)
            ),
            TypeError,
            "loss is None; expected a function loss(x, i)",
        ),
    ],
)
def test_bad_arguments(call: Callable[[], Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=re.escape(message)):
        call()

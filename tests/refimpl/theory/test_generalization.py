"""The generalization bounds of Section 5 agree with scipy, closed forms and brute force."""

import re
from collections.abc import Callable
from functools import partial
from math import inf, log, nan, sqrt
from typing import Any

import numpy as np
import pytest
from scipy import integrate

from phiball.backends import rng
from phiball.refimpl import HINGE, Ball, robust_risk
from phiball.refimpl.theory import (
    covering_bound,
    excess_order,
    generalization_bound,
    linear_capacity,
    linear_covering,
    network_capacity,
    ramp_loss,
    regularized_adversarial_risk,
)
from phiball.refimpl.theory.generalization import CoveringBound
from tests.support.arrays import Arrays

LINEAR = partial(linear_covering, K=2, d=2, Lambda=1.0, Psi=1.0, rho=0.1, varrho=1.0)


def grid_infimum(n: int, log_covering: Callable[[float], float]) -> float:
    """The infimum over a grid of alpha, with the integral in eps by scipy."""
    return min(
        8 * alpha + 24 / sqrt(n) * integrate.quad(lambda e: sqrt(log_covering(e)), alpha, 1, limit=500)[0]
        for alpha in np.exp(np.linspace(log(1e-7), 0, 300))
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("n", "log_covering"),
    [
        (1000, LINEAR),
        (100_000, lambda eps: 4 / eps**2),
        (10, lambda eps: 0.01 / eps),
        (1000, lambda eps: 30 * (1 - eps) ** 2),
        (10, lambda eps: 2.0),
    ],
)
def test_bound_is_the_infimum_over_alpha(n: int, log_covering: Callable[[float], float]) -> None:
    bound = covering_bound(n, 0.1, log_covering)
    found, grid = bound.approximation + bound.complexity, grid_infimum(n, log_covering)
    assert found <= grid * (1 + 1e-9)
    # Grid points are 5.5 % apart, the objective is flat at its minimum, and the smallest 8 alpha is 8e-7.
    assert found >= grid * (1 - 4e-3) - 8e-7
    assert bound.approximation == 8 * bound.alpha


@pytest.mark.parametrize(("A", "n"), [(1.0, 1000), (0.04, 500), (25.0, 10**6)])
def test_bound_for_power_law_covering_numbers_agrees_with_closed_form(A: float, n: int) -> None:
    """For log N = A/eps^2, alpha is 3 sqrt(A/n) and the integral sqrt(A) log(1/alpha)."""
    bound = covering_bound(n, 0.05, lambda eps: A / eps**2)
    alpha = 3 * sqrt(A / n)
    assert bound.alpha == pytest.approx(alpha, rel=1e-14)
    assert bound.complexity == pytest.approx(24 / sqrt(n) * sqrt(A) * log(1 / alpha), rel=1e-12)
    assert bound.confidence == pytest.approx(3 * sqrt(log(40) / n), rel=1e-15)
    assert bound.total == bound.approximation + bound.complexity + bound.confidence


@pytest.mark.slow
def test_bound_for_piecewise_constant_covering_numbers() -> None:
    """The covering number of [0, 1] is ceil(1/(2 eps)), so that the integral is a sum."""
    bound = covering_bound(10_000, 0.1, lambda eps: log(np.ceil(max(0.5 / eps, 1) * (1 - 1e-15))))
    edges = [1.0, *(0.5 / k for k in range(1, 200_000))]  # log N = log(k + 1) on (1/(2 (k+1)), 1/(2 k))
    exact = sum((edges[k] - edges[k + 1]) * sqrt(log(k + 1)) for k in range(1, len(edges) - 1))
    exact += edges[-1] * sqrt(log(2e5))  # the remainder, with a constant integrand
    assert bound.complexity == pytest.approx(24 / 100 * exact, rel=1e-6)


def test_alpha_is_0_for_constant_and_1_for_steep_covering_numbers() -> None:
    bound = covering_bound(20_000, 0.1, lambda eps: log(33))
    assert bound.alpha == 0
    assert bound.total == pytest.approx(24 * sqrt(log(33) / 2e4) + 3 * sqrt(log(20) / 2e4), rel=1e-12)
    certificate = generalization_bound(np.asarray(0.25), bound)
    assert (certificate.risk, certificate.bound) == (0.25, bound)
    assert certificate.value == 0.25 + bound.total
    assert not certificate.vacuous
    assert generalization_bound(0.7, bound).vacuous  # 0.7 + 0.354
    bound = covering_bound(9, 0.1, lambda eps: 100 / eps)
    assert (bound.alpha, bound.approximation, bound.complexity, bound.vacuous) == (1.0, 8.0, 0.0, True)
    assert CoveringBound(0.0, 0.5, 0.25, 0.25).vacuous
    assert not CoveringBound(0.0, 0.5, 0.25, 0.24).vacuous


def test_capacities_agree_with_values_computed_by_hand() -> None:
    assert LINEAR(0.5) == pytest.approx(4 * log(1 + 4 * (1 + sqrt(2) * 0.1) / 0.5), rel=1e-15)
    linear = linear_capacity(d=9, Lambda=2.0, Psi=0.5, rho=0.1, varrho=0.25)
    assert linear == pytest.approx(2 * 3 * (0.5 + 0.3) / 0.25)
    assert network_capacity(d=9, s=[2.0], a=[2.0], Psi=0.5, rho=0.1, varrho=0.25) == pytest.approx(linear)
    two = network_capacity(d=4, s=[2.0, 3.0], a=[4.0, 9.0], Psi=1.0, rho=0.0, varrho=0.5)
    assert two == pytest.approx(2 * 2 / 0.5 * 6 * sqrt(4 + 9))


def test_excess_order_agrees_with_its_formula() -> None:
    tail = 3 * sqrt(log(20) / 10_000) + 8 / 10_000
    assert excess_order(10_000, 0.1, 2.0) == pytest.approx(tail + 2 / 100, rel=1e-15)
    assert excess_order(10_000, 0.1, 2.0, constant=3.0) == pytest.approx(tail + 6 / 100, rel=1e-15)


def plain_ramp(t: Any, y: int, varrho: float) -> float:
    margin = t[y] - max(v for k, v in enumerate(t) if k != y)
    return 1.0 if margin <= 0 else 0.0 if margin >= varrho else 1 - margin / varrho


def test_ramp_loss_agrees_with_a_plain_loop(arrays: Arrays) -> None:
    draws = np.random.default_rng(0)
    logits, labels = draws.normal(size=(5, 40, 3)), draws.integers(3, size=(5, 40))
    logits[0, 0] = 1.0  # a tie
    logits = arrays.numpy(arrays.asarray(logits)).astype(float)
    expected = [plain_ramp(t, y, 0.8) for t, y in zip(logits.reshape(-1, 3), labels.ravel(), strict=True)]
    for kind in (arrays.xp.int64, arrays.xp.int32):
        out = ramp_loss(arrays.asarray(logits), arrays.asarray(labels, kind), varrho=0.8)
        assert out.dtype == arrays.dtype
        np.testing.assert_allclose(arrays.numpy(out).ravel(), expected, atol=8 * arrays.eps)
    assert 0.05 < np.mean((arrays.numpy(out) > 0) & (arrays.numpy(out) < 1)) < 0.95


def test_ramp_loss_has_a_gradient_only_on_its_slope() -> None:
    torch = pytest.importorskip("torch", reason="torch: not installed")
    logits = torch.tensor([[0.5, 0.2, -1.0], [0.0, 1.0, 0.0], [2.0, 0.0, 0.0]], requires_grad=True)
    ramp_loss(logits, torch.tensor([0, 0, 0]), varrho=0.5).sum().backward()
    assert logits.grad.tolist() == [[-2.0, 2.0, 0.0], [0.0] * 3, [0.0] * 3]


def test_regularized_adversarial_risk_is_the_robust_risk() -> None:
    found, expected = (
        risk(lambda x, i: x[:, 0], np.full((2, 1), 0.5), Ball(inf, 0.1), 0.2, n_samples=40, rng=rng(0))
        for risk in (regularized_adversarial_risk, robust_risk)
    )
    assert float(found.value) == float(expected.value)


def sampled_risk(loss: Any) -> Any:
    x, ball = np.zeros((1, 1)), Ball(2, 0.1)
    return regularized_adversarial_risk(loss, x, ball, 1.0, HINGE, n_samples=4, rng=rng(0))


LOGITS, Y = np.zeros((2, 3)), np.array([0, 1])
CONSTANTS: dict[str, Any] = {"d": 1, "Psi": 1.0, "rho": 0.1, "varrho": 1.0}
BOUND = covering_bound(100, 0.1, lambda eps: 1.0)


def covering(**change: Any) -> float:
    return linear_covering(**{"eps": 0.1, "K": 2, "Lambda": 1.0, **CONSTANTS, **change})


def ramp(labels: Any = Y, logits: Any = LOGITS, varrho: float = 1.0) -> Any:
    return ramp_loss(logits, labels, varrho=varrho)


def test_invalid_arguments_raise() -> None:
    cases: list[tuple[Any, Any, str]] = [
        (lambda: covering_bound(0, 0.1, LINEAR), ValueError, "n is 0; expected a whole number"),
        (lambda: covering_bound(9, 0.0, LINEAR), ValueError, "delta is 0.0; expected a number in (0, 1)"),
        (lambda: covering_bound(9, 0.1, 3.0), TypeError, "log_covering is 3.0; expected a function"),
        (lambda: covering_bound(9, 0.1, lambda e: -1), ValueError, "log_covering(1.0) is -1.0; expected"),
        (lambda: covering(eps=0.0), ValueError, "eps is 0.0; expected a positive number"),
        (lambda: covering(K=1), ValueError, "K is 1; expected a whole number"),
        (lambda: covering(d=0), ValueError, "d is 0; expected a whole number"),
        (lambda: covering(Lambda=0), ValueError, "Lambda is 0; expected a positive"),
        (lambda: covering(Psi=0.0), ValueError, "Psi is 0.0; expected a positive"),
        (lambda: covering(rho=-1.0), ValueError, "rho is -1.0; expected a finite number"),
        (lambda: covering(varrho=0.0), ValueError, "varrho is 0.0; expected a pos"),
        (
            lambda: linear_capacity(**CONSTANTS | {"varrho": 0}, Lambda=1.0),
            ValueError,
            "varrho is 0; expected",
        ),
        (
            lambda: network_capacity(**CONSTANTS, s=[1.0], a=[]),
            ValueError,
            "s has 1 entries and a 0; expected",
        ),
        (lambda: network_capacity(**CONSTANTS, s=[], a=[]), ValueError, "s has 0 entries and a 0; expected"),
        (
            lambda: network_capacity(**CONSTANTS, s=[0.0], a=[1.0]),
            ValueError,
            "s is 0.0; expected a positive",
        ),
        (
            lambda: network_capacity(**CONSTANTS | {"varrho": 0}, s=[1.0], a=[1.0]),
            ValueError,
            "varrho is 0; exp",
        ),
        (lambda: excess_order(9, 0.1, 0.0), ValueError, "capacity is 0.0; expected a positive number"),
        (lambda: excess_order(9, 0.1, 1.0, constant=0), ValueError, "constant is 0; expected a positive"),
        (lambda: ramp(logits=[1.0]), TypeError, "logits is [1.0], of type list"),
        (lambda: ramp(logits=np.zeros((2, 1))), ValueError, "logits has shape (2, 1); expected"),
        (lambda: ramp([0, 1]), TypeError, "labels is of type list; expected an array"),
        (lambda: ramp(np.zeros(2)), TypeError, "labels has dtype float64; expected whole"),
        (lambda: ramp(np.zeros(3, int)), ValueError, "labels has shape (3,); expected (2,)"),
        (lambda: ramp(np.array([0, 3])), ValueError, "labels has entries outside 0, ..., 2; expected"),
        (lambda: ramp(np.array([-1, 0])), ValueError, "labels has entries outside 0, ..., 2; expected"),
        (lambda: ramp(varrho=0.0), ValueError, "varrho is 0.0; expected a positive number"),
        (lambda: generalization_bound(1.1, BOUND), ValueError, "risk is 1.1; expected"),
        (lambda: generalization_bound("a", BOUND), TypeError, "risk is 'a'; expected"),
        (lambda: generalization_bound(0.5, 0.1), TypeError, "bound is 0.1; expected"),
        *(
            (lambda x=x: sampled_risk(lambda z, i: np.full_like(z[:, 0], x)), ValueError, "values in [0, 1]")
            for x in (-0.1, 1.5, nan)
        ),
        (lambda: sampled_risk(None), TypeError, "loss is None; expected a function loss(x, i)"),
    ]
    for call, error, message in cases:
        with pytest.raises(error, match=re.escape(message)):
            call()

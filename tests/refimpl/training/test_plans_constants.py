"""The constants of the plans against enumeration: second moment, chi-square, bias."""

from __future__ import annotations

from functools import cache
from itertools import product
from math import exp, inf
from typing import Any

import numpy as np
import pytest
from scipy.stats import binom

from phiball.refimpl import (
    ABSOLUTE,
    ENTROPIC,
    HINGE,
    QUADRATIC,
    RTMLMC,
    SG,
    chi_square_bound,
    cressie_read,
    gradient_bias,
    indicator,
    second_moment,
)

# --- the second moment: two losses 0 and B, all draws of a level ------------------------------------


def softmax(f: Any, eta: float) -> Any:
    e = np.exp((f - np.max(f)) / eta)
    return e / np.sum(e)


def sparsemax(f: Any, eta: float) -> Any:
    """The quadratic solution by sorting: E(f - mu)_+ = eta."""
    n, down = len(f), np.sort(f)[::-1]
    mu = (np.cumsum(down) - n * eta) / np.arange(1, n + 1)
    return np.maximum(f - mu[np.sum(down > mu) - 1], 0) / (n * eta)


def tail(f: Any, alpha: float) -> Any:
    """The indicator's solution: 1/(alpha n) from the top until the mass is spent, ties sharing."""
    n, weights, left = len(f), np.zeros(len(f)), 1.0
    for value in np.unique(f)[::-1]:
        tied = f == value
        weights[tied] = min(left / np.sum(tied), 1 / (alpha * n))
        left -= np.sum(weights[tied])
    return weights


@cache
def level_moment(solver: Any, ratio: float, level: int, q: float, even: bool) -> float:
    """E|G^l|^2 where f = B with probability q, and grad f = 1 there, and -1 (or 1, if `even`) where f = 0."""
    n, total = 2**level, 0.0
    for draw in product((0, 1), repeat=n):
        bit = np.array(draw, dtype=float)
        weights = solver(ratio * bit)
        if level:
            weights = weights - np.concatenate([solver(ratio * h) for h in np.split(bit, 2)]) / 2
        g = np.ones(n) if even else 2 * bit - 1
        total += q ** np.sum(bit) * (1 - q) ** np.sum(1 - bit) * np.sum(weights * g) ** 2
    return float(total)


def rtmlmc_moment(solver: Any, ratio: float, top: int, q: float, even: bool = False) -> float:
    total = 2 - 2.0**-top
    return sum(total * 2**k * level_moment(solver, ratio, k, q, even) for k in range(top + 1))


SOLVERS = {
    "entropic": (lambda f: softmax(f, 1.0), lambda B: chi_square_bound(ENTROPIC, B, 1.0)),
    "quadratic": (lambda f: sparsemax(f, 1.0), lambda B: chi_square_bound(QUADRATIC, B, 1.0)),
    "indicator": (lambda f: tail(f, 0.5), lambda B: chi_square_bound(indicator(0.5), B, 1.0)),
    "maximum": (lambda f: tail(f, 1e-9), lambda B: inf),
}


@pytest.mark.parametrize("name", SOLVERS)
@pytest.mark.parametrize("ratio", [0.3, 1.0, 4.0])
def test_the_second_moment_is_a_bound(name: str, ratio: float) -> None:
    solver, constant = SOLVERS[name]
    ratios = [
        max(rtmlmc_moment(solver, ratio, top, q) for q in (0.1, 0.3, 0.5, 0.9))
        / second_moment(RTMLMC(top), 1.0, constant(ratio))
        for top in (0, 1, 2, 3)
    ]
    assert max(ratios) <= 1 + 1e-12
    assert min(ratios) > 0.3  # nor idle


@pytest.mark.parametrize("top", [0, 1, 2, 3])
def test_a_loss_that_ignores_the_perturbation_attains_it(top: int) -> None:
    """f = theta: C = 0 and E|V|^2 = 2 - 2^-L, where the paper's bound 6 (L+1) L_f^2 C is 0 (D6)."""
    true = rtmlmc_moment(SOLVERS["entropic"][0], 0.0, top, 0.5, even=True)
    assert true == pytest.approx(2 - 2.0**-top, rel=1e-14)
    assert second_moment(RTMLMC(top), 1.0, 0.0) == pytest.approx(true, rel=1e-14)


def test_the_enumeration_agrees_with_known_values() -> None:
    """The two-point entropic levels at B = eta = 1, q = 1/2."""
    solver = SOLVERS["entropic"][0]
    levels = [level_moment(solver, 1.0, k, 0.5, False) for k in range(4)]
    np.testing.assert_allclose(levels, [1, 0.106776133517, 0.039395335114, 0.010323164056], atol=1e-12)


def test_the_second_moment_scales_and_grows() -> None:
    assert second_moment(SG(5), 3.0, inf) == 9.0
    assert second_moment(RTMLMC(4), 3.0, 0.5) == pytest.approx(9 * second_moment(RTMLMC(4), 1.0, 0.5))
    # without a C every level counts with 2^l: (2 - 2^-L)(2^(L+1) - 1)
    assert second_moment(RTMLMC(4), 1.0, inf) == pytest.approx((2 - 1 / 16) * 31)
    assert second_moment(RTMLMC(4), 1.0, 15.0) == second_moment(RTMLMC(4), 1.0, inf)
    assert second_moment(RTMLMC(4), 1.0, 14.0) < second_moment(RTMLMC(4), 1.0, inf)


# --- chi-square -------------------------------------------------------------------------------------


@pytest.mark.parametrize("ratio", [0.1, 0.5, 1.0, 1.9, 2.0, 2.1, 5.0, 8.0])
@pytest.mark.parametrize("name", ["entropic", "quadratic"])
def test_chi_square_is_bounded_and_attained(name: str, ratio: float) -> None:
    """Two losses, the larger with probability 1/(1 + e^(B/eta)), or 1/max(2, B/eta): those attain it."""
    solver, constant = SOLVERS[name]
    draw = np.random.default_rng(0)
    share = 1 / (1 + exp(ratio)) if name == "entropic" else 1 / max(2, ratio)
    attaining = np.where(np.arange(round(200 / share)) < 200, ratio, 0.0)

    def chi_square(f: Any) -> float:
        return float(len(f) * np.sum((solver(f) - 1 / len(f)) ** 2))

    # the number of points is rounded by up to a half in 200/share, and the maximum is flat or has slope 1
    assert chi_square(attaining) == pytest.approx(constant(ratio), rel=5e-3)
    assert chi_square(attaining) <= constant(ratio) * (1 + 1e-12)
    for k in range(1, 40):
        assert chi_square(np.where(np.arange(40) < k, ratio, 0.0)) <= constant(ratio) * (1 + 1e-12)
    for _ in range(200):
        assert chi_square(ratio * draw.beta(0.3, 0.3, size=40)) <= constant(ratio)


@pytest.mark.parametrize("alpha", [0.25, 0.5, 1.0])
def test_the_indicator_needs_no_bound(alpha: float) -> None:
    f = np.random.default_rng(0).normal(size=64) * 1e6
    true = 64 * np.sum((tail(f, alpha) - 1 / 64) ** 2)
    assert true == pytest.approx(chi_square_bound(indicator(alpha), 1.0, 1.0), abs=1e-12)


def test_equal_divergences_have_equal_bounds() -> None:
    assert chi_square_bound(cressie_read(2), 1.0, 0.3) == chi_square_bound(QUADRATIC, 1.0, 0.3)
    assert chi_square_bound(cressie_read(1), 1.0, 0.3) == chi_square_bound(ENTROPIC, 1.0, 0.3)
    assert chi_square_bound(ENTROPIC, 0.0, 0.3) == 0.0


@pytest.mark.parametrize("phi", [ABSOLUTE, HINGE, cressie_read(1.5)])
def test_no_bound_is_invented(phi: Any) -> None:
    with pytest.raises(ValueError, match="no bound is known; expected ENTROPIC, QUADRATIC or indicator"):
        chi_square_bound(phi, 1.0, 1.0)


# --- the bias of the gradient -------------------------------------------------------------------------


@pytest.mark.parametrize("ratio", [0.1, 0.5, 1.0, 2.0, 4.0, 8.0])
def test_the_bias_of_two_losses(ratio: float) -> None:
    """f in {0, B}, grad f = -1 and 1: a binomial sum. The paper's bound holds too, and is larger."""
    e, worst = exp(ratio), 0.0
    for level in range(9):
        n = 2**level
        k = np.arange(n + 1)
        limit = gradient_bias(level, lipschitz=1.0, bound=ratio, eta=1.0)
        assert limit <= exp(2 * ratio) * 2 ** (-level / 2)
        for q in [*np.linspace(0.02, 0.98, 25), 0.3 / e, 1 / (1 + e)]:
            true = np.sum(binom.pmf(k, n, q) * (2 * k * e / (k * e + n - k) - 1))
            worst = max(worst, abs(true - (2 * q * e / (q * e + 1 - q) - 1)) / limit)
    assert (0.2 if ratio <= 4 else 0.0) < worst <= 1


def test_the_bias_of_three_losses_in_the_plane() -> None:
    draw, worst = np.random.default_rng(0), 0.0
    for _ in range(100):
        ratio = 10 ** draw.uniform(-1, 1.3)
        p, f = draw.dirichlet(np.full(3, 0.5)), np.array([0, ratio, draw.uniform(0, ratio)])
        g = draw.normal(size=(3, 2))
        g /= np.linalg.norm(g, axis=-1, keepdims=True)
        x = np.exp(f)
        for level in (0, 1, 2):
            rows = np.array(list(product(range(3), repeat=2**level)))
            mean = np.sum(x[rows][..., None] * g[rows], axis=1) / np.sum(x[rows], axis=1)[:, None]
            bias = np.prod(p[rows], axis=1) @ mean - (p * x) @ g / (p @ x)
            limit = gradient_bias(level, lipschitz=2.0, bound=2 * ratio, eta=2.0) / 2
            worst = max(worst, np.linalg.norm(bias) / limit)
    assert 0.2 < worst <= 1

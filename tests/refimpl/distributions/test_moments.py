"""`log_mgf` of balls agrees with mpmath, from tiny to huge arguments."""

from itertools import product
from math import inf
from typing import Any

import mpmath as mp
import numpy as np
import pytest

from phiball.refimpl import Ball
from tests.support.arrays import Arrays
from tests.support.distributions import NORMS
from tests.support.tilting_distributions import log_mgf

# The documented relative error is 1e-10, and the observed one 2e-14.
RELATIVE_ERROR = 1e-12
SMALL_TO_HUGE = [1e-8, 1e-4, 0.03, 0.5, 0.99, 3.0, 11.0, 100.0, 2e3, 1e6]


def relative_error(got: Any, exact: Any) -> float:
    return abs(float(mp.mpf(float(got)) / exact - 1))


@pytest.mark.parametrize("d", [1, 2, 3, 7, 79, 80, 81, 784, 10**5])
def test_log_mgf_of_euclidean_balls_agrees_with_its_series(d: int) -> None:
    """The series of 0F1(d/2 + 1; t^2/4) is summed in 40 digits; for t > 2000, Bessel's function is used."""
    direction = np.random.default_rng(0).normal(size=d)
    nu = mp.mpf(d) / 2
    for t in SMALL_TO_HUGE if d < 10**5 else SMALL_TO_HUGE[:-1]:
        with mp.workdps(40):
            x, total, term, k = mp.mpf(t) ** 2 / 4, mp.mpf(0), mp.mpf(1), 0
            while t <= 2e3 and (k == 0 or term > mp.mpf(10) ** -38 * total):
                k += 1
                term *= x / (k * (nu + k))
                total += term
            exact = mp.log1p(total)
            if t > 2e3:
                exact = mp.loggamma(nu + 1) + nu * mp.log(2 / mp.mpf(t)) + mp.log(mp.besseli(nu, mp.mpf(t)))
            s = t * direction / np.sqrt((direction**2).sum())
            assert relative_error(Ball(2, 1.0).log_mgf(s), exact) < RELATIVE_ERROR, t


def test_log_mgf_of_boxes_agrees_with_mpmath() -> None:
    with mp.workdps(60):
        for t, d in product(SMALL_TO_HUGE, (1, 3)):
            s = t * np.linspace(0.2, 1.0, d)
            assert relative_error(Ball(inf, 1.0).log_mgf(s), log_mgf(s, inf)) < RELATIVE_ERROR, (t, d)
        many = Ball(inf, 1.0).log_mgf(np.full(10**5, 0.5))
        assert relative_error(many, 10**5 * log_mgf([0.5], inf)) < RELATIVE_ERROR


@pytest.mark.parametrize("d", [1, 2, 3, 20, 50, 1000])
def test_log_mgf_of_cross_polytopes_agrees_with_mpmath(d: int) -> None:
    few = min(d, 30)
    for scale in (1e-8, 0.01, 0.7, 2.0, 9.0, 40.0, 110.0):
        for kind, entries in {
            "one": [1.0],
            "equal": np.ones(min(d, 100)),
            "close": 1 + 1e-9 * np.arange(few),
            "spread": np.random.default_rng(1).uniform(-1, 1, few),
        }.items():
            s = np.zeros(d)
            s[: len(entries)] = scale * np.asarray(entries)
            with mp.workdps(40):
                assert relative_error(Ball(1, 1.0).log_mgf(s), log_mgf(s, 1)) < RELATIVE_ERROR, (scale, kind)


def test_log_mgf_of_cross_polytopes_agrees_with_partial_fractions_at_huge_arguments() -> None:
    """The terms of the partial fractions cancel, so 80 digits are used."""
    for d, scale in product((1, 2, 3, 8), (1e3, 1e5, 1e8)):
        s = scale * (1 - 1e-3 * np.random.default_rng(d).random(d))
        with mp.workdps(80):
            a = [mp.mpf(float(x)) for x in s]
            total = mp.mpf(0)
            for j in range(d):
                others = mp.fprod(a[j] ** 2 - a[k] ** 2 for k in range(d) if k != j)
                total += a[j] ** (d - 2) * (mp.cosh(a[j]) if d % 2 == 0 else mp.sinh(a[j])) / others
            assert (
                relative_error(Ball(1, 1.0).log_mgf(s), mp.log(mp.factorial(d) * total)) < RELATIVE_ERROR
            ), (d, scale)


def test_log_mgf_agrees_across_array_libraries(arrays: Arrays) -> None:
    s = np.concatenate([np.zeros((1, 2, 3)), np.random.default_rng(0).normal(size=(3, 2, 3)) * 4])
    for norm in NORMS:
        got = Ball(norm, 0.8).log_mgf(arrays.asarray(s), event_ndim=2)
        assert got.dtype == arrays.dtype
        with mp.workdps(30):
            exact = [float(log_mgf(0.8 * row.ravel(), norm)) for row in s]
        assert np.allclose(arrays.numpy(got), exact, rtol=20 * arrays.eps, atol=0), norm


@pytest.mark.slow
@pytest.mark.parametrize("norm", NORMS)
def test_log_mgf_is_twice_differentiable(norm: float) -> None:
    torch = pytest.importorskip("torch", reason="torch: not installed")
    torch.manual_seed(0)
    for scale in (0.0, 0.1, 3.0, 40.0):
        s = scale * torch.randn(2, 4, dtype=torch.float64)
        s[:, 0] = 0.0  # at 0, |s_j| is not differentiable, but s_j^2 is
        s.requires_grad_()
        assert torch.autograd.gradcheck(Ball(norm, 1.0).log_mgf, s, fast_mode=True)
        assert torch.autograd.gradgradcheck(Ball(norm, 1.0).log_mgf, s, fast_mode=True)


@pytest.mark.parametrize("norm", NORMS)
def test_log_mgf_is_the_dual_norm_where_squares_overflow(norm: float) -> None:
    for s in (np.full(3, 1e17), np.full(3, 1e40), np.full(3, 1e145), np.array([1e200, -3e200, 0.0])):
        exact = float(Ball(norm, 1.0).dual_norm(s))
        assert abs(float(Ball(norm, 1.0).log_mgf(s)) / exact - 1) < 1e-14
    torch = pytest.importorskip("torch", reason="torch: not installed")
    s = torch.tensor([1e200, -3e200, 0.0], dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(Ball(norm, 1.0).log_mgf(s), s)
    assert torch.allclose(gradient, Ball(norm, 1.0).steepest(s.detach()))
    for s in (np.array([1.0, 1e308]), np.array([1.0, 3e38], dtype=np.float32)):
        with pytest.raises(ValueError, match="radius times s overflows"):
            Ball(norm, 10.0).log_mgf(s)
        assert float(Ball(norm, 0.1).log_mgf(s)) == pytest.approx(0.1 * s[1], rel=1e-6)
    with pytest.raises(ValueError, match="s contains NaN; expected finite numbers"):
        Ball(norm, 1.0).log_mgf(np.array([0.0, np.nan]))
    with pytest.raises(ValueError, match=r"norm is 3.0; expected"):
        Ball(3, 1.0).log_mgf(np.zeros(2))

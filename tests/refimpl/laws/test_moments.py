"""Moment generating functions of balls against mpmath, from tiny to huge arguments."""

from __future__ import annotations

from math import inf, isqrt, log, sinh
from typing import Any

import mpmath as mp
import numpy as np
import pytest
from scipy.special import iv

from phiball.backends import rng
from phiball.refimpl import Ball
from tests.support.arrays import Arrays
from tests.support.laws import NORMS

# The library promises 1e-10 relative and gives 2e-14 at worst; this lies between, to see digits go.
PROMISE = 1e-12
SMALL_TO_HUGE = [1e-8, 1e-4, 0.03, 0.5, 0.99, 3.0, 11.0, 100.0, 2e3, 1e6]


def error(got: Any, exact: Any) -> float:
    return abs(float(mp.mpf(float(got)) / exact - 1))


def projected(t: Any, nu: Any) -> Any:
    """The log of the mean of exp(t x) under the density proportional to (1 - x^2)^(nu - 1/2) on (-1, 1)."""
    power = nu - mp.mpf(1) / 2
    peak = t / (power + mp.sqrt(power**2 + t**2))
    height = t * peak + power * mp.log(1 - peak**2)
    width = mp.sqrt((1 - peak**2) ** 2 / (2 * power * (1 + peak**2)))
    ends = [peak + k * width for k in range(-16, 17, 4)]
    area = mp.quad(lambda x: mp.exp(t * x + power * mp.log(1 - x * x) - height), ends)
    whole = mp.log(mp.beta(mp.mpf(1) / 2, power + 1))
    return height + mp.log(area) - whole


@pytest.mark.parametrize("t", SMALL_TO_HUGE)
@pytest.mark.parametrize("d", [1, 2, 3, 7, 79, 80, 81, 784, 10**5])
def test_euclidean_balls(d: int, t: float) -> None:
    """E exp(s.b) = 0F1(d/2 + 1; t^2/4), summed term by term in 40 digits."""
    with mp.workdps(40):
        nu, x = mp.mpf(d) / 2, mp.mpf(t) ** 2 / 4
        if t <= 2e3:
            total, term, k = mp.mpf(0), mp.mpf(1), 0
            while k == 0 or term > mp.mpf(10) ** -38 * total:
                k += 1
                term *= x / (k * (nu + k))
                total += term
            exact = mp.log1p(total)
        elif d > 784:
            exact = projected(mp.mpf(t), nu)
        else:
            exact = mp.loggamma(nu + 1) + nu * mp.log(2 / mp.mpf(t)) + mp.log(mp.besseli(nu, mp.mpf(t)))
        direction = np.random.default_rng(0).normal(size=d)
        s = t * direction / np.sqrt((direction**2).sum())
        assert error(Ball(2, 1.0).log_mgf(s), exact) < PROMISE


@pytest.mark.parametrize("t", SMALL_TO_HUGE)
@pytest.mark.parametrize("d", [1, 3, 10**5])
def test_boxes(d: int, t: float) -> None:
    s = t * np.linspace(0.2, 1.0, d) if d < 10 else np.full(d, t)
    with mp.workdps(60):
        terms = [mp.log(mp.sinh(mp.mpf(float(a))) / mp.mpf(float(a))) for a in (s if d < 10 else s[:1])]
        exact = mp.fsum(terms) * (1 if d < 10 else d)
        assert error(Ball(inf, 1.0).log_mgf(s), exact) < PROMISE


def cross_polytope(s: Any) -> Any:
    """The log of sum_k h_k(s^2) d!/(d+2k)!, with h_k the complete symmetric polynomials, in 40 digits."""
    d, top = len(s), float(np.abs(s).max())
    count = 60 + int(2 * top + 6 * isqrt(d)) if top > 1 else 40
    squares: dict[Any, int] = {}
    for a in s:
        square = mp.mpf(float(a)) ** 2
        squares[square] = squares.get(square, 0) + 1
    powers = [mp.fsum(m * q**i for q, m in squares.items()) for i in range(1, count + 1)]
    h, total, c = [mp.mpf(1)], mp.mpf(0), mp.mpf(1)
    for k in range(1, count + 1):
        h.append(mp.fsum(powers[i] * h[k - 1 - i] for i in range(k)) / k)
        c /= (d + 2 * k - 1) * (d + 2 * k)
        total += c * h[k]
    assert c * h[count] < total * mp.mpf(10) ** -15
    return mp.log1p(total)


@pytest.mark.parametrize("kind", ["one", "equal", "close", "spread"])
@pytest.mark.parametrize("d", [1, 2, 3, 20, 50, 1000])
def test_cross_polytopes(d: int, kind: str) -> None:
    for scale in (1e-8, 0.01, 0.7, 2.0, 9.0, 40.0, 110.0):
        s = np.zeros(d)
        if kind == "one":
            s[0] = scale
        elif kind == "equal":
            s[: min(d, 400)] = scale
        elif kind == "close":
            s[: min(d, 30)] = scale * (1 + 1e-9 * np.arange(min(d, 30)))
        else:
            s[: min(d, 30)] = scale * np.random.default_rng(1).uniform(-1, 1, min(d, 30))
        with mp.workdps(40):
            assert error(Ball(1, 1.0).log_mgf(s), cross_polytope(s)) < PROMISE, scale


@pytest.mark.parametrize("scale", [1e3, 1e5, 1e8])
@pytest.mark.parametrize("d", [1, 2, 3, 8])
def test_cross_polytopes_at_huge_arguments(d: int, scale: float) -> None:
    """The sum over the poles, which 60 digits save from cancellation."""
    s = scale * (1 - 1e-3 * np.random.default_rng(d).random(d))
    with mp.workdps(80):
        a = [mp.mpf(float(x)) for x in s]
        total = mp.mpf(0)
        for j in range(d):
            others = mp.fprod(a[j] ** 2 - a[k] ** 2 for k in range(d) if k != j)
            total += a[j] ** (d - 2) * (mp.cosh(a[j]) if d % 2 == 0 else mp.sinh(a[j])) / others
        assert error(Ball(1, 1.0).log_mgf(s), mp.log(mp.factorial(d) * total)) < PROMISE


def test_the_values_of_the_table() -> None:
    for norm, s, exact in [
        (inf, [1.0], log(sinh(1))),
        (2, [0.6, 0.8], log(2 * iv(1, 1.0))),
        (2, [1.0, 0.0, 0.0], log(3) - 1),
        (1, [2.0, 1.0], 0.391643385002),
        (1, [3.0, 2.0, 1.0], 0.642041073635),
    ]:
        assert abs(float(Ball(norm, 1.0).log_mgf(np.array(s))) - exact) < 1e-12


@pytest.mark.parametrize("norm", NORMS)
def test_every_backend(arrays: Arrays, norm: float) -> None:
    s = np.concatenate([np.zeros((1, 2, 3)), np.random.default_rng(0).normal(size=(3, 2, 3)) * 4])
    ball = Ball(norm, 0.8)
    got = ball.log_mgf(arrays.asarray(s), event_ndim=2)
    assert got.dtype == arrays.dtype
    assert tuple(got.shape) == (4,)
    exact = ball.log_mgf(s, event_ndim=2)
    assert np.allclose(arrays.numpy(got), exact, rtol=20 * arrays.eps, atol=0)
    assert arrays.numpy(got)[0] == 0
    # The radius scales the argument.
    assert np.allclose(exact, Ball(norm, 1.0).log_mgf(0.8 * s, event_ndim=2), rtol=1e-14)


@pytest.mark.parametrize("norm", NORMS)
def test_it_is_the_mean_of_the_exponential(norm: float) -> None:
    """Against 40,000 samples, at an error level of one in a million."""
    s = np.array([1.0, -2.0, 0.5, 3.0])
    draws = np.exp(Ball(norm, 1.0).sample(np.zeros(4), 40000, rng(0)) @ s)
    z = (draws.mean() - np.exp(float(Ball(norm, 1.0).log_mgf(s)))) / (draws.std() / 200)
    assert abs(z) < 4.9


@pytest.mark.slow
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("scale", [0.0, 0.1, 3.0, 40.0])
def test_it_can_be_differentiated_twice(norm: float, scale: float) -> None:
    torch = pytest.importorskip("torch", reason="torch: not installed")
    torch.manual_seed(0)
    s = scale * torch.randn(2, 4, dtype=torch.float64)
    s[:, 0] = 0.0  # where |s_j| has no derivative, but its square has
    s.requires_grad_()
    assert torch.autograd.gradcheck(Ball(norm, 1.0).log_mgf, s)
    assert torch.autograd.gradgradcheck(Ball(norm, 1.0).log_mgf, s)
    (gradient,) = torch.autograd.grad(Ball(norm, 1.0).log_mgf(s).sum(), s)
    # The gradient is the mean of a law on the ball.
    assert bool(torch.all(Ball(norm, 1.0).contains(gradient, torch.zeros_like(gradient))))


def test_it_lies_between_the_variance_and_the_dual_norm() -> None:
    s = np.random.default_rng(3).normal(size=(50, 6)) * np.logspace(-6, 4, 50)[:, None]
    for norm in NORMS:
        ball = Ball(norm, 1.0)
        value = ball.log_mgf(s)
        assert np.all(value <= ball.dual_norm(s))
        assert np.all(value > 0)
        assert np.allclose(value[:10], ball.variance(s)[:10] / 2, rtol=1e-6)


def test_other_norms_are_unknown() -> None:
    with pytest.raises(ValueError, match=r"norm is 3.0; expected 1, 2 or inf"):
        Ball(3, 1.0).log_mgf(np.zeros(2))


@pytest.mark.parametrize("norm", NORMS)
def test_squares_may_overflow(norm: float) -> None:
    """Where nothing but the dual norm is left, in every dimension and with its gradient."""
    for s in (np.full(3, 1e17), np.full(3, 1e40), np.full(3, 1e145), np.array([1e200, -3e200, 0.0])):
        exact = float(Ball(norm, 1.0).dual_norm(s))
        assert abs(float(Ball(norm, 1.0).log_mgf(s)) / exact - 1) < 1e-14
    torch = pytest.importorskip("torch", reason="torch: not installed")
    s = torch.tensor([1e200, -3e200, 0.0], dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(Ball(norm, 1.0).log_mgf(s), s)
    assert torch.allclose(gradient, Ball(norm, 1.0).steepest(s.detach()))


@pytest.mark.parametrize("norm", [1, 2, inf])
def test_a_radius_that_takes_s_out_of_the_range(norm: float) -> None:
    for s in (np.array([1.0, 1e308]), np.array([1.0, 3e38], dtype=np.float32)):
        with pytest.raises(ValueError, match=r"radius times s overflows .*, with entries of s up to"):
            Ball(norm, 10.0).log_mgf(s)
        assert float(Ball(norm, 0.1).log_mgf(s)) == pytest.approx(0.1 * s[1], rel=1e-6)
    with pytest.raises(ValueError, match="s contains nan; expected finite numbers"):
        Ball(norm, 1.0).log_mgf(np.array([0.0, np.nan]))

"""Projections, dual norms, steepest points, variances and volumes of balls."""

from functools import partial
from itertools import product
from math import inf, lgamma, log, pi
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate
from scipy.special import beta

from phiball.backends import rng
from phiball.refimpl import ENTROPIC, Ball, Gaussian, fgm, pgm, robust_risk
from phiball.refimpl.theory import r2
from tests.support.arrays import Arrays
from tests.support.distributions import ANY_NORM, LARGE_NORM, NORMS


def points(seed: int, *shape: int) -> Any:
    return np.random.default_rng(seed).normal(size=shape)


DUAL = {1: inf, 2: 2, inf: 1, 1.5: 3, 3: 1.5, LARGE_NORM: LARGE_NORM / (LARGE_NORM - 1)}


@given(
    st.integers(1, 7), st.integers(0, 10**6), st.sampled_from(NORMS), st.sampled_from([0.0, 0.3, 1.0, 50.0])
)
def test_project_finds_the_nearest_point(d: int, seed: int, norm: float, radius: float) -> None:
    """y is nearest to x if and only if the maximum of (x - y).(w - y) over w in the ball is at most 0."""
    generator = np.random.default_rng(seed)
    x = np.round(generator.normal(size=(5, d)) * 3, int(generator.integers(0, 3)))  # rounding makes ties
    z = np.round(generator.normal(size=(5, d)), 1)
    ball = Ball(norm, radius)
    y = ball.project(x, z)
    assert np.all(ball.contains(y, z))
    supremum = radius * np.linalg.norm(x - y, DUAL[norm], axis=-1) - ((x - y) * (y - z)).sum(axis=-1)
    assert np.all(supremum <= 1e-13 * (1 + radius) * (1 + np.abs(x - z).sum(axis=-1)))
    inside = np.linalg.norm(x - z, norm, axis=-1) <= radius
    assert np.array_equal(y[inside], x[inside])
    assert np.allclose(ball.project(y, z), y, atol=1e-14)


def test_project_agrees_across_array_libraries(arrays: Arrays) -> None:
    x, z = points(0, 4, 2, 3, 5), points(1, 4, 1, 3, 5)
    near, base = arrays.asarray([[0.1, 0.2]]), arrays.asarray([[1e3, 1e3]])
    for norm in NORMS:
        ball = Ball(norm, 0.7)
        got = ball.project(arrays.asarray(x), arrays.asarray(z), event_ndim=2)
        assert got.dtype == arrays.dtype
        assert tuple(got.shape) == (4, 2, 3, 5)
        assert np.allclose(arrays.numpy(got), ball.project(x, z, event_ndim=2), atol=20 * arrays.eps)
        assert bool(arrays.xp.all(ball.contains(got, arrays.asarray(z), event_ndim=2)))
        # A point inside the ball is returned unchanged.
        assert np.array_equal(arrays.numpy(Ball(norm, 1e4).project(near, base)), arrays.numpy(near))


def test_project_stays_in_the_box() -> None:
    z, x = np.full((50, 4), 0.9), 0.9 + points(3, 50, 4)
    for norm in NORMS:
        ball = Ball(norm, 0.5, clip=(0.0, 1.0))
        got = ball.project(x, z)
        assert np.all((got >= 0) & (got <= 1))
        assert np.all(ball.contains(got, z))
    clipped_twice = np.clip(np.clip(x, 0.4, 1.4), 0.0, 1.0)
    assert np.allclose(Ball(inf, 0.5, clip=(0.0, 1.0)).project(x, z), clipped_twice, atol=1e-15)


def test_steepest_point_attains_the_dual_norm(arrays: Arrays) -> None:
    g = points(5, 3, 2, 4)
    g[0, 0] = 0.0
    g[0, 1] = [1.0, 1.0, -1.0, 0.0]  # ties
    for norm in (*ANY_NORM, LARGE_NORM):
        ball = Ball(norm, 0.4)
        b = ball.steepest(arrays.asarray(g))
        size = ball.dual_norm(arrays.asarray(g))
        assert b.dtype == size.dtype == arrays.dtype
        tolerance = 40 * arrays.eps * np.abs(g).sum(axis=-1)
        exact = np.linalg.norm(g, DUAL[norm], axis=-1)
        assert np.all(np.abs(arrays.numpy(size) - exact) <= tolerance), norm
        attained = (arrays.numpy(b).astype(float) * g).sum(axis=-1)
        assert np.all(np.abs(attained - 0.4 * exact) <= tolerance), norm
        assert bool(arrays.xp.all(ball.contains(b, arrays.xp.zeros_like(b))))
        assert np.all(arrays.numpy(b)[0, 0] == 0)


def test_norms_agree_with_closed_forms_without_overflow() -> None:
    g = np.array([3.0, -4.0, 12.0])
    for norm, exact in [(1, 19.0), (2, 13.0), (inf, 12.0), (3, (27.0 + 64 + 1728) ** (1 / 3))]:
        assert abs(float(Ball(norm, 1.0).length(g)) - exact) < 1e-13
    assert float(Ball(2, 1.0).dual_norm(np.array([3e200, 4e200]))) == pytest.approx(5e200, rel=1e-15)
    assert float(Ball(3, 1.0).dual_norm(np.array([1e-250, 0.0]))) == pytest.approx(1e-250, rel=1e-15)


def test_variance_agrees_with_beta_moments(arrays: Arrays) -> None:
    """One coordinate has density (1 - |t|^p)^((d-1)/p), whose moments are beta functions."""
    for norm, d in product((*ANY_NORM, LARGE_NORM), (1, 2, 3, 50)):
        g, power = points(2, 2, d), (d - 1) / norm
        second = 1 / 3 if norm == inf else beta(3 / norm, power + 1) / beta(1 / norm, power + 1)
        got = arrays.numpy(Ball(norm, 0.7).variance(arrays.asarray(g)))
        exact = 0.49 * second * (g**2).sum(axis=-1)
        assert np.allclose(got, exact, rtol=60 * arrays.eps), (norm, d)


def test_log_volumes_agree_with_closed_forms() -> None:
    assert abs(Ball(2, 2.0).log_volume(3) - log(4 / 3 * pi * 8)) < 1e-14
    assert abs(Ball(1, 0.5).log_volume(4) - log(0.5**4 * 2**4 / 24)) < 1e-14
    assert abs(Ball(inf, 0.5).log_volume(784)) < 1e-12
    area = 4 * integrate.quad(lambda t: (1 - t**3.5) ** (1 / 3.5), 0, 1)[0]
    assert abs(Ball(3.5, 1.0).log_volume(2) - log(area)) < 1e-8
    assert Ball(2, 0.0).log_volume(3) == -inf
    assert abs(Ball(2, 1.0).log_volume(784) - (392 * log(pi) - lgamma(393))) < 1e-10


def test_contains_tolerates_only_rounding_errors() -> None:
    for norm in ANY_NORM:
        ball = Ball(norm, 1.0)
        z = np.full(3, 100.0)
        direction = ball.steepest(np.array([1.0, 2.0, -3.0]))
        assert ball.contains(z + direction, z)
        assert not ball.contains(z + direction * (1 + 1e-11), z)
        assert not ball.contains(np.float32(100) + (direction * 1.001).astype(np.float32), np.float32(z))


def test_ball_does_not_contain_nan(arrays: Arrays) -> None:
    x = arrays.asarray([[0.0, float("nan")], [0.0, 0.0]])
    for norm in (*ANY_NORM, LARGE_NORM):
        ball = Ball(norm, 1.0)
        assert list(arrays.numpy(ball.contains(x, arrays.xp.zeros_like(x)))) == [False, True]
        assert np.isnan(arrays.numpy(ball.length(x))[0])


def test_distant_point_is_projected_onto_the_boundary(arrays: Arrays) -> None:
    for far in (1e3, 1e9, 1e20, 1e37):  # the radius 1 is below the spacing of floats at 1e20
        x = arrays.asarray([[far, 3.0, 0.0], [far, -far, 1.0]])
        for norm, expected in (
            (1, [[1.0, 0.0, 0.0], [0.5, -0.5, 0.0]]),
            (2, [[1.0, 3.0 / far, 0.0], [0.5**0.5, -(0.5**0.5), 0.5**0.5 / far]]),
            (inf, [[1.0, 1.0, 0.0], [1.0, -1.0, 1.0]]),
        ):
            y = arrays.numpy(Ball(norm, 1.0).project(x, arrays.xp.zeros_like(x)))
            np.testing.assert_allclose(y, expected, rtol=1e-5, atol=8 * arrays.eps)


def test_overflow_raises_or_gives_infinity() -> None:
    """Overflow never gives NaN, a warning or OverflowError."""
    single, largest = np.float32([[1.0, 2.0]]), np.finfo(np.float64).max
    half = np.float16([[1.0, 2.0]])
    for distribution, message in (
        (Ball(2, 1e200), r"radius is 1e\+200"),
        (Gaussian(1e200), r"std is 1e\+200"),
    ):
        with pytest.raises(ValueError, match=f"{message}.*float32"):
            distribution.sample(single, 2, rng=rng(0))

    def risk(x: Any, radius: float) -> Any:
        return robust_risk(lambda x, i: x[:, 0], x, Ball(2, radius), 1.0, ENTROPIC, n_samples=2, rng=rng(0))

    for call in (
        lambda: Ball(inf, largest).sample(np.zeros((1, 2)), 2, rng=rng(0)),
        lambda: Ball(2, 1e200).steepest(single),
        lambda: Ball(2, 1e200).variance(0 * single),
        lambda: Gaussian(1e200).log_mgf(0 * single),
        lambda: fgm(None, single, Ball(2, 1e200), gradient=lambda x, i: x),
        lambda: pgm(None, single, Ball(2, 1.0), step=1e200, gradient=lambda x, i: x),
        lambda: risk(single, 1e39),
        lambda: Ball(2, 1e30).sample(half, 2, rng=rng(0)),
        lambda: Ball(2, 1e30).sample_tilted(half, half, 2, rng=rng(0)),
        lambda: fgm(None, half, Ball(2, 1e30), gradient=lambda x, i: x),
        lambda: risk(half, 1e30),
    ):
        with pytest.raises(ValueError, match=r"(radius|std|step) is .*; expected|points reach .* overflows"):
            call()
    assert r2(np.float32([[3e38, 3e38]]), Ball(1, 2.0))[0] == inf
    with pytest.raises(ValueError, match="x contains NaN or infinity"):
        Gaussian(1.0).sample(np.array([np.nan]), 2, rng=rng(0))
    for norm in (1, 2, inf):
        for x in (np.inf, np.nan, largest):
            with pytest.raises(ValueError, match="points - x contains NaN or infinity"):
                Ball(norm, 1.0).project(np.array([x, largest]), np.array([0.0, -largest]))
        assert not Ball(norm, 1.0).contains(np.array([largest]), np.array([-largest]))
        assert not Ball(norm, largest).contains(np.array([inf]), np.array([0.0]))
        assert Ball(norm, 1.0).length(np.array([inf, 1.0])) == inf
        assert Ball(norm, 1e200).project(single, 0 * single).tolist() == single.tolist()
        with pytest.raises(ValueError, match="g contains"):
            Ball(norm, 1.0).steepest(np.array([inf, 1.0]))
    assert Ball(1, 0.0).project(np.array([0.0, 0.0, largest / 1.5]), np.zeros(3)).tolist() == [0, 0, 0]
    assert Ball(1, 1.0).length(np.float32([3e38, 3e38])) == inf
    assert Ball(inf, 1.0).dual_norm(np.float32([3e38, 3e38])) == inf
    assert Ball(2, 1e200).variance(np.ones(3)) == inf
    assert Ball(2, 1e200).variance(np.full(3, 1e-200)) == pytest.approx(0.6)
    assert Gaussian(1e200).log_mgf(np.ones(2)) == inf
    assert Gaussian(1e200).log_mgf(np.full(2, 1e-200)) == pytest.approx(1.0)


def test_invalid_norms_dimensions_and_arrays_raise() -> None:
    torch = pytest.importorskip("torch", reason="torch: not installed")
    ball, z = Ball(2, 1.0), np.zeros(3)
    for call, message in (
        (lambda: Ball(3, 1.0).project(z, z), r"norm is 3.0; expected"),
        *((partial(ball.log_volume, d), f"d is {d!r}") for d in (0, 2.0, True)),
        (lambda: ball.project(np.zeros((2, 3)), np.zeros((2, 4))), r"points has shape \(2, 3\) and x"),
        (lambda: ball.contains(np.zeros((2, 1)), np.zeros((2, 3))), r"points has shape \(2, 1\) and x"),
        (lambda: ball.dual_norm([1.0, 2.0]), "g is"),
        (lambda: ball.project(z, torch.zeros(3)), "x is a torch array and points a numpy array"),
    ):
        with pytest.raises((TypeError, ValueError), match=message):
            call()

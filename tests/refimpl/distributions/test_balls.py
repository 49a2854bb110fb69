"""Samples of a ball are uniform, also with antithetic pairs and quasi-random points.

Every statistical test here has a fixed seed and a significance level of 1e-6.
"""

import sys
from functools import partial
from itertools import product
from math import inf, sqrt
from typing import Any

import numpy as np
import pytest
from scipy import stats
from scipy.special import gammaln

from phiball.backends import rng
from phiball.refimpl import Ball, Gaussian
from tests.support.arrays import Arrays
from tests.support.distributions import ANY_NORM, LARGE_NORM, NORMS

LEVEL = 1e-6
Z = 4.9  # standard errors, exceeded with probability 1e-6
DIMENSIONS = [1, 2, 50, 300]
ANTITHETIC_QMC = [(False, False), (True, False), (False, True), (True, True)]


def moment(k: float, p: float, d: int) -> float:
    """E |b_1|^k on the unit ball of norm p: |b_1|^p is Beta(1/p, (d-1)/p + 1)."""
    if p == inf:
        return 1 / (k + 1)
    a, b = 1 / p, (d - 1) / p + 1
    return float(np.exp(gammaln(a + k / p) + gammaln(a + b) - gammaln(a) - gammaln(a + b + k / p)))


def draws(norm: float, d: int, mode: tuple[bool, bool], seed: int) -> Any:
    """Independent points of the unit ball: one of the four sampled around each of n centres."""
    antithetic, qmc = mode
    n = 2500 if d <= 50 else 500
    points = Ball(norm, 1.0).sample(np.zeros((n, d)), 4, rng=rng(seed), antithetic=antithetic, qmc=qmc)
    # The four points around one centre may be dependent; points around different centres are not.
    return points[np.arange(n), np.arange(n) % 4]


@pytest.mark.slow
@pytest.mark.parametrize("norm", [*ANY_NORM, LARGE_NORM])
def test_samples_are_uniform(norm: float) -> None:
    for d, mode in product(DIMENSIONS, ANTITHETIC_QMC):
        b = draws(norm, d, mode, seed=7)
        length = np.linalg.norm(b, norm, axis=-1)
        assert length.max() <= 1 + 1e-12
        # The radius: |b|^d is uniform on (0, 1).
        assert stats.kstest(length**d, "uniform").pvalue > LEVEL, (d, mode)
        if d == 50:  # large enough to detect a radius drawn in d/1.3 dimensions
            assert stats.kstest(length ** (1.3 * d), "uniform").pvalue < LEVEL
        # Each coordinate: |b_j|^norm is Beta(1/norm, (d-1)/norm + 1).
        coordinate = np.abs(b[np.arange(len(b)), np.arange(len(b)) % d])
        distribution = "uniform" if norm == inf else stats.beta(1 / norm, (d - 1) / norm + 1).cdf
        assert stats.kstest(coordinate if norm == inf else coordinate**norm, distribution).pvalue > LEVEL, (
            d,
            mode,
        )
        # Symmetry: each coordinate is positive half of the time, independently of the next one.
        signs = b[:, : min(d, 60)] > 0
        bound = Z * sqrt(0.25 / len(b)) if d == 1 else 5.6 * sqrt(0.25 / len(b))  # significance level 1e-6/60
        assert np.abs(signs.mean(axis=0) - 0.5).max() < bound, (d, mode)
        if d > 1:
            agree = signs[:, :-1] == signs[:, 1:]
            assert np.abs(agree.mean(axis=0) - 0.5).max() < 5.6 * sqrt(0.25 / len(b)), (d, mode)
        # Moments in closed form.
        for k in (1, 2, 4):
            exact, spread = moment(k, norm, d), moment(2 * k, norm, d) - moment(k, norm, d) ** 2
            assert abs((coordinate**k).mean() - exact) < Z * sqrt(spread / len(b)), (d, mode, k)


def test_samples_in_one_dimension_are_uniform_for_large_norms() -> None:
    """Underflow of powers for large norms does not affect the points."""
    for norm, mode in product((1, 1.01, 7, 300, 5000), ANTITHETIC_QMC):
        b = draws(norm, 1, mode, seed=11)
        assert stats.kstest(b[:, 0], "uniform", (-1, 2)).pvalue > LEVEL, (norm, mode)


def test_samples_of_every_array_library_have_the_exact_moments(arrays: Arrays) -> None:
    z = arrays.asarray(np.tile(np.array([1.0, -2.0, 0.5]), (400, 1)))
    for norm, (antithetic, qmc) in product(ANY_NORM, ANTITHETIC_QMC):
        ball = Ball(norm, 0.5)
        x = ball.sample(z, 6, rng=rng(3), antithetic=antithetic, qmc=qmc)
        assert x.dtype == arrays.dtype
        assert tuple(x.shape) == (400, 6, 3)
        assert bool(arrays.xp.all(ball.contains(x, z[:, None, :])))
        b = (arrays.numpy(x).astype(float)[:, 5] - [1.0, -2.0, 0.5]) / 0.5
        for k in (2, 4):
            spread = moment(2 * k, norm, 3) - moment(k, norm, 3) ** 2
            assert np.all(np.abs((b**k).mean(axis=0) - moment(k, norm, 3)) < 5.1 * sqrt(spread / 400)), norm
        assert np.all(np.abs(b.mean(axis=0)) < 5.1 * sqrt(moment(2, norm, 3) / 400)), norm
        # Few points coincide.
        assert len(np.unique(b[:, 0])) > 390
        unmoved = Ball(norm, 0.0).sample(z, 3, rng=rng(0), antithetic=antithetic, qmc=qmc)
        assert np.array_equal(arrays.numpy(unmoved), np.repeat(arrays.numpy(z)[:, None, :], 3, axis=1))
        if antithetic and not qmc:  # the points of a pair are adjacent
            pairs = arrays.numpy(ball.sample(0 * z, 7, rng=rng(0), antithetic=True))
            assert np.array_equal(pairs[:, 0:6:2], -pairs[:, 1:6:2])


def test_clip_moves_outside_points_to_the_faces_of_the_box(arrays: Arrays) -> None:
    z = arrays.asarray([[0.0, 1.0, 0.5]])
    for norm in ANY_NORM:
        free, ball = Ball(norm, 0.4), Ball(norm, 0.4, clip=(0.0, 1.0))
        x, inside = free.sample(z, 500, rng=rng(2)), ball.sample(z, 500, rng=rng(2))
        assert np.array_equal(arrays.numpy(inside), np.clip(arrays.numpy(x), 0, 1))
        assert bool(arrays.xp.all(ball.contains(inside, z[:, None, :])))
        assert 100 < int(np.sum(arrays.numpy(inside)[..., 0] == 0)) < 400  # about half


def test_antithetic_and_quasi_random_points_reduce_the_variance_of_a_mean() -> None:
    def deviation(norm: float, d: int, **settings: bool) -> float:
        x = Ball(norm, 1.0).sample(np.zeros((400, d)), 64, rng=rng(5), **settings)
        t = x.sum(axis=-1) / sqrt(float(Ball(norm, 1.0).variance(np.ones(d))))
        return float((t + 0.1 * t**2).mean(axis=1).std())

    # The estimated variance has a relative error of 7 %, so a factor of 1.5 is significant.
    for norm, d in product(NORMS, (2, 10)):
        assert deviation(norm, d, antithetic=True) < deviation(norm, d) / 1.5
        assert deviation(norm, d, qmc=True) < deviation(norm, d) / 1.5
    x, same, other = (Ball(2, 1.0).sample(np.zeros((3, 2)), 8, rng=rng(k), qmc=True) for k in (0, 0, 1))
    assert len(np.unique(x[:, :, 0])) == 24  # different points for each entry
    assert np.array_equal(x, same)
    assert not np.array_equal(x, other)


def test_quasi_random_points_without_scipy_raise(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "scipy"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "scipy", None)
    with pytest.raises(ImportError, match=r"phiball\[verify\]"):
        Ball(2, 1.0).sample(np.zeros((1, 2)), 4, rng=rng(0), qmc=True)


def test_gaussian_samples_are_normal(arrays: Arrays) -> None:
    z = arrays.asarray(np.full((4, 2, 2), 3.0))
    x = Gaussian(0.5).sample(z, 800, rng=rng(0), event_ndim=2)
    assert tuple(x.shape) == (4, 800, 2, 2)
    assert x.dtype == arrays.dtype
    b = (arrays.numpy(x).astype(float) - 3) / 0.5
    assert stats.kstest(b.ravel(), "norm").pvalue > LEVEL


def test_norms_are_accepted_by_name_and_rng_as_a_seed() -> None:
    assert [Ball(name, 0.5) for name in ("l1", "l2", "linf")] == [Ball(p, 0.5) for p in (1, 2, inf)]
    z = np.zeros((2, 3))
    for distribution in (Ball("l2", 0.5), Gaussian(0.5)):
        for draw in (distribution.sample, partial(distribution.sample_tilted, z)):
            points = [np.asarray(draw(z, 4, rng=source)[0]) for source in (3, np.int64(3), rng(3))]
            assert np.array_equal(points[0], points[1])
            assert np.array_equal(points[0], points[2])
            first, second = (np.asarray(draw(z, 4)[0]) for _ in range(2))
            assert not np.array_equal(first, second)


def test_invalid_arguments_of_balls_gaussians_and_sample_raise() -> None:
    z = np.zeros((2, 3))

    def sample(z: Any = z, n: Any = 2, source: Any = None, distribution: Any = None, **settings: Any) -> Any:
        return lambda: (distribution or Ball(2, 1.0)).sample(z, n, rng=source or rng(0), **settings)

    for error, calls in {
        ValueError: {
            "norm is 0.5": lambda: Ball(0.5, 1.0),
            "norm is '2'; expected 'l1', 'l2', 'linf' or a number": lambda: Ball("2", 1.0),
            "norm is nan": lambda: Ball(float("nan"), 1.0),
            "radius is -1.0": lambda: Ball(2, -1.0),
            "radius is inf": lambda: Ball(2, inf),
            "clip is": lambda: Ball(2, 1.0, clip=(1.0, 0.0)),
            "clip is 3": lambda: Ball(2, 1.0, clip=3),
            "std is -0.1": lambda: Gaussian(-0.1),
            "n_samples is 0": sample(n=0),
            "n_samples is 2.0": sample(n=2.0),
            "event_ndim is 3": sample(event_ndim=3),
            "at least one coordinate": sample(np.zeros((2, 0))),
            "x contains NaN": sample(np.array([[np.nan]])),
            "is outside the box": sample(np.array([[1.5]]), distribution=Ball(2, 1.0, clip=(0.0, 1.0))),
            "21201": sample(np.zeros((1, 21201)), qmc=True),
        },
        TypeError: {
            "radius is None": lambda: Ball(2, None),
            "x has dtype": sample(z.astype(int)),
            "x is": sample([[0.0]]),
            "rng is 'seed'; expected a whole number": sample(source="seed"),
            "rng is 1.5": sample(source=1.5, distribution=Gaussian(1.0)),
        },
    }.items():
        for message, call in calls.items():
            with pytest.raises(error, match=message):
                call()

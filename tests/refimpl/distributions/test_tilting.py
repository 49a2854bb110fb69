"""Tilted samples have density q proportional to exp(s.b) on the ball; their weights are nu/q.

Every statistical test here has a fixed seed and a significance level of 1e-6.
"""

from functools import cache
from itertools import product
from math import inf, sqrt
from typing import Any

import mpmath as mp
import numpy as np
import pytest
from scipy import stats

from phiball.backends import Rng, rng
from phiball.refimpl import Ball, Gaussian
from tests.support.arrays import Arrays
from tests.support.distributions import DISTRIBUTIONS, NORMS, distributions
from tests.support.tilting_distributions import LEVEL, Z, log_mgf, moments, uniforms

# Tilts: zero, weak, strong in one direction, ties of both signs, one dominant entry.
TILTS = [[0.0, 0.0, 0.0], [0.5, -0.3, 0.2], [0.0, -9.0, 2.0], [4.0, 4.0, -4.0], [15.0, 0.1, -1.0]]


def chi_square_pvalue(u: Any) -> float:
    """The p-value of a chi-square test that points are uniform on the unit cube."""
    bins = {1: 16, 2: 5, 3: 3}[u.shape[1]]
    place = np.ravel_multi_index(np.minimum((u * bins).astype(int), bins - 1).T, (bins,) * u.shape[1])
    return float(stats.chisquare(np.bincount(place, minlength=bins ** u.shape[1])).pvalue)


def is_uniform(u: Any) -> bool:
    """Whether points of the unit cube are uniform, in each coordinate and jointly."""
    return min(chi_square_pvalue(u), *(stats.kstest(column, "uniform").pvalue for column in u.T)) > LEVEL


@pytest.mark.parametrize("norm", NORMS)
def test_samples_have_the_tilted_density(arrays: Arrays, norm: float) -> None:
    """Rosenblatt's transform maps samples with the tilted density to the uniform distribution."""
    ball, n = Ball(norm, 0.5), 4000 if arrays.backend == "numba" else 1500
    for d in (1, 2, 3):
        s = np.array(TILTS)[:, :d]  # a batch of tilts, each with its own distribution
        z = arrays.asarray(np.full_like(s, 0.25))
        x, log_w = ball.sample_tilted(z, arrays.asarray(s / 0.5), n, rng=rng(12))
        assert x.dtype == log_w.dtype == arrays.dtype
        assert tuple(x.shape) == (len(s), n, d)
        assert tuple(log_w.shape) == (len(s), n)
        assert bool(arrays.xp.all(ball.contains(x, z[:, None, :])))
        b = np.clip((arrays.numpy(x).astype(float) - 0.25) / 0.5, -1, 1)
        for k, row in enumerate(s):
            assert is_uniform(uniforms(b[k], row, norm)), (d, k)
        empty, none = ball.sample_tilted(z[:0, ...], z[:0, ...], 4, rng=rng(0))
        assert (tuple(empty.shape), tuple(none.shape)) == ((0, 4, d), (0, 4))
        # Adjacent points are uncorrelated.
        u = uniforms(b[1], s[1], norm)[:, 0]
        assert abs(stats.spearmanr(u[:-1], u[1:]).statistic) < Z / sqrt(n - 2)


def random_tilt(d: int, size: float, seed: int) -> Any:
    """A tilt with zeros, a tie and largest absolute entry `size`."""
    g = np.random.default_rng(seed).normal(size=d)
    g[: d // 4] = 0
    g[-1] = -g[-2]
    return size * g / np.abs(g).max()


@cache
def exact_moments(norm: float, d: int, size: float) -> list[tuple[Any, float, float]]:
    """Directions c, with the mean and the variance of c.b."""
    s = random_tilt(d, size, 3)
    across = np.random.default_rng(4).normal(size=d)
    one = np.zeros(d)
    one[np.abs(s).argmax()] = 1.0
    directions = [s / sqrt(s @ s), across / sqrt(across @ across), one]
    return [(c, *moments(s, c, norm)) for c in directions]


# In 784 dimensions uniform points have s.b of about |s| times 0.58 (inf), 1/28 (2) or 1/560 (1).
@pytest.mark.parametrize(
    ("norm", "d", "size"), [(inf, 784, 0.5), (2, 784, 3.0), (2, 784, 100.0), (1, 50, 80.0)]
)
def test_moments_in_high_dimension_are_derivatives_of_log_mgf(
    arrays: Arrays, norm: float, d: int, size: float
) -> None:
    """The mean of c.b is the slope of log E exp(s.b) along c, its variance the second derivative."""
    n = 1000
    s = arrays.asarray(random_tilt(d, size, 3)[None])
    x, log_w = Ball(norm, 1.0).sample_tilted(0 * s, s, n, rng=rng(14))
    assert_finite(arrays, log_w)
    for c, mean, variance in exact_moments(norm, d, size):
        v = arrays.numpy(x)[0].astype(float) @ c
        assert abs(v.mean() - mean) < Z * sqrt(variance / n)
        square = (v - mean) ** 2
        assert abs(square.mean() - variance) < Z * square.std() / sqrt(n)
    # The tilt has an effect: along s the points lie away from 0.
    _, mean, variance = exact_moments(norm, d, size)[0]
    assert mean > Z * sqrt(variance / n)


@pytest.mark.parametrize(("norm", "d"), [(1, 50), (1, 3), (2, 50), (2, 1), (inf, 3)])
def test_log_weights_agree_with_forty_digits(arrays: Arrays, norm: float, d: int) -> None:
    """log w = log E exp(s.b) - s.b."""
    sizes, radius = (1e-30, 1e-8, 0.3, 5.0, 80.0), 0.5  # a power of two, so that the scaling is exact
    tilts = arrays.asarray([random_tilt(d, size, 5) if d > 1 else [size] for size in sizes])
    x, log_w = Ball(norm, radius).sample_tilted(0 * tilts, tilts, 4, rng=rng(16))
    for s, points, found in zip(*(arrays.numpy(a).astype(float) for a in (tilts, x, log_w)), strict=True):
        with mp.workdps(40):
            whole = log_mgf([radius * mp.mpf(v) for v in s], norm)
            for b, got in zip(points, found, strict=True):
                expected = whole - mp.fsum(mp.mpf(p) * mp.mpf(q) for p, q in zip(s, b, strict=True))
                # log E exp has relative error 1e-12; sums are rounded to float64, the result to its dtype.
                slack = 1e-12 * float(whole) + 2.3e-16 * (d + 2) * float(np.abs(s * b).sum())
                assert abs(float(got - expected)) <= slack + arrays.eps * abs(float(expected))


def test_tilted_gaussian_is_shifted(arrays: Arrays) -> None:
    """The samples are normal around z + std^2 s, and the weights are the ratio of two normal densities."""
    scale = 0.5
    for d, n in ((1, 3000), (3, 3000), (784, 300)):
        tilt = arrays.asarray(0.1 * np.random.default_rng(7).normal(size=(1, d)))
        x, log_w = Gaussian(scale).sample_tilted(0 * tilt, tilt, n, rng=rng(19))
        s, b = arrays.numpy(tilt)[0].astype(float), arrays.numpy(x)[0].astype(float)
        moved, length = (b - scale**2 * s) / scale, sqrt(s @ s)
        for u in (
            stats.norm.cdf(moved[:, 0]),
            stats.chi2(d).cdf((moved**2).sum(1)),
            stats.norm.cdf(moved @ s / length),
        ):
            assert stats.kstest(u, "uniform").pvalue > LEVEL, d
        ratio = stats.norm.logpdf(b, 0, scale).sum(1) - stats.norm.logpdf(b, scale**2 * s, scale).sum(1)
        # The oracle subtracts sums of d terms of about one each.
        slack = 8 * d * 2.3e-16 + arrays.eps * (np.abs(ratio) + scale**2 * s @ s)
        assert np.all(np.abs(arrays.numpy(log_w)[0] - ratio) <= slack), d


# --- Extreme tilts -----------------------------------------------------------------------------------------


def assert_finite(arrays: Arrays, *found: Any) -> None:
    for a in found:
        assert np.isfinite(arrays.numpy(a)).all()


def test_tiny_tilt_gives_uniform_samples(arrays: Arrays) -> None:
    """The tilts include subnormal numbers."""
    sizes = [0.0, 1e-40, 1e-30, 1e-8] if arrays.eps > 1e-10 else [0.0, 5e-324, 1e-300, 1e-8]
    for norm, s in product(NORMS, ([1.0, 1.0], [-1.0, 1e-6])):
        tilts = arrays.asarray(np.outer(sizes, s))
        x, log_w = Ball(norm, 1.0).sample_tilted(0 * tilts, tilts, 700, rng=rng(21))
        assert_finite(arrays, x, log_w)
        assert np.abs(arrays.numpy(log_w)).max() <= 2e-8  # at most |s.b| plus half its variance
        assert np.all(arrays.numpy(log_w)[0] == 0)
        for b in arrays.numpy(x).astype(float):
            assert is_uniform(uniforms(b, np.zeros(2), norm)), (norm, s)


def depth_quantiles(norm: float, s: Any, b: Any) -> Any:
    """Quantiles of max s.b - s.b under its limit distribution for strong tilts: uniform if it is exact.

    At a corner of a polytope it is Gamma(d), one exponential for each edge. At the pole of a sphere
    its density is proportional to y^((d-1)/2) exp(-y), which is Gamma((d+1)/2).
    """
    top = {1: np.abs(s).max(), 2: sqrt(s @ s), inf: np.abs(s).sum()}[norm]
    d = len(s)
    return stats.gamma(d if norm != 2 else (d + 1) / 2).cdf(top - b @ s)


def test_strong_tilt_has_its_limit_distribution(doubles: Arrays) -> None:
    s = np.array([1e6, -3e5, 4e5])
    for norm in NORMS:
        tilt = doubles.asarray(s[None])
        x, _ = Ball(norm, 1.0).sample_tilted(0 * tilt, tilt, 3000, rng=rng(22))
        assert stats.kstest(depth_quantiles(norm, s, doubles.numpy(x)[0]), "uniform").pvalue > LEVEL
    # Norm 1: the distribution is uniform on the face between tied corners.
    for size in (1e6, 1e30, 1e300):
        s = doubles.asarray(size * np.array([[1.0, -1.0, 0.5], [1.0, 1.0, -1.0]]))
        x, log_w = Ball(1, 1.0).sample_tilted(0 * s, s, 2000, rng=rng(24))
        assert_finite(doubles, x, log_w)
        b = doubles.numpy(x)
        # max s.b - s.b is below 30 with overwhelming probability.
        assert np.abs(np.abs(b).sum(axis=-1) - 1).max() <= 1e-4
        assert np.all(b[0, :, :2] * [1, -1] >= 0)
        assert np.all(b[1] * [1, 1, -1] >= 0)
        for k in range(2):
            assert stats.kstest(np.abs(b[0, :, k]), "uniform").pvalue > LEVEL
        for k in range(3):  # on a triangle, each coordinate has the distribution Beta(1, 2)
            assert stats.kstest(np.abs(b[1, :, k]), stats.beta(1, 2).cdf).pvalue > LEVEL


@pytest.mark.parametrize("norm", NORMS)
def test_huge_tilt_gives_the_maximizer(arrays: Arrays, norm: float) -> None:
    ball, z = Ball(norm, 1.0), arrays.asarray(np.zeros((3, 3)))
    sizes = (1e30, 3e38) if arrays.eps > 1e-10 else (1e30, 3e38, 1e75, 1e76, 1e300, 8e307)
    for size in sizes[:-1] if arrays.backend == "jax" else sizes:  # XLA rounds 1/8e307, a subnormal, to zero
        s = arrays.asarray(size * np.array([[0.5, -1.0, 0.25], [1.0, 1e-9, 0.5], [0.7, -0.1, 0.0]]))
        x, log_w = ball.sample_tilted(z, s, 20, rng=rng(23))
        assert_finite(arrays, x, log_w)
        b = arrays.numpy(x).astype(float)
        expected = arrays.numpy(ball.steepest(s)).astype(float)
        if norm == inf:  # a coordinate without tilt is uniform
            assert np.all(np.abs(b[2, :, 2]) <= 1)
            assert len(np.unique(b[2, :, 2])) == 20
            b[2, :, 2] = 0
        # max s.b - s.b is below 60, so that b deviates by 60/size, or on a sphere by the square root.
        wide = sqrt(120 / (0.7 * size)) if norm == 2 else 0.0
        assert np.abs(b - expected[:, None, :]).max() <= 4 * arrays.eps + wide, size


@pytest.mark.parametrize("norm", NORMS)
def test_small_entries_of_a_tilt_have_an_effect_beside_huge_ones(arrays: Arrays, norm: float) -> None:
    """Half of the entries are zero, or one huge entry is among small ones that still have an effect."""
    for size in (1e6, 1e30):
        s, n = arrays.asarray(size * np.array([[1.0, -1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0]])), 500
        x, log_w = Ball(norm, 1.0).sample_tilted(0 * s, s, n, rng=rng(25))
        assert_finite(arrays, x, log_w)
        b = arrays.numpy(x)[0].astype(float)
        if norm == inf:
            for k in range(4, 8):
                assert stats.kstest(b[:, k], "uniform", (-1, 2)).pvalue > LEVEL
            assert np.abs(b[:, :4] - [1, -1, 1, 1]).max() < 1e-4
        else:
            # max s.b - s.b is below 60.
            assert np.abs(b[:, 4:]).max() < 2 * sqrt(60 / size)
            assert abs(np.linalg.norm(b, norm, axis=-1) - 1).max() < 1e-4
        assert abs(np.mean(b[:, 4:])) < Z * max(np.std(b[:, 4:]), 1e-30) / sqrt(4 * n)
    s = arrays.asarray(np.array([[1e20, 1.0, -1e-20, 1e-38, 2.0]]))
    x, log_w = Ball(norm, 1.0).sample_tilted(0 * s, s, 800, rng=rng(26))
    assert_finite(arrays, x, log_w)
    b = arrays.numpy(x)[0].astype(float)
    assert np.abs(b[:, 0] - 1).max() <= 4 * arrays.eps
    if norm == inf:
        for k, a in ((1, 1.0), (4, 2.0)):
            u = np.expm1(a * (b[:, k] + 1)) / np.expm1(2 * a)
            assert stats.kstest(u, "uniform").pvalue > LEVEL
        for k in (2, 3):
            assert stats.kstest(b[:, k], "uniform", (-1, 2)).pvalue > LEVEL


def test_samples_are_finite_if_the_generator_returns_zeros(arrays: Arrays) -> None:
    """In float32, a uniform or exponential random number is 0 with probability 2^-24."""

    class Zeros(Rng):
        """A generator that returns 0 with probability 1/2."""

        def exponential(self, shape: tuple[int, ...], *, like: Any) -> Any:
            return super().exponential(shape, like=like) * self.coin(shape, like)

        def uniform(self, shape: tuple[int, ...], *, like: Any, low: float = 0.0, high: float = 1.0) -> Any:
            return super().uniform(shape, like=like, low=low, high=high) * self.coin(shape, like)

        def coin(self, shape: tuple[int, ...], like: Any) -> Any:
            return arrays.xp.astype(self.integers(2, shape, like=like), like.dtype)

    for norm, d in product(NORMS, (1, 2)):
        s = arrays.asarray(np.full((3, d), 2.0))
        x, log_w = Ball(norm, 1.0).sample_tilted(0 * s, s, 20, rng=Zeros(1))
        assert_finite(arrays, x, log_w)
        # In two dimensions, the rounding of small orthogonal parts exceeds the tolerance of `contains`.
        if d == 1:
            assert bool(arrays.xp.all(Ball(norm, 1.0).contains(x, (0 * s)[:, None, :])))


def test_clip_moves_points_and_keeps_their_weights(arrays: Arrays) -> None:
    z = arrays.asarray(np.array([[0.0, 0.5, 1.0]]))
    s = arrays.asarray(np.array([[3.0, -8.0, 8.0]]))
    for norm in NORMS:
        free, weights = Ball(norm, 0.75).sample_tilted(z, s, 200, rng=rng(5))
        boxed, same = Ball(norm, 0.75, clip=(0.0, 1.0)).sample_tilted(z, s, 200, rng=rng(5))
        assert np.array_equal(arrays.numpy(boxed), np.clip(arrays.numpy(free), 0, 1))
        assert np.array_equal(arrays.numpy(weights), arrays.numpy(same))
        assert not np.array_equal(arrays.numpy(boxed), arrays.numpy(free))
        with pytest.raises(ValueError, match="x is outside the box"):
            Ball(norm, 0.75, clip=(0.0, 0.9)).sample_tilted(z, s, 2, rng=rng(5))
    for distribution in distributions(0.0):
        x, log_w = distribution.sample_tilted(z, 1e6 * s, 3, rng=rng(0))
        assert np.all(arrays.numpy(x) == [[[0.0, 0.5, 1.0]] * 3])
        assert np.all(arrays.numpy(log_w) == 0)


def test_tilt_that_overflows_raises(arrays: Arrays) -> None:
    s = arrays.asarray(np.array([[3e38 if arrays.eps > 1e-10 else 1.7e308, 1.0]]))
    for distribution in distributions(10.0):
        with pytest.raises(ValueError, match=r"radius times s overflows|std\^2 .* overflows"):
            distribution.sample_tilted(0 * s, s, 2, rng=rng(0))


@pytest.mark.parametrize("distribution", DISTRIBUTIONS, ids=str)
def test_invalid_arguments_of_sample_tilted_raise(distribution: Any) -> None:
    z = np.zeros((2, 3))
    for bad in (np.nan, inf):
        s = np.where(np.arange(6).reshape(2, 3) == 5, bad, 1.0)
        with pytest.raises(ValueError, match="s contains NaN or infinity"):
            distribution.sample_tilted(z, s, 4, rng=rng(0))
    for s in (np.zeros(3), np.zeros((1, 3)), np.zeros((2, 3, 1)), np.zeros((2, 3), dtype=np.float32)):
        with pytest.raises(ValueError, match=r"s has shape .* expected the same as x"):
            distribution.sample_tilted(z, s, 4, rng=rng(0))
    for s in (np.zeros((2, 3), dtype=int), [[0.0] * 3] * 2, 1.0, None):
        with pytest.raises(TypeError, match=r"^s (is|has dtype)"):
            distribution.sample_tilted(z, s, 4, rng=rng(0))
    for n in (0, -1, 1.5, True, "4"):
        with pytest.raises(ValueError, match=r"^n_samples is"):
            distribution.sample_tilted(z, z, n, rng=rng(0))
    for source in ("0", 1.5, True):
        with pytest.raises(TypeError, match=r"^rng is"):
            distribution.sample_tilted(z, z, 4, rng=source)
    for event_ndim in (-1, 3, True):
        with pytest.raises(ValueError, match=r"^event_ndim is"):
            distribution.sample_tilted(z, z, 4, rng=rng(0), event_ndim=event_ndim)
    with pytest.raises(TypeError, match=r"^x has dtype int64"):
        distribution.sample_tilted(z.astype(int), z, 4, rng=rng(0))
    with pytest.raises(ValueError, match=r"norm is 3.0; expected"):
        Ball(3, 1.0).sample_tilted(z, z, 2, rng=rng(0))


@pytest.mark.parametrize("distribution", DISTRIBUTIONS, ids=str)
def test_points_are_differentiable_in_x_but_not_in_the_tilt(distribution: Any) -> None:
    torch = pytest.importorskip("torch", reason="torch: not installed")
    z = torch.zeros((2, 3), dtype=torch.float64, requires_grad=True)
    s = torch.ones((2, 3), dtype=torch.float64, requires_grad=True)
    x, log_w = distribution.sample_tilted(z, s, 5, rng=rng(0))
    assert not log_w.requires_grad
    torch.sum(x).backward()
    assert torch.equal(z.grad, torch.full((2, 3), 5.0, dtype=torch.float64))
    assert s.grad is None
    plain, _ = distribution.sample_tilted(z.detach(), s.detach(), 5, rng=rng(0))
    assert torch.equal(plain, x.detach())
    with pytest.raises(TypeError, match="expected arrays of one library"):
        distribution.sample_tilted(z.detach(), np.ones((2, 3)), 5, rng=rng(0))

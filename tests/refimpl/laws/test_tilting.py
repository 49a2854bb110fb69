"""Tilted samples have the density exp(s.b) on the ball, and the weights that lead back to the uniform law.

Every statistical test here has a fixed seed and an error level of one in a million.
"""

from __future__ import annotations

from functools import cache
from math import inf, prod, sqrt
from typing import Any

import mpmath as mp
import numpy as np
import pytest
from scipy import stats

from phiball.backends import rng
from phiball.refimpl import Ball, Gaussian
from tests.support.arrays import Arrays
from tests.support.laws import LAWS, NORMS
from tests.support.tilting_laws import LEVEL, Z, log_mgf, moments, uniforms

# None, weak, strong in one direction, ties of both signs, one that towers over the rest.
TILTS = [[0.0, 0.0, 0.0], [0.5, -0.3, 0.2], [0.0, -9.0, 2.0], [4.0, 4.0, -4.0], [15.0, 0.1, -1.0]]


def cells(u: Any) -> float:
    """The p-value of a chi-square test that points of the unit cube fill a grid of cells evenly."""
    per = {1: 16, 2: 5, 3: 3}[u.shape[1]]
    place = np.ravel_multi_index(np.minimum((u * per).astype(int), per - 1).T, (per,) * u.shape[1])
    return float(stats.chisquare(np.bincount(place, minlength=per ** u.shape[1])).pvalue)


@pytest.mark.parametrize("tilt", range(len(TILTS)))
@pytest.mark.parametrize("d", [1, 2, 3])
@pytest.mark.parametrize("norm", NORMS)
def test_the_law(norm: float, d: int, tilt: int) -> None:
    """All coordinates together, by Rosenblatt's transform; s.b and single coordinates follow from it."""
    radius, n = 0.5, 20_000
    s = np.array(TILTS[tilt][:d]) / radius
    x, _ = Ball(norm, radius).sample_tilted(np.full((1, d), 0.25), s[None], n, rng(11))
    u = uniforms((x[0] - 0.25) / radius, radius * s, norm)
    for k in range(d):
        assert stats.kstest(u[:, k], "uniform").pvalue > LEVEL
    assert cells(u) > LEVEL


@pytest.mark.parametrize("d", [1, 2, 3])
@pytest.mark.parametrize("norm", NORMS)
def test_every_backend_draws_the_law(arrays: Arrays, norm: float, d: int) -> None:
    """A batch of tilts at once, each with the law of its own."""
    n = 1500
    s = np.array(TILTS)[:, :d]
    ball = Ball(norm, 1.0)
    z = arrays.asarray(np.zeros_like(s))
    x, log_w = ball.sample_tilted(z, arrays.asarray(s), n, rng(12))
    assert x.dtype == log_w.dtype == arrays.dtype
    assert tuple(x.shape) == (len(s), n, d)
    assert tuple(log_w.shape) == (len(s), n)
    assert bool(arrays.xp.all(ball.contains(x, z[:, None, :])))
    b = arrays.numpy(x).astype(float)
    for k, row in enumerate(s):
        u = uniforms(b[k], row, norm)
        assert all(stats.kstest(u[:, j], "uniform").pvalue > LEVEL for j in range(d))
        assert cells(u) > LEVEL
    # Points of one tilt are independent: neighbours in the sample say nothing of each other.
    u = uniforms(b[1], s[1], norm)[:, 0]
    assert abs(stats.spearmanr(u[:-1], u[1:]).statistic) < Z / sqrt(n - 2)


@pytest.mark.parametrize("norm", NORMS)
def test_a_law_that_is_another_is_caught(norm: float) -> None:
    """The tests above see a tilt that is a quarter off, one that is turned, and a dimension too many."""
    s = np.array([4.0, 1.0, -2.0])
    x, _ = Ball(norm, 1.0).sample_tilted(np.zeros((1, 3)), s[None], 4000, rng(13))
    for wrong in (1.25 * s, s[[0, 2, 1]], np.zeros(3)):
        u = uniforms(x[0], wrong, norm)
        assert min(stats.kstest(u[:, k], "uniform").pvalue for k in range(3)) < LEVEL
    x4, _ = Ball(norm, 1.0).sample_tilted(np.zeros((1, 4)), np.append(s, 0.0)[None], 4000, rng(13))
    if norm != inf:  # whose coordinates do not know of each other
        u = uniforms(x4[0, :, :3], s, norm)
        assert min(stats.kstest(u[:, k], "uniform").pvalue for k in range(3)) < LEVEL


def tilt_of(d: int, size: float, seed: int) -> Any:
    """A tilt with entries of many sizes, a tie and zeros; their largest is `size`."""
    g = np.random.default_rng(seed).normal(size=d)
    g[: d // 4] = 0
    g[-1] = -g[-2]
    return size * g / np.abs(g).max()


# In 784 dimensions uniform points have s.b of about |s| times 0.58 (inf), 1/28 (2) or 1/560 (1).
HIGH = [(inf, 784, 0.5), (inf, 784, 30.0), (2, 784, 3.0), (2, 784, 100.0), (1, 50, 80.0), (1, 784, 300.0)]


@cache
def exact(norm: float, d: int, size: float) -> list[tuple[Any, float, float]]:
    s = tilt_of(d, size, 3)
    across = np.random.default_rng(4).normal(size=d)
    one = np.zeros(d)
    one[np.abs(s).argmax()] = 1.0
    directions = [s / sqrt(s @ s), across / sqrt(across @ across), one]
    return [(c, *moments(s, c, norm)) for c in directions]


@pytest.mark.slow
@pytest.mark.parametrize(("norm", "d", "size"), HIGH)
def test_moments_in_high_dimension(doubles: Arrays, norm: float, d: int, size: float) -> None:
    """The mean of c.b is the slope of log E exp(s.b) along c, its variance the second derivative."""
    n = 250 if norm == 1 and d == 784 else 2000
    s = tilt_of(d, size, 3)
    z = doubles.asarray(np.zeros((1, d)))
    x, _ = Ball(norm, 1.0).sample_tilted(z, doubles.asarray(s[None]), n, rng(14))
    b = doubles.numpy(x)[0]
    for c, mean, variance in exact(norm, d, size):
        v = b @ c
        assert abs(v.mean() - mean) < Z * sqrt(variance / n)
        square = (v - mean) ** 2
        assert abs(square.mean() - variance) < Z * square.std() / sqrt(n)
    # The tilt is felt: along s the points lie away from 0.
    assert exact(norm, d, size)[0][1] > Z * sqrt(exact(norm, d, size)[0][2] / n)


@pytest.mark.parametrize("norm", NORMS)
def test_single_precision_in_high_dimension(arrays: Arrays, norm: float) -> None:
    d, size, n = (50, 80.0, 1500) if norm == 1 else (784, 30.0, 800)
    s = tilt_of(d, size, 3)
    z = arrays.asarray(np.zeros((1, d)))
    x, log_w = Ball(norm, 1.0).sample_tilted(z, arrays.asarray(s[None]), n, rng(15))
    for c, mean, variance in exact(norm, d, size):
        v = arrays.numpy(x)[0].astype(float) @ c
        assert abs(v.mean() - mean) < Z * sqrt(variance / n)
    assert np.isfinite(arrays.numpy(log_w)).all()


@pytest.mark.parametrize("d", [1, 3, 50])
@pytest.mark.parametrize("norm", NORMS)
def test_log_weights(arrays: Arrays, norm: float, d: int) -> None:
    """log E exp(s.b) - s.b in forty digits, at the very points that came back."""
    sizes, radius = (1e-30, 1e-8, 0.3, 5.0, 80.0), 0.5  # a power of two, which rounds nothing
    tilts = arrays.asarray([tilt_of(d, size, 5) if d > 1 else [size] for size in sizes])
    x, log_w = Ball(norm, radius).sample_tilted(0 * tilts, tilts, 4, rng(16))
    for s, points, found in zip(*(arrays.numpy(a).astype(float) for a in (tilts, x, log_w)), strict=True):
        with mp.workdps(40):
            whole = log_mgf([radius * mp.mpf(v) for v in s], norm)
            for b, got in zip(points, found, strict=True):
                want = whole - mp.fsum(mp.mpf(p) * mp.mpf(q) for p, q in zip(s, b, strict=True))
                # log E exp is good to 1e-12; products and sums round in double, the result in its dtype.
                slack = 1e-12 * float(whole) + 2.3e-16 * (d + 2) * float(np.abs(s * b).sum())
                assert abs(float(got - want)) <= slack + arrays.eps * abs(float(want))


# E h under the uniform law of the unit ball in d dimensions.
def means(norm: float, d: int) -> list[tuple[Any, float]]:
    second = {1: 2 / ((d + 1) * (d + 2)), 2: 1 / (d + 2), inf: 1 / 3}[norm]

    def size(b: Any) -> Any:
        return np.linalg.norm(b, norm, axis=-1)

    return [
        (lambda b: np.ones(b.shape[:-1]), 1.0),
        (lambda b: b[..., 0], 0.0),
        (lambda b: b[..., 1] ** 2, second),
        (lambda b: b[..., 0] * b[..., 1], 0.0),
        (size, d / (d + 1)),
        (lambda b: size(b) ** d < 0.5, 0.5),
    ]


@pytest.mark.parametrize("norm", NORMS)
def test_weights_lead_back_to_the_uniform_law(arrays: Arrays, norm: float) -> None:
    d, n = 4, 6000
    s = np.array([1.0, -0.6, 0.0, 0.3]) * {1: 3.0, 2: 2.0, inf: 1.0}[norm]
    z = arrays.asarray(np.zeros((1, d)))
    x, log_w = Ball(norm, 1.0).sample_tilted(z, arrays.asarray(s[None]), n, rng(17))
    b, w = arrays.numpy(x)[0].astype(float), np.exp(arrays.numpy(log_w)[0].astype(float))
    assert w.max() < 30  # bounded weights: the normal law is to be trusted
    for h, mean in means(norm, d):
        v = w * h(b)
        assert abs(v.mean() - mean) < Z * v.std() / sqrt(n) + 1e-6  # the rounding of single precision
    # Without the weights it is another law.
    assert abs(b[:, 0].mean()) > Z * b[:, 0].std() / sqrt(n)


@pytest.mark.parametrize("event", [(), (3,), (2, 1, 3)])
@pytest.mark.parametrize("law", LAWS, ids=str)
def test_a_point_may_have_any_shape(arrays: Arrays, law: Any, event: tuple[int, ...]) -> None:
    """Shapes do not change what is drawn: the same seed gives the numbers of the flat points."""
    d, batch = prod(event), (2, 2)
    g = np.random.default_rng(6)
    z, s = g.normal(size=(*batch, *event)), 3 * g.normal(size=(*batch, *event))
    x, log_w = law.sample_tilted(arrays.asarray(z), arrays.asarray(s), 5, rng(18), event_ndim=len(event))
    assert tuple(x.shape) == (*batch, 5, *event)
    assert tuple(log_w.shape) == (*batch, 5)
    flat, same = law.sample_tilted(
        arrays.asarray(z.reshape(*batch, d)), arrays.asarray(s.reshape(*batch, d)), 5, rng(18)
    )
    assert np.array_equal(arrays.numpy(x), arrays.numpy(flat).reshape(*batch, 5, *event))
    assert np.array_equal(arrays.numpy(log_w), arrays.numpy(same))


@pytest.mark.parametrize("d", [1, 3, 784])
def test_the_gaussian_moves_its_mean(arrays: Arrays, d: int) -> None:
    """Normal around z + scale^2 s, with the weights of two normal densities."""
    scale, n = 0.5, 3000 if d < 784 else 300
    s = np.array(arrays.numpy(arrays.asarray(0.1 * np.random.default_rng(7).normal(size=d)))).astype(float)
    x, log_w = Gaussian(scale).sample_tilted(
        arrays.asarray(np.zeros((1, d))), arrays.asarray(s[None]), n, rng(19)
    )
    b = arrays.numpy(x)[0].astype(float)
    u = stats.norm.cdf(b, scale**2 * s, scale)
    assert stats.kstest(u[:, 0], "uniform").pvalue > LEVEL
    assert (
        stats.kstest(stats.chi2(d).cdf((((b - scale**2 * s) / scale) ** 2).sum(1)), "uniform").pvalue > LEVEL
    )
    assert (
        stats.kstest(stats.norm.cdf(b @ s, scale**2 * s @ s, scale * sqrt(s @ s)), "uniform").pvalue > LEVEL
    )
    ratio = stats.norm.logpdf(b, 0, scale).sum(1) - stats.norm.logpdf(b, scale**2 * s, scale).sum(1)
    # The oracle takes the difference of sums of d terms of about one each.
    slack = 8 * d * 2.3e-16 + arrays.eps * (np.abs(ratio) + scale**2 * s @ s)
    assert np.all(np.abs(arrays.numpy(log_w)[0] - ratio) <= slack)
    w = np.exp(ratio)
    for v, mean in ((w, 1.0), (w * b[:, 0], 0.0), (w * b[:, 0] ** 2, scale**2)):
        assert abs(v.mean() - mean) < Z * v.std() / sqrt(n)

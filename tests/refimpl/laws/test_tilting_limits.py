"""Tilted samples at the ends of the scale, and what cannot be sampled.

Every statistical test here has a fixed seed and an error level of one in a million.
"""

from __future__ import annotations

from math import inf, sqrt
from typing import Any

import numpy as np
import pytest
from scipy import stats

from phiball.backends import Rng, rng
from phiball.refimpl import Ball, Gaussian
from tests.support.arrays import Arrays
from tests.support.laws import LAWS, NORMS, laws
from tests.support.tilting_laws import LEVEL, Z, uniforms


def finite(arrays: Arrays, *found: Any) -> None:
    for a in found:
        assert np.isfinite(arrays.numpy(a)).all()


@pytest.mark.parametrize("norm", NORMS)
def test_a_tiny_tilt_is_none(arrays: Arrays, norm: float) -> None:
    """Down to numbers that are not normal: the uniform law, and weights of one."""
    sizes = [0.0, 1e-40, 1e-30, 1e-8] if arrays.eps > 1e-10 else [0.0, 5e-324, 1e-300, 1e-30, 1e-8]
    for s in ([1.0, 1.0], [1.0, 0.0], [-1.0, 1e-6]):
        tilts = arrays.asarray(np.outer(sizes, s))
        x, log_w = Ball(norm, 1.0).sample_tilted(0 * tilts, tilts, 700, rng(21))
        finite(arrays, x, log_w)
        assert np.abs(arrays.numpy(log_w)).max() <= 2e-8  # |s.b|, and half its variance
        assert np.all(arrays.numpy(log_w)[0] == 0)
        for b in arrays.numpy(x).astype(float):
            u = uniforms(b, np.zeros(2), norm)
            assert min(stats.kstest(u[:, k], "uniform").pvalue for k in range(2)) > LEVEL


def decay(norm: float, s: Any, b: Any) -> Any:
    """Uniform numbers, if the distance to the maximum of s.b has the law that a strong tilt gives it.

    At a corner of a polytope d edges meet, along each of which s.b falls at an exponential law: Gamma(d). At
    the pole of a sphere the density of the depth y is y^((d-1)/2) exp(-y): Gamma((d+1)/2).
    """
    top = {1: np.abs(s).max(), 2: sqrt(s @ s), inf: np.abs(s).sum()}[norm]
    d = len(s)
    return stats.gamma(d if norm != 2 else (d + 1) / 2).cdf(top - b @ s)


@pytest.mark.parametrize("norm", NORMS)
def test_a_strong_tilt_decays_from_the_maximum(doubles: Arrays, norm: float) -> None:
    s = np.array([1e6, -3e5, 4e5])
    x, log_w = Ball(norm, 1.0).sample_tilted(
        doubles.asarray(np.zeros((1, 3))), doubles.asarray(s[None]), 3000, rng(22)
    )
    assert stats.kstest(decay(norm, s, doubles.numpy(x)[0]), "uniform").pvalue > LEVEL
    # log(nu/q) is the depth less a constant, the size of which falls with the volume where q lives.
    power = {1: 3, 2: 2, inf: 3}[norm]
    mean = float(doubles.numpy(log_w).mean())
    assert -power * np.log(1e6) - 10 < mean < -power * np.log(1e5) + 10


@pytest.mark.parametrize("size", [1e30, 3e38, 1e75, 1e76, 1e300, 8e307])
@pytest.mark.parametrize("norm", NORMS)
def test_a_huge_tilt_is_the_maximiser(arrays: Arrays, norm: float, size: float) -> None:
    if arrays.eps > 1e-10 and size > 3e38:
        return  # not a number of single precision
    s = arrays.asarray(size * np.array([[0.5, -1.0, 0.25], [1.0, 1e-9, 0.5], [0.7, -0.1, 0.0]]))
    z = arrays.asarray(np.zeros((3, 3)))
    ball = Ball(norm, 1.0)
    x, log_w = ball.sample_tilted(z, s, 20, rng(23))
    finite(arrays, x, log_w)
    b = arrays.numpy(x).astype(float)
    want = arrays.numpy(ball.steepest(s)).astype(float)
    if norm == inf:  # where s is 0 the law is uniform, whatever the rest is
        assert np.all(np.abs(b[2, :, 2]) <= 1)
        assert len(np.unique(b[2, :, 2])) == 20
        b[2, :, 2] = 0
    # The depth below the maximum is at most 60 over the tilt, and on a sphere the width is its root.
    wide = sqrt(120 / (0.7 * size)) if norm == 2 else 0.0
    assert np.abs(b - want[:, None, :]).max() <= 4 * arrays.eps + wide


@pytest.mark.parametrize("size", [1e6, 1e30, 1e300])
def test_tied_maximisers_share(doubles: Arrays, size: float) -> None:
    """Norm 1: the law is uniform on the face between the corners that are tied."""
    s = doubles.asarray(size * np.array([[1.0, -1.0, 0.5], [1.0, 1.0, -1.0]]))
    x, log_w = Ball(1, 1.0).sample_tilted(0 * s, s, 2000, rng(24))
    finite(doubles, x, log_w)
    b = doubles.numpy(x)
    assert np.abs(np.abs(b).sum(axis=-1) - 1).max() <= 1e-4  # the depth is 30 over 1e6 at most
    assert np.all(b[0, :, :2] * [1, -1] >= 0)
    assert np.all(b[1] * [1, 1, -1] >= 0)
    for k in range(2):
        assert stats.kstest(np.abs(b[0, :, k]), "uniform").pvalue > LEVEL
    for k in range(3):  # on a triangle each has the Beta(1, 2) law
        assert stats.kstest(np.abs(b[1, :, k]), stats.beta(1, 2).cdf).pvalue > LEVEL


@pytest.mark.parametrize("size", [1e6, 1e30])
@pytest.mark.parametrize("norm", NORMS)
def test_half_of_the_tilt_may_be_zero(arrays: Arrays, norm: float, size: float) -> None:
    d, n = 8, 500
    s = np.zeros((1, d))
    s[0, : d // 2] = size * np.array([1.0, -1.0, 1.0, 1.0])
    x, log_w = Ball(norm, 1.0).sample_tilted(arrays.asarray(0 * s), arrays.asarray(s), n, rng(25))
    finite(arrays, x, log_w)
    b = arrays.numpy(x)[0].astype(float)
    if norm == inf:
        for k in range(4, 8):
            assert stats.kstest(b[:, k], "uniform", (-1, 2)).pvalue > LEVEL
        assert np.abs(b[:, :4] - np.sign(s[0, :4])).max() < 1e-4
    else:
        # The depth below the maximum is 60/size at most, and the width its root.
        assert np.abs(b[:, 4:]).max() < 2 * sqrt(60 / size)
        assert abs(np.linalg.norm(b, norm, axis=-1) - 1).max() < 1e-4
    assert abs(np.mean(b[:, 4:])) < Z * max(np.std(b[:, 4:]), 1e-30) / sqrt(4 * n)


@pytest.mark.parametrize("norm", NORMS)
def test_scales_far_apart(arrays: Arrays, norm: float) -> None:
    """One huge entry among small ones, which the others must survive."""
    s = np.array([[1e20, 1.0, -1e-20, 1e-38, 2.0]])
    x, log_w = Ball(norm, 1.0).sample_tilted(arrays.asarray(0 * s), arrays.asarray(s), 800, rng(26))
    finite(arrays, x, log_w)
    b = arrays.numpy(x)[0].astype(float)
    assert np.abs(b[:, 0] - 1).max() <= 4 * arrays.eps
    if norm == inf:
        for k, a in ((1, 1.0), (4, 2.0)):
            assert (
                stats.kstest(b[:, k], lambda x, a=a: np.expm1(a * (x + 1)) / np.expm1(2 * a)).pvalue > LEVEL
            )
        for k in (2, 3):
            assert stats.kstest(b[:, k], "uniform", (-1, 2)).pvalue > LEVEL


@pytest.mark.parametrize("d", [1, 2])
@pytest.mark.parametrize("norm", NORMS)
def test_draws_that_are_zero_do_no_harm(arrays: Arrays, norm: float, d: int) -> None:
    """In single precision a uniform number is 0 once in 2^24, and an exponential one with it."""

    class Zeros(Rng):
        """Every other number is 0, by chance."""

        def exponential(self, shape: tuple[int, ...], *, like: Any) -> Any:
            return super().exponential(shape, like=like) * self.coin(shape, like)

        def uniform(self, shape: tuple[int, ...], *, like: Any, low: float = 0.0, high: float = 1.0) -> Any:
            return super().uniform(shape, like=like, low=low, high=high) * self.coin(shape, like)

        def coin(self, shape: tuple[int, ...], like: Any) -> Any:
            return arrays.xp.astype(self.integers(2, shape, like=like), like.dtype)

    s = arrays.asarray(np.full((3, d), 2.0))
    x, log_w = Ball(norm, 1.0).sample_tilted(0 * s, s, 20, Zeros(1))
    finite(arrays, x, log_w)
    # In the plane what is across a direction has few digits where it is small, which shows on the circle.
    if d == 1:
        assert bool(arrays.xp.all(Ball(norm, 1.0).contains(x, (0 * s)[:, None, :])))


@pytest.mark.parametrize("law", LAWS, ids=str)
def test_arguments_stay_and_seeds_repeat(arrays: Arrays, law: Any) -> None:
    g = np.random.default_rng(8)
    z, s = (arrays.asarray(g.normal(size=(4, 3))) for _ in range(2))
    before = [np.array(arrays.numpy(a), copy=True) for a in (z, s)]
    first, again, other = (law.sample_tilted(z, s, 6, rng(seed)) for seed in (3, 3, 4))
    assert all(np.array_equal(arrays.numpy(a), b) for a, b in zip((z, s), before, strict=True))
    for a, b, c in zip(first, again, other, strict=True):
        assert np.array_equal(arrays.numpy(a), arrays.numpy(b))
        assert not np.array_equal(arrays.numpy(a), arrays.numpy(c))


@pytest.mark.parametrize("norm", NORMS)
def test_a_box_moves_points_and_keeps_their_weights(arrays: Arrays, norm: float) -> None:
    z = arrays.asarray(np.array([[0.0, 0.5, 1.0]]))
    s = arrays.asarray(np.array([[3.0, -8.0, 8.0]]))
    free, weights = Ball(norm, 0.75).sample_tilted(z, s, 200, rng(5))
    boxed, same = Ball(norm, 0.75, clip=(0.0, 1.0)).sample_tilted(z, s, 200, rng(5))
    assert np.array_equal(arrays.numpy(boxed), np.clip(arrays.numpy(free), 0, 1))
    assert np.array_equal(arrays.numpy(weights), arrays.numpy(same))
    assert not np.array_equal(arrays.numpy(boxed), arrays.numpy(free))
    with pytest.raises(ValueError, match="z leaves the box"):
        Ball(norm, 0.75, clip=(0.0, 0.9)).sample_tilted(z, s, 2, rng(5))


@pytest.mark.parametrize("law", laws(0.0), ids=str)
def test_no_radius(arrays: Arrays, law: Any) -> None:
    z, s = (arrays.asarray(np.array([[0.5, -2.0]])) for _ in range(2))
    x, log_w = law.sample_tilted(z, 1e6 * s, 3, rng(0))
    assert np.all(arrays.numpy(x) == [[[0.5, -2.0]] * 3])
    assert np.all(arrays.numpy(log_w) == 0)


@pytest.mark.parametrize("law", LAWS, ids=str)
def test_an_empty_batch(arrays: Arrays, law: Any) -> None:
    z = arrays.asarray(np.zeros((0, 3)))
    x, log_w = law.sample_tilted(z, z, 4, rng(0))
    assert tuple(x.shape) == (0, 4, 3)
    assert tuple(log_w.shape) == (0, 4)


def test_a_tilt_that_the_normal_law_cannot_weigh(arrays: Arrays) -> None:
    s = arrays.asarray(np.array([[1e30 if arrays.eps > 1e-10 else 1e200, 1.0]]))
    with pytest.raises(ValueError, match="expected a tilt whose scale"):
        Gaussian(1.0).sample_tilted(0 * s, s, 2, rng(0))


@pytest.mark.parametrize("law", LAWS, ids=str)
def test_what_is_no_tilt(law: Any) -> None:
    z = np.zeros((2, 3))
    for bad in (np.nan, inf, -inf):
        s = np.ones((2, 3))
        s[1, 2] = bad
        with pytest.raises(ValueError, match="s contains NaN or infinity"):
            law.sample_tilted(z, s, 4, rng(0))
    for s in (np.zeros(3), np.zeros((1, 3)), np.zeros((2, 3, 1)), np.zeros((2, 3), dtype=np.float32)):
        with pytest.raises(ValueError, match=r"s has shape .* expected those of z, \(2, 3\) and float64"):
            law.sample_tilted(z, s, 4, rng(0))
    for s in (np.zeros((2, 3), dtype=int), [[0.0] * 3] * 2, 1.0, None):
        with pytest.raises(TypeError, match=r"^s (is|has dtype)"):
            law.sample_tilted(z, s, 4, rng(0))
    for n in (0, -1, 1.5, True, "4"):
        with pytest.raises(ValueError, match=r"^n is"):
            law.sample_tilted(z, z, n, rng(0))
    for source in (None, 0, np.random.default_rng(0)):
        with pytest.raises(TypeError, match=r"^rng is"):
            law.sample_tilted(z, z, 4, source)
    for event_ndim in (-1, 3, True):
        with pytest.raises(ValueError, match=r"^event_ndim is"):
            law.sample_tilted(z, z, 4, rng(0), event_ndim=event_ndim)
    with pytest.raises(TypeError, match=r"^z has dtype int64"):
        law.sample_tilted(z.astype(int), z, 4, rng(0))


@pytest.mark.parametrize("norm", [3, 1.5])
def test_other_norms_cannot_be_tilted(norm: float) -> None:
    with pytest.raises(ValueError, match=r"norm is .*; expected 1, 2 or inf"):
        Ball(norm, 1.0).sample_tilted(np.zeros((1, 2)), np.zeros((1, 2)), 2, rng(0))


@pytest.mark.parametrize("law", LAWS, ids=str)
def test_torch(law: Any) -> None:
    """A gradient passes to z, one for one, and none to s or to the weights."""
    torch = pytest.importorskip("torch", reason="torch: not installed")
    z = torch.zeros((2, 3), dtype=torch.float64, requires_grad=True)
    s = torch.ones((2, 3), dtype=torch.float64, requires_grad=True)
    x, log_w = law.sample_tilted(z, s, 5, rng(0))
    assert not log_w.requires_grad
    torch.sum(x).backward()
    assert torch.equal(z.grad, torch.full((2, 3), 5.0, dtype=torch.float64))
    assert s.grad is None
    plain, _ = law.sample_tilted(z.detach(), s.detach(), 5, rng(0))
    assert torch.equal(plain, x.detach())
    with pytest.raises(TypeError, match="expected arrays of one library"):
        law.sample_tilted(z.detach(), np.ones((2, 3)), 5, rng(0))


@pytest.mark.parametrize("law", laws(10.0)[:3], ids=str)
def test_a_tilt_that_overflows_with_the_radius(arrays: Arrays, law: Ball) -> None:
    s = arrays.asarray(np.array([[3e38 if arrays.eps > 1e-10 else 1.7e308, 1.0]]))
    with pytest.raises(ValueError, match="radius times s overflows"):
        law.sample_tilted(0 * s, s, 2, rng(0))

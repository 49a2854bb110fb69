"""Samples of a ball are exactly uniform, however they are drawn.

Every statistical test here has a fixed seed and an error level of one in a million.
"""

from __future__ import annotations

import sys
from math import inf, sqrt
from typing import Any

import numpy as np
import pytest
from scipy import stats
from scipy.special import gammaln

from phiball.backends import rng
from phiball.refimpl import Ball, Gaussian
from tests.support.arrays import Arrays
from tests.support.laws import ANY_NORM, LARGE_NORM, NORMS

LEVEL = 1e-6
Z = 4.9  # two-sided, one in a million
DIMENSIONS = [1, 2, 3, 50, 784]
MODES = [(False, False), (True, False), (False, True), (True, True)]


def moment(k: float, p: float, d: int) -> float:
    """E |b_1|^k on the unit ball of norm p: a Beta(1/p, (d-1)/p + 1) law of |b_1|^p."""
    if p == inf:
        return 1 / (k + 1)
    a, b = 1 / p, (d - 1) / p + 1
    return float(np.exp(gammaln(a + k / p) + gammaln(a + b) - gammaln(a) - gammaln(a + b + k / p)))


def draws(norm: float, d: int, mode: tuple[bool, bool], seed: int) -> Any:
    """Points of the unit ball that are independent of each other, from every place in a small sample."""
    antithetic, qmc = mode
    n = 2500 if d <= 50 else 500
    points = Ball(norm, 1.0).sample(np.zeros((n, d)), 4, rng(seed), antithetic=antithetic, qmc=qmc)
    # One point of each entry: the four of one entry may depend on each other, the entries do not.
    return points[np.arange(n), np.arange(n) % 4]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("d", DIMENSIONS)
@pytest.mark.parametrize("norm", [*ANY_NORM, LARGE_NORM])
def test_the_law_is_uniform(norm: float, d: int, mode: tuple[bool, bool]) -> None:
    b = draws(norm, d, mode, seed=7)
    length = np.abs(b).max(axis=-1) if norm == inf else (np.abs(b) ** norm).sum(axis=-1) ** (1 / norm)
    assert length.max() <= 1 + 1e-12
    # The radial law: |b|^d is uniform on (0, 1).
    assert stats.kstest(length**d, "uniform").pvalue > LEVEL
    # The law of one coordinate, whichever it is: |b_j|^norm is Beta(1/norm, (d-1)/norm + 1).
    one = np.abs(b[np.arange(len(b)), np.arange(len(b)) % d])
    law = "uniform" if norm == inf else stats.beta(1 / norm, (d - 1) / norm + 1).cdf
    assert stats.kstest(one if norm == inf else one**norm, law).pvalue > LEVEL
    # Symmetry: each coordinate is as often positive as negative, independently of its neighbour.
    signs = b[:, : min(d, 60)] > 0
    bound = Z * sqrt(0.25 / len(b)) if d == 1 else 5.6 * sqrt(0.25 / len(b))  # 60 coordinates: 1e-6/60
    assert np.abs(signs.mean(axis=0) - 0.5).max() < bound
    if d > 1:
        agree = signs[:, :-1] == signs[:, 1:]
        assert np.abs(agree.mean(axis=0) - 0.5).max() < 5.6 * sqrt(0.25 / len(b))
    # The moments, against closed forms.
    for k in (1, 2, 4):
        exact, spread = moment(k, norm, d), moment(2 * k, norm, d) - moment(k, norm, d) ** 2
        assert abs((one**k).mean() - exact) < Z * sqrt(spread / len(b))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("norm", [1, 1.01, 7, 300, 5000])
def test_on_a_line_every_ball_is_an_interval(norm: float, mode: tuple[bool, bool]) -> None:
    """A large norm has powers that underflow, which must not be seen in the points."""
    b = draws(norm, 1, mode, seed=11)
    assert stats.kstest(b[:, 0], "uniform", (-1, 2)).pvalue > LEVEL


@pytest.mark.parametrize("norm", ANY_NORM)
def test_a_law_that_is_not_uniform_is_caught(norm: float) -> None:
    """The test above has the power to see a radius with the wrong exponent, in each dimension it uses."""
    for d in (2, 50):
        b = draws(norm, d, (False, False), seed=7)
        length = np.abs(b).max(axis=-1) if norm == inf else (np.abs(b) ** norm).sum(axis=-1) ** (1 / norm)
        wrong = length**1.3  # as if it were drawn in d/1.3 dimensions
        assert stats.kstest(wrong**d, "uniform").pvalue < LEVEL


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("norm", ANY_NORM)
def test_every_backend_draws_the_same_law(arrays: Arrays, norm: float, mode: tuple[bool, bool]) -> None:
    antithetic, qmc = mode
    z = arrays.asarray(np.tile(np.array([1.0, -2.0, 0.5]), (400, 1)))
    ball = Ball(norm, 0.5)
    x = ball.sample(z, 6, rng(3), antithetic=antithetic, qmc=qmc)
    assert x.dtype == arrays.dtype
    assert tuple(x.shape) == (400, 6, 3)
    assert bool(arrays.xp.all(ball.contains(x, z[:, None, :])))
    b = (arrays.numpy(x).astype(float)[:, 5] - [1.0, -2.0, 0.5]) / 0.5
    for k in (2, 4):
        spread = moment(2 * k, norm, 3) - moment(k, norm, 3) ** 2
        assert np.all(np.abs((b**k).mean(axis=0) - moment(k, norm, 3)) < 5.1 * sqrt(spread / 400))
    assert np.all(np.abs(b.mean(axis=0)) < 5.1 * sqrt(moment(2, norm, 3) / 400))
    # float32 rounds x = z + b to about 1e-7 of z, which the law must not be seen to feel.
    assert len(np.unique(b[:, 0])) > 390


@pytest.mark.parametrize("event", [(), (5,), (2, 3), (3, 4, 4)])
@pytest.mark.parametrize("norm", ANY_NORM)
def test_a_point_may_have_any_shape(arrays: Arrays, norm: float, event: tuple[int, ...]) -> None:
    z = arrays.asarray(np.random.default_rng(0).normal(size=(2, 3, *event)))
    ball = Ball(norm, 0.25)
    for qmc in (False, True):
        x = ball.sample(z, 4, rng(1), event_ndim=len(event), qmc=qmc)
        assert tuple(x.shape) == (2, 3, 4, *event)
        inside = ball.contains(x, arrays.xp.expand_dims(z, axis=2), event_ndim=len(event))
        assert tuple(inside.shape) == (2, 3, 4)
        assert bool(arrays.xp.all(inside))
    # One point is one ball, however its coordinates are laid out.
    flat = arrays.xp.reshape(z, (2, 3, -1))
    one = ball.sample(flat, 4, rng(1))
    many = ball.sample(z, 4, rng(1), event_ndim=len(event))
    assert np.array_equal(arrays.numpy(arrays.xp.reshape(many, (2, 3, 4, -1))), arrays.numpy(one))


def test_antithetic_pairs_are_neighbours(arrays: Arrays) -> None:
    z = arrays.asarray(np.zeros((3, 2)))
    x = arrays.numpy(Ball(2, 1.0).sample(z, 7, rng(0), antithetic=True))
    assert np.array_equal(x[:, 0:6:2], -x[:, 1:6:2])
    assert x.shape == (3, 7, 2)


@pytest.mark.parametrize("mode", MODES)
def test_radius_zero_gives_the_point_itself(arrays: Arrays, mode: tuple[bool, bool]) -> None:
    antithetic, qmc = mode
    values = np.array([[0.1, -2.0], [3.0, 1e6]])
    for norm in (*ANY_NORM, LARGE_NORM):
        z = arrays.asarray(values)
        x = arrays.numpy(Ball(norm, 0.0).sample(z, 3, rng(0), antithetic=antithetic, qmc=qmc))
        assert np.array_equal(x, np.repeat(arrays.numpy(z)[:, None, :], 3, axis=1))


def test_clip_moves_what_leaves_the_box_to_its_faces(arrays: Arrays) -> None:
    z = arrays.asarray([[0.0, 1.0, 0.5]])
    for norm in ANY_NORM:
        free, ball = Ball(norm, 0.4), Ball(norm, 0.4, clip=(0.0, 1.0))
        x, inside = free.sample(z, 500, rng(2)), ball.sample(z, 500, rng(2))
        assert np.array_equal(arrays.numpy(inside), np.clip(arrays.numpy(x), 0, 1))
        assert bool(arrays.xp.all(ball.contains(inside, z[:, None, :])))
        assert 100 < int(np.sum(arrays.numpy(inside)[..., 0] == 0)) < 400  # half of it, about


@pytest.mark.parametrize(("n", "d"), [(64, 2), (64, 10), (16, 784)])
@pytest.mark.parametrize("norm", NORMS)
def test_quasi_random_points_fill_the_ball_more_evenly(norm: float, n: int, d: int) -> None:
    """The mean of a smooth function varies less over Sobol points, and over pairs where it is odd."""

    def spread(**how: bool) -> float:
        x = Ball(norm, 1.0).sample(np.zeros((400, d)), n, rng(5), **how)
        t = x.sum(axis=-1) / sqrt(float(Ball(norm, 1.0).variance(np.ones(d))))
        return float((t + 0.1 * t**2).mean(axis=1).std())

    # The variance of a sample variance over 400 entries is 0.5 %: a factor of 1.5 is far beyond chance.
    assert spread(antithetic=True) < spread() / 1.5
    assert spread(qmc=True) < spread() / 1.5


def test_quasi_random_entries_differ_and_repeat_with_the_seed() -> None:
    z = np.zeros((3, 2))
    x = Ball(2, 1.0).sample(z, 8, rng(0), qmc=True)
    assert len(np.unique(x[:, :, 0])) == 24
    assert np.array_equal(x, Ball(2, 1.0).sample(z, 8, rng(0), qmc=True))
    assert not np.array_equal(x, Ball(2, 1.0).sample(z, 8, rng(1), qmc=True))


def test_quasi_random_points_say_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "scipy"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "scipy", None)
    with pytest.raises(ImportError, match=r"phiball\[verify\]"):
        Ball(2, 1.0).sample(np.zeros((1, 2)), 4, rng(0), qmc=True)


def test_too_many_dimensions_for_sobol() -> None:
    with pytest.raises(ValueError, match="21201"):
        Ball(2, 1.0).sample(np.zeros((1, 21201)), 1, rng(0), qmc=True)


def test_the_gaussian_law(arrays: Arrays) -> None:
    z = arrays.asarray(np.full((4, 2, 2), 3.0))
    x = Gaussian(0.5).sample(z, 800, rng(0), event_ndim=2)
    assert tuple(x.shape) == (4, 800, 2, 2)
    assert x.dtype == arrays.dtype
    b = (arrays.numpy(x).astype(float) - 3) / 0.5
    assert stats.kstest(b.ravel(), "norm").pvalue > LEVEL


@pytest.mark.parametrize(
    ("make", "error", "says"),
    [
        (lambda: Ball(0.5, 1.0), ValueError, "norm is 0.5"),
        (lambda: Ball(float("nan"), 1.0), ValueError, "norm is nan"),
        (lambda: Ball("2", 1.0), TypeError, "norm is '2'; expected a number of at least 1, or math.inf"),
        (lambda: Ball(2, -1.0), ValueError, "radius is -1.0"),
        (lambda: Ball(2, inf), ValueError, "radius is inf"),
        (lambda: Ball(2, None), TypeError, "radius is None"),
        (lambda: Ball(2, 1.0, clip=(1.0, 0.0)), ValueError, "clip is"),
        (lambda: Ball(2, 1.0, clip=3), ValueError, "clip is 3"),
        (lambda: Gaussian(-0.1), ValueError, "scale is -0.1"),
    ],
)
def test_what_is_no_ball(make: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        make()


@pytest.mark.parametrize(
    ("z", "n", "how", "error", "says"),
    [
        (np.zeros((2, 3)), 0, {}, ValueError, "n is 0"),
        (np.zeros((2, 3)), 2.0, {}, ValueError, "n is 2.0"),
        (np.zeros((2, 3)), 2, {"event_ndim": 3}, ValueError, "event_ndim is 3"),
        (np.zeros((2, 3), dtype=int), 2, {}, TypeError, "z has dtype"),
        ([[0.0]], 2, {}, TypeError, "z is"),
        (np.zeros((2, 0)), 2, {}, ValueError, "at least one coordinate"),
    ],
)
def test_what_cannot_be_sampled(
    z: Any, n: Any, how: dict[str, int], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        Ball(2, 1.0).sample(z, n, rng(0), **how)


def test_a_source_of_random_numbers_that_is_none() -> None:
    for law in (Ball(2, 1.0), Gaussian(1.0)):
        with pytest.raises(TypeError, match=r"expected what phiball.backends.rng\(seed\) makes"):
            law.sample(np.zeros((1, 2)), 2, np.random.default_rng(0))


def test_nan_is_refused() -> None:
    with pytest.raises(ValueError, match="z contains NaN"):
        Ball(2, 1.0).sample(np.array([[np.nan]]), 2, rng(0))


def test_data_outside_the_box_is_refused() -> None:
    with pytest.raises(ValueError, match="leaves the box"):
        Ball(2, 1.0, clip=(0.0, 1.0)).sample(np.array([[1.5]]), 2, rng(0))

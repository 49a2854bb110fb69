"""A ball with feature_scale is a plain ball of the free coordinates, multiplied by their scales."""

import pickle
from dataclasses import replace
from functools import partial
from math import inf
from typing import Any

import numpy as np
import pytest
from scipy import stats

from phiball import ENTROPIC, QUADRATIC, RTMLMC, SG, Ball, RegularizedLoss, Tilted, Uniform, fgm, pgm
from phiball.backends import rng
from phiball.refimpl.linear import LinearProblem
from phiball.refimpl.optimize import onto_ball
from phiball.refimpl.risk import adversarial_risk, robust_risk, worst_case_density, worst_case_sample
from phiball.refimpl.theory import r2, r3, surrogate
from tests.support.arrays import Arrays
from tests.support.distributions import ANY_NORM, NORMS

SCALE = np.array([2.0, 0.0, 0.5, 1.0, 0.0, 3.0])
FREE = np.flatnonzero(SCALE)
MASK = np.array(
    [[1, 1, 1, 1, 1, 0], [1, 0, 0, 0, 0, 0], [1, 0, 1, 0, 1, 0], [0, 0, 0, 0, 0, 0], [1, 1, 1, 0, 0, 0]]
)


def normal(seed: int, *shape: int) -> Any:
    return np.random.default_rng(seed).normal(size=shape)


def test_samples_are_scaled_samples_of_the_plain_ball(arrays: Arrays) -> None:
    z, s = normal(0, 3, 6), normal(1, 3, 6)
    for norm in ANY_NORM:
        ball, plain = Ball(norm, 0.7, feature_scale=SCALE), Ball(norm, 0.7)
        zeros = arrays.asarray(np.zeros((3, len(FREE))))
        for how in ({}, {"antithetic": True}, {"qmc": True}):
            b = np.zeros((3, 8, 6))
            b[..., FREE] = SCALE[FREE] * arrays.numpy(plain.sample(zeros, 8, rng=rng(5), **how))
            x = ball.sample(arrays.asarray(z), 8, rng=rng(5), **how)
            assert x.dtype == arrays.dtype
            assert np.allclose(arrays.numpy(x), z[:, None] + b, atol=20 * arrays.eps)
            assert bool(arrays.xp.all(ball.contains(x, arrays.asarray(z[:, None]))))
        if norm in NORMS:
            tilts = arrays.asarray((SCALE * s)[:, FREE])
            b[..., FREE], log_w = (arrays.numpy(a) for a in plain.sample_tilted(zeros, tilts, 8, rng=rng(6)))
            x, found = ball.sample_tilted(arrays.asarray(z), arrays.asarray(s), 8, rng=rng(6))
            assert np.allclose(arrays.numpy(x), z[:, None] + SCALE * b, atol=20 * arrays.eps)
            assert np.allclose(arrays.numpy(found), log_w, atol=20 * arrays.eps)


@pytest.mark.parametrize("norm", NORMS)
def test_geometry_and_moments_are_those_of_the_scaled_plain_ball(arrays: Arrays, norm: float) -> None:
    g, z = normal(2, 4, 6), normal(3, 4, 6)
    plain, ball = Ball(norm, 0.7), Ball(norm, 0.7, feature_scale=SCALE)
    close: dict[str, Any] = {"rtol": 50 * arrays.eps, "atol": 50 * arrays.eps}
    like, free_gradient = arrays.asarray(g), (SCALE * g)[:, FREE]
    for name in ("dual_norm", "variance", "log_mgf"):
        found = arrays.numpy(getattr(ball, name)(like))
        assert np.allclose(found, getattr(plain, name)(free_gradient), **close), name
    b = np.zeros((4, 6))
    b[:, FREE] = SCALE[FREE] * plain.steepest(free_gradient)
    steepest = arrays.numpy(ball.steepest(like))
    assert np.allclose(steepest, b, **close)
    assert np.allclose((g * steepest).sum(-1), 0.7 * arrays.numpy(ball.dual_norm(like)), **close)
    x = z + 3 * normal(4, 4, 6)
    b[:, FREE] = SCALE[FREE] * plain.project(((x - z) / np.where(SCALE, SCALE, 1))[:, FREE], np.zeros((4, 4)))
    nearest = ball.project(arrays.asarray(x), arrays.asarray(z))
    assert np.allclose(arrays.numpy(nearest), z + b, **close)
    assert bool(arrays.xp.all(ball.contains(nearest, arrays.asarray(z))))
    within = z + 0.1 * b
    assert np.allclose(arrays.numpy(ball.project(arrays.asarray(within), arrays.asarray(z))), within, **close)
    inside = np.where(SCALE > 0, x, z)
    expected = plain.length(((inside - z) / np.where(SCALE, SCALE, 1))[:, FREE])
    moved = arrays.asarray(inside - z)
    assert np.allclose(arrays.numpy(ball.length(moved)), expected, **close)
    assert np.all(arrays.numpy(ball.length(arrays.asarray(x - z))) == inf)
    assert not bool(arrays.xp.any(ball.contains(arrays.asarray(z + 1e-6), arrays.asarray(z))))


@pytest.mark.parametrize("norm", NORMS)
def test_project_stays_in_the_box(norm: float) -> None:
    z = np.full((50, 6), 0.9)
    ball = Ball(norm, 0.5, clip=(0.0, 1.0), feature_scale=SCALE)
    x = ball.project(z + 3 * normal(8, 50, 6), z)
    assert np.all((x >= 0) & (x <= 1))
    assert np.any(x == 1)
    assert np.all(ball.contains(x, z))


@pytest.mark.parametrize("norm", NORMS)
def test_mask_may_differ_between_data_points(norm: float) -> None:
    """With m free coordinates, |b|^m is uniform on (0, 1)."""
    ball = Ball(norm, 0.5, feature_scale=np.array([1.0, 2.0, 1.0, 1.0, 4.0, 1.0])).masked(MASK)
    z, s, n = normal(5, 5, 6), normal(6, 5, 6), 4000
    sizes, counts = ball.feature_scale.values, MASK.sum(-1)
    x = ball.sample(z, n, rng=rng(1))
    tilted, log_w = ball.sample_tilted(z, s, n, rng=rng(2))
    for k, m in enumerate(counts):
        free = MASK[k] > 0
        for points in (x, tilted):
            assert np.array_equal(points[k][:, ~free], np.broadcast_to(z[k, ~free], (n, 6 - m)))
        if m:
            b = (x[k] - z[k])[:, free] / sizes[k, free]
            size = (Ball(norm, 1.0).length(b) / 0.5) ** m
            assert stats.kstest(size, "uniform").pvalue > 1e-4
            assert abs(np.sign(b).mean()) < 5 / (n * m) ** 0.5
        whole = Ball(norm, 0.5).log_mgf((sizes * s)[k, free]) if m else 0.0
        assert np.allclose(log_w[k], whole - (tilted[k] - z[k]) @ s[k], atol=1e-10)
        # The moments of a row depend on its free coordinates alone.
        alone = Ball(norm, 0.5, feature_scale=sizes[k])
        for name in ("dual_norm", "variance", "log_mgf", "steepest"):
            assert np.allclose(getattr(ball, name)(s)[k], getattr(alone, name)(s[k]), rtol=1e-13), name


def test_training_losses_and_risks_respect_the_mask_of_each_data_point() -> None:
    z = normal(7, 5, 6)
    ball = Ball(2, 0.5).masked(MASK)

    def checked_loss(x: Any, i: Any) -> Any:
        assert np.all((x == z[i]) | (MASK[i] > 0))
        return x @ np.arange(1.0, 7.0)

    def checked_gradient(x: Any, i: Any) -> Any:
        assert i is None or np.all((x == z[i]) | (MASK[i] > 0))
        return np.broadcast_to(np.arange(1.0, 7.0), x.shape)

    for estimator in (SG(0), SG(3), RTMLMC(4)):
        for proposal in (
            Uniform(antithetic=True),
            Tilted(start="uniform", gradient=checked_gradient),
            Tilted(kappa=1.0, retilt=1, gradient=checked_gradient),
        ):
            objective = RegularizedLoss(ball, 0.3, ENTROPIC, estimator, proposal)
            for seed in range(3):
                objective(checked_loss, z, rng=rng(seed))
    exact = checked_loss(z, np.arange(5)) + surrogate(checked_gradient(z, None), ball, 0.3, ENTROPIC)
    tilted = RegularizedLoss(ball, 0.3, ENTROPIC, SG(0), Tilted(gradient=checked_gradient))
    value = tilted(checked_loss, z, rng=rng(0))
    assert value == pytest.approx(exact.mean(), rel=1e-12)  # a linear loss is exact from one point
    method = Tilted(gradient=checked_gradient)
    risk = robust_risk(checked_loss, z, ball, 0.3, n_samples=3000, rng=rng(0), method=method)
    assert np.allclose(risk.values, exact, rtol=1e-12)
    robust_risk(checked_loss, z, ball, 0.3, QUADRATIC, n_samples=2000, rng=rng(0), chunk=500)
    worst_case_sample(checked_loss, z, ball, 0.3, QUADRATIC, size=20, n_samples=50, rng=rng(0))
    top = checked_loss(z, np.arange(5)) + r2(checked_gradient(z, None), ball)
    worst = adversarial_risk(
        checked_loss, z, ball, n_samples=2000, rng=rng(0), attack=partial(pgm, gradient=checked_gradient)
    )
    for values in (worst.values, checked_loss(fgm(None, z, ball, gradient=checked_gradient), np.arange(5))):
        assert np.allclose(values, top, rtol=1e-12)


def test_volumes_regularizers_and_quadrature_respect_feature_scale() -> None:
    sizes = np.array([[0.5, 2.0, 1.0], [1.0, 4.0, 0.25]])
    z = normal(10, 3, 2, 3)
    ball = Ball(2, 0.5, feature_scale=sizes)
    rows = Ball(2, 0.5, feature_scale=[[1.0], [2.0]])  # one scale per row
    assert np.allclose(rows.dual_norm(z, event_ndim=2), np.sqrt((z[:, 0] ** 2 + 4 * z[:, 1] ** 2).sum(-1)))
    assert ball.log_volume(6) == pytest.approx(Ball(2, 0.5).log_volume(6) + np.log(sizes).sum())
    assert Ball(1, 0.5, feature_scale=3.0).log_volume(4) == pytest.approx(Ball(1, 1.5).log_volume(4))
    assert Ball(inf, 0.5, feature_scale=[1.0, 0.0]).log_volume(2) == -inf
    g = normal(11, 4, 6)
    free_gradient, plain = (SCALE * g)[:, FREE], Ball(2, 0.7)
    for phi in (ENTROPIC, QUADRATIC):
        for function in (surrogate, r3):
            assert np.allclose(
                function(g, Ball(2, 0.7, feature_scale=SCALE), 0.3, phi),
                function(free_gradient, plain, 0.3, phi),
            )
    assert np.all(surrogate(g, Ball(2, 0.7, feature_scale=0 * SCALE), 0.3, QUADRATIC) == 0)
    line, wide = (
        robust_risk(lambda x, i: x[:, 0] ** 2, z[:, 0, :1], ball, 0.3, QUADRATIC, method="quadrature")
        for ball in (Ball(2, 0.5, feature_scale=[3.0]), Ball(2, 1.5))
    )
    assert float(line.value) == pytest.approx(float(wide.value), rel=1e-13)
    small, large = Ball(2, 1.0, feature_scale=0.5), Ball(2, 0.5)
    x = np.array([[3.0, 4.0]])
    assert np.allclose(small.project(x, 0 * x), large.project(x, 0 * x))


@pytest.mark.slow
def test_log_mgf_and_variance_are_differentiable() -> None:
    torch = pytest.importorskip("torch", reason="torch: not installed")
    g = torch.tensor(normal(12, 5, 6), requires_grad=True)
    for norm in NORMS:
        ball = Ball(norm, 0.5, feature_scale=SCALE).masked(MASK)
        for function in (ball.log_mgf, ball.variance):
            assert torch.autograd.gradcheck(function, g, fast_mode=True)


def test_balls_are_comparable_printable_and_picklable() -> None:
    ball = Ball(2, 0.5, feature_scale=[1, 0, 2])
    assert repr(ball) == "Ball(norm=2.0, radius=0.5, feature_scale=[1.0, 0.0, 2.0])"
    assert repr(Ball(2, 0.5, (0, 1))) == "Ball(norm=2.0, radius=0.5, clip=(0.0, 1.0))"
    assert "(5, 6), 18 of them 0" in repr(Ball(2, 1.0).masked(MASK))
    np.testing.assert_array_equal(Ball(2, 1.0).masked(MASK).feature_scale.values, MASK)
    same = Ball(2, 0.5, feature_scale=np.array([1.0, 0.0, 2.0]))
    assert ball == same
    assert hash(ball) == hash(same)
    assert ball != replace(ball, feature_scale=[1, 0, 3])
    assert ball != Ball(2, 0.5)
    assert pickle.loads(pickle.dumps(ball)) == ball
    torch = pytest.importorskip("torch", reason="torch: not installed")
    assert Ball(2, 0.5, feature_scale=torch.tensor([1.0, 0.0, 2.0], dtype=torch.bfloat16)) == ball


def test_invalid_or_unsupported_feature_scale_raises() -> None:
    z, ball = np.zeros((4, 3)), Ball(2, 0.5, feature_scale=np.ones(3))

    def loss(x: Any, i: Any) -> Any:
        return x[:, 0]

    def scaled_ball(scale: Any) -> Ball:
        return Ball(2, 0.5, feature_scale=scale)

    for scale in ("l2", ["a"], [[1.0], [1.0, 2.0]], [1j], object()):
        with pytest.raises(TypeError, match="scale is"):
            scaled_ball(scale)
    for call, message in (
        *((partial(scaled_ball, bad), "scale is") for bad in ([-1.0], [np.nan], [inf], [])),
        *(
            (lambda bad=bad: scaled_ball(bad).sample(z, 2, rng=rng(0)), "scale has shape")
            for bad in ([1.0, 2.0], MASK)
        ),
        # feature_scale does not broadcast along the axis of samples.
        (lambda: scaled_ball(np.ones((4, 3))).contains(np.zeros((4, 4, 3)), z), "scale has shape"),
        (lambda: ball.masked(np.ones(4)), "mask has shape"),
        (lambda: onto_ball(ball), "without clip and feature_scale"),
        (lambda: LinearProblem("logistic", ball, eta=1.0), "expected feature_scale= of the problem"),
        (
            lambda: worst_case_density(loss, z, ball, 1.0, ENTROPIC, at=z, n_samples=4, rng=rng(0)),
            "without clip or feature_scale",
        ),
        (
            lambda: robust_risk(loss, z[:, :2], scaled_ball([1.0, 0.0]), 1.0, method="quadrature"),
            "expected a positive feature_scale",
        ),
        (
            lambda: surrogate(np.ones((5, 6)), Ball(2, 0.5).masked(MASK), 1.0, QUADRATIC),
            "expected the same number of free coordinates",
        ),
        (lambda: ball.log_volume(4), "expected one per dimension"),
    ):
        with pytest.raises(ValueError, match=message):
            call()

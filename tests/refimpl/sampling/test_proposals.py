"""Tilted proposals are exact for linear losses and have the right weights for others.

Every statistical test here has a fixed seed and a significance level of 1e-6.
"""

from dataclasses import replace
from functools import partial
from math import inf, sqrt
from typing import Any

import numpy as np
import pytest

from phiball import ENTROPIC, HINGE, QUADRATIC, RTMLMC, SG, Divergence, RegularizedLoss, Tilted, indicator
from phiball.backends import rng
from phiball.refimpl.distributions import Ball, Gaussian
from phiball.refimpl.risk import robust_risk
from phiball.verification.oracles import exact_solver as oracles
from tests.support.arrays import Arrays
from tests.support.distributions import DISTRIBUTIONS, ESTIMATORS
from tests.support.tilting_distributions import THETA, in_theta, in_x, linear_value, model

ETA = 0.3


def linear_problem(arrays: Arrays, event: tuple[int, ...]) -> tuple[Any, Any, Any, Any]:
    """Data points, the slope of each one's linear loss, the loss and its gradient in x."""
    g = np.random.default_rng(1)
    z, slopes = g.normal(size=(5, *event)), 2 * g.normal(size=(5, *event))
    a, xp = arrays.asarray(slopes), arrays.xp

    def loss(x: Any, i: Any) -> Any:
        rows = xp.reshape(x * xp.take(a, i, axis=0), (x.shape[0], -1))
        return xp.sum(rows, axis=-1)

    return z, slopes, loss, lambda x, i: xp.take(a, i, axis=0)


@pytest.mark.parametrize("distribution", DISTRIBUTIONS, ids=str)
def test_value_of_a_linear_loss_is_exact_from_one_point(distribution: Any, doubles: Arrays) -> None:
    for event, estimator in zip([(), (3,), (2, 1, 2), (3,)], ESTIMATORS, strict=True):
        z, slopes, loss, slope = linear_problem(doubles, event)
        x = doubles.asarray(z)
        pairs = zip(slopes, z, strict=True)
        exact_values = [float((a * b).sum()) + linear_value(distribution, a.ravel(), ETA) for a, b in pairs]
        slack = 200 * doubles.eps * np.abs(exact_values).max()  # for sums of a few terms and division by P(l)
        objective = RegularizedLoss(distribution, ETA, ENTROPIC, estimator, Tilted(gradient=slope))
        value = objective(loss, x, rng=rng(2))
        signed = objective.points(loss, x, rng=rng(2))
        assert value.dtype == signed.value.dtype == signed.log_weights.dtype == doubles.dtype
        assert tuple(signed.points.shape[1:]) == event
        count = np.bincount(doubles.numpy(signed.index), minlength=5)
        share = np.ones(5)
        if isinstance(estimator, RTMLMC):  # levels above 0 contribute zero
            share = (count == 1) / estimator.probabilities[0]
        assert abs(float(value) - share @ exact_values / 5) <= slack
        assert abs(float(signed.value) - share @ exact_values / 5) <= slack
        # All points of a data point have equal weights, because the corrected losses are equal.
        w = doubles.numpy(signed.weights)
        if isinstance(estimator, SG):
            assert np.allclose(w, 1 / len(w), rtol=200 * doubles.eps)


@pytest.mark.parametrize("distribution", DISTRIBUTIONS[:3], ids=str)
def test_kappa_sets_eta_from_the_gradient(distribution: Ball, doubles: Arrays) -> None:
    """eta_z = rho |g|_* / (kappa d), except that the objective's eta is used where g = 0."""
    kappa, xp = 0.4, doubles.xp
    slopes = np.array([[3.0, -4.0, 0.0], [0.0, 0.0, 0.0], [1e-3, 0.0, 2e-3], [-500.0, 1.0, 1.0]])
    exact = []

    def objective(gradient: Any) -> RegularizedLoss:
        return RegularizedLoss(distribution, ETA, ENTROPIC, SG(2), Tilted(kappa=kappa, gradient=gradient))

    for g in slopes:
        size = {1: np.abs(g).max(), 2: sqrt(g @ g), inf: np.abs(g).sum()}[distribution.norm]
        exact.append(linear_value(distribution, g, 0.5 * size / (kappa * 3)) if size else 0.0)
    for rows in ([0], [1], [2], [3], [0, 1, 2, 3]):
        a, want = doubles.asarray(slopes[rows]), np.mean([exact[k] for k in rows])
        value = objective(lambda x, i, a=a: xp.take(a, i, axis=0))(
            lambda x, i, a=a: xp.sum(x * xp.take(a, i, axis=0), axis=-1),
            doubles.asarray(np.zeros((len(rows), 3))),
            rng=rng(8),
        )
        assert abs(float(value) - want) <= 100 * doubles.eps * max(want, 1e-30)
    # At z = 0 the gradient of |x|^2 is 0, so that the points are uniform and eta is the objective's.
    z = doubles.asarray(np.zeros((2, 3)))
    signed = objective(lambda x, i: 2 * x).points(lambda x, i: xp.sum(x * x, axis=-1), z, rng=rng(9))
    f = doubles.numpy(signed.losses).reshape(2, 4)
    want = ETA * np.log(np.exp(f / ETA).mean(axis=1)).mean()
    assert abs(float(signed.value) - want) <= 50 * doubles.eps


@pytest.mark.parametrize("norm", [1, 2, inf])
def test_kappa_counts_only_coordinates_with_positive_feature_scale(norm: float) -> None:
    """With feature scales sigma, m of them positive, eta_z = rho |sigma g|_* / (kappa m)."""
    kappa, scale, g = 0.4, np.array([1.0, 0.0, 2.0]), np.array([3.0, 7.0, -1.0])
    moved = (scale * g)[scale > 0]
    size = {1: np.abs(moved).max(), 2: sqrt(moved @ moved), inf: np.abs(moved).sum()}[norm]
    proposal = Tilted(kappa=kappa, gradient=lambda x, i: g + 0 * x)
    ball = Ball(norm, 0.5, feature_scale=scale)
    value = RegularizedLoss(ball, ETA, ENTROPIC, SG(2), proposal)(
        lambda x, i: x @ g, np.zeros((2, 3)), rng=rng(8)
    )
    exact = linear_value(Ball(norm, 0.5), moved, 0.5 * size / (kappa * 2))
    assert float(value) == pytest.approx(float(exact), rel=1e-12)


@pytest.mark.parametrize("estimator", [SG(2), RTMLMC(2), RTMLMC(2, "stratified")], ids=str)
@pytest.mark.parametrize(
    ("distribution", "how", "d"),
    [
        *((distribution, Tilted(retilt=1), ENTROPIC) for distribution in DISTRIBUTIONS),
        *(
            (Ball(2, 0.7), Tilted(self_normalised=True), d)
            for d in (QUADRATIC, indicator(0.3), HINGE, ENTROPIC)
        ),
    ],
)
def test_signed_points_have_exact_weights(
    distribution: Any, how: Tilted, d: Divergence, estimator: Any
) -> None:
    """The weights solve the inner problem with p proportional to nu/q.

    For RT-MLMC, half the solution on each half of the points is subtracted from the solution on all points.
    """
    n = 30
    x = np.random.default_rng(4).normal(size=(n, 2))
    tilted = replace(how, gradient=partial(in_x, THETA))
    objective = RegularizedLoss(distribution, ETA, d, estimator, tilted)
    signed = objective.points(loss, x, rng=rng(10))
    found = objective.gradient(THETA, model, in_theta, x, rng=rng(10))
    assert np.allclose(found, signed.weights @ in_theta(THETA, signed.points, None), atol=1e-13)
    assert np.array_equal(signed.losses, loss(signed.points, None))
    total = 0.0
    sample_sizes = set()
    for k in range(n):
        mine = signed.index == k
        f, w = signed.losses[mine], np.exp(signed.log_weights[mine])
        m = len(f)
        sample_sizes.add(m)

        def solve(part: slice, f: Any = f, w: Any = w) -> tuple[float, Any]:
            mass = w[part].sum()
            answer = oracles.solve_exactly(f[part], ETA, d.family or "", d.parameter, p=w[part] / mass)
            shift = 0.0 if how.self_normalised else ETA * np.log(mass / len(w[part]))
            return float(answer.value) + shift, np.array([float(w) for w in answer.weights])

        value, weights = solve(slice(m))
        if isinstance(estimator, RTMLMC):
            if m > 1:
                parts = [solve(slice(m // 2)), solve(slice(m // 2, m))]
                value -= (parts[0][0] + parts[1][0]) / 2
                weights = weights - np.concatenate([w for _, w in parts]) / 2
            scale = 1 / estimator.probabilities[m.bit_length() - 1]
            value, weights = scale * value, scale * weights
        assert np.allclose(n * signed.weights[mine], weights, atol=1e-11)
        total += value / n
    assert abs(float(signed.value) - total) < 1e-12
    assert len(sample_sizes) == (1 if isinstance(estimator, SG) else 3)
    assert np.ptp(signed.log_weights) > 0.5  # the proposal is not uniform


class RecordedGradient:
    """A gradient function that records its arguments."""

    def __init__(self, function: Any) -> None:
        self.function = function
        self.at: list[Any] = []
        self.of: list[Any] = []

    def __call__(self, x: Any, i: Any) -> Any:
        self.at.append(x.copy())
        self.of.append(i.copy())
        return self.function(x, i)


def loss(x: Any, i: Any) -> Any:
    return model(THETA, x, i)


@pytest.mark.parametrize("distribution", DISTRIBUTIONS, ids=str)
def test_gradient_is_recomputed_at_tilted_points(distribution: Any) -> None:
    """The first gradient is at the data points, each later one at points drawn from the previous tilt."""
    retilt = 2
    x = np.random.default_rng(5).normal(size=(7, 2))
    slope = RecordedGradient(lambda x, i: in_x(THETA, x, i))
    objective = RegularizedLoss(distribution, ETA, ENTROPIC, SG(1), Tilted(retilt=retilt, gradient=slope))
    signed = objective.points(loss, x, rng=rng(11))
    assert len(slope.at) == 1 + retilt
    assert np.array_equal(slope.at[0], x)
    assert all(np.array_equal(i, np.arange(7)) for i in slope.of)
    source = rng(11)  # SG uses no random numbers for its levels
    s = in_x(THETA, x, None) / ETA
    for k in range(retilt):
        points, _ = distribution.sample_tilted(x, s, 1, rng=source)
        assert np.array_equal(slope.at[k + 1], points[:, 0])
        s = in_x(THETA, points[:, 0], None) / ETA
    points, log_w = distribution.sample_tilted(x, s, 2, rng=source)
    assert np.array_equal(signed.points, points.reshape(14, 2))
    assert np.array_equal(signed.log_weights, log_w.ravel())


class UntiltableDistribution:
    """A distribution that can be sampled but not tilted."""

    def sample(self, x: Any, n_samples: int, *, rng: Any, event_ndim: int = 1) -> Any:
        return np.repeat(x[:, None], n_samples, axis=1)


def objective(how: Any, distribution: Any = None, divergence: Divergence = ENTROPIC) -> RegularizedLoss:
    return RegularizedLoss(distribution or Ball(2, 1.0), ETA, divergence, SG(1), how)


X = np.zeros((3, 2))


def call(slope: Any) -> Any:
    return objective(Tilted(gradient=slope))(loss, X, rng=rng(0))


def risk_with(how: Any) -> Any:
    return robust_risk(loss, X, Ball(2, 1.0), ETA, ENTROPIC, n_samples=4, rng=rng(0), method=how)


def test_invalid_proposals_and_gradients_raise() -> None:
    cases: list[tuple[Any, Any, str]] = [
        (lambda: Tilted(kappa=0.0), ValueError, "kappa is 0.0"),
        (lambda: Tilted(kappa="1"), TypeError, "kappa is '1'"),
        (lambda: Tilted(retilt=-1), ValueError, "retilt is -1"),
        (lambda: Tilted(start="random"), ValueError, "start is 'random'"),
        (lambda: objective(Tilted), TypeError, r"expected Uniform\(\) or Tilted\(\)"),
        (lambda: objective(None), TypeError, r"expected Uniform\(\) or Tilted\(\)"),
        (lambda: objective(Tilted(), Ball(3, 1.0)), ValueError, "expected norm 1, 2 or inf"),
        (lambda: objective(Tilted(kappa=1.0), Gaussian(1.0)), ValueError, "kappa is 1.0; expected None"),
        (lambda: objective(Tilted(kappa=1.0), Ball(2, 0.0)), ValueError, "kappa is 1.0; expected None"),
        (lambda: objective(Tilted(), UntiltableDistribution()), TypeError, "expected a Ball or a Gaussian"),
        (lambda: objective(Tilted(), divergence=QUADRATIC), ValueError, r"Tilted\(self_normalised=True\)"),
        (lambda: call(None), TypeError, "gradient is None and x is a numpy array"),
        (lambda: call(3.0), TypeError, "gradient is 3.0; expected a function"),
        (lambda: call(lambda x, i: x[:, 0]), ValueError, "has shape .*, as x"),
        (lambda: call(lambda x, i: x.tolist()), TypeError, "expected an array"),
        (lambda: call(lambda x, i: x.astype(int)), TypeError, "has dtype int64"),
        (lambda: call(lambda x, i: x + np.nan), ValueError, "contains NaN or infinity"),
        (lambda: call(lambda x, i: x + 1e308), ValueError, "overflows float64: increase eta"),
        (lambda: risk_with(Tilted()), TypeError, "gradient is None and x is a numpy array"),
        (lambda: risk_with(Tilted), TypeError, r"expected Uniform\(\), Tilted\(\) or 'quadrature'"),
        (
            lambda: objective(Tilted()).gradient(THETA, model, lambda t, x, i: x, X, rng=rng(0)),
            TypeError,
            r"expected a function gradient\(x, i\), or arrays of torch or JAX",
        ),
    ]
    for call_it, error, message in cases:
        with pytest.raises(error, match=message):
            call_it()


def draw_around_zero(distribution: Any, how: Tilted, n: int, level: int) -> tuple[Any, Any]:
    """Signed points for the loss |x|^2 at n data points, all 0, and the points of the first gradients."""
    slope = RecordedGradient(lambda x, i: 2 * x)
    given = RegularizedLoss(distribution, ETA, ENTROPIC, SG(level), replace(how, gradient=slope))
    signed = given.points(lambda x, i: (x * x).sum(-1), np.zeros((n, 2)), rng=rng(1))
    assert sum(map(len, slope.at)) == n * (1 + how.retilt)
    return signed, slope.at[0]


@pytest.mark.parametrize("distribution", DISTRIBUTIONS, ids=str)
def test_random_start_has_exact_weights(distribution: Any) -> None:
    """log w = log E exp(s.b) - s.b, where the tilt s is the gradient at the start divided by eta."""
    assert not draw_around_zero(distribution, Tilted(), 3, 1)[1].any()  # the default start is the data point
    signed, starts = draw_around_zero(distribution, Tilted(start="uniform"), 5, 1)
    assert np.array_equal(starts, distribution.sample(np.zeros((5, 2)), 1, rng=rng(1))[:, 0])
    s = np.repeat(2 * starts / ETA, 2, axis=0)  # two points per start, tilted around 0
    moments = [float(linear_value(distribution, a, 1.0)) for a in s]
    assert np.allclose(signed.log_weights, moments - (s * signed.points).sum(-1), atol=1e-9)


def test_random_start_with_kappa_has_a_random_eta() -> None:
    distribution, kappa = Ball(inf, 0.5), 2.0
    signed, starts = draw_around_zero(distribution, Tilted(kappa=kappa, start="uniform"), 6, 0)
    eta = 0.5 * np.abs(2 * starts).sum(-1) / (kappa * 2)  # rho |g|_1 / (kappa d) of each start
    assert np.ptp(eta) > 0.05
    exact_values = signed.losses + eta * signed.log_weights  # of one point per data point (level 0)
    assert float(signed.value) == pytest.approx(exact_values.mean())
    moments = [float(linear_value(distribution, a, 1.0)) for a in 2 * starts / eta[:, None]]
    exponent = (2 * starts / eta[:, None] * signed.points).sum(-1)
    assert np.allclose(signed.log_weights, moments - exponent, atol=1e-9)

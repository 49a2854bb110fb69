"""SG and RT-MLMC: signed weights, levels and costs."""

from typing import Any

import numpy as np
import pytest
from scipy.special import logsumexp, softmax

from phiball import ENTROPIC, QUADRATIC, RTMLMC, SG, Ball, Divergence, Gaussian, RegularizedLoss, Uniform
from phiball.backends import rng
from phiball.refimpl.sampling import signed_weights
from phiball.verification.oracles import exact_solver as oracles
from tests.support.arrays import Arrays
from tests.support.divergences import on_each


def loss(theta: Any, x: Any, i: Any) -> Any:
    """A loss nonlinear in theta and x, with a different gradient at each point."""
    return np.sin(3 * x[:, 0] + theta[0]) + theta[1] * x[:, 0] ** 2


def gradient(theta: Any, x: Any, i: Any) -> Any:
    return np.stack([np.cos(3 * x[:, 0] + theta[0]), x[:, 0] ** 2], axis=1)


THETA = np.array([0.4, -0.7])
Z = np.array([[0.1]])


@on_each(core=True)
def test_signed_weights_agree_with_exact_solutions(d: Divergence) -> None:
    """If telescoping, half the solution on each half is subtracted from the solution on all points."""
    f, eta = np.random.default_rng(1).normal(size=(3, 8)), 0.4
    for telescoping in (False, True):
        value, weights = signed_weights(f, eta, d, telescoping=telescoping)
        for k, row in enumerate(f):
            whole, *halves = (
                oracles.solve_exactly(part, eta, d.family or "", d.parameter)
                for part in (row, row[:4], row[4:])
            )
            expected, w = float(whole.value), np.array(whole.weights, dtype=float)
            if telescoping:
                expected -= float(halves[0].value + halves[1].value) / 2
                w -= np.array([*halves[0].weights, *halves[1].weights], dtype=float) / 2
            assert abs(float(value[k]) - expected) < 1e-12
            assert np.abs(weights[k] - w).max() < 1e-12


def test_entropic_signed_weights_are_differences_of_softmax(arrays: Arrays) -> None:
    """This is the paper's equation (expression:G)."""
    f = np.random.default_rng(0).normal(size=(5, 8)) * 3
    value, weights = signed_weights(arrays.asarray(f), 0.7, ENTROPIC, telescoping=True)
    halves = f.reshape(5, 2, 4) / 0.7
    means = 0.7 * (logsumexp(f / 0.7, axis=-1) - logsumexp(halves, axis=-1).mean(axis=-1) - np.log(2))
    assert np.allclose(arrays.numpy(value), means, atol=60 * arrays.eps)
    expected = softmax(f / 0.7, axis=-1) - softmax(halves, axis=-1).reshape(5, 8) / 2
    assert np.allclose(arrays.numpy(weights), expected, atol=60 * arrays.eps)
    assert value.dtype == weights.dtype == arrays.dtype


def test_level_probabilities_are_geometric_and_give_the_evaluations() -> None:
    for level in range(11):
        estimator = RTMLMC(level)
        p = estimator.probabilities
        assert abs(sum(p) - 1) < 1e-15
        assert all(abs(p[k] - 2.0**-k / (2 - 2.0**-level)) < 1e-15 for k in range(level + 1))
        assert abs(sum(q * 2**k for k, q in enumerate(p)) - estimator.evaluations) < 1e-12
        assert SG(level).evaluations == 2**level
    assert abs(RTMLMC(7).evaluations - 1024 / 255) < 1e-12


@pytest.mark.parametrize("allocation", ["random", "stratified"])
def test_levels_have_their_probabilities_at_each_position_of_a_batch(allocation: str) -> None:
    """The significance level is 1e-6."""
    estimator, n, runs = RTMLMC(3, allocation=allocation), 7, 4000
    counts = np.zeros((n, 4))
    source = rng(0)
    like = np.zeros(1)
    for _ in range(runs):
        for group in estimator.assign_levels(n, source, like=like):
            assert group.telescoping
            assert group.weight == 1 / estimator.probabilities[group.level]
            for place in group.members:
                counts[place, group.level] += 1
    assert np.array_equal(counts.sum(axis=1), np.full(n, runs))
    p = np.array(estimator.probabilities)
    z = (counts / runs - p) / np.sqrt(p * (1 - p) / runs)
    assert np.abs(z).max() < 5.5  # 28 comparisons


def test_stratified_level_counts_are_rounded_expectations() -> None:
    """Level l has n P(l) data points, rounded up or down."""
    estimator, source = RTMLMC(7, allocation="stratified"), rng(1)
    for n in (1, 5, 64, 255):
        for _ in range(20):
            groups = estimator.assign_levels(n, source, like=np.zeros(1))
            assert sorted(k for group in groups for k in group.members) == list(range(n))
            sizes = {group.level: len(group.members) for group in groups}
            for level, p in enumerate(estimator.probabilities):
                assert abs(sizes.get(level, 0) - n * p) < 1 + 1e-9


def test_uniform_proposals_draw_from_the_ball() -> None:
    z = np.zeros((3, 2))
    for settings in ({}, {"antithetic": True}, {"qmc": True}, {"antithetic": True, "qmc": True}):
        objective = RegularizedLoss(Ball(2, 1.0), 1.0, ENTROPIC, SG(3), Uniform(**settings))
        points = objective.points(lambda x, i: x[:, 0], z, rng=rng(2)).points
        assert np.array_equal(points.reshape(3, 8, 2), Ball(2, 1.0).sample(z, 8, rng=rng(2), **settings))


def test_value_agrees_with_signed_points_on_every_backend(arrays: Arrays) -> None:
    x = arrays.asarray(np.random.default_rng(0).normal(size=(12, 3)))

    def square(x: Any, i: Any) -> Any:
        return arrays.xp.sum(x * x, axis=-1)

    distributions = (Ball(2, 0.5), Ball(float("inf"), 0.5), Gaussian(0.2))
    for estimator, distribution in zip(
        (SG(2), RTMLMC(4), RTMLMC(4, allocation="stratified")), distributions, strict=True
    ):
        for d in (ENTROPIC, QUADRATIC):
            objective = RegularizedLoss(distribution, 0.5, d, estimator)
            signed = objective.points(square, x, rng=rng(1))
            value = objective(square, x, rng=rng(1))
            assert value.dtype == signed.value.dtype == arrays.dtype
            assert tuple(value.shape) == ()
            assert np.isfinite(arrays.numpy(value))
            # The same seed gives the same points, and the same estimate.
            assert abs(float(value) - float(signed.value)) <= 100 * arrays.eps
            # For SG, the weights of each data point sum to 1/n.
            w = np.zeros(12)
            np.add.at(w, arrays.numpy(signed.index), arrays.numpy(signed.weights).astype(float))
            if isinstance(estimator, SG):
                assert np.allclose(w, 1 / 12, rtol=50 * arrays.eps)


def estimate(loss: Any, x: Any, source: Any = None, **settings: Any) -> Any:
    objective = RegularizedLoss(Ball(2, 1.0), 1.0, ENTROPIC, SG(1))
    source = rng(0) if source is None else source
    return objective.backward(loss, x, rng=source, **settings) if settings else objective(loss, x, rng=source)


def column(x: Any, i: Any) -> Any:
    return x[:, 0]


X, BALL = np.zeros((4, 2)), Ball(2, 1.0)


def test_invalid_arguments_raise() -> None:
    torch = pytest.importorskip("torch", reason="torch: not installed")
    tensor, one = torch.zeros((2, 1)), RegularizedLoss(BALL, 1.0, ENTROPIC, SG(1))
    cases: list[tuple[Any, Any, str]] = [
        (lambda: SG(-1), ValueError, "level is -1"),
        (lambda: RTMLMC(31), ValueError, "level is 31"),
        (lambda: RTMLMC(3, allocation="even"), ValueError, "allocation is 'even'"),
        (lambda: RegularizedLoss(BALL, 0.0, ENTROPIC, SG(1)), ValueError, "eta is 0.0"),
        (lambda: RegularizedLoss(BALL, 1.0, "l2", SG(1)), ValueError, "divergence is 'l2'"),
        (lambda: RegularizedLoss(2.0, 1.0, ENTROPIC, SG(1)), TypeError, "reference is 2.0"),
        (lambda: RegularizedLoss(BALL, 1.0, ENTROPIC, 7), TypeError, "estimator is 7"),
        (lambda: RegularizedLoss(BALL, 1.0, ENTROPIC, SG), TypeError, r"expected SG\(level\)"),
        (
            lambda: RegularizedLoss(Gaussian(1.0), 1.0, ENTROPIC, SG(1), Uniform(qmc=True)),
            ValueError,
            r"which needs a Ball as the reference; expected Uniform\(\)",
        ),
        (lambda: estimate(lambda x, i: x.mean(), X), ValueError, "reduction='none'"),
        (lambda: estimate(lambda x, i: x[:, 0] * np.nan, X), ValueError, "losses contains nan"),
        (lambda: estimate(column, X.astype(int)), TypeError, "x has dtype int64"),
        (lambda: estimate(column, X[:0]), ValueError, "at least one data point"),
        (lambda: estimate(None, X), TypeError, "loss is None"),
        (lambda: estimate(column, [[1.0, 2.0]]), TypeError, r"x is \[\[1.0, 2.0\]\]"),
        (lambda: estimate(column, X, "a"), TypeError, "rng is 'a'; expected"),
        (lambda: estimate(column, X, chunk=8), TypeError, r"has no backward\(\)"),
        (lambda: estimate(column, tensor.clone().requires_grad_(), chunk=8), ValueError, "x requires a grad"),
        (lambda: estimate(lambda x, i: X[:, 0], tensor), TypeError, "is a numpy array and x a torch array"),
        (lambda: estimate(column, tensor, chunk=8, grad_scale="a"), TypeError, "grad_scale is 'a'"),
        (
            lambda: one.gradient(THETA, loss, lambda t, x, i: x[:, 0], Z, rng=rng(0)),
            ValueError,
            r"gradient\(theta, x, i\) has shape \(2,\); expected \(2, 2\)",
        ),
    ]
    for call, error, message in cases:
        with pytest.raises(error, match=message):
            call()


@pytest.mark.parametrize("eta", [np.float32(0.5), np.asarray(0.5)], ids=["float32", "array"])
def test_eta_may_be_a_numpy_scalar(eta: Any) -> None:
    values = [RegularizedLoss(BALL, e, ENTROPIC, SG(2))(column, X, rng=rng(0)) for e in (eta, 0.5)]
    assert values[0] == values[1]

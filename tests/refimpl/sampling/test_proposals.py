"""Tilted proposals in the objective: exact where the loss is linear, right in the mean where it is not.

Every statistical test here has a fixed seed and an error level of one in a million.
"""

from __future__ import annotations

from collections.abc import Callable
from math import exp, inf, log, sqrt
from typing import Any

import numpy as np
import pytest
from scipy import integrate

from phiball.backends import rng
from phiball.refimpl import (
    ENTROPIC,
    RTMLMC,
    SG,
    Ball,
    Gaussian,
    RegularizedLoss,
    Tilted,
)
from tests.support.arrays import Arrays
from tests.support.laws import ESTIMATORS, LAWS, laws
from tests.support.tilting_laws import THETA, Z, in_theta, in_x, linear_value, model

ETA = 0.3


def linear(arrays: Arrays, event: tuple[int, ...]) -> tuple[Any, Any, Any, Any]:
    """Data, slopes of each data point's own linear loss, the loss and its gradient in x."""
    g = np.random.default_rng(1)
    z, slopes = g.normal(size=(5, *event)), 2 * g.normal(size=(5, *event))
    a, xp = arrays.asarray(slopes), arrays.xp

    def loss(x: Any, i: Any) -> Any:
        rows = xp.reshape(x * xp.take(a, i, axis=0), (x.shape[0], -1))
        return xp.sum(rows, axis=-1)

    return z, slopes, loss, lambda x, i: xp.take(a, i, axis=0)


@pytest.mark.parametrize("event", [(), (3,), (2, 1, 2)])
@pytest.mark.parametrize("law", LAWS, ids=str)
def test_a_linear_loss_is_exact_from_one_point(arrays: Arrays, law: Any, event: tuple[int, ...]) -> None:
    z, slopes, loss, slope = linear(arrays, event)
    x = arrays.asarray(z)
    each = [float((a * b).sum()) + linear_value(law, a.ravel(), ETA) for a, b in zip(slopes, z, strict=True)]
    slack = 200 * arrays.eps * np.abs(each).max()  # sums of a few terms, and weights over P(l)
    for estimator in ESTIMATORS:
        objective = RegularizedLoss(law, ETA, ENTROPIC, estimator, Tilted())
        value = objective(loss, x, rng=rng(2), input_gradient=slope)
        signed = objective.points(loss, x, rng=rng(2), input_gradient=slope)
        assert value.dtype == signed.value.dtype == signed.log_weights.dtype == arrays.dtype
        assert tuple(signed.points.shape[1:]) == event
        count = np.bincount(arrays.numpy(signed.index), minlength=5)
        share = np.ones(5)
        if isinstance(estimator, RTMLMC):  # higher levels add nothing: the halves give what the whole gives
            share = (count == 1) / estimator.probabilities[0]
        assert abs(float(value) - share @ each / 5) <= slack
        assert abs(float(signed.value) - share @ each / 5) <= slack
        # All points of a data point weigh the same, whatever their losses are.
        w = arrays.numpy(signed.weights).astype(float)
        if isinstance(estimator, SG):
            assert np.allclose(w, 1 / len(w), rtol=200 * arrays.eps)


# A quadratic loss on the interval: f = 2 x^2 + x at z = 0.2, radius 0.8.
AT, RADIUS = 0.2, 0.8


def curved(x: Any) -> Any:
    return 2 * x**2 + x


def bent(x: Any, i: Any) -> Any:
    return curved(x[:, 0])


def bend(x: Any, i: Any) -> Any:
    return 4 * x + 1


def tilted(f: Callable[[float], float], at: float = AT) -> float:
    """E_q f(b) for b of density proportional to exp(g b/eta), g the slope at `at`, by quadrature."""
    s = (4 * at + 1) / ETA
    whole = 2 * np.sinh(s * RADIUS) / s
    return float(integrate.quad(lambda b: f(b) * exp(s * b) / whole, -RADIUS, RADIUS, epsabs=1e-12)[0])


def adjusted(b: float) -> float:
    """f + eta log(nu/q) at the point b, which is all that one point gives."""
    s = (4 * AT + 1) / ETA
    return float(curved(AT + b) + ETA * (log(np.sinh(s * RADIUS) / (s * RADIUS)) - s * b))


def risk() -> float:
    """eta log E_nu exp(f/eta)."""
    whole = integrate.quad(lambda b: exp(curved(AT + b) / ETA) / (2 * RADIUS), -RADIUS, RADIUS, epsabs=1e-10)
    return ETA * log(whole[0])


def pair() -> float:
    """The mean of what two points give."""

    def of(a: float, b: float) -> float:
        return ETA * np.logaddexp(adjusted(a) / ETA, adjusted(b) / ETA) - ETA * log(2)

    return tilted(lambda a: tilted(lambda b: of(a, b)))


def each_value(objective: RegularizedLoss, n: int, seed: int, **how: Any) -> Any:
    """One value for each of n copies of the data point."""
    signed = objective.points(bent, np.full((n, 1), AT), rng=rng(seed), input_gradient=bend, **how)
    level = objective.estimator.level  # type: ignore[attr-defined]
    order = np.argsort(signed.index, kind="stable")
    rows = (signed.losses / ETA + signed.log_weights)[order].reshape(n, 1 << level)
    return ETA * (np.logaddexp.reduce(rows, axis=1) - log(1 << level)), signed


@pytest.mark.slow
def test_one_point_and_two_have_their_means() -> None:
    """E_q f - eta KL(q | nu) from one point; two give more, and the risk is above both."""
    n = 20_000
    exact = [tilted(adjusted), pair(), risk()]
    assert exact[0] < exact[1] < exact[2]
    found = []
    for level in (0, 1, 3, 6):
        v, signed = each_value(
            RegularizedLoss(Ball(2, RADIUS), ETA, ENTROPIC, SG(level), Tilted()), n >> level, 3
        )
        assert abs(v.mean() - float(signed.value)) < 1e-12
        if level < 2:
            assert abs(v.mean() - exact[level]) < Z * v.std() / sqrt(len(v))
        found.append(v.mean())
    assert found == sorted(found)
    assert abs(found[3] - exact[2]) < 0.2 * (exact[2] - exact[0])
    # The bias is visible, so that the agreement of level 0 with its own mean says something.
    assert exact[2] - exact[0] > 0.1


@pytest.mark.slow
@pytest.mark.parametrize("retilt", [0, 1, 2])
@pytest.mark.parametrize("law", laws(RADIUS, 0.2), ids=str)
def test_the_weights_are_exact_whatever_the_tilt(law: Any, retilt: int) -> None:
    """E exp(value/eta) = E_nu exp(f/eta): importance weights, also where the gradient is taken anew.

    f = x_1^2/2 + x_1 x_2/2 + x_1/2 in the plane, with weights of small variance.
    """
    eta, n, z = 0.8, 8000, np.array([0.2, -0.1])

    def f(x: Any, i: Any) -> Any:
        return x[..., 0] ** 2 / 2 + x[..., 0] * x[..., 1] / 2 + x[..., 0] / 2

    def slope(x: Any, i: Any) -> Any:
        return np.stack([x[:, 0] + x[:, 1] / 2 + 0.5, x[:, 0] / 2], axis=1)

    nodes, shares = np.polynomial.legendre.leggauss(200)
    a, b = np.meshgrid(nodes, nodes, indexing="ij")
    w = np.outer(shares, shares)
    if isinstance(law, Gaussian):
        grid, w = 6 * np.stack([a, b], -1), w * np.exp(-18 * (a**2 + b**2))
        grid = law.scale * grid
    elif law.norm == inf:
        grid = RADIUS * np.stack([a, b], -1)
    elif law.norm == 2:
        r, angle = (a + 1) / 2, np.pi * b
        grid, w = RADIUS * np.stack([r * np.cos(angle), r * np.sin(angle)], -1), w * r
    else:
        grid = RADIUS * np.stack([a + b, a - b], -1) / 2
    exact = float((w * np.exp(f(z + grid, None) / eta)).sum() / w.sum())

    for estimator in (SG(0), SG(2)):
        objective = RegularizedLoss(law, eta, ENTROPIC, estimator, Tilted(retilt=retilt))
        signed = objective.points(f, np.tile(z, (n >> estimator.level, 1)), rng=rng(4), input_gradient=slope)
        v = np.exp(signed.losses / eta + signed.log_weights).reshape(-1, 1 << estimator.level).mean(axis=1)
        assert v.max() < 40 * v.mean()
        assert abs(v.mean() - exact) < Z * v.std() / sqrt(len(v))


@pytest.mark.slow
@pytest.mark.parametrize("allocation", ["random", "stratified"])
def test_multilevel_points_have_the_mean_of_their_level(allocation: str) -> None:
    """Level 1 by quadrature; level 3 against the plain estimator, value and gradient."""
    n = 20_000

    def contributions(estimator: Any, seed: int) -> Any:
        objective = RegularizedLoss(Ball(2, RADIUS), ETA, ENTROPIC, estimator, Tilted())
        signed = objective.points(bent, np.full((n, 1), AT), rng=rng(seed), input_gradient=bend)
        each = np.zeros((n, 2))
        for k, v in enumerate((signed.losses + ETA * signed.log_weights, signed.points[:, 0])):
            np.add.at(each[:, k], signed.index, n * signed.weights * v)
        return each, float(signed.value)

    values = []
    for seed in range(16):
        objective = RegularizedLoss(Ball(2, RADIUS), ETA, ENTROPIC, RTMLMC(1, allocation), Tilted())
        x = np.full((n // 16, 1), AT)
        values.append(float(objective(bent, x, rng=rng(seed), input_gradient=bend)))
    # Student's law with 15 degrees of freedom, at one in a million.
    assert abs(np.mean(values) - pair()) < 7.5 * np.std(values, ddof=1) / 4
    (single, _), (multi, _) = contributions(SG(3), 5), contributions(RTMLMC(3, allocation), 6)
    error = np.hypot(single.std(axis=0), multi.std(axis=0)) / sqrt(n)
    assert np.all(np.abs(single.mean(axis=0) - multi.mean(axis=0)) < Z * error)


def signed_law(f: Any, log_w: Any, level: int) -> Any:
    """The softmax of (f + eta log w)/eta a data point, less those of its halves where the level is signed."""

    def softmax(v: Any) -> Any:
        e = np.exp(v - v.max(axis=-1, keepdims=True))
        return e / e.sum(axis=-1, keepdims=True)

    rows = (f / ETA + log_w).reshape(-1, 1 << level)
    whole = softmax(rows)
    if level == 0:
        return whole, whole
    halves = softmax(rows.reshape(-1, 2, 1 << (level - 1))).reshape(rows.shape)
    return whole, whole - halves / 2


@pytest.mark.parametrize("how", [Tilted(), Tilted(retilt=1)], ids=str)
@pytest.mark.parametrize("law", LAWS, ids=str)
def test_the_gradient_is_the_sum_over_the_signed_points(law: Any, how: Tilted) -> None:
    n = 40
    x = np.random.default_rng(3).normal(size=(n, 2))
    for estimator in (SG(2), RTMLMC(3), RTMLMC(3, "stratified")):
        objective = RegularizedLoss(law, ETA, ENTROPIC, estimator, how)
        signed = objective.points(
            lambda x, i: model(THETA, x, i), x, rng=rng(7), input_gradient=lambda x, i: in_x(THETA, x, i)
        )
        found = objective.gradient(THETA, model, in_theta, x, rng=rng(7), input_gradient=in_x)
        assert np.allclose(found, signed.weights @ in_theta(THETA, signed.points, None), atol=1e-13)
        assert np.array_equal(signed.losses, model(THETA, signed.points, None))
        count = np.bincount(signed.index, minlength=n)
        for level in range(estimator.level + 1):
            mine = count[signed.index] == 1 << level
            if not mine.any():
                continue
            whole, difference = signed_law(signed.losses[mine], signed.log_weights[mine], level)
            want = whole if isinstance(estimator, SG) else difference / estimator.probabilities[level]
            assert np.allclose(signed.weights[mine] * n, want.ravel(), atol=1e-12)

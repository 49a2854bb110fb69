"""Results do not depend on the shape of the data."""

from collections.abc import Iterator
from functools import partial
from math import inf
from typing import Any

import numpy as np
import pytest

from phiball import refimpl, theory
from phiball.backends import backend, rng, to_numpy
from phiball.refimpl import ENTROPIC, HINGE, QUADRATIC, RTMLMC, SG, Ball, Gaussian, RegularizedLoss, Tilted

Z = np.random.default_rng(0).uniform(-1, 2, size=(6, 4))
S = np.random.default_rng(1).normal(size=(6, 4))  # tilts, gradients and steps
FEATURE_SCALES = 0.5 + np.abs(Z)  # feature_scale of each data point


def loss(x: Any, i: Any) -> Any:
    v = x.reshape(len(x), -1)
    return np.sin(2 * v[:, 0]) + v[:, 1] ** 2 / 3 + v[:, 2] * v[:, 3] + 0.1 * i


def loss_gradient(x: Any, i: Any) -> Any:
    v = x.reshape(len(x), -1)
    parts = [2 * np.cos(2 * v[:, 0]), 2 * v[:, 1] / 3, v[:, 3], v[:, 2]]
    return np.stack(parts, axis=-1).reshape(x.shape)


def distribution_results(batch: tuple[int, ...], event: tuple[int, ...]) -> Iterator[Any]:
    z, s, k = Z.reshape(*batch, *event), S.reshape(*batch, *event), len(event)
    plain = [Ball(norm, 0.7) for norm in (1.0, 2.0, 3.0, inf)]
    for ball in (*plain, Ball(2, 0.7, clip=(-1.2, 2.1), feature_scale=FEATURE_SCALES[0].reshape(event))):
        for method in (ball.length, ball.dual_norm, ball.steepest, ball.variance):
            yield method(s, event_ndim=k)
        yield ball.contains(z + s / 3, z, event_ndim=k)
        for settings in ({}, {"antithetic": True}, {"qmc": True}):
            yield ball.sample(z, 4, rng=rng(0), event_ndim=k, **settings)
        if ball.norm != 3:
            yield ball.project(z + s, z, event_ndim=k)
            yield ball.log_mgf(s, event_ndim=k)
            yield from ball.sample_tilted(z, s, 3, rng=rng(0), event_ndim=k)
    yield Gaussian(0.6).log_mgf(s, event_ndim=k)
    yield Gaussian(0.6).sample(z, 3, rng=rng(0), event_ndim=k)
    yield from Gaussian(0.6).sample_tilted(z, s, 3, rng=rng(0), event_ndim=k)


def risk_results(event: tuple[int, ...]) -> Iterator[Any]:
    z, s, eta = Z.reshape(-1, *event), S.reshape(-1, *event), 0.4
    ball, few = Ball(2, 0.5, feature_scale=FEATURE_SCALES.reshape(-1, *event)), {"n_samples": 8}
    for d in (ENTROPIC, HINGE):
        dense = refimpl.worst_case_density(loss, z, Ball(2, 0.5), eta, d, at=z[:2] + 0.1, rng=rng(0), **few)
        yield from (dense.density, dense.atoms, dense.masses)
    tilted = partial(Tilted, gradient=loss_gradient)
    for proposal in (refimpl.Uniform(), tilted(self_normalised=True, start="uniform"), tilted(retilt=1)):
        settings: dict[str, Any] = {"method": proposal, "chunk": 5, **few}
        found = refimpl.robust_risk(loss, z, ball, eta, ENTROPIC, rng=rng(0), **settings)
        yield from (found.values, found.stderr)
    worst = refimpl.adversarial_risk(loss, z, ball, rng=rng(0), attack=lambda loss, x, ball: x + 0.1, **few)
    yield from (worst.values, worst.points)
    yield refimpl.robust_risk(loss, z, ball, None, QUADRATIC, budget=0.1, rng=rng(0), **few).value
    yield refimpl.worst_case_sample(loss, z, ball, eta, QUADRATIC, size=9, rng=rng(0), **few).points
    for distribution in (Ball(2, 0.5), Ball(inf, 0.5)):
        yield refimpl.fgm(None, z, distribution, gradient=loss_gradient, rng=rng(0))
        yield refimpl.ifgm(None, z, distribution, gradient=loss_gradient, steps=3)
        yield refimpl.pgm(loss, z, distribution, gradient=loss_gradient, rng=rng(0), steps=2, restarts=2)
        yield refimpl.white_noise(z, distribution, rng=rng(0))
        yield theory.surrogate(s, distribution, eta, ENTROPIC)
        yield theory.surrogate_estimate(s, distribution, eta, QUADRATIC, rng=rng(0), **few)
        yield theory.r1(s, distribution, 2.0, ENTROPIC)
        yield theory.r2(s, distribution)
        yield theory.r3(s, distribution, eta, QUADRATIC)
    for estimator in (SG(2), RTMLMC(2, "stratified")):
        for proposal in (
            refimpl.Uniform(antithetic=True),
            Tilted(gradient=loss_gradient),
            Tilted(kappa=1.0, gradient=loss_gradient),
        ):
            objective = RegularizedLoss(ball, eta, ENTROPIC, estimator, proposal)
            drawn = objective.points(loss, z, rng=rng(0))
            yield from (drawn.points, drawn.weights, drawn.log_weights, drawn.value)


def assert_same_numbers(expected: Iterator[Any], found: Iterator[Any]) -> None:
    for k, (a, b) in enumerate(zip(expected, found, strict=True)):
        first, second = (np.ravel(to_numpy(np.asarray(v))).astype(float) for v in (a, b))
        size = 1 + np.abs(first).max()
        np.testing.assert_allclose(second, first, rtol=0, atol=2.0**-40 * size, err_msg=str(k))


@pytest.mark.parametrize("backend_name", ["numpy", "numba"])
def test_results_are_the_same_for_reshaped_data(backend_name: str) -> None:
    with backend(backend_name):
        for batch, event in (((6,), (2, 2)), ((2, 3), (4,)), ((3, 2), (1, 4, 1))):
            assert_same_numbers(distribution_results((6,), (4,)), distribution_results(batch, event))
        assert_same_numbers(risk_results((4,)), risk_results((2, 2)))

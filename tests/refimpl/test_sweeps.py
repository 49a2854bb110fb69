"""Properties on many random inputs, and on every shape of the data, against independent solutions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import inf, log, sqrt
from typing import Any

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phiball import refimpl
from phiball.backends import rng, to_numpy, use
from phiball.refimpl import (
    ABSOLUTE,
    ENTROPIC,
    HINGE,
    QUADRATIC,
    RTMLMC,
    SG,
    Ball,
    Divergence,
    Gaussian,
    RegularizedLoss,
    RobustLoss,
    Tilted,
    Uniform,
    bisection,
    constrained_worst_case,
    cressie_read,
    dual_value,
    indicator,
    mirror_descent,
    worst_case_ragged,
)
from phiball.refimpl.training.robust_loss import CHOICES
from phiball.verification.oracles import definitions
from phiball.verification.oracles.inner import solve_exactly
from tests.support.divergences import select

NAMED = select(limit=False, extreme=False)
losses = st.lists(st.floats(-3, 3, width=32), min_size=3, max_size=5, unique=True)


def powers_of_ten(low: float, high: float) -> st.SearchStrategy[float]:
    return st.floats(low, high).map(lambda digits: 10.0**digits)


def exact_value(f: Any, eta: float, d: Divergence, p: Any = None) -> float:
    return float(solve_exactly(list(f), eta, d.family or "", d.parameter, p=p).value)


# --- The inner problem ------------------------------------------------------------------------------


@settings(max_examples=100)
@given(d=st.sampled_from(NAMED), f=losses, budget=powers_of_ten(-3, 0.5))
def test_budget_is_kept_and_no_dual_bound_is_below_the_value(
    d: Divergence, f: list[float], budget: float
) -> None:
    p = np.array([0.1, 0.4, 0.2, 0.25, 0.05])[: len(f)]
    p /= p.sum()
    found = constrained_worst_case(np.array(f), budget, d, p=p)
    value, weights, size = float(found.value), found.weights, max(map(abs, f)) + 1
    ratios = [mp.mpf(float(w)) / q for w, q in zip(weights, p, strict=True)]
    terms = (q * definitions.phi(x, d.family or "", d.parameter) for x, q in zip(ratios, p, strict=True))
    assert float(mp.fsum(terms)) <= budget + 1e-9 * (1 + budget)
    assert abs(weights.sum() - 1) <= 1e-12
    assert weights.min() >= 0
    assert abs(float(weights @ f) + float(found.gap) - value) <= 1e-11 * size
    assert abs(float(found.gap)) <= 1e-10 * size
    for eta in (*((max(f) - min(f)) * 10.0**k for k in (-2, -1, 0, 1)), float(found.eta)):
        if 0 < eta < inf:
            bound = eta * budget + exact_value(f, eta, d, p.tolist())
            slack = 1e-10 * (size + eta * budget)
            assert value <= bound + slack
            assert eta != float(found.eta) or value >= bound - slack


@pytest.mark.parametrize("above", [1e-15, 1e-13, 1e-9])
@pytest.mark.parametrize("k", [3.0, 5.0])
def test_budget_at_which_a_loss_barely_has_weight(k: float, above: float) -> None:
    """gamma_i ~ p_i (1 + g_i/beta)_+^(1/(k-1)) with beta slightly above -g_i."""
    with mp.workdps(50):
        g = [mp.mpf(v) for v in (0.0, -1.0, -2.0, -3.0)]
        x = [max(1 + v / (2 * (1 + mp.mpf(above))), mp.mpf(0)) ** (1 / (mp.mpf(k) - 1)) for v in g]
        ratios = [4 * v / mp.fsum(x) for v in x]
        budget = mp.fsum(definitions.phi(v, "cressie_read", k) for v in ratios) / 4
        weights = np.array([float(v / 4) for v in ratios])
    f = np.array([float(v) for v in g])
    found = constrained_worst_case(f, float(budget), cressie_read(k))
    np.testing.assert_allclose(found.weights, weights, atol=1e-6)
    assert abs(float(found.value) - weights @ f) <= 1e-13
    assert abs(float(found.gap)) <= 1e-13


@settings(max_examples=60)
@given(
    d=st.sampled_from([ENTROPIC, QUADRATIC, cressie_read(0.5), cressie_read(3.0)]),
    f=losses,
    eta=powers_of_ten(-1, 1),
    tol=powers_of_ten(-8, -1),
)
def test_bisection_meets_any_tolerance(d: Divergence, f: list[float], eta: float, tol: float) -> None:
    found, exact = bisection(np.array(f), eta, d, tol=tol), exact_value(f, eta, d)
    dual = float(dual_value(np.array(f), float(found.mu), eta, d))
    primal = float(definitions.primal(f, found.weights.tolist(), eta, d.family or "", d.parameter, None))
    slack = 2.0**-40 * (max(map(abs, f)) + eta)
    assert dual - primal <= tol + slack
    assert abs(float(found.gap) - (dual - primal)) <= slack
    assert abs(float(found.value) - exact) <= tol + slack
    p = np.array([*[1 / len(f)] * len(f), 0.0])
    ignored = bisection(np.array([*f, 1000.0]), eta, d, tol=tol, p=p)
    assert ignored.weights[-1] == 0
    assert abs(float(ignored.value) - exact) <= tol + slack


ROW = st.lists(st.floats(-3, 3, width=32), min_size=1, max_size=4, unique=True)


@settings(max_examples=60)
@given(
    d=st.sampled_from([ENTROPIC, QUADRATIC, ABSOLUTE, HINGE, indicator(0.3)]),
    rows=st.lists(ROW, max_size=5, min_size=1),
)
def test_ragged_rows_have_their_exact_values(d: Divergence, rows: list[list[float]]) -> None:
    flat = np.concatenate(rows)
    offsets = np.cumsum([0, *map(len, rows)]).tolist()
    etas = 0.3 + np.arange(len(rows))
    laws = [np.arange(1.0, len(row) + 1) for row in rows]
    p = np.concatenate([law / law.sum() for law in laws])
    found = worst_case_ragged(flat, offsets, etas, d).value
    weighted = worst_case_ragged(flat, offsets, etas, d, p=p).value
    for k, (row, law) in enumerate(zip(rows, laws, strict=True)):
        assert abs(float(found[k]) - exact_value(row, etas[k], d)) <= 1e-12
        assert abs(float(weighted[k]) - exact_value(row, etas[k], d, (law / law.sum()).tolist())) <= 1e-12


@given(
    linear=st.booleans(),
    cost=st.lists(st.integers(-3, 3), min_size=2, max_size=6),
    steps=st.integers(1, 60),
)
def test_mirror_descent_takes_multiplicative_steps_within_its_bound(
    linear: bool, cost: list[int], steps: int
) -> None:
    c, d = np.array(cost, dtype=float), len(cost)
    largest = float(np.abs(c).max()) or 1.0
    step = sqrt(2 * log(d) / steps) / largest

    def gradient(theta: Any) -> Any:
        return c + 0 * theta if linear else c * theta

    run = mirror_descent(gradient, np.full((3, d), 1 / d), step_size=step, steps=steps)
    path = [np.full(d, 1 / d)]
    for _ in range(steps - 1):
        moved = path[-1] * np.exp(-step * gradient(path[-1]))
        path.append(moved / moved.sum())
    for row in range(3):
        np.testing.assert_allclose(run.last[row], path[-1], atol=1e-12)
        np.testing.assert_allclose(run.theta[row], np.mean(path, axis=0), atol=1e-12)
    if linear:
        assert c @ run.theta[0] - c.min() <= largest * sqrt(2 * log(d) / steps) + 1e-12


@given(
    kappa=st.sampled_from([0.5, 1.0, 2.0]),
    g=st.lists(st.floats(0.1, 3), min_size=1, max_size=3),
    scale=powers_of_ten(-2, 2),
)
def test_kappa_makes_the_tilt_independent_of_the_scale_of_the_loss(
    kappa: float, g: list[float], scale: float
) -> None:
    """One tilted point is exact for a linear loss, at eta = rho |g|_1/(kappa d)."""
    slope, rho = scale * np.array(g), 0.5

    def exact(rho: float, kappa: float) -> float:
        eta = rho * float(slope.sum()) / (kappa * len(g))
        t = rho * slope / eta
        return eta * float(np.log(np.sinh(t) / t).sum())

    def value(objective: Any, v: Any, **how: Any) -> float:
        def gradient(x: Any, i: Any) -> Any:
            return np.broadcast_to(v, x.shape)

        x = np.zeros((3, len(v)))
        return float(objective(lambda x, i: (x * v).sum(axis=-1), x, input_gradient=gradient, **how))

    close = 2.0**-42 * float(slope.sum()) * (1 + 1 / (kappa * len(g)))
    plain = RegularizedLoss(Ball(inf, rho), 123.0, ENTROPIC, SG(0), Tilted(kappa))
    assert abs(value(plain, slope, rng=rng(0)) - exact(rho, kappa)) <= close
    # A coordinate of scale 0, or outside the mask, does not move, whatever its slope.
    wider, strong = CHOICES[inf]
    sizes = np.array([0.5, 2.0, 1.0])[: len(g)]
    v = np.append(slope / sizes, 7.0 * scale)
    fixed = RobustLoss(rho, "linf", scale=[*sizes, 0.0])
    masked = RobustLoss(rho, "linf", scale=[*sizes, 3.0])
    assert abs(value(fixed, v) - exact(wider * rho, strong)) <= close
    assert abs(value(masked, v, mask=[*np.ones(len(g)), 0.0]) - exact(wider * rho, strong)) <= close


# --- Shapes of the data -----------------------------------------------------------------------------

Z = np.random.default_rng(0).uniform(-1, 2, size=(6, 4))
S = np.random.default_rng(1).normal(size=(6, 4))  # tilts, gradients and steps
SIZES = 0.5 + np.abs(Z)  # of the coordinates of each data point


def loss(x: Any, i: Any) -> Any:
    v = x.reshape(len(x), -1)
    return np.sin(2 * v[:, 0]) + v[:, 1] ** 2 / 3 + v[:, 2] * v[:, 3] + 0.1 * i


def slope(x: Any, i: Any) -> Any:
    v = x.reshape(len(x), -1)
    parts = [2 * np.cos(2 * v[:, 0]), 2 * v[:, 1] / 3, v[:, 3], v[:, 2]]
    return np.stack(parts, axis=-1).reshape(x.shape)


def of_laws(batch: tuple[int, ...], event: tuple[int, ...]) -> Iterator[tuple[str, Any]]:
    z, s, k = Z.reshape(*batch, *event), S.reshape(*batch, *event), len(event)
    plain = [Ball(norm, 0.7) for norm in (1.0, 2.0, 3.0, inf)]
    for ball in (*plain, Ball(2, 0.7, clip=(-1.2, 2.1), scale=SIZES[0].reshape(event))):
        name = f"{ball.norm:g}, scaled: {ball.scale is not None}"
        for method in (ball.length, ball.dual_norm, ball.steepest, ball.variance):
            yield f"{name}: {method.__name__}", method(s, event_ndim=k)
        yield f"{name}: contains", ball.contains(z + s / 3, z, event_ndim=k)
        for how in ({}, {"antithetic": True}, {"qmc": True}):
            yield f"{name}: sample, {how}", ball.sample(z, 4, rng(0), event_ndim=k, **how)
        if ball.norm != 3:
            yield f"{name}: project", ball.project(z + s, z, event_ndim=k)
            yield f"{name}: log_mgf", ball.log_mgf(s, event_ndim=k)
            tilted, log_weights = ball.sample_tilted(z, s, 3, rng(0), event_ndim=k)
            yield f"{name}: sample_tilted", tilted
            yield f"{name}: sample_tilted, weights", log_weights
    yield "normal: log_mgf", Gaussian(0.6).log_mgf(s, event_ndim=k)
    yield "normal: sample", Gaussian(0.6).sample(z, 3, rng(0), event_ndim=k)
    yield "normal: sample_tilted", Gaussian(0.6).sample_tilted(z, s, 3, rng(0), event_ndim=k)[1]


def of_risks(event: tuple[int, ...]) -> Iterator[tuple[str, Any]]:
    z, s, eta = Z.reshape(-1, *event), S.reshape(-1, *event), 0.4
    ball, few = Ball(2, 0.5, scale=SIZES.reshape(-1, *event)), {"samples": 8}
    for d in (ENTROPIC, HINGE):
        found = refimpl.robust_risk(loss, z, ball, eta, d, rng=rng(0), **few)
        yield f"robust_risk, {d.name}", [*found.values, found.stderr]
        dense = refimpl.worst_case_density(loss, z, Ball(2, 0.5), eta, d, at=z[:2] + 0.1, rng=rng(0), **few)
        for part in ("density", "atoms", "masses"):
            yield f"worst_case_density, {d.name}: {part}", getattr(dense, part)
    for way in (Tilted(), Tilted(self_normalised=True, start="uniform"), Tilted(retilt=1)):
        how: dict[str, Any] = {"proposal": way, "input_gradient": slope, "chunk": 5, **few}
        found = refimpl.robust_risk(loss, z, ball, eta, ENTROPIC, rng=rng(0), **how)
        yield f"robust_risk, {way}", [*found.values, found.stderr]
    worst = refimpl.adversarial_risk(loss, z, ball, rng=rng(0), attack=lambda z: z + 0.1, **few)
    yield "adversarial_risk", worst.values
    yield "adversarial_risk: points", worst.points
    yield (
        "constrained_risk",
        refimpl.constrained_risk(loss, z, ball, QUADRATIC, radius=0.1, rng=rng(0), **few).value,
    )
    yield "sample", refimpl.worst_case_sample(loss, z, ball, eta, QUADRATIC, n=9, rng=rng(0), **few).points
    for law in (Ball(2, 0.5), Ball(inf, 0.5)):
        yield f"fgm, {law}", refimpl.fgm(slope, z, law, rng=rng(0))
        yield f"ifgm, {law}", refimpl.ifgm(slope, z, law, steps=3)
        yield f"pgm, {law}", refimpl.pgm(slope, z, law, rng=rng(0), steps=2, loss=loss, restarts=2)
        yield f"white_noise, {law}", refimpl.white_noise(z, law, rng(0))
        yield f"surrogate, {law}", refimpl.surrogate(s, law, eta, ENTROPIC)
        yield f"estimate, {law}", refimpl.surrogate_estimate(s, law, eta, QUADRATIC, rng=rng(0), **few)
        yield f"r1, {law}", refimpl.r1(s, law, 2.0, ENTROPIC)
        yield f"r2, {law}", refimpl.r2(s, law)
        yield f"r3, {law}", refimpl.r3(s, law, eta, QUADRATIC)
    common = replace(ball, scale=SIZES[0].reshape(event))
    single = replace(ball, scale=SIZES[:, 0].reshape(-1, *[1] * len(event)))
    for estimator in (SG(2), RTMLMC(2), RTMLMC(2, "stratified")):
        for way in (Uniform(), Uniform(antithetic=True), Tilted(), Tilted(kappa=1.0)):
            for sizes, law in (("own", ball), ("common", common), ("single", single)):
                drawn = RegularizedLoss(law, eta, ENTROPIC, estimator, way).points(
                    loss, z, rng=rng(0), input_gradient=slope
                )
                for part in ("points", "weights", "log_weights", "value"):
                    yield f"{estimator}, {way}, {sizes} sizes: {part}", getattr(drawn, part)


def check_same_numbers(expected: Iterator[tuple[str, Any]], found: Iterator[tuple[str, Any]]) -> None:
    for (name, a), (_, b) in zip(expected, found, strict=True):
        first, second = (np.ravel(to_numpy(np.asarray(v))).astype(float) for v in (a, b))
        size = 1 + np.abs(first).max()
        np.testing.assert_allclose(second, first, rtol=0, atol=2.0**-40 * size, err_msg=name)


@pytest.mark.parametrize("backend", ["numpy", "numba"])
def test_shape_of_the_data_does_not_matter(backend: str) -> None:
    with use(backend):
        for batch, event in (((6,), (2, 2)), ((2, 3), (4,)), ((3, 2), (1, 4, 1))):
            check_same_numbers(of_laws((6,), (4,)), of_laws(batch, event))
        check_same_numbers(of_risks((4,)), of_risks((2, 2)))

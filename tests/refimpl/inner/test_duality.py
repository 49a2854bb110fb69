"""The certificate of a solution, weak duality, and what every such risk measure satisfies."""

from __future__ import annotations

from itertools import product
from math import inf
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phiball.backends import use
from phiball.refimpl import (
    HINGE,
    QUADRATIC,
    Divergence,
    cressie_read,
    dual_value,
    primal_value,
    worst_case,
)
from phiball.verification.oracles import definitions
from tests.support.arrays import Arrays
from tests.support.divergences import select

# Quarters are exact in both precisions, and make ties.
losses = st.lists(st.integers(-40, 40).map(lambda n: n / 4), min_size=1, max_size=8)
etas = st.sampled_from([0.015625, 0.25, 1.0, 4.0, 64.0])
divergences = st.sampled_from(select(usual=True))


def law(n: int) -> Any:
    """Probabilities of n points with a zero where there is room for one."""
    p = np.arange(1, n + 1) % 4 + (n < 4)
    return p / p.sum()


def scale(f: Any, eta: float, arrays: Arrays) -> float:
    """What counts as rounding of a value or a gap: some eps of the sizes that are added up."""
    return float(64 * arrays.eps * (np.ptp(f) + np.max(np.abs(f)) + eta * arrays.eps))


@given(f=losses, eta=etas, d=divergences)
def test_the_gap_is_what_the_two_values_say(
    f: list[float], eta: float, d: Divergence, arrays: Arrays
) -> None:
    x, p = arrays.asarray(f), arrays.asarray(law(len(f)))
    out = worst_case(x, eta, d, p=p)
    dual = float(dual_value(x, out.mu, eta, d, p))
    primal = float(primal_value(x, out.weights, eta, d, p))
    tol = scale(f, eta, arrays)
    assert -tol <= float(out.gap) <= tol
    assert dual - primal == pytest.approx(float(out.gap), abs=tol)
    assert primal - tol <= float(out.value) <= dual + tol


@given(f=losses, eta=etas, d=divergences, mu=st.floats(-20, 20, width=32), seed=st.integers(0, 2**31))
def test_weak_duality(
    f: list[float], eta: float, d: Divergence, mu: float, seed: int, arrays: Arrays
) -> None:
    """Every mu gives an upper bound, and every law a lower one."""
    x, p = arrays.asarray(f), arrays.asarray(law(len(f)))
    value = float(worst_case(x, eta, d, p=p).value)
    dual = float(dual_value(x, mu, eta, d, p))
    w = np.random.default_rng(seed).dirichlet(np.ones(len(f))) * (law(len(f)) > 0)
    w = w / w.sum()
    primal = float(primal_value(x, arrays.asarray(w), eta, d, p))
    # eta phi* and eta phi may be far larger than the losses; they are rounded at their own size.
    bounds = [v for v in (dual, primal) if abs(v) < inf]
    tol = (
        scale(f, eta, arrays)
        + 64 * arrays.eps * max((abs(v) for v in bounds), default=0)
        + 64 * arrays.eps * (eta + abs(mu))
    )
    assert primal <= value + tol
    assert dual >= value - tol


def test_perturbations_of_a_smooth_problem_open_the_gap_quadratically(doubles: Arrays) -> None:
    """By h^2/(2 eta) E phi*'' in mu, and by eta h^2/2 sum v_i^2 phi''(x_i)/p_i in the weights."""
    f, v = np.array([0.1, 0.4, 0.5, 0.75, 1.3]), np.array([1.0, -2.0, 0.5, 0.25, 0.25])
    x = doubles.asarray(f)
    for d in select(usual=True, smooth=True):
        eta, h = 0.7, 1e-3
        out = worst_case(x, eta, d)
        bend = float(np.mean(doubles.numpy(d.d2conj((x - out.mu) / eta))))
        assert bend > 0.1
        # The odd terms cancel in +h and -h; the next is h^2/(12 eta^2) phi*''''/phi*'', a ratio below 1e5.
        duals = [float(dual_value(x, float(out.mu) + step, eta, d)) for step in (h, -h)]
        assert min(duals) > float(out.value), d.name
        opened = sum(duals) / 2 - float(out.value)
        assert opened == pytest.approx(h * h / (2 * eta) * bend, rel=1e4 * h * h + 1e-6), d.name
        eta, h = 2.0, 1e-4
        out = worst_case(x, eta, d)
        bends = doubles.numpy(d.d2conj((x - out.mu) / eta))  # phi*'' = 1/phi'' at conjugate points
        moved = doubles.asarray(doubles.numpy(out.weights) + h * v)
        lost = float(out.value) - float(primal_value(x, moved, eta, d))
        expected = eta * h * h / 2 * np.sum(v * v / bends) * len(f)
        assert lost == pytest.approx(expected, rel=1e-2, abs=1e-15), d.name


def test_perturbations_of_a_kinked_problem_open_the_gap(doubles: Arrays) -> None:
    x, eta = doubles.asarray([0.0, 0.25, 0.5, 0.75, 1.0, 2.0]), 0.2
    for d in select(core=True, smooth=False):
        out = worst_case(x, eta, d)
        for step in (0.05, -0.05):
            assert float(dual_value(x, out.mu + step, eta, d)) > float(out.value) + 1e-3, d.name
        w = 0.9 * doubles.numpy(out.weights) + 0.1 / 6
        assert float(primal_value(x, doubles.asarray(w), eta, d)) < float(out.value) - 1e-3, d.name


def test_infinite_bounds(arrays: Arrays) -> None:
    """Mass outside p has infinite divergence, and the dual is infinite beyond the recession of phi."""
    f, p, w = (arrays.asarray(v) for v in ([0.0, 1.0], [1.0, 0.0], [0.5, 0.5]))
    for d in select(usual=True):
        assert float(primal_value(f, w, 1.0, d, p)) == -inf, d.name
    assert float(dual_value(f, 0.0, 0.5, HINGE)) == inf
    assert float(dual_value(f, 0.0, 0.25, cressie_read(0.5))) == inf


@given(
    f=losses, eta=etas, d=divergences, more=st.lists(st.sampled_from([0.0, 0.25, 3.0]), min_size=8), c=etas
)
def test_axioms_of_the_risk_measure(
    f: list[float], eta: float, d: Divergence, more: list[float], c: float, arrays: Arrays
) -> None:
    """A8: equivariant under shifts and scales, monotone in f and in eta, between mean and maximum."""

    def solve(f: Any, eta: float) -> Any:
        return worst_case(arrays.asarray(f), eta, d)

    plain, moved, grown = solve(f, eta), solve(np.add(f, c), eta), solve(np.multiply(f, c), c * eta)
    g = np.add(f, more[: len(f)])
    tol = scale([*f, *g, *np.add(f, c)], eta, arrays)
    assert float(moved.value) == pytest.approx(float(plain.value) + c, abs=tol)
    assert float(moved.mu) == pytest.approx(float(plain.mu) + c, abs=tol + 64 * arrays.eps * eta)
    assert float(grown.value) == pytest.approx(c * float(plain.value), abs=c * tol)
    a, b = arrays.numpy(plain.weights), arrays.numpy(grown.weights)
    np.testing.assert_allclose(a, b, atol=64 * arrays.eps)
    assert float(solve(g, eta).value) >= float(plain.value) - tol
    ladder = [2.0**e for e in range(-12, 13, 4)]
    rows = arrays.asarray(np.tile(f, (len(ladder), 1)))
    values = arrays.numpy(worst_case(rows, arrays.asarray(ladder), d).value).astype(np.float64)
    assert np.all(values <= max(f) + tol)
    assert np.all(values >= np.mean(f) - tol)
    assert np.all(np.diff(values) <= tol)


def test_the_gap_of_large_losses_keeps_its_digits() -> None:
    """mu + eta has more digits than a number: without the rest, the gap of losses near 1e8 is off by 1e-8."""
    f = 1e8 + np.array([0.0, 0.25, 1.0])
    for backend, eta in product(("numpy", "numba"), (0.1, 0.3, 0.7)):
        with use(backend):
            solution = worst_case(f, eta, QUADRATIC)
        exact = definitions.dual(f, float(solution.mu), eta, "quadratic") - definitions.primal(
            f, solution.weights, eta, "quadratic"
        )
        assert float(solution.gap) == pytest.approx(float(exact), abs=1e-12), (backend, eta)

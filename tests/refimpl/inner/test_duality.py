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
from tests.support.divergences import on_each, select

# Quarters are exact in both precisions, and make ties.
losses = st.lists(st.integers(-40, 40).map(lambda n: n / 4), min_size=1, max_size=8)
etas = st.sampled_from([0.015625, 0.25, 1.0, 4.0, 64.0])
divergences = st.sampled_from(select(usual=True))


def law(n: int) -> Any:
    """A law on n points with a zero where there is room for one."""
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


@on_each(usual=True, smooth=True)
def test_a_perturbed_mu_opens_the_gap_quadratically(d: Divergence, doubles: Arrays) -> None:
    """D(mu + h) - D = h^2/(2 eta) E phi*'' + O(h^3), and the odd terms cancel in +h and -h."""
    f, eta = np.array([0.1, 0.4, 0.5, 0.75, 1.3]), 0.7
    x = doubles.asarray(f)
    out = worst_case(x, eta, d)
    bend = float(np.mean(doubles.numpy(d.d2conj((x - out.mu) / eta))))
    assert bend > 0.1
    for h in (1e-3, 1e-4):
        duals = [float(dual_value(x, float(out.mu) + step, eta, d)) for step in (h, -h)]
        assert min(duals) > float(out.value)
        opened = sum(duals) / 2 - float(out.value)
        # The next term is h^2/(12 eta^2) phi*''''/phi*'' of it, a ratio below 1e5 here.
        assert opened == pytest.approx(h * h / (2 * eta) * bend, rel=1e4 * h * h + 1e-6)


@on_each(usual=True, smooth=True)
def test_perturbed_weights_open_the_gap_quadratically(d: Divergence, doubles: Arrays) -> None:
    """P - P(gamma + h v) = eta h^2/2 sum v_i^2 phi''(x_i)/p_i + O(h^3), where gamma > 0."""
    f, eta, v = np.array([0.1, 0.4, 0.5, 0.75, 1.3]), 2.0, np.array([1.0, -2.0, 0.5, 0.25, 0.25])
    x = doubles.asarray(f)
    out = worst_case(x, eta, d)
    bend = doubles.numpy(d.d2conj((x - out.mu) / eta))  # phi*'' = 1/phi'' at conjugate points
    for h in (1e-4, -1e-4):
        moved = doubles.asarray(doubles.numpy(out.weights) + h * v)
        lost = float(out.value) - float(primal_value(x, moved, eta, d))
        expected = eta * h * h / 2 * np.sum(v * v / bend) * len(f)
        assert lost == pytest.approx(expected, rel=1e-2, abs=1e-15)


@on_each(core=True, smooth=False)
def test_a_wrong_mu_or_weights_of_a_kinked_phi_open_the_gap(d: Divergence, arrays: Arrays) -> None:
    f, eta = np.array([0.0, 0.25, 0.5, 0.75, 1.0, 2.0]), 0.2
    x = arrays.asarray(f)
    out = worst_case(x, eta, d)
    assert float(dual_value(x, out.mu + 0.05, eta, d)) > float(out.value) + 1e-3
    assert float(dual_value(x, out.mu - 0.05, eta, d)) > float(out.value) + 1e-3
    w = 0.9 * arrays.numpy(out.weights) + 0.1 / 6
    assert float(primal_value(x, arrays.asarray(w), eta, d)) < float(out.value) - 1e-3


def test_mass_outside_p_costs_infinity(arrays: Arrays) -> None:
    f, p, w = (arrays.asarray(v) for v in ([0.0, 1.0], [1.0, 0.0], [0.5, 0.5]))
    for d in select(usual=True):
        assert float(primal_value(f, w, 1.0, d, p)) == -inf


def test_beyond_the_recession_the_dual_is_infinite(arrays: Arrays) -> None:
    f = arrays.asarray([0.0, 1.0])
    assert float(dual_value(f, 0.0, 0.5, HINGE)) == inf
    assert float(dual_value(f, 0.0, 0.25, cressie_read(0.5))) == inf


@given(f=losses, eta=etas, d=divergences, c=st.sampled_from([-8.0, 0.25, 100.0]))
def test_adding_a_constant(f: list[float], eta: float, d: Divergence, c: float, arrays: Arrays) -> None:
    """A8: R(f + c) = R(f) + c."""
    plain = worst_case(arrays.asarray(f), eta, d)
    moved = worst_case(arrays.asarray(np.add(f, c)), eta, d)
    tol = scale([*f, *np.add(f, c)], eta, arrays)
    assert float(moved.value) == pytest.approx(float(plain.value) + c, abs=tol)
    assert float(moved.mu) == pytest.approx(float(plain.mu) + c, abs=tol + 64 * arrays.eps * eta)


@given(f=losses, eta=etas, d=divergences, c=st.sampled_from([0.25, 8.0, 1024.0]))
def test_scaling(f: list[float], eta: float, d: Divergence, c: float, arrays: Arrays) -> None:
    """A8: R(c f; c eta) = c R(f; eta), and the weights stay."""
    plain = worst_case(arrays.asarray(f), eta, d)
    grown = worst_case(arrays.asarray(np.multiply(f, c)), c * eta, d)
    assert float(grown.value) == pytest.approx(c * float(plain.value), abs=c * scale(f, eta, arrays))
    a, b = arrays.numpy(plain.weights), arrays.numpy(grown.weights)
    np.testing.assert_allclose(a, b, atol=64 * arrays.eps)


@given(f=losses, d=divergences)
def test_between_mean_and_maximum_and_falling_in_eta(f: list[float], d: Divergence, arrays: Arrays) -> None:
    """A8: E f <= R <= max f, and R falls as eta grows."""
    ladder = [2.0**e for e in range(-12, 13, 4)]
    rows = arrays.asarray(np.tile(f, (len(ladder), 1)))
    values = arrays.numpy(worst_case(rows, arrays.asarray(ladder), d).value).astype(np.float64)
    tol = scale(f, 0.0, arrays)
    assert np.all(values <= max(f) + tol)
    assert np.all(values >= np.mean(f) - tol)
    assert np.all(np.diff(values) <= tol)


@given(f=losses, eta=etas, d=divergences, data=st.data())
def test_monotone(f: list[float], eta: float, d: Divergence, data: st.DataObject, arrays: Arrays) -> None:
    """A8: larger losses, larger risk."""
    more = data.draw(st.lists(st.sampled_from([0.0, 0.0, 0.25, 3.0]), min_size=len(f), max_size=len(f)))
    g = np.add(f, more)
    low, high = (float(worst_case(arrays.asarray(v), eta, d).value) for v in (f, g))
    assert high >= low - scale([*f, *g], eta, arrays)


@on_each(usual=True)
def test_order_does_not_matter(d: Divergence, arrays: Arrays) -> None:
    random = np.random.default_rng(6)
    f, order = random.normal(size=9), random.permutation(9)
    p = random.dirichlet(np.ones(9))
    a = worst_case(arrays.asarray(f), 0.3, d, p=arrays.asarray(p))
    b = worst_case(arrays.asarray(f[order]), 0.3, d, p=arrays.asarray(p[order]))
    assert float(a.value) == pytest.approx(float(b.value), abs=64 * arrays.eps)
    np.testing.assert_allclose(arrays.numpy(a.weights)[order], arrays.numpy(b.weights), atol=64 * arrays.eps)


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

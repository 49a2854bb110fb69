"""A divergence given as functions alone, through both solvers on every backend."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import numpy as np
import pytest

from phiball.backends import array_namespace
from phiball.refimpl import (
    QUADRATIC,
    Divergence,
    check_divergence,
    worst_case,
)
from phiball.refimpl.inner.divergences import centred
from tests.support.arrays import Arrays
from tests.support.divergences import ELASTIC, HALF, anonymous, select
from tests.support.divergences import QUARTIC_BY_FUNCTIONS as QUARTIC


def test_constants_are_derived() -> None:
    d = QUARTIC
    assert (d.slope0, d.slope1, d.recession) == pytest.approx((-2.0, 0.0, inf), abs=1e-9)
    assert d.curvature1 == pytest.approx(1.0)
    assert check_divergence(d) == []
    assert check_divergence(ELASTIC) == []


def test_kinked_divergences(arrays: Arrays) -> None:
    f, p = arrays.asarray([[0.0, 0.5, 1.0, 1.0], [0.3, -0.4, 2.0, 0.1]]), arrays.asarray([0.4, 0.3, 0.2, 0.1])
    for eta in (0.01, 0.2, 0.5, 5.0):
        out = worst_case(f, eta, ELASTIC, p=p)
        assert np.all(np.abs(arrays.numpy(out.gap)) <= 64 * arrays.eps * 5), eta
        np.testing.assert_allclose(arrays.numpy(out.weights).sum(axis=-1), 1, atol=8 * arrays.eps)
    for eta, value in ((0.1, 0.70), (0.01, 0.745), (1e-4, 0.74995)):  # B1: it tends to 3/4, not to max f = 1
        out = worst_case(arrays.asarray([0.0, 1.0]), eta, HALF)
        assert float(out.value) == pytest.approx(value, abs=64 * arrays.eps)


def test_functions_alone_give_the_same_solution(arrays: Arrays) -> None:
    random = np.random.default_rng(11)
    f = np.round(8 * random.normal(size=(6, 9))) / 8  # with ties
    eta = arrays.asarray([0.03125, 0.125, 0.5, 1.0, 8.0, 100.0])
    p = random.dirichlet(np.ones(9), size=6)
    p[:, 2] = 0
    p = arrays.asarray(p / p.sum(axis=-1, keepdims=True))
    tol = 256 * arrays.eps * (np.ptp(f) + np.abs(f).max())
    for d in select(usual=True):
        named = worst_case(arrays.asarray(f), eta, d, p=p)
        mine = worst_case(arrays.asarray(f), eta, anonymous(d), p=p)
        np.testing.assert_allclose(
            arrays.numpy(mine.value), arrays.numpy(named.value), atol=tol, err_msg=d.name
        )
        assert np.all(np.abs(arrays.numpy(mine.gap)) <= tol), d.name


def test_a_sloped_phi_is_centred(arrays: Arrays) -> None:
    """phi + a (x - 1) has the same weights and value, and mu smaller by eta a."""
    d, a = QUARTIC, 1.5
    sloped = Divergence(
        "sloped",
        phi=lambda x: d.phi(x) + a * (x - 1),
        conj=lambda s: d.conj(s - a) + a,
        dconj=lambda s: d.dconj(s - a),
        d2conj=lambda s: d.d2conj(s - a),
    )
    assert sloped.slope1 == pytest.approx(a)
    assert centred(sloped).slope1 == 0  # so that it is not centred again
    f, eta = arrays.asarray([0.0, 0.25, 1.0, 3.0]), 0.5
    plain, tilted = worst_case(f, eta, d), worst_case(f, eta, sloped)
    tol = 256 * arrays.eps
    assert float(tilted.value) == pytest.approx(float(plain.value), rel=tol)
    assert float(tilted.mu) == pytest.approx(float(plain.mu) - eta * a, rel=tol)
    np.testing.assert_allclose(arrays.numpy(tilted.weights), arrays.numpy(plain.weights), atol=tol)


def test_functions_of_torch_get_tensors() -> None:
    """Whatever the backend is: kernels that read tensors as NumPy arrays are for divergences that we know."""
    torch = pytest.importorskip("torch", reason="torch: not installed")
    mine = Divergence(
        "my chi-square",
        lambda x: torch.where(x < 0, torch.inf, (x - 1) ** 2 / 2),
        lambda s: torch.where(s < -1, -0.5, s + s**2 / 2),
        lambda s: torch.clamp(1 + s, min=0.0),
        lambda s: torch.where(s < -1, 0.0, 1.0),
        slope0=-1.0,
        slope1=0.0,
        recession=inf,
        curvature1=1.0,
    )
    f = torch.tensor([0.0, 0.25, 1.0, 3.0], dtype=torch.float64)
    assert float(worst_case(f, 0.5, mine).value) == pytest.approx(float(worst_case(f, 0.5, QUADRATIC).value))


def test_a_wrong_conjugate_shows_in_the_gap(doubles: Arrays) -> None:
    """The certificate does not trust the functions that the solver used."""
    wrong = replace(QUARTIC, dconj=lambda s: array_namespace(s).clip(1 + s, min=0.0))
    out = worst_case(doubles.asarray([0.0, 1.0, 3.0]), 0.5, wrong)
    assert float(out.gap) > 1e-2

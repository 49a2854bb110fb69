"""Algorithm 2 with the corrected bracket: certified, and compared with the exact solution."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from phiball.refimpl import (
    QUADRATIC,
    bisection,
    dual_value,
    primal_value,
    worst_case,
)
from tests.support.arrays import Arrays
from tests.support.divergences import ELASTIC, QUARTIC_BY_FUNCTIONS, select

# At k = -10 the powers of a small density overflow in single precision, and no gap is certified.
SMOOTH = [
    *(d for d in select(smooth=True, limit=False, extreme=False) if d.parameter != -10),
    QUARTIC_BY_FUNCTIONS,
]


def test_within_tol_of_the_exact_solution(arrays: Arrays) -> None:
    random = np.random.default_rng(7)
    values = random.normal(size=(5, 7)) + 2
    values[1] = 2.5
    f = arrays.asarray(values)
    eta = arrays.asarray(10 ** random.uniform(-1, 1, size=5))
    p = random.dirichlet(np.ones(7), size=5)
    p[:, 3] = 0
    p = arrays.asarray(p / p.sum(axis=-1, keepdims=True))
    before = [arrays.numpy(x).copy() for x in (f, eta, p)]
    slack = 64 * arrays.eps * 8  # rounding, for losses up to 8
    # Single precision certifies some 64 eps times the size of the losses.
    for d, digits in product(SMOOTH, (1, 3, 9)):
        exact, tol = worst_case(f, eta, d, p=p), max(10.0**-digits, 512 * arrays.eps)
        out = bisection(f, eta, d, tol=tol, p=p)
        value, best = arrays.numpy(out.value), arrays.numpy(exact.value)
        assert np.all(arrays.numpy(out.gap) <= tol), d.name
        assert np.all(value >= best - slack), d.name  # a dual value is an upper bound
        assert np.all(value <= best + tol + slack), d.name
        w = arrays.numpy(out.weights)
        np.testing.assert_allclose(w.sum(axis=-1), 1, atol=16 * arrays.eps)
        assert np.all(w >= 0)
        assert np.all(w[:, 3] == 0)
        np.testing.assert_allclose(w[1], before[2][1], atol=8 * arrays.eps)  # equal losses
        # Anyone can recompute the certificate.
        dual, primal = dual_value(f, out.mu, eta, d, p), primal_value(f, out.weights, eta, d, p)
        np.testing.assert_allclose(arrays.numpy(dual), value, atol=slack)
        np.testing.assert_allclose(arrays.numpy(dual - primal), arrays.numpy(out.gap), atol=slack)
        assert out.value.dtype == out.weights.dtype == f.dtype
    for x, old in zip((f, eta, p), before, strict=True):
        assert np.array_equal(arrays.numpy(x), old)


def test_a_loose_tol_is_not_an_exact_solution(doubles: Arrays) -> None:
    """It is Algorithm 2, not the exact method under another name."""
    f = doubles.asarray([0.0, 0.5, 1.0])
    loose, tight = (bisection(f, 0.2, QUADRATIC, tol=tol) for tol in (1e-1, 1e-12))
    exact = float(worst_case(f, 0.2, QUADRATIC).value)
    assert 1e-12 < abs(float(loose.value) - exact) <= 1e-1
    assert abs(float(tight.value) - exact) <= 1e-12


def test_where_the_printed_bracket_fails(arrays: Arrays) -> None:
    """C1: mu = -0.95 lies outside [min f, max f]; with one point the printed gamma is 0."""
    out = bisection(arrays.asarray([0.0, 0.1]), 1.0, QUADRATIC, tol=1e-5)
    assert float(out.value) == pytest.approx(0.05125, abs=2e-5)
    assert float(out.mu) == pytest.approx(-0.95, abs=5e-3)  # the dual is flat: sqrt(2 eta tol)
    one = bisection(arrays.asarray([3.0]), 0.5, QUADRATIC, tol=1e-5)
    assert float(one.weights[0]) == 1.0
    assert float(one.value) == pytest.approx(3.0, abs=2e-5)


def test_a_kinked_phi_is_refused() -> None:
    for d in (*select(usual=True, smooth=False), ELASTIC):
        with pytest.raises(
            ValueError, match=rf"divergence is {d.name.split('(')[0]}.*kinked.*use worst_case"
        ):
            bisection(np.array([0.0, 1.0]), 1.0, d, tol=1e-3)


def test_an_unattainable_tol_is_refused(arrays: Arrays) -> None:
    # mu is rounded at the size of the offset, h, which costs h^2/(2 eta) whatever is done.
    offset = 1e8 if arrays.eps < 1e-10 else 1e3
    f = arrays.asarray(offset + np.random.default_rng(0).random((40, 9)))
    with pytest.raises(
        ValueError, match=r"tol is 1e-30, but .*float\d\d certifies no gap below .*larger tol"
    ):
        bisection(f, 1e-3, QUADRATIC, tol=1e-30)

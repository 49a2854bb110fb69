"""The inner problem: atoms and ties, shapes and defaults."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from phiball.refimpl import (
    ABSOLUTE,
    HINGE,
    QUADRATIC,
    Divergence,
    dual_value,
    indicator,
    primal_value,
    worst_case,
)
from tests.support.arrays import Arrays
from tests.support.divergences import name_of, select


@pytest.mark.parametrize(("d", "c"), [(ABSOLUTE, 2.0), (HINGE, 1.0)], ids=name_of)
def test_the_atom_at_the_largest_loss(d: Divergence, c: float, arrays: Arrays) -> None:
    """E4c: mass from at or below max f - c eta moves to the maximum, ties in proportion to p."""
    f, p = [1.0, 0.875, 1.0, 0.25, -2.0, 0.75], [0.1, 0.2, 0.3, 0.1, 0.1, 0.2]
    low = [3, 4] if d is ABSOLUTE else [3, 4, 5]
    gamma = list(p)
    for i in low:
        gamma[i] = 0.0
    moved = sum(p[i] for i in low)
    gamma[0] += moved * 0.25
    gamma[2] += moved * 0.75
    solution = worst_case(arrays.asarray(f), 0.2, d, p=arrays.asarray(p))
    assert arrays.numpy(solution.weights).tolist() == pytest.approx(gamma, abs=16 * arrays.eps)
    value = sum(q * max(v, 1 - 0.2 * c) for q, v in zip(p, f, strict=True))
    assert float(solution.value) == pytest.approx(value, abs=16 * arrays.eps)
    # A loss of max f - 1/2, give or take 2^-23, stays above the edge and moves below it.
    near = 2.0**-23  # all of these are exact in single precision
    out = worst_case(arrays.asarray([1.0, 0.5 + near, 0.5 - near, 0.75]), 0.5 / c, d)
    assert arrays.numpy(out.weights).tolist() == [0.5, 0.25, 0.0, 0.25]


def test_ties_share_in_proportion_to_p(arrays: Arrays) -> None:
    f, p = [1.0, 0.0, 1.0, 0.0, 0.5], [0.1, 0.2, 0.3, 0.1, 0.3]
    for d in select(usual=True):
        w = arrays.numpy(worst_case(arrays.asarray(f), 0.4, d, p=arrays.asarray(p)).weights)
        assert w[2] == pytest.approx(3 * w[0], abs=16 * arrays.eps), d.name
        assert w[1] == pytest.approx(2 * w[3], abs=16 * arrays.eps), d.name
    # E1 with atoms: 1/alpha above the quantile, and what is left spread over it by p.
    f, p = [5.0, 2.0, 2.0, 2.0, 1.0], [0.125, 0.25, 0.125, 0.125, 0.375]
    solution = worst_case(arrays.asarray(f), 1.0, indicator(0.5), p=arrays.asarray(p))
    share = 0.375 / 0.5 / 0.5  # (alpha - mass above)/mass at, over alpha
    gamma = [0.25, 0.25 * share, 0.125 * share, 0.125 * share, 0.0]
    assert arrays.numpy(solution.weights).tolist() == pytest.approx(gamma, abs=16 * arrays.eps)
    assert float(solution.mu) == pytest.approx(2.0, abs=16 * arrays.eps)


def problem(arrays: Arrays, shape: tuple[int, ...] = (3, 4, 6)) -> tuple[Any, Any, Any]:
    """Losses, one eta and one reference distribution per row, with zeros in the distribution."""
    random = np.random.default_rng(4)
    f = random.normal(size=shape)
    eta = 10 ** random.uniform(-2, 2, size=shape[:-1])
    p = random.dirichlet(np.ones(shape[-1]), size=shape[:-1])
    p[..., 1] = 0
    return arrays.asarray(f), arrays.asarray(eta), arrays.asarray(p / p.sum(axis=-1, keepdims=True))


def agree(arrays: Arrays, d: Divergence, *pairs: tuple[Any, Any], eps: float = 64) -> None:
    for a, b in pairs:
        tol = eps * arrays.eps
        np.testing.assert_allclose(arrays.numpy(a), arrays.numpy(b), rtol=0, atol=tol, err_msg=d.name)


def test_a_batch_is_a_loop_over_rows(arrays: Arrays) -> None:
    f, eta, p = problem(arrays)
    for d in select(usual=True):
        whole = worst_case(f, eta, d, p=p)
        assert whole.value.shape == whole.mu.shape == whole.gap.shape == (3, 4)
        assert whole.weights.shape == (3, 4, 6)
        for i, j in ((0, 0), (1, 3), (2, 1)):
            row = worst_case(f[i, j, :], float(eta[i, j]), d, p=p[i, j, :])
            agree(arrays, d, (whole.value[i, j], row.value), (whole.weights[i, j, :], row.weights))
            scale = 1 + float(eta[i, j])
            assert abs(float(whole.mu[i, j]) - float(row.mu)) <= 64 * arrays.eps * scale, d.name


def test_zeros_in_p_leave_the_point_out(arrays: Arrays) -> None:
    f, p, kept = [0.3, 1e6, 0.7, -1e6, 0.1], [0.25, 0.0, 0.5, 0.0, 0.25], [0, 2, 4]
    fewer, law = (arrays.asarray([x[i] for i in kept]) for x in (f, p))
    for d in select(usual=True):
        solution = worst_case(arrays.asarray(f), 0.3, d, p=arrays.asarray(p))
        less = worst_case(fewer, 0.3, d, p=law)
        w = arrays.numpy(solution.weights)
        assert w[1] == w[3] == 0, d.name
        np.testing.assert_allclose(w[kept], arrays.numpy(less.weights), atol=16 * arrays.eps)
        assert float(solution.value) == pytest.approx(float(less.value), abs=16 * arrays.eps)
        assert abs(float(solution.gap)) <= 64 * arrays.eps, d.name


def test_p_and_eta_broadcast(arrays: Arrays) -> None:
    f, eta, _ = problem(arrays)
    random = np.random.default_rng(2)
    for shape in ((6,), (1, 6), (4, 6), (1, 4, 6), (3, 1, 6), (3, 4, 6)):
        p, etas = random.dirichlet(np.ones(6), size=shape[:-1]), 0.5 + random.random(shape[:-1])
        for d in select(core=True):
            out = worst_case(f, eta, d, p=arrays.asarray(p))
            full = worst_case(f, eta, d, p=arrays.asarray(np.broadcast_to(p, (3, 4, 6))))
            # Sums run in another order where the strides differ.
            agree(arrays, d, (out.weights, full.weights), (out.value, full.value))
        out = worst_case(f, arrays.asarray(etas), QUADRATIC)
        full = worst_case(f, arrays.asarray(np.broadcast_to(etas, (3, 4))), QUADRATIC)
        assert np.array_equal(arrays.numpy(out.value), arrays.numpy(full.value)), shape
    row = arrays.asarray([0.0, 1.0])
    values = {float(worst_case(row, eta, QUADRATIC).value) for eta in (1, 1.0, np.float64(1.0))}
    assert len(values) == 1


def test_p_is_uniform_by_default_and_validation_can_be_skipped(arrays: Arrays) -> None:
    """With check=False the solution is the same, and a row with a NaN does no harm to its neighbours."""
    f, eta, _ = problem(arrays, (4, 8))
    uniform = arrays.asarray(np.full(8, 0.125))
    spoilt = arrays.numpy(f).copy()
    spoilt[1, 2] = np.nan
    for d in select(usual=True):
        out, same = worst_case(f, eta, d), worst_case(f, eta, d, p=uniform)
        agree(arrays, d, (out.value, same.value), (out.weights, same.weights))
        unchecked = worst_case(f, eta, d, check=False)
        assert np.array_equal(arrays.numpy(out.weights), arrays.numpy(unchecked.weights)), d.name
        mixed = worst_case(arrays.asarray(spoilt), eta, d, check=False)
        assert np.isnan(float(mixed.value[1])), d.name
        # A kernel may leave such a batch to the reference, which is the same to rounding of the losses.
        agree(arrays, d, *((mixed.value[row], out.value[row]) for row in (0, 2, 3)), eps=32)


def test_library_dtype_and_device_are_kept_and_arguments_unchanged(arrays: Arrays) -> None:
    given = problem(arrays, (3, 5))
    before = [arrays.numpy(x).copy() for x in given]
    f, eta, p = given
    for d in select(usual=True):
        out = worst_case(f, eta, d, p=p)
        values = (dual_value(f, out.mu, eta, d, p), primal_value(f, out.weights, eta, d, p))
        for x in (out.value, out.mu, out.weights, out.gap, *values):
            assert (type(x), x.dtype, x.device) == (type(f), f.dtype, f.device), d.name
        for x, old in zip(given, before, strict=True):
            assert np.array_equal(arrays.numpy(x), old), d.name
        for shape in ((0, 3), (2, 0, 3)):
            out = worst_case(arrays.asarray(np.zeros(shape)), 1.0, d)
            assert (out.weights.shape, out.value.shape) == (shape, shape[:-1]), d.name

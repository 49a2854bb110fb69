"""The inner problem on instances that are solved by hand, and the shapes it is given in."""

from __future__ import annotations

from math import e, log
from typing import Any

import numpy as np
import pytest

from phiball.refimpl import (
    ABSOLUTE,
    ENTROPIC,
    HINGE,
    QUADRATIC,
    Divergence,
    cressie_read,
    dual_value,
    indicator,
    primal_value,
    worst_case,
)
from tests.support.arrays import Arrays
from tests.support.divergences import name_of, select

TWO, THREE = [0.0, 1.0], [0.0, 0.5, 1.0]

# losses, eta, divergence, value, density ratios (None: not stated), mu (None: not unique)
BY_HAND = [
    (TWO, 1.0, ENTROPIC, log((1 + e) / 2), [2 / (1 + e), 2 * e / (1 + e)], log((1 + e) / 2)),
    (TWO, 1.0, QUADRATIC, 5 / 8, [0.5, 1.5], -0.5),
    (TWO, 0.5, QUADRATIC, 3 / 4, [0.0, 2.0], 0.0),
    (TWO, 0.25, QUADRATIC, 7 / 8, [0.0, 2.0], 0.5),
    (TWO, 1.0, cressie_read(2), 5 / 8, [0.5, 1.5], 0.5),
    (TWO, 0.2, ABSOLUTE, 4 / 5, [0.0, 2.0], 0.8),
    (TWO, 0.2, HINGE, 9 / 10, [0.0, 2.0], 0.8),
    (TWO, 0.2, indicator(0.75), 2 / 3, [2 / 3, 4 / 3], 0.0),
    (THREE, 0.2, ABSOLUTE, 11 / 15, [0.0, 0.0, 3.0], 0.8),
    (THREE, 0.2, HINGE, 13 / 15, [0.0, 0.0, 3.0], 0.8),
    (THREE, 0.2, QUADRATIC, 193 / 240, [0.0, 0.25, 2.75], 0.45),
    (THREE, 0.2, ENTROPIC, 0.797296991539, None, 0.797296991539),
    (THREE, 1.0, QUADRATIC, 7 / 12, [0.5, 1.0, 1.5], -0.5),
    (THREE, 1.0, ENTROPIC, 0.581657381974, None, 0.581657381974),
    ([0.0, 0.1], 1.0, QUADRATIC, 0.05125, [0.95, 1.05], -0.95),  # C1: outside the printed bracket
    ([3.0], 0.7, QUADRATIC, 3.0, [1.0], 2.3),
]


def test_solved_by_hand(arrays: Arrays) -> None:
    for losses, eta, d, value, ratios, mu in BY_HAND:
        solution = worst_case(arrays.asarray(losses), eta, d)
        tol = 16 * arrays.eps + 1e-12  # the values above are given to twelve digits
        assert float(solution.value) == pytest.approx(value, abs=tol), (losses, eta, d.name)
        assert float(solution.mu) == pytest.approx(mu, abs=tol), (losses, eta, d.name)
        assert abs(float(solution.gap)) <= 16 * arrays.eps, (losses, eta, d.name)
        if ratios is not None:
            assert arrays.numpy(solution.weights * len(losses)).tolist() == pytest.approx(ratios, abs=tol)


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


def test_limits_in_eta(arrays: Arrays) -> None:
    """max f as eta -> 0 and mean f as eta -> infinity, except for the indicator (B6)."""
    values = [0.2, -1.0, 0.9, 0.4]
    f = arrays.asarray(values)
    for d in select(usual=True):
        small, large = (float(worst_case(f, eta, d).value) for eta in (1e-30, 1e30))
        if d.family == "indicator":
            assert small == pytest.approx(large, abs=4 * arrays.eps)
            assert small == pytest.approx(0.9 if d.parameter == 0.25 else 0.125, abs=4 * arrays.eps)
        else:
            # For k < 0 no density may vanish: the others keep (eta/range)^(1/(1-k)) of their mass.
            kept = 1e-30 ** (1 / (1 - d.parameter)) if d.parameter is not None and d.parameter < 0 else 0.0
            assert small == pytest.approx(0.9, abs=4 * arrays.eps + 4 * kept), d.name
            assert large == pytest.approx(np.mean(values), abs=4 * arrays.eps), d.name

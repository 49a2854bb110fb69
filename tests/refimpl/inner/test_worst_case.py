"""`worst_case`: atoms, ties, shapes and defaults; `bisection`; divergences given by functions."""

from dataclasses import replace
from itertools import product
from math import inf
from typing import Any

import numpy as np
import pytest

from phiball.backends import array_namespace
from phiball.refimpl import ABSOLUTE, ENTROPIC, HINGE, QUADRATIC, Divergence, bisection, indicator, worst_case
from phiball.refimpl.inner import dual_value, primal_value
from phiball.refimpl.inner.divergences import centred
from tests.support.arrays import Arrays
from tests.support.divergences import ELASTIC, HALF, anonymous, name_of, select
from tests.support.divergences import QUARTIC_BY_FUNCTIONS as QUARTIC


@pytest.mark.parametrize(("d", "c"), [(ABSOLUTE, 2.0), (HINGE, 1.0)], ids=name_of)
def test_mass_of_small_losses_moves_to_the_largest_loss(d: Divergence, c: float, arrays: Arrays) -> None:
    """Losses up to max f - c eta lose their mass; tied maxima share it in proportion to p."""
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
    # A loss 2^-23 above max f - 1/2 keeps its mass, and one 2^-23 below loses it.
    near = 2.0**-23  # all of these are exact in single precision
    out = worst_case(arrays.asarray([1.0, 0.5 + near, 0.5 - near, 0.75]), 0.5 / c, d)
    assert arrays.numpy(out.weights).tolist() == [0.5, 0.25, 0.0, 0.25]


def test_tied_losses_share_mass_in_proportion_to_p(arrays: Arrays) -> None:
    f, p = [1.0, 0.0, 1.0, 0.0, 0.5], [0.1, 0.2, 0.3, 0.1, 0.3]
    for d in select(usual=True):
        w = arrays.numpy(worst_case(arrays.asarray(f), 0.4, d, p=arrays.asarray(p)).weights)
        assert w[2] == pytest.approx(3 * w[0], abs=16 * arrays.eps), d.name
        assert w[1] == pytest.approx(2 * w[3], abs=16 * arrays.eps), d.name
    # CVaR: the density is 1/alpha above the quantile; losses at the quantile share the rest.
    f, p = [5.0, 2.0, 2.0, 2.0, 1.0], [0.125, 0.25, 0.125, 0.125, 0.375]
    solution = worst_case(arrays.asarray(f), 1.0, indicator(0.5), p=arrays.asarray(p))
    share = 0.375 / 0.5 / 0.5  # (alpha - mass above the quantile) / mass at the quantile / alpha
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


def assert_agree(arrays: Arrays, d: Divergence, *pairs: tuple[Any, Any], eps: float = 64) -> None:
    for a, b in pairs:
        tol = eps * arrays.eps
        np.testing.assert_allclose(arrays.numpy(a), arrays.numpy(b), rtol=0, atol=tol, err_msg=d.name)


def test_points_of_probability_zero_are_ignored(arrays: Arrays) -> None:
    f, p, kept = [0.3, 1e6, 0.7, -1e6, 0.1], [0.25, 0.0, 0.5, 0.0, 0.25], [0, 2, 4]
    fewer, distribution = (arrays.asarray([x[i] for i in kept]) for x in (f, p))
    for d in select(usual=True):
        solution = worst_case(arrays.asarray(f), 0.3, d, p=arrays.asarray(p))
        smaller = worst_case(fewer, 0.3, d, p=distribution)
        w = arrays.numpy(solution.weights)
        assert w[1] == w[3] == 0, d.name
        np.testing.assert_allclose(w[kept], arrays.numpy(smaller.weights), atol=16 * arrays.eps)
        assert float(solution.value) == pytest.approx(float(smaller.value), abs=16 * arrays.eps)
        assert abs(float(solution.gap)) <= 64 * arrays.eps, d.name


def test_p_and_eta_are_broadcast(arrays: Arrays) -> None:
    f, eta, _ = problem(arrays)
    random = np.random.default_rng(2)
    for shape in ((6,), (1, 6), (4, 6), (1, 4, 6), (3, 1, 6), (3, 4, 6)):
        p, etas = random.dirichlet(np.ones(6), size=shape[:-1]), 0.5 + random.random(shape[:-1])
        for d in select(core=True):
            out = worst_case(f, eta, d, p=arrays.asarray(p))
            full = worst_case(f, eta, d, p=arrays.asarray(np.broadcast_to(p, (3, 4, 6))))
            # The order of summation depends on the strides.
            assert_agree(arrays, d, (out.weights, full.weights), (out.value, full.value))
            distribution = arrays.asarray(np.broadcast_to(p, (3, 4, 6))[1, 3])
            row = worst_case(f[1, 3, :], float(eta[1, 3]), d, p=distribution)
            assert_agree(arrays, d, (out.weights[1, 3, :], row.weights), (out.value[1, 3], row.value))
        out = worst_case(f, arrays.asarray(etas), QUADRATIC)
        full = worst_case(f, arrays.asarray(np.broadcast_to(etas, (3, 4))), QUADRATIC)
        assert np.array_equal(arrays.numpy(out.value), arrays.numpy(full.value)), shape
    row = arrays.asarray([0.0, 1.0])
    values = {float(worst_case(row, eta, QUADRATIC).value) for eta in (1, 1.0, np.float64(1.0))}
    assert len(values) == 1


def test_p_is_uniform_by_default_and_nan_stays_in_its_row_without_check(arrays: Arrays) -> None:
    f, eta, _ = problem(arrays, (4, 8))
    uniform = arrays.asarray(np.full(8, 0.125))
    with_nan = arrays.numpy(f).copy()
    with_nan[1, 2] = np.nan
    for d in select(usual=True):
        out, same = worst_case(f, eta, d), worst_case(f, eta, d, p=uniform)
        assert_agree(arrays, d, (out.value, same.value), (out.weights, same.weights))
        unchecked = worst_case(f, eta, d, check=False)
        assert np.array_equal(arrays.numpy(out.weights), arrays.numpy(unchecked.weights)), d.name
        mixed = worst_case(arrays.asarray(with_nan), eta, d, check=False)
        assert np.isnan(float(mixed.value[1])), d.name
        # A batch with NaN may be solved by the reference, which agrees with the kernel up to rounding.
        assert_agree(arrays, d, *((mixed.value[row], out.value[row]) for row in (0, 2, 3)), eps=32)


def test_library_dtype_and_device_are_kept_and_arguments_unchanged(arrays: Arrays) -> None:
    given = problem(arrays, (3, 5))
    before = [arrays.numpy(x).copy() for x in given]
    f, eta, p = given
    for d in select(usual=True):
        out = worst_case(f, eta, d, p=p)
        values = (dual_value(f, out.mu, eta, d, p=p), primal_value(f, out.weights, eta, d, p=p))
        for x in (out.value, out.mu, out.weights, out.gap, *values):
            assert (type(x), x.dtype, x.device) == (type(f), f.dtype, f.device), d.name
        for x, old in zip(given, before, strict=True):
            assert np.array_equal(arrays.numpy(x), old), d.name
        for shape in ((0, 3), (2, 0, 3)):
            out = worst_case(arrays.asarray(np.zeros(shape)), 1.0, d)
            assert (out.weights.shape, out.value.shape) == (shape, shape[:-1]), d.name


# --- Algorithm 2, with the corrected bracket ---------------------------------------------------------------

# k = -10 is excluded: powers of a small density overflow in single precision, and no gap is certified.
SMOOTH = [*(d for d in select(smooth=True, limit=False, extreme=False) if d.parameter != -10), QUARTIC]


def test_bisection_is_within_tol_of_the_exact_solution(arrays: Arrays) -> None:
    random = np.random.default_rng(7)
    values = random.normal(size=(5, 7)) + 2
    values[1] = 2.5
    values[0, 3] = 1000.0  # a loss of probability zero
    f = arrays.asarray(values)
    eta = arrays.asarray(10 ** random.uniform(-1, 1, size=5))
    p = random.dirichlet(np.ones(7), size=5)
    p[:, 3] = 0
    p = arrays.asarray(p / p.sum(axis=-1, keepdims=True))
    before = [arrays.numpy(x).copy() for x in (f, eta, p)]
    slack = 64 * arrays.eps * 8  # rounding, for losses up to 8
    # Single precision certifies about 64 eps times the size of the losses.
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
        # The gap can be recomputed from mu and the weights.
        dual, primal = dual_value(f, out.mu, eta, d, p=p), primal_value(f, out.weights, eta, d, p=p)
        np.testing.assert_allclose(arrays.numpy(dual), value, atol=slack)
        np.testing.assert_allclose(arrays.numpy(dual - primal), arrays.numpy(out.gap), atol=slack)
        assert out.value.dtype == out.weights.dtype == f.dtype
    for x, old in zip((f, eta, p), before, strict=True):
        assert np.array_equal(arrays.numpy(x), old)


def test_bisection_rejects_kinked_phi() -> None:
    for d in (*select(usual=True, smooth=False), ELASTIC):
        with pytest.raises(ValueError, match=rf"divergence is {d.name.split('(')[0]}.*use worst_case"):
            bisection(np.array([0.0, 1.0]), 1.0, d, tol=1e-3)


def test_bisection_rejects_unattainable_tol(arrays: Arrays) -> None:
    # Rounding mu, which is as large as the offset, by h always costs h^2/(2 eta).
    offset = 1e8 if arrays.eps < 1e-10 else 1e3
    f = arrays.asarray(offset + np.random.default_rng(0).random((40, 9)))
    with pytest.raises(ValueError, match=r"tol is 1e-30.*increase tol"):
        bisection(f, 1e-3, QUADRATIC, tol=1e-30)


# --- Divergences given by functions ------------------------------------------------------------------


def test_kinked_divergences_given_by_functions_are_solved(arrays: Arrays) -> None:
    f, p = arrays.asarray([[0.0, 0.5, 1.0, 1.0], [0.3, -0.4, 2.0, 0.1]]), arrays.asarray([0.4, 0.3, 0.2, 0.1])
    for eta in (0.01, 0.2, 0.5, 5.0):
        out = worst_case(f, eta, ELASTIC, p=p)
        assert np.all(np.abs(arrays.numpy(out.gap)) <= 64 * arrays.eps * 5), eta
        np.testing.assert_allclose(arrays.numpy(out.weights).sum(axis=-1), 1, atol=8 * arrays.eps)
    for eta, value in (
        (0.1, 0.70),
        (0.01, 0.745),
        (1e-4, 0.74995),
    ):  # tends to 3/4, not to max f = 1 (claim B1)
        out = worst_case(arrays.asarray([0.0, 1.0]), eta, HALF)
        assert float(out.value) == pytest.approx(value, abs=64 * arrays.eps)


def test_divergence_given_by_functions_has_the_same_solution(arrays: Arrays) -> None:
    random = np.random.default_rng(11)
    f = np.round(8 * random.normal(size=(6, 9))) / 8  # with ties
    eta = arrays.asarray([0.03125, 0.125, 0.5, 1.0, 8.0, 100.0])
    p = random.dirichlet(np.ones(9), size=6)
    p[:, 2] = 0
    p = arrays.asarray(p / p.sum(axis=-1, keepdims=True))
    tol = 256 * arrays.eps * (np.ptp(f) + np.abs(f).max())
    for d in select(usual=True):
        named = worst_case(arrays.asarray(f), eta, d, p=p)
        custom = worst_case(arrays.asarray(f), eta, anonymous(d), p=p)
        found, expected = arrays.numpy(custom.value), arrays.numpy(named.value)
        np.testing.assert_allclose(found, expected, atol=tol, err_msg=d.name)
        assert np.all(np.abs(arrays.numpy(custom.gap)) <= tol), d.name


def test_linear_term_of_phi_changes_only_mu(arrays: Arrays) -> None:
    """phi + a (x - 1) has the same weights and value as phi, and its mu is smaller by eta a."""
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


def test_user_functions_get_torch_tensors() -> None:
    """Only built-in divergences are evaluated on NumPy views of tensors."""
    torch = pytest.importorskip("torch", reason="torch: not installed")
    custom = Divergence(
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
    assert float(worst_case(f, 0.5, custom).value) == pytest.approx(
        float(worst_case(f, 0.5, QUADRATIC).value)
    )


def test_wrong_conjugate_increases_the_gap(doubles: Arrays) -> None:
    """The gap does not rely on dconj, which the solver uses."""
    wrong = replace(QUARTIC, dconj=lambda s: array_namespace(s).clip(1 + s, min=0.0))
    out = worst_case(doubles.asarray([0.0, 1.0, 3.0]), 0.5, wrong)
    assert float(out.gap) > 1e-2


def test_eta_is_returned_for_each_row(arrays: Arrays) -> None:
    f, eta = arrays.asarray(np.eye(3)), arrays.asarray([0.1, 0.2, 0.3])
    for given, expected in ((0.25, [0.25] * 3), (eta, arrays.numpy(eta))):
        out = worst_case(f, given, QUADRATIC).eta
        assert (out.dtype, tuple(out.shape)) == (arrays.dtype, (3,))
        np.testing.assert_array_equal(arrays.numpy(out), np.asarray(expected, dtype=arrays.numpy(f).dtype))


def test_exactly_one_of_eta_and_budget_is_required() -> None:
    for settings, got in (({}, "neither"), ({"eta": 1.0, "budget": 1.0}, "both")):
        with pytest.raises(TypeError, match=f"exactly one of eta and budget, got {got}"):
            worst_case(np.eye(2), **settings)


def test_divergence_may_be_a_name_and_is_entropic_by_default() -> None:
    f = np.array([0.0, 0.3, 1.0])
    for name, d in (("kl", ENTROPIC), ("chi2", QUADRATIC), ("tv", ABSOLUTE), ("hinge", HINGE)):
        assert float(worst_case(f, 0.2, name).value) == float(worst_case(f, 0.2, d).value)
        assert float(dual_value(f, 1.0, 1.0, name)) == float(dual_value(f, 1.0, 1.0, d))
    assert float(worst_case(f, 0.2).value) == float(worst_case(f, 0.2, ENTROPIC).value)

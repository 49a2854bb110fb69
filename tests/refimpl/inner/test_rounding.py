"""The true error is at most the gap plus the documented rounding error."""

from itertools import product
from typing import Any

import numpy as np
import pytest

from phiball import ABSOLUTE, ENTROPIC, HINGE, QUADRATIC, Divergence, cressie_read, indicator, worst_case
from phiball.backends import backend, to_numpy
from phiball.refimpl.inner import dual_value, primal_value
from tests.support.arrays import Arrays
from tests.support.divergences import select
from tests.support.extended_precision import AVAILABLE, FAMILIES, LAYOUTS, Problem, failures

pytestmark = pytest.mark.skipif(not AVAILABLE, reason="no extended precision on this machine")
CLOSED_FORM = [ENTROPIC, QUADRATIC, ABSOLUTE, HINGE, indicator(0.3), indicator(1.0)]


def failed_checks(f: Any, eta: Any, d: Divergence, p: Any, out: Any) -> list[str]:
    rows = to_numpy(f).reshape(-1, f.shape[-1])
    distribution = None if p is None else np.broadcast_to(to_numpy(p), f.shape).reshape(rows.shape)
    etas = np.broadcast_to(np.asarray(eta), f.shape[:-1]).reshape(-1)
    got = {name: to_numpy(getattr(out, name)) for name in ("value", "mu", "weights", "gap")}
    got = {name: x.reshape(rows.shape if x.ndim == f.ndim else -1) for name, x in got.items()}
    return failures(Problem.of(rows, etas, distribution, d), got)


def random_rows(m: int, dtype: Any, seed: int) -> tuple[Any, Any]:
    """Losses of many sizes and offsets, and distributions with zeros and tiny masses."""
    random = np.random.default_rng(seed)
    f = random.normal(size=(3, m)) * [[1.0], [1e-3], [50.0]] + [[0.0], [1.0], [-1e4]]
    f[2] = np.round(f[2])
    p = random.random((3, m)) ** 8
    p[0, : m // 3] = 0.0
    return f.astype(dtype), (p / p.sum(axis=-1, keepdims=True)).astype(dtype)


@pytest.mark.parametrize("backend_name", ["numpy", "numba"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_error_is_within_gap_and_rounding_in_every_memory_layout(layout: str, backend_name: str) -> None:
    move, eta = LAYOUTS[layout], [1e-4, 0.7, 1e6]
    with backend(backend_name):
        for d in (*CLOSED_FORM, cressie_read(0.5), cressie_read(1.5), cressie_read(3)):
            for dtype in (np.float64, np.float32):
                for m in (1, 40) if d not in CLOSED_FORM else (7, 5000):
                    f, p = map(move, random_rows(m, dtype, m))
                    for distribution in (None, p):
                        out = worst_case(f, np.array(eta, dtype=dtype), d, p=distribution)
                        case = d.name, dtype, m, distribution is None
                        assert not failed_checks(f, eta, d, distribution, out), case


@pytest.mark.slow
@pytest.mark.parametrize("backend_name", ["numpy", "numba"])
def test_error_is_within_gap_and_rounding_for_200000_losses_in_float32(backend_name: str) -> None:
    f, p = map(np.asfortranarray, random_rows(200_000, np.float32, 3))
    with backend(backend_name):
        for d, distribution in ((ABSOLUTE, None), (indicator(1.0), None), (indicator(0.3), p)):
            assert not failed_checks(f, 0.5, d, distribution, worst_case(f, 0.5, d, p=distribution)), d.name


def test_naive_summation_fails_the_checks() -> None:
    """The checks detect a value that is summed sequentially in single precision."""
    f, p = random_rows(30_000, np.float32, 1)
    out = worst_case(f, 0.5, ABSOLUTE, p=p)
    naive = np.array([np.cumsum(row)[-1] for row in out.weights * f], dtype=np.float32)
    object.__setattr__(out, "value", naive)
    assert "value" in failed_checks(f, 0.5, ABSOLUTE, p, out)


def test_quantile_is_exact_if_masses_are_below_the_rounding_of_their_sum() -> None:
    p = np.append(np.full(4000, 2.0**-60), [0.7, 0.3 - 4000 * 2.0**-60])
    f = np.append(np.linspace(1.0, 2.0, 4000), [0.0, 3.0])
    alpha = float(p[-1] + 2000.5 * 2.0**-60)
    for backend_name in ("numpy", "numba"):
        with backend(backend_name):
            out = worst_case(f[None], 1.0, indicator(alpha), p=p)
        assert not failed_checks(f[None], 1.0, indicator(alpha), p, out), backend_name


def test_error_is_within_gap_and_rounding_if_the_largest_loss_has_tiny_probability(arrays: Arrays) -> None:
    """The largest loss has a probability near machine epsilon, which matters because eta is small."""
    f = arrays.asarray([[146.637, 100.0, 50.0, 0.0], [1.0, 0.5, 0.25, 0.0]])
    for t in (1e-3, 1e-8, 1e-16, 1e-30):
        p = arrays.asarray([t, 0.3, 0.3, 0.4 - t])
        for d in select(core=True):
            for eta in (1.0, 1e-5, 1e-8, 1e-12):
                out = worst_case(f, eta, d, p=p)
                assert not failed_checks(f, eta, d, p, out), (d.name, t, eta, out)
    # In single precision, eta is far below the spacing of floats at mu.
    f = arrays.asarray([[173864400.0, 173864400.0, 173864576.0]])
    p = arrays.asarray([1 - 8.6e-7, 8.5e-7, 1e-8])
    assert not failed_checks(f, 6e-5, QUADRATIC, p, worst_case(f, 6e-5, QUADRATIC, p=p))
    if arrays.eps < 1e-10:  # a mass that underflows in single precision
        f, p = arrays.asarray([[0.0, 0.3, 1.0, 3.0]]), arrays.asarray([0.3, 0.7, 1e-9, 5e-53])
        for d in (*select(core=True), indicator(0.001)):
            for eta in (1e-7, 1e-3):
                assert not failed_checks(f, eta, d, p, worst_case(f, eta, d, p=p)), (d.name, eta)


def test_huge_eta_does_not_amplify_the_rounding_of_the_weights(arrays: Arrays) -> None:
    random = np.random.default_rng(1)
    f, p = arrays.asarray(random.normal(size=(4, 30))), arrays.asarray(random.dirichlet(np.ones(30), size=4))
    most = 1e37 if arrays.eps > 1e-10 else 1e300
    for d in select(core=True):
        for eta in (1e9, 1e15, 1e25, most):
            for distribution in (None, p):
                out = worst_case(f, eta, d, p=distribution)
                assert not failed_checks(f, eta, d, distribution, out), (d.name, eta, distribution is None)


def test_dual_is_finite_at_the_multiplier_of_examples_4_and_5(arrays: Arrays) -> None:
    """mu* = max f - eta, where (max f - mu)/eta is the end of the domain of phi*."""
    f = arrays.asarray([0.0, 1.0, 2.5, 4.0])
    for d in (ABSOLUTE, HINGE):
        assert float(dual_value(f, 3.5, 0.5, d)) == float(worst_case(f, 0.5, d).value)
        assert float(dual_value(f, 3.4375, 0.5, d)) == np.inf


def test_losses_near_overflow_are_solved_or_raise(doubles: Arrays) -> None:
    f = doubles.asarray([[1e306, -1e306, 0.5e306]])
    for d in (*select(core=True), cressie_read(-100), cressie_read(0)):
        for eta in (1e-300, 1e4, 1e300):
            k = d.parameter if d.family == "cressie_read" else 1
            if k is not None and k < 1 and eta == 1e-300:  # (f - mu)/eta overflows
                with pytest.raises(ValueError, match="losses / eta overflows"):
                    worst_case(f, eta, d)
            else:
                assert not failed_checks(f, eta, d, None, worst_case(f, eta, d)), (d.name, eta)


def test_dual_and_primal_values_are_bounds_even_for_huge_mu(arrays: Arrays) -> None:
    f, w = arrays.asarray([[0.0, 1.0]]), arrays.asarray([[0.25, 0.75]])
    most = float(arrays.xp.finfo(arrays.dtype).max)
    for d in [d for d in select(usual=True) if d.family in FAMILIES]:
        for eta in (1e-30, 1.0, 1e30):
            for mu in (0.5 * most, -0.5 * most):
                least = -1e-15 * most  # the optimal value is nonnegative, and mu is rounded
                assert float(dual_value(f, mu, eta, d)[0]) >= least, (d.name, mu, eta)
            assert float(primal_value(f, w, eta, d)[0]) <= 1.0


def test_budget_in_float32_is_accurate_in_c_and_fortran_order() -> None:
    f, p = random_rows(3000, np.float32, 5)
    with backend("numpy"):
        for d, distribution in product((QUADRATIC, ABSOLUTE, HINGE, cressie_read(0.5), ENTROPIC), (None, p)):
            plain = worst_case(f, budget=0.1, divergence=d, p=distribution)
            order = None if distribution is None else np.asfortranarray(p)
            moved = worst_case(np.asfortranarray(f), budget=0.1, divergence=d, p=order)
            double = worst_case(f.astype(float), budget=0.1, divergence=d, p=distribution)
            for out in (plain, moved):
                error = np.abs(out.value - double.value)
                assert np.all(error <= 2.0**-23 * np.abs(double.value)), d.name


def test_value_is_the_mean_if_losses_over_eta_underflow() -> None:
    for name, d in product(("numpy", "numba"), (ENTROPIC, QUADRATIC, ABSOLUTE, HINGE, cressie_read(1.5))):
        with backend(name):
            found = worst_case(np.array([0.0, 0.0, 3e-20]), 1e308, d)
        assert abs(found.value - 1e-20) <= 1e-34, (name, d.name)


def test_subnormal_losses_are_solved() -> None:
    """mu is rounded up to the next number also where that is a subnormal one; a loop once went on forever."""
    for dtype, unit in ((np.float32, 1e-42), (np.float64, 1e-320)):
        f = (np.random.default_rng(0).normal(size=(20, 200)) * unit).astype(dtype)
        for d, eta in product((ABSOLUTE, HINGE), (1e3 * unit, 1e4 * unit, 1e30)):
            eta = max(dtype(eta), np.finfo(dtype).smallest_normal)
            solution = worst_case(f, eta, d)
            assert np.all(solution.value <= f.max(axis=-1))
            assert np.all(np.abs(solution.gap) <= 200 * np.finfo(dtype).smallest_subnormal)
    f = -8.972964177816699e-308 - np.abs(np.random.default_rng(4).normal(size=(60, 16))) * 4e-311
    solution = worst_case(f, np.finfo(float).smallest_normal, cressie_read(-1))
    assert np.all((f.mean(axis=-1) <= solution.value) & (solution.value <= f.max(axis=-1)))


def test_equal_losses_with_a_huge_eta() -> None:
    """The value is the loss, although two sums of the probabilities may differ by rounding."""
    p = np.random.default_rng(0).dirichlet(np.ones(33), 2000)
    for d in (ENTROPIC, QUADRATIC, cressie_read(1.5), cressie_read(3), cressie_read(0.5)):
        solution = worst_case(np.zeros((2000, 33)), 1e295, d, p=p)
        assert np.all(solution.value == 0), d.name

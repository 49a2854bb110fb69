"""The compiled solvers of the inner problem agree with the reference or return NotImplemented."""

from collections.abc import Callable
from itertools import product
from typing import Any

import mpmath as mp
import numba
import numpy as np
import pytest

from phiball.backends import backend
from phiball.backends.numba import elementary_functions as elementary
from phiball.backends.numba import solve as numba_solve
from phiball.refimpl import ENTROPIC, QUADRATIC, Divergence, cressie_read, indicator, worst_case
from phiball.refimpl.inner import dual_value, primal_value
from phiball.refimpl.inner.solvers import solve
from tests.support.divergences import anonymous, name_of, on_each, select

ORDERS = [cressie_read(k) for k in (-20, -1, 0, 1e-9, 0.3, 1 - 1e-9, 1 + 1e-9, 1.1, 1.7, 2 + 1e-9, 2.5, 7)]


@pytest.fixture(autouse=True)
def _numba() -> Any:
    with backend("numba"):
        yield


def assert_agrees(f: Any, eta: Any, d: Divergence, p: Any = None) -> None:
    """Assert that the kernel supports the problem and agrees with the reference up to rounding."""
    etas = np.broadcast_to(np.asarray(eta, dtype=f.dtype), f.shape[:-1])
    fast = numba_solve.solve(f, etas, p, d)
    assert fast is not NotImplemented
    value, _, weights, gap = (np.asarray(x, dtype=np.float64) for x in fast)
    slow, _, expected, _ = (np.asarray(x, dtype=np.float64) for x in solve.reference(f, etas, p, d))
    spread = np.ptp(f, axis=-1).astype(np.float64) + np.abs(slow)
    eps, m = np.finfo(f.dtype).eps, f.shape[-1]
    assert np.all(np.abs(value - slow) <= 16 * eps * spread)
    # For k > 2, the density has an infinite slope at 0, so that small densities have the error of the sum of
    # all m terms. With p, the weight at the quantile (indicator) is a difference of sums of probabilities.
    steep = d.family == "cressie_read" and d.parameter is not None and d.parameter > 2
    allowed = (256 + 8 * m * steep) * eps * np.max(expected, axis=-1, keepdims=True)
    allowed = allowed + (16 * 2.0**-52 if d.family == "indicator" and p is not None else 0.0)
    assert np.all(np.abs(weights - expected) <= allowed)
    assert np.all(np.abs(gap) <= 32 * eps * spread)
    # mu may not be unique: instead of mu, compare the dual value at mu.
    if m <= 1000 and (d.parameter is None or abs(d.parameter) < 5):
        recomputed = dual_value(f, fast[1], etas, d, p=p) - primal_value(f, fast[2], etas, d, p=p)
        # For a kinked phi, rounding errors of the weights have a first-order effect.
        charge = 4 * eps * np.asarray(etas, dtype=float) if d.family in ("absolute", "hinge") else 0.0
        assert np.all(np.abs(recomputed - gap) <= 64 * eps * spread + charge)


def reference_distribution(shape: tuple[int, ...], dtype: Any = np.float64) -> Any:
    """Probabilities of many sizes, with zero at every fourth point."""
    p = np.random.default_rng(shape[-1]).random(shape) ** 4
    p[..., 1::4] = 0.0
    return (p / p.sum(axis=-1, keepdims=True)).astype(dtype)


@on_each("d", *ORDERS, compiled=True)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_kernel_agrees_with_reference(d: Divergence, dtype: Any) -> None:
    for m in (1, 2, 8, 17, 128, 5000):
        for scale in (1e-6, 0.1, 1.0, 1e6):
            rng = np.random.default_rng([m, int(1e6 * scale)])
            f = rng.exponential(size=(5, m)).astype(dtype)
            f[1] = np.round(2 * f[1])  # ties
            f[2] = f[2, 0]  # constant
            f[3] += 1000
            own = reference_distribution(f.shape, dtype)
            for p in (None, own, own[0].astype(np.float64)) if m in (1, 17) else (None, own):
                assert_agrees(f, scale * np.array([1.0, 1.0, 0.3, 1.0, 3.0]), d, p)


@pytest.mark.parametrize(
    "d", [ENTROPIC, QUADRATIC, indicator(0.3), *map(cressie_read, (0.5, 1.5, 3.0))], ids=name_of
)
@pytest.mark.parametrize("m", [17, 30])
def test_results_do_not_depend_on_memory_addresses(d: Divergence, m: int) -> None:
    """If arrays may overlap, the compiler could choose the order of summation by their addresses."""
    losses, masses = np.random.default_rng(5).normal(size=m), reference_distribution((m,))
    chosen = numba_solve._kernel_for(d)
    assert chosen is not None
    kernel, parameter = chosen
    for distribution in (None, masses):
        results = set()
        for distance in (1000, -m, *range(m, m + 16)):
            memory = np.zeros(2600)
            f, weights, p = (memory[at : at + m] for at in (500, 500 + distance, 500 + 2 * distance))
            f[:], p[:] = losses, masses
            out = np.zeros(1), np.zeros(1), weights, np.zeros(1)
            rows = f, np.array([0, m]), np.full(1, 0.3)
            kernel(rows, None if distribution is None else p, 0, parameter, float(d.slope1), out, 0, 1)
            results.add(b"".join(x.tobytes() for x in out))
        assert len(results) == 1


def test_unsupported_problems_return_not_implemented() -> None:
    f, eta = np.zeros((2, 3)), np.ones(2)
    assert numba_solve.solve(f, eta, None, anonymous(ENTROPIC)) is NotImplemented
    single = np.full(3, 1 / 3, dtype=np.float32)  # in float64, the sum differs from 1
    assert numba_solve.solve(f, eta, single, ENTROPIC) is NotImplemented
    assert numba_solve.solve_ragged(f[0], np.array([0, 3]), eta[:1], single, ENTROPIC) is NotImplemented


@on_each("d", cressie_read(0.5), cressie_read(3), compiled=True)
@pytest.mark.parametrize("m", [40, 300])
def test_invalid_losses_and_probabilities_raise_at_every_position(d: Divergence, m: int) -> None:
    losses, distribution = np.random.default_rng(4).normal(size=(3, m)), reference_distribution((3, m))
    messages = {-1e-30: "p contains -1e-30", np.nan: "p contains nan", 0.1: "p sums to 1."}
    for row, place in enumerate((0, 5, m - 1)):
        for bad, message in messages.items():
            p = distribution.copy()
            p[row, place // 4 * 4 + 1] = bad  # where p is zero
            with pytest.raises(ValueError, match=message):
                worst_case(losses, 0.3, d, p=p)
            with pytest.raises(ValueError, match=message):
                worst_case(
                    losses.reshape(-1), offsets=[0, m, 2 * m, 3 * m], eta=0.3, divergence=d, p=p.reshape(-1)
                )
        for bad, p in product((np.nan, np.inf, -np.inf), (None, distribution)):
            f = losses.copy()
            f[row, place] = bad
            with pytest.raises(ValueError, match=f"losses contains {bad}"):
                worst_case(f, 0.3, d, p=p)


def test_overflow_of_losses_over_eta_gives_the_maximum() -> None:
    f = np.array([[0.0, 1e200, 3e200] * 10])
    for d, eta in product((*select(compiled=True), cressie_read(3)), (1e-305, 1e-200, 1e-10)):
        if d.family != "indicator":  # CVaR does not depend on eta
            out = worst_case(f, eta, d)
            np.testing.assert_allclose(out.weights, np.where(f == 3e200, 0.1, 0.0), rtol=1e-12)
            assert np.isfinite(out.value), (d.name, eta)


def test_torch_tensors_use_the_kernels() -> None:
    torch = pytest.importorskip("torch")
    f = torch.linspace(0, 1, 50, dtype=torch.float64).reshape(5, 10)
    fast = numba_solve.solve(f, torch.ones(5, dtype=torch.float64), None, QUADRATIC)
    assert all(isinstance(x, torch.Tensor) for x in fast)
    np.testing.assert_array_equal(fast[2].numpy(), worst_case(f.numpy(), 1.0, QUADRATIC).weights)


SCALES = 10.0 ** np.linspace(-300, 300, 4500)
QUANTILES = {
    "ties": np.round(np.random.default_rng(8).standard_cauchy(300), 1),
    "even": np.arange(9000.0),
    "two values": (np.arange(9000) % 3 == 0).astype(float),
    "one outlier": np.r_[1e300, np.linspace(0, 1, 8999)],
    "all scales": np.r_[-SCALES, SCALES],
    "heavy tail": np.random.default_rng(0).standard_cauchy(9000) ** 5,
}


@pytest.mark.parametrize("shape", QUANTILES)
def test_quantile_agrees_with_sorting(shape: str) -> None:
    """The probabilities are equal, of similar size or of very different sizes."""
    a, rng = QUANTILES[shape], np.random.default_rng(8)
    m = len(a)
    for rank in {1, min(2, m), -(-m // 4), -(-m // 2), m}:
        _, mu, _, _ = numba_solve.solve(a[None], np.ones(1), None, indicator(rank / m))
        assert mu == np.sort(a)[-rank], rank
    for power in (0, 1, 30):
        p = rng.random(m) ** power
        p[1::3] = 0.0
        p /= p.sum()
        order = np.argsort(-a[p > 0], kind="stable")
        total = np.cumsum(p[p > 0][order].astype(np.longdouble))
        for alpha in (1e-9, 0.013, 0.5, 1.0):
            reach = total >= alpha * (1 - 1e-14)
            expected = a[p > 0][order][np.argmax(reach)] if reach.any() else a[p > 0].min()
            _, mu, _, _ = numba_solve.solve(a[None], np.ones(1), p, indicator(alpha))
            assert mu == expected, (power, alpha)


@pytest.mark.parametrize("d", [QUADRATIC, indicator(0.3), *map(cressie_read, (1.5, 1.8, 3))], ids=name_of)
def test_kernel_agrees_with_reference_if_the_largest_loss_has_tiny_probability(d: Divergence) -> None:
    """The multiplier mu, computed relative to the largest loss, would be inaccurate."""
    f = np.array([[146.637, 100.0, 50.0, 0.0], [3.0, 1.0, 0.3, 0.0]])
    for t, eta in product((1e-8, 1e-16, 1e-30), (1.0, 1e-5, 1e-8)):
        assert_agrees(f, eta, d, np.array([t, 0.3, 0.3, 0.4 - t]))
    # A rounding error in the multiplier would overflow when squared.
    f = np.array([[2.7353011081311927e284, 1.157581238979382e284, -2.199490478231716e284]])
    p = np.array([[0.997298028680919, 7.291611259548267e-05, 0.0026290552064854905]])
    if d is QUADRATIC:
        assert_agrees(f, 9.342842733140154e283, d, p)


def test_entropic_weights_in_single_precision_do_not_underflow() -> None:
    """If the largest loss has a tiny probability, the weights would be subnormal before normalization."""
    f = np.array([97.0, 0.0, 0.5, -0.3], dtype=np.float32)
    p = np.array([1e-42, 0.3, 0.3, 0.4], dtype=np.float32)
    with backend("numba"):
        found = worst_case(f, 1.0, ENTROPIC, p=p)
    exact = p.astype(float) * np.exp(f.astype(float))
    np.testing.assert_allclose(found.weights, exact / exact.sum(), rtol=1e-5)


@numba.njit
def _decay(a: float) -> float:
    return np.expm1(-2 * a)


def _from_python(function: Any, *arguments: Any) -> Callable[[float], float]:
    """Wrap a function that only compiled code can call."""
    if arguments:
        return numba.njit(lambda x: function(x, *arguments))  # type: ignore[no-any-return]
    return numba.njit(lambda x: function(x))  # type: ignore[no-any-return]


def _log_uniform(low: float, high: float) -> Any:
    return 10 ** np.random.default_rng(0).uniform(low, high, 300)


UNIFORM = np.random.default_rng(0).uniform(-1, 1, 300)
ELEMENTARY: dict[str, tuple[Any, Callable[[Any], Any], Any]] = {
    "log": (_from_python(elementary.fast_log), mp.log, np.r_[np.exp(700 * UNIFORM), 1 + UNIFORM / 2**30]),
    "exp": (_from_python(elementary.exp_minus, 0.0), mp.exp, np.r_[700 * UNIFORM, 0.0]),
    "expm1": (
        _from_python(elementary.exp_minus, 1.0),
        mp.expm1,
        np.r_[_log_uniform(-300, 2.8), -_log_uniform(-300, 2.8)],
    ),
    "log1p": (
        _from_python(elementary.fast_log1p),
        mp.log1p,
        np.r_[_log_uniform(-300, 300), -_log_uniform(-300, -1e-3)],
    ),
    "log sinhc": (
        numba.njit(lambda a: elementary.log_sinhc(a, _decay(a))),
        lambda a: mp.log(mp.sinh(a) / a),
        _log_uniform(-12, 4),
    ),
    "sin pi": (_from_python(elementary.sin_pi), mp.sinpi, UNIFORM / 2),
}


@pytest.mark.parametrize("name", ELEMENTARY)
def test_elementary_functions_are_accurate_to_eight_ulp(name: str) -> None:
    function, exact, points = ELEMENTARY[name]
    with mp.workdps(60):
        for x in map(float, points):
            assert abs(function(x) / exact(mp.mpf(x)) - 1) < 8 * 2.0**-53, x
    if name == "exp":  # exp is zero below the normal range
        assert [function(x) for x in (-709.0, -1e308)] == [0.0, 0.0]

"""The compiled kernels: equal to the reference, and compiled once."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numba
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phiball.backends import use
from phiball.backends.numba import kernels as numba_kernels
from phiball.backends.numba import primitives as numba_parts
from phiball.backends.numba import quantiles as numba_quantiles
from phiball.backends.numba import solve as numba_solve
from phiball.backends.numba.compilation import prepare
from phiball.backends.numba.three_halves import three_halves
from phiball.refimpl import (
    ENTROPIC,
    QUADRATIC,
    Divergence,
    cressie_read,
    dual_value,
    indicator,
    primal_value,
    worst_case,
    worst_case_ragged,
)
from phiball.refimpl.inner.solvers import solve
from phiball.refimpl.inner.worst_case import WorstCase
from tests.support.divergences import anonymous, on_each

names = on_each(compiled=True)


@pytest.fixture(autouse=True)
def _numba() -> Any:
    with use("numba"):
        yield


def assert_same(f: Any, eta: Any, d: Divergence, p: Any = None) -> None:
    """The kernel takes the problem, and its result is the reference's to rounding."""
    etas = np.broadcast_to(np.asarray(eta, dtype=f.dtype), f.shape[:-1])
    fast = numba_solve.solve(f, etas, p, d)
    assert fast is not NotImplemented
    value, _, weights, gap = (np.asarray(x, dtype=np.float64) for x in fast)
    slow = WorstCase(*solve.reference(f, etas, p, d))
    spread = np.ptp(f, axis=-1).astype(np.float64) + np.abs(np.asarray(slow.value, dtype=np.float64))
    eps = np.finfo(f.dtype).eps
    assert np.all(np.abs(value - slow.value) <= 16 * eps * spread)
    # 256: float32 sums of 5000 terms in the reference. A quantile under a law is a difference of its sums.
    allowed = 256 * eps * np.max(slow.weights, axis=-1, keepdims=True)
    allowed = allowed + (16 * 2.0**-52 if d.family == "indicator" and p is not None else 0.0)
    assert np.all(np.abs(weights - slow.weights) <= allowed)
    assert np.all(np.abs(gap) <= 32 * eps * spread)
    # mu need not be unique: it is as good as the reference's if the certificate holds at it.
    recomputed = dual_value(f, fast[1], etas, d, p) - primal_value(f, fast[2], etas, d, p)
    # A weight is rounded to the dtype, which a kinked phi charges for to first order.
    charge = 4 * eps * np.asarray(etas, dtype=float) if d.family in ("absolute", "hinge") else 0.0
    assert np.all(np.abs(recomputed - gap) <= 32 * eps * spread + charge)


def law_of(shape: tuple[int, ...], dtype: Any) -> Any:
    """A law of each row: masses of many sizes, and none at every fourth point."""
    p = np.random.default_rng(shape[-1]).random(shape) ** 4
    p[..., 1::4] = 0.0
    return (p / p.sum(axis=-1, keepdims=True)).astype(dtype)


@names
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_kernel_equals_reference(d: Divergence, dtype: Any) -> None:
    for m in (1, 2, 7, 8, 16, 17, 33, 128, 1000, 5000):
        for scale in (1e-6, 0.1, 1.0, 1e6):
            rng = np.random.default_rng([m, int(1e6 * scale)])
            f = rng.exponential(size=(5, m)).astype(dtype)
            f[1] = np.round(2 * f[1])  # ties
            f[2] = f[2, 0]  # constant
            f[3] += 1000
            own = law_of(f.shape, dtype)
            for p in (None, own, own[0]) if m in (1, 7, 33, 5000) else (None, own):
                assert_same(f, scale, d, p)


@names
def test_rows_have_their_own_eta(d: Divergence) -> None:
    rng = np.random.default_rng(0)
    f, eta = rng.normal(size=(3, 70, 9)), 10.0 ** rng.uniform(-3, 3, size=(3, 70))
    for shape in ((9,), (1, 1, 9), (70, 9), (3, 1, 9), (3, 70, 9)):
        assert_same(f, eta, d, law_of(shape, f.dtype))
    assert_same(f, eta, d)
    assert_same(f.astype(np.float32), eta, d, law_of((9,), np.float64))


@names
def test_input_of_any_layout(d: Divergence) -> None:
    rng = np.random.default_rng(1)
    f, p = rng.normal(size=(40, 30)), law_of((40, 30), np.float64)

    def layouts(x: Any) -> tuple[Any, ...]:
        frozen = x.copy()
        frozen.flags.writeable = False
        strided = np.empty((40, 60))
        strided[:, ::2] = x
        return frozen, np.asfortranarray(x), strided[:, ::2]

    expected, under_p = worst_case(f, 0.5, d).weights, worst_case(f, 0.5, d, p=p).weights
    for other, law in zip(layouts(f), layouts(p), strict=True):
        before = other.copy(), law.copy()
        np.testing.assert_array_equal(worst_case(other, 0.5, d).weights, expected)
        np.testing.assert_array_equal(worst_case(other, 0.5, d, p=law).weights, under_p)
        np.testing.assert_array_equal((other, law), before)


@names
@pytest.mark.parametrize("m", [8, 17, 30, 100])
def test_results_do_not_depend_on_where_arrays_lie(d: Divergence, m: int) -> None:
    """The compiler has another loop for arrays that may overlap: it must not sum in another order."""
    losses, eta, masses = np.random.default_rng(5).normal(size=m), np.full(1, 0.3), law_of((m,), np.float64)
    for law in (None, masses):
        kernel: Any = numba_solve._kernel_for(d, m if law is None else None)
        results = set()
        for distance in (1000, -m, *range(m, m + 16)):
            memory = np.zeros(2600)
            f, weights, p = (memory[at : at + m] for at in (500, 500 + distance, 500 + 2 * distance))
            f[:], p[:] = losses, masses
            out = np.zeros(1), np.zeros(1), weights, np.zeros(1)
            numbers = numba_solve._parameter(d), float(d.slope1)
            kernel(f, np.array([0, m]), eta, None if law is None else p, True, *numbers, out, 0, 1)
            results.add(b"".join(x.tobytes() for x in out))
        assert len(results) == 1


@pytest.mark.parametrize("law", [False, True])
@pytest.mark.parametrize(
    "kernel",
    [numba_kernels.entropic, numba_kernels.quadratic, three_halves, numba_quantiles.indicator],
)
def test_no_loop_asks_how_close_arrays_are(kernel: Any, law: bool) -> None:
    """`read` and `write` tell the compiler that they do not overlap: there is one form of each loop."""
    again = numba.njit(error_model="numpy", fastmath=numba_parts.SUMS, forceinline=True)(kernel.py_func)
    f, p = np.linspace(0, 1, 50), np.full(50, 0.02) if law else None
    out = np.zeros(1), np.zeros(1), np.zeros(50), np.zeros(1)
    again(f, np.array([0, 50]), np.full(1, 0.3), p, True, 0.5, 0.0, out, 0, 1)
    (text,) = again.inspect_llvm().values()
    assert "vector.body" in text
    assert "vector.memcheck" not in text


def test_the_square_of_a_rounded_multiplier_does_not_overflow() -> None:
    f = np.array([2.7353011081311927e284, 1.157581238979382e284, -2.199490478231716e284])
    p = np.array([0.997298028680919, 7.291611259548267e-05, 0.0026290552064854905])
    assert_same(f[None], 9.342842733140154e283, QUADRATIC, p[None])


def test_declines_what_it_does_not_cover() -> None:
    f, eta = np.zeros((2, 3)), np.ones(2)
    assert numba_solve.solve(f, eta, None, anonymous(ENTROPIC)) is NotImplemented
    single = np.full(3, 1 / 3, dtype=np.float32)  # its sum may be off by more than a double's
    assert numba_solve.solve(f, eta, single, ENTROPIC) is NotImplemented
    assert numba_solve.solve_ragged(f[0], np.array([0, 3]), eta[:1], single, ENTROPIC) is NotImplemented


@on_each(compiled=True)
def test_what_is_no_law_is_left_to_the_reference(d: Divergence) -> None:
    f = np.random.default_rng(4).normal(size=(3, 40))
    for bad, message in ((-1e-30, "p contains -1e-30"), (np.nan, "p contains nan"), (0.1, "p sums to 1.")):
        for p in (law_of((40,), np.float64), law_of((3, 40), np.float64)):
            p[..., 5] = bad
            with pytest.raises(ValueError, match=message):
                worst_case(f, 0.3, d, p=p)
            law = np.broadcast_to(p, f.shape).reshape(-1)
            with pytest.raises(ValueError, match=message):
                worst_case_ragged(f.reshape(-1), [0, 40, 80, 120], 0.3, d, p=law)


@on_each(compiled=True)
def test_a_loss_without_mass_matters_only_if_it_is_not_finite(d: Divergence) -> None:
    f, p = np.random.default_rng(6).normal(size=(2, 40)), law_of((2, 40), np.float64)
    for eta in (1e-3, 0.3, 1e3):
        for law in (p, p[0]):
            expected = worst_case(f, eta, d, p=law)
            for far in (-1e5, 7.0, 1e5):
                g = f.copy()
                g[:, 1::4] = far
                out = worst_case(g, eta, d, p=law)
                assert np.all(out.weights[:, 1::4] == 0)
                for name in ("value", "mu", "weights"):
                    np.testing.assert_allclose(getattr(out, name), getattr(expected, name), 1e-13, 1e-13)
            for far in (np.nan, np.inf, -np.inf):
                g = f.copy()
                g[1, 5] = far
                with pytest.raises(ValueError, match="losses contains"):
                    worst_case(g, eta, d, p=law)


@names
@pytest.mark.parametrize("eta", [1e-305, 1e-200, 1e-10])
def test_losses_over_eta_that_overflow_are_left_to_the_reference(d: Divergence, eta: float) -> None:
    f = np.array([[0.0, 1e200, 3e200] * 10])
    out = worst_case(f, eta, d)
    if d.family == "indicator":
        expected = solve.reference(f, np.array([eta]), None, d)[2]
    else:
        expected = np.where(f == 3e200, 0.1, 0.0)
    np.testing.assert_allclose(out.weights, expected, rtol=1e-12)
    assert np.isfinite(out.value)


def test_torch_tensors_take_the_kernels() -> None:
    torch = pytest.importorskip("torch")
    f = torch.linspace(0, 1, 50, dtype=torch.float64).reshape(5, 10)
    fast = numba_solve.solve(f, torch.ones(5, dtype=torch.float64), None, QUADRATIC)
    assert all(isinstance(x, torch.Tensor) for x in fast)
    expected = worst_case(f.numpy(), 1.0, QUADRATIC)
    np.testing.assert_array_equal(fast[2].numpy(), expected.weights)


def test_exponential() -> None:
    """exp and expm1 are within 4 ulp of the exact value, from tiny to huge arguments."""
    import mpmath as mp

    rng = np.random.default_rng(2)
    points = [0.0, -5e-324, -1e-300, *(-(10.0 ** rng.uniform(-20, 2.84, size=2000))), -707.9, -708.0]
    for x in points:
        with mp.workdps(40):
            exact, exact1 = mp.exp(x), mp.expm1(x)
        assert abs(numba_parts.exp_nonpositive(x) - exact) <= 4 * 1.2e-16 * exact
        assert abs(numba_parts.expm1_nonpositive(x) - exact1) <= 4 * 1.2e-16 * abs(exact1)
    assert numba_parts.exp_nonpositive(-709.0) == 0.0
    assert numba_parts.exp_nonpositive(-1e308) == 0.0
    assert numba_parts.expm1_nonpositive(-1e308) == -1.0


def assert_selects(a: Any, rank: int) -> None:
    q = np.sort(a)[-rank]
    assert numba_quantiles.select(a, rank) == (q, np.sum(a > q), np.sum(a >= q))


@pytest.mark.slow
@given(
    st.integers(1, 400).flatmap(
        lambda n: st.tuples(
            st.lists(
                st.sampled_from([-1.0, 0.0, 0.5, 2.0, 3.0]) | st.floats(-10, 10), min_size=n, max_size=n
            ),
            st.integers(1, n),
        )
    )
)
@settings(max_examples=150, derandomize=True, deadline=None)
def test_select_is_the_order_statistic(problem: tuple[list[float], int]) -> None:
    values, rank = problem
    assert_selects(np.array(values), rank)
    assert_selects(np.array(values, dtype=np.float32), rank)


@pytest.mark.parametrize("shape", ["even", "two values", "one outlier", "all scales", "heavy tail"])
def test_select_where_interpolation_misleads(shape: str) -> None:
    n = 10_000
    a = {
        "even": np.arange(n, dtype=float),
        "two values": (np.arange(n) % 3 == 0).astype(float),
        "one outlier": np.r_[1e300, np.linspace(0, 1, n - 1)],
        "all scales": np.r_[
            -(10.0 ** np.linspace(-300, 300, n // 2)), 10.0 ** np.linspace(-300, 300, n // 2)
        ],
        "heavy tail": np.random.default_rng(0).standard_cauchy(n) ** 5,
    }[shape]
    for rank in (1, 2, 17, n // 4, n // 2, n - 1, n):
        assert_selects(a, rank)


def test_the_quantile_under_a_law() -> None:
    """Heavy entries, tiny ones, ties, and none: the answer is that of sorting."""
    rng = np.random.default_rng(8)
    for m in (1, 2, 9, 300, 9000):
        for power in (0, 1, 30):
            a, p = np.round(rng.standard_cauchy(m), 1 if power == 1 else 12), rng.random(m) ** power
            p[1::3] = 0.0
            p /= p.sum()
            for alpha in (1e-9, 0.013, 0.5, 1.0):
                order = np.argsort(-a, kind="stable")
                reach = np.cumsum(p[order].astype(np.longdouble)) >= alpha * (1 - 1e-14)
                expected = a[order][p[order] > 0][np.argmax(reach[p[order] > 0])] if reach.any() else None
                charged = a[p > 0]
                extent = charged.min(), charged.max()
                q, above, tied, _ = numba_quantiles.weighted_select(a, p, alpha * (1 - 1e-14), 1.0, *extent)
                assert q == (extent[0] if expected is None else expected), (m, power, alpha)
                np.testing.assert_allclose([above, tied], [p[a > q].sum(), p[a == q].sum()], 1e-12, 1e-14)


@pytest.mark.parametrize("d", [QUADRATIC, cressie_read(1.5), indicator(0.3)], ids=lambda d: d.name)
def test_next_to_no_mass_at_the_top_is_compiled(d: Divergence) -> None:
    """The smallest loss with weight takes the place of the largest, whose multiplier lacks the digits."""
    f = np.array([[146.637, 100.0, 50.0, 0.0], [3.0, 1.0, 0.3, 0.0]])
    for t in (1e-8, 1e-16, 1e-30):
        for eta in (1.0, 1e-5, 1e-8):
            assert_same(f, eta, d, np.array([t, 0.3, 0.3, 0.4 - t]))


def test_little_mass_at_the_top_keeps_the_sum_of_the_weights() -> None:
    """Each loop rounds the multiple of a loss in the same way: here it is large, and the difference small."""
    rng = np.random.default_rng(4)
    p = np.stack([rng.uniform(size=2000), np.ones(2000), 10 ** rng.uniform(-14, -5, 2000)], -1)
    p = p / p.sum(-1, keepdims=True)
    f = np.stack([-rng.uniform(size=2000), np.zeros(2000), rng.uniform(size=2000)], -1)
    w = worst_case(f, 10 ** rng.uniform(-5, -1, 2000), cressie_read(1.5), p=p).weights
    assert np.max(np.abs(w.astype(np.longdouble).sum(-1) - 1)) <= 1.2e-14


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("m", [8, 40, 300])
@names
def test_a_loss_that_is_not_finite_is_seen(d: Divergence, m: int, bad: float) -> None:
    f = np.random.default_rng(3).normal(size=(70, m))
    for place in ((0, 0), (69, m - 1), (30, m // 2)):
        g = f.copy()
        g[place] = bad
        with pytest.raises(ValueError, match=f"losses contains {bad}"):
            worst_case(g, 0.3, d)
        worst_case(g, 0.3, d, check=False)  # returns, whatever it is


@pytest.mark.slow
def test_second_process_loads_from_disk(tmp_path: Path) -> None:
    """The kernel's cache files are written by the first process and hit by the second, with the same bits."""
    code = (
        "import numpy as np\n"
        "from phiball.refimpl import cressie_read, worst_case\n"
        "from phiball.backends.numba.powers import power\n"
        "f = np.random.default_rng(0).exponential(size=(20, 1000))\n"
        "out = worst_case(f, 0.1, cressie_read(3.0), p=np.arange(1000) / 499500)\n"
        "print(sum(power.stats.cache_hits.values()), sum(power.stats.cache_misses.values()))\n"
        "print(hash(out.value.tobytes() + out.weights.tobytes() + out.gap.tobytes()))\n"
    )
    env = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path), "PHIBALL_BACKEND": "numba", "PYTHONHASHSEED": "0"}
    runs = [
        subprocess.run(
            [sys.executable, "-c", code], env=env, cwd=tmp_path, capture_output=True, text=True, check=True
        )
        for _ in range(2)
    ]
    first, second = (run.stdout.split() for run in runs)
    assert first[:2] == ["0", "1"]
    assert second[:2] == ["1", "0"]
    assert first[2] == second[2]


class Kernel:
    """What `prepare` sees of a kernel: its name, and how often it was not in the cache."""

    __name__ = "slow"

    def __init__(self) -> None:
        self.stats = SimpleNamespace(cache_misses=Counter(), cache_path="a folder")

    def load(self) -> None:
        time.sleep(1.2)

    def compile(self) -> None:
        self.stats.cache_misses["a signature"] += 1
        time.sleep(1.2)


def test_long_compilation_is_announced_but_not_long_loading(caplog: pytest.LogCaptureFixture) -> None:
    kernel = Kernel()
    with caplog.at_level(logging.WARNING, logger="phiball"):
        prepare(kernel, "f4", lambda: None)
        prepare(kernel, "f8", kernel.load)
        prepare(kernel, "f8", kernel.compile)  # it is there already
        assert not caplog.records
        prepare(kernel, "f16", kernel.compile)
    assert [record.getMessage() for record in caplog.records] == [
        "compiling the Numba kernel 'slow', once: later it is loaded from a cache"
    ]

"""The kernel of the Cressie-Read divergences of any order: equal to the reference, or it declines."""

from __future__ import annotations

from typing import Any

import mpmath as mp
import numpy as np
import pytest

from phiball.backends.numba import solve as numba_solve
from phiball.backends.numba.elementary import exponentials, log_normal, power_single
from phiball.backends.numba.powers import power
from phiball.refimpl import cressie_read
from phiball.refimpl.inner.solvers import solve

ORDERS = (-20, -2, 0, 1e-9, 0.3, 0.9, 1 - 1e-9, 1 + 1e-9, 1.1, 1.7, 2 - 1e-9, 2 + 1e-9, 2.5, 7, 20)


def run(f: Any, eta: float, k: float, p: Any = None) -> tuple[Any, Any, Any, Any]:
    """Return (value, mu, weights, gap) of the kernel itself."""
    n, m = f.shape
    value, mu, gap = (np.zeros(n, f.dtype) for _ in range(3))
    weights = np.zeros(n * m, f.dtype)
    etas, flat = np.full(n, eta, f.dtype), None if p is None else p.reshape(-1)
    shared = p is None or p.ndim == 1
    power(
        f.reshape(-1), np.arange(0, n * m + 1, m), etas, flat, shared, k, 0.0, (value, mu, weights, gap), 0, n
    )
    return value, mu, weights.reshape(n, m), gap


def rows(m: int, dtype: Any) -> tuple[Any, Any]:
    """Return losses with ties, offsets and a constant row, and a law of each row with zeros."""
    rng = np.random.default_rng(m)
    f = rng.exponential(size=(5, m)).astype(dtype)
    f[1] = np.round(2 * f[1])
    f[2] = f[2, 0]
    f[3] += 1000
    p = rng.exponential(size=(5, m)).astype(dtype)
    p[:, 1::4] = 0.0
    return f, p / p.sum(axis=-1, keepdims=True)


@pytest.mark.parametrize("k", ORDERS)
def test_equal_to_the_reference(k: float) -> None:
    """Values, weights and a gap at rounding level, under the uniform law, one law and one a row."""
    for m, dtype in (
        (1, np.float64),
        (2, np.float64),
        (7, np.float32),
        (128, np.float64),
        (1000, np.float64),
    ):
        f, own = rows(m, dtype)
        for n, eta in enumerate((1e-6, 0.1, 1.0, 100.0, 1e8)):
            p = (None, own, own[0])[(n + m) % 3]
            value, _, weights, gap = run(f, eta, k, p)
            law = np.broadcast_to(np.ones(m) / m if p is None else p, f.shape).astype(np.float64)
            law = law / law.sum(axis=-1, keepdims=True)
            etas = np.full(5, float(dtype(eta)))
            slow, _, expected, _ = solve.reference(f.astype(np.float64), etas, law, cressie_read(k))
            eps, size = np.finfo(dtype).eps, np.ptp(f, axis=-1) + np.abs(slow)
            assert np.all(np.abs(value - slow) <= 16 * eps * size), (m, eta)
            # Either may be off by the rounding of a sum of m terms, which the smallest ratio takes up.
            allowed = (64 + 8 * m) * eps * np.max(expected, axis=-1, keepdims=True)
            assert np.all(np.abs(weights - expected) <= allowed), (m, eta)
            assert np.all(np.abs(gap) <= 32 * eps * size), (m, eta)


def test_declines_what_it_cannot_vouch_for() -> None:
    f = np.array([[0.0, 1.0, 2.0]])
    for losses, eta, k, p in (
        (np.array([[0.0, np.inf, 1.0]]), 1.0, 3.0, None),
        (np.array([[0.0, np.nan, 1.0]]), 1.0, 0.5, np.array([0.5, 0.0, 0.5])),
        (f * 1e200, 1e-200, 1.7, None),
        (f, 1.0, -1000.0, None),
        (f, 1.0, 0.5, np.array([0.5, 0.7, -0.2])),
        (f, 1.0, 0.5, np.array([0.5, 0.4, 0.2])),
    ):
        assert np.isnan(run(losses, eta, k, p)[0][0]), (losses, k, p)
    assert numba_solve.solve(f, np.ones(1), None, cressie_read(1.7)) is not NotImplemented
    assert numba_solve.solve(np.full_like(f, np.inf), np.ones(1), None, cressie_read(1.7)) is NotImplemented


def test_elementary_functions() -> None:
    rng = np.random.default_rng(0)
    with mp.workdps(40):
        for x in (
            *rng.uniform(-700, 700, size=300),
            *(rng.choice([-1, 1], 300) * 10 ** rng.uniform(-18, 0, 300)),
        ):
            exact, less = exponentials(float(x))
            assert abs(exact / mp.exp(x) - 1) <= 1e-15
            assert abs(less / mp.expm1(x) - 1) <= 1e-15
        for y in (*10 ** rng.uniform(-300, 300, size=300), *(1 + 10 ** rng.uniform(-15, 0, 300))):
            assert abs(log_normal(float(y)) / mp.log(mp.mpf(float(y))) - 1) <= 1e-15
        for t in (*rng.uniform(-1, 0, size=300), *10 ** rng.uniform(-30, 30, 300)):
            single = np.float32(t)  # log(1 + t) to its own digits, so that the power may be large
            for q in (0.03, 0.5, 0.5 / float(mp.log1p(float(single)))):
                exact = (1 + mp.mpf(float(single))) ** float(np.float32(q))
                assert abs(power_single(single, np.float32(q)) / exact - 1) <= 2e-6

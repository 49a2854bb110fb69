"""Every kernel on small problems: compiled, or as Python with NUMBA_DISABLE_JIT=1, to count its lines."""

from __future__ import annotations

from contextlib import nullcontext, suppress
from typing import Any

import numpy as np
import pytest
from numba import config

from phiball.backends import use
from phiball.backends.numba import solve as numba_solve
from phiball.refimpl import (
    ABSOLUTE,
    ENTROPIC,
    HINGE,
    QUADRATIC,
    Divergence,
    constrained_worst_case,
    cressie_read,
    indicator,
    worst_case,
    worst_case_ragged,
)
from tests.support.divergences import name_of

ORDERS = (-2.0, -0.5, 0.0, 0.2, 0.7, 1.0 + 1e-9, 1.3, 1.5, 1.8, 2.3, 3.0, 6.0)
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # Python warns where machine code does not
LAWS = ("uniform", "one law", "a law for each row")


def losses(m: int) -> Any:
    """Rows that are spread, equal, tied at the top, on an offset, and close to their largest."""
    g = np.random.default_rng(m)
    f = g.exponential(size=(6, m))
    f[1] = f[1, 0]
    f[2, : (m + 1) // 2] = f[2].max()
    f[3] += 1e3
    f[4] = 1e-7 * f[4]
    f[5] = np.sort(f[5])
    return f


def law_of(name: str, m: int) -> Any:
    """Masses of many sizes, some zero, in the last row next to none at the largest loss."""
    if name == "uniform":
        return None
    p = np.random.default_rng(m + 1).random((6, m)) ** 4 + 1e-3
    p[:, 1::4] = 0
    p[5, -1] = 1e-22
    p = p / p.sum(axis=-1, keepdims=True)
    return p[0] if name == "one law" else p


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize(
    "d", [ENTROPIC, QUADRATIC, ABSOLUTE, HINGE, indicator(0.3), *map(cressie_read, ORDERS)], ids=name_of
)
def test_solutions(d: Divergence, law: str) -> None:
    for m in (1, 3, 20):
        f, p = losses(m), law_of(law, m)
        for eta in (1e-3, 0.3, 1e4):
            with use("numba"):
                fast = worst_case(f, eta, d, p=p)
            with use("numpy"):
                slow = worst_case(f, eta, d, p=p)
            spread = np.ptp(f, axis=-1) + np.abs(slow.value)
            assert np.all(np.abs(fast.value - slow.value) <= slow.gap + 1e-13 * spread), (m, eta)
            assert np.all(np.abs(fast.gap) <= 1e-12 * spread), (m, eta)
            assert np.all(np.abs(fast.weights - slow.weights) <= 1e-9), (m, eta)


@pytest.mark.parametrize(
    "d", [ENTROPIC, QUADRATIC, HINGE, indicator(0.01), *map(cressie_read, (1.5, 3.0))], ids=name_of
)
def test_long_rows_are_summed_in_parts(d: Divergence) -> None:
    """Of 4,096 points; in single precision too, and under laws."""
    for dtype, tol in ((np.float64, 1e-13), (np.float32, 1e-4)):
        f = losses(4200)[[0, 2]].astype(dtype)
        for p in (None, law_of("one law", 4200).astype(dtype)):
            with use("numba"):
                fast = worst_case_ragged(f.reshape(-1), np.array([0, 4200, 8400]), 0.1, d, p=_twice(p))
            with use("numpy"):
                slow = worst_case(f, 0.1, d, p=p)
            assert np.allclose(fast.value, slow.value, rtol=tol)


def _twice(p: Any) -> Any:
    return None if p is None else np.concatenate([p, p])


@pytest.mark.parametrize(
    "d", [ENTROPIC, QUADRATIC, *map(cressie_read, (-1.0, 0.0, 0.5, 1.5, 3.0))], ids=name_of
)
def test_prices_of_budgets(d: Divergence) -> None:
    for m in (1, 4, 40):
        for law in LAWS:
            f, p = losses(m), law_of(law, m)
            for radius in (0.0, 1e-6, 0.2, 50.0):
                solutions = []
                for backend in ("numba", "numpy"):
                    with use(backend):
                        solutions.append(constrained_worst_case(f, radius, d, p=p))
                fast, slow = solutions
                assert np.allclose(fast.value, slow.value, rtol=1e-10, atol=1e-14), (m, law, radius)


@pytest.mark.parametrize(
    "d", [ENTROPIC, QUADRATIC, ABSOLUTE, indicator(0.3), *map(cressie_read, (0.5, 1.5, 3.0))], ids=name_of
)
def test_what_is_amiss_is_left_to_the_reference(d: Divergence) -> None:
    for m in (3, 40):
        f, law = losses(m), law_of("one law", m)
        wrong = [(_with(f, bad), p) for bad in (np.nan, np.inf, -np.inf) for p in (None, law)]
        no_laws = np.full(m, 0.9 / m), np.full(m, np.nan), np.where(np.arange(m) == 0, 1 + m, -1.0)
        for g, p in [*wrong, *((f, no_law) for no_law in no_laws)]:
            with suppress(ZeroDivisionError) if config.DISABLE_JIT else nullcontext():
                assert numba_solve.solve(g, np.full(6, 0.1), p, d) is NotImplemented


def _with(f: Any, bad: float) -> Any:
    g = f.copy()
    g[2, 1] = bad
    return g

"""Every kernel on small problems: compiled, or as Python with NUMBA_DISABLE_JIT=1, to count its lines."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from phiball.backends import use
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
)
from tests.support.divergences import name_of

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # Python warns where machine code does not
POWERS = [ENTROPIC, QUADRATIC, *map(cressie_read, (-1.0, 0.0, 0.7, 1.3, 1.5, 3.0))]


def losses(m: int) -> Any:
    """Rows that are spread, equal, tied at the top, on an offset, and close to their largest."""
    f = np.random.default_rng(m).exponential(size=(6, m))
    f[1] = f[1, 0]
    f[2, : (m + 1) // 2] = f[2].max()
    f[3] += 1e3
    f[4] = 1e-7 * f[4]
    f[5] = np.sort(f[5])
    return f


def distributions(m: int) -> list[Any]:
    """Uniform, and masses of many sizes, in the last row next to none at the largest loss."""
    p = np.random.default_rng(m + 1).random((6, m)) ** 4 + 1e-3
    p[:, 1::4] = 0
    p[5, -1] = 1e-22
    return [None, p / p.sum(axis=-1, keepdims=True)]


@pytest.mark.parametrize("d", [ABSOLUTE, HINGE, indicator(0.3), *POWERS], ids=name_of)
def test_solutions(d: Divergence) -> None:
    for m in (1, 3, 20):
        f = losses(m)
        for p in distributions(m):
            for eta in (1e-3, 0.3, 1e4):
                with use("numba"):
                    fast = worst_case(f, eta, d, p=p)
                with use("numpy"):
                    slow = worst_case(f, eta, d, p=p)
                spread = np.ptp(f, axis=-1) + np.abs(slow.value)
                assert np.all(np.abs(fast.value - slow.value) <= slow.gap + 1e-13 * spread), (m, eta)
                assert np.all(np.abs(fast.gap) <= 1e-12 * spread), (m, eta)
                assert np.all(np.abs(fast.weights - slow.weights) <= 1e-9), (m, eta)


@pytest.mark.parametrize("d", POWERS, ids=name_of)
def test_prices_of_budgets(d: Divergence) -> None:
    for m in (1, 4, 40):
        f = losses(m)
        for p in distributions(m):
            for radius in (0.0, 1e-6, 0.2, 50.0):
                with use("numba"):
                    fast = constrained_worst_case(f, radius, d, p=p)
                with use("numpy"):
                    slow = constrained_worst_case(f, radius, d, p=p)
                assert np.allclose(fast.value, slow.value, rtol=1e-10, atol=1e-14), (m, radius)

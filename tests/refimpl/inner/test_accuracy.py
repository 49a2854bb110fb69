"""The solver against exact fractions and 50-digit arithmetic, over the whole range it promises.

Every case is checked for max abs(gamma - gamma*) relative to max gamma*, for the sum of gamma, for
the value relative to range + abs(value), and for the gap, whose rounding is 64 eps of the same scale:
a few dozen operations on numbers of that size.
"""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache
from typing import Any, NamedTuple

import mpmath as mp
import numpy as np

from phiball.refimpl import Divergence, cressie_read, worst_case
from phiball.verification.oracles import exact_solver as oracles
from tests.support.arrays import Arrays
from tests.support.divergences import on_each, select

WITH_A_LIMIT = [d for d in select() if d.family != "indicator" and d.parameter != 50]
"""Divergences whose value tends to the mean as eta increases."""


class Case(NamedTuple):
    f: tuple[float, ...]
    eta: float
    p: tuple[float, ...] | None


class Exact(NamedTuple):
    value: Any
    weights: Any
    unique: bool


def cases(*, single: bool, most: int) -> list[Case]:
    """Rows that are exact in single precision, or, for doubles only, with full digits and large offsets."""
    random = np.random.default_rng(20 if single else 21)
    dtype = np.float32 if single else np.float64
    offsets = (0.0, 1.0, -1e3) if single else (0.0, -1e4, 1e8)
    found = []
    # 1.37 avoids values of eta at which a kinked phi has several solutions up to rounding.
    exponents = [-10, -7, -4, -2, -1, -0.5, 0, 0.5, 1, 3, 4, 6, 8, 10]
    for n, eta in enumerate(1.37 * 10.0 ** np.array(exponents)):
        m = (1, 2, 3, 5, 8, 17, most)[n % 7]
        rows = (
            random.exponential(size=m),
            np.round(2 * random.normal(size=m)) / 2,
            np.full(m, 0.7),
            (np.arange(m) % 3 == 0) * 1.0,
            np.append(random.random(m - 1), 1e6),
            random.normal(size=m),
        )
        f = rows[(5 * n + n // 6) % 6]
        size = np.ptp(f) or 1.0
        f = (f + offsets[n % 3] * size).astype(dtype)
        p = None
        if n % 2:
            p = random.dirichlet(np.ones(m))
            if m > 2:
                p[random.integers(m)] = 0
            if single:  # multiples of 2^-20, whose sum is exact in both precisions
                p = np.floor(p * 2**20) / 2**20
                p[np.argmax(p)] += 1 - p.sum()
            else:
                p = p / p.sum()
        found.append(
            Case(tuple(f.tolist()), float(dtype(eta * size)), None if p is None else tuple(p.tolist()))
        )
    return found


@lru_cache(None)
def solved(case: Case, family: str, parameter: float | None) -> Exact:
    answer = oracles.solve_exactly(case.f, case.eta, family, parameter, case.p)
    weights = np.array([float(w) for w in answer.weights])
    value = answer.value
    if isinstance(value, Fraction):
        with mp.workdps(50):
            value = mp.mpf(value.numerator) / value.denominator
    return Exact(value, weights, answer.unique)


def check(case: Case, d: Divergence, arrays: Arrays) -> None:
    assert d.family is not None
    exact = solved(case, d.family, d.parameter)
    p = None if case.p is None else arrays.asarray(case.p)
    out = worst_case(arrays.asarray(case.f), case.eta, d, p=p)
    double = arrays.eps < 1e-10
    charged = [v for v, q in zip(case.f, case.p or [1.0] * len(case.f), strict=True) if q > 0]
    size = max(charged) - min(charged) + abs(float(exact.value))
    w = arrays.numpy(out.weights).astype(np.float64)
    where = f"{d.name}: {case}"
    if exact.unique:
        assert np.max(np.abs(w - exact.weights)) <= (1e-12 if double else 1e-5) * np.max(exact.weights), where
    assert abs(np.sum(w) - 1) <= (1e-12 if double else 1e-5), where
    assert np.all(w >= 0), where
    assert abs(float(mp.mpf(float(out.value)) - exact.value)) <= (1e-13 if double else 1e-5) * size, where
    # The rounding h of mu costs h^2/(2 eta) E phi*''.
    rounded = (arrays.eps * float(out.mu)) ** 2 / case.eta
    assert abs(float(out.gap)) <= 64 * arrays.eps * size + rounded, where


@on_each(extreme=False)
def test_rows_of_many_kinds(d: Divergence, arrays: Arrays) -> None:
    # Large orders need hundreds of digits per operation: short rows.
    most = 17 if abs(d.parameter or 0) >= 10 else 64
    for single in (True, False) if arrays.eps < 1e-10 else (True,):
        for case in cases(single=single, most=most):
            check(case, d, arrays)


def test_mu_is_rounded_to_the_safe_side(arrays: Arrays) -> None:
    """The dual at mu is finite and accurate if mu is coarse compared with eta or s is near a pole."""
    random = np.random.default_rng(9)
    coarse = 0.5 / arrays.eps**0.5  # an offset whose rounding is comparable to the first eta
    first = 1.5 * arrays.eps * coarse
    for offset, eta in ((coarse, first), (0.0, 1e-3), (0.0, 0.3), (0.0, 5.0), (0.0, 50.0)):
        f = random.random((100, 20))
        f = arrays.asarray(f - f.max(axis=-1, keepdims=True) + offset)
        for d in WITH_A_LIMIT:
            gap = arrays.numpy(worst_case(f, eta, d).gap)
            assert np.max(np.abs(gap)) <= 64 * arrays.eps * (1 + offset), (d.name, offset, eta)
    # The largest loss of many rows is near the pole, and no dual is infinite.
    f = random.random((1000, 12))
    f = arrays.asarray(f - f.max(axis=-1, keepdims=True))
    for k in (-100, -300):
        eta = arrays.asarray((1 - k) * 10 ** random.uniform(-2, 0.3, size=1000))
        assert np.all(np.isfinite(arrays.numpy(worst_case(f, eta, cressie_read(k)).gap))), k

"""The solver against exact fractions and 50-digit arithmetic, over the whole range it promises.

Every case is checked for max abs(gamma - gamma*) relative to max gamma*, for the sum of gamma, for
the value relative to range + abs(value), and for the gap, whose rounding is 64 eps of the same scale:
a few dozen operations on numbers of that size.
"""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache
from itertools import product
from typing import Any, NamedTuple

import mpmath as mp
import numpy as np
import pytest

from phiball.refimpl import (
    ENTROPIC,
    QUADRATIC,
    Divergence,
    cressie_read,
    worst_case,
)
from phiball.verification.oracles import inner as oracles
from tests.support.arrays import Arrays
from tests.support.divergences import on_each, select

WITH_A_LIMIT = [d for d in select() if d.family != "indicator" and d.parameter != 50]
"""Those whose value tends to the mean as eta grows."""


class Case(NamedTuple):
    f: tuple[float, ...]
    eta: float
    p: tuple[float, ...] | None


class Exact(NamedTuple):
    value: Any
    weights: Any
    unique: bool


def cases(*, single: bool, most: int) -> list[Case]:
    """Rows that single precision holds exactly, or, for doubles only, full digits and large offsets."""
    random = np.random.default_rng(20 if single else 21)
    dtype = np.float32 if single else np.float64
    offsets = (0.0, 1.0, -1e3) if single else (0.0, -1e4, 1e8)
    found = []
    # 1.37 keeps off the etas at which a kinked phi has more than one solution up to rounding.
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
        with mp.workdps(oracles.DIGITS):
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
    # mu is one number, rounded at its own size by h, and that costs h^2/(2 eta) E phi*''.
    rounded = (arrays.eps * float(out.mu)) ** 2 / case.eta
    assert abs(float(out.gap)) <= 64 * arrays.eps * size + rounded, where


@on_each(extreme=False)
def test_rows_of_many_kinds(d: Divergence, arrays: Arrays) -> None:
    # Large orders need hundreds of digits an operation: short rows.
    most = 17 if abs(d.parameter or 0) >= 10 else 64
    for single in (True, False) if arrays.eps < 1e-10 else (True,):
        for case in cases(single=single, most=most):
            check(case, d, arrays)


def test_a_thousand_points(doubles: Arrays) -> None:
    random = np.random.default_rng(3)
    f = random.exponential(size=1024)
    f[random.integers(1024, size=100)] = 1.5  # ties
    for d in select(core=True):
        for eta in (1e-8, 0.137, 1e8):
            check(Case(tuple(f.tolist()), eta, None), d, doubles)


def test_a_large_eta_leaves_the_mean(arrays: Arrays) -> None:
    """E f + Var f/(2 eta) phi''(1), however large eta is, with nothing added by rounding of the weights."""
    random = np.random.default_rng(5)
    for m in (3, 12, 31):
        f = arrays.asarray(random.normal(size=m))
        law = arrays.asarray(random.dirichlet(np.ones(m)))
        values = arrays.numpy(f).astype(np.float64)
        for p, d, eta in product((None, law), WITH_A_LIMIT, (1e6, 1e10)):
            q = np.ones(m) if p is None else arrays.numpy(p).astype(np.float64)
            mean = float(np.sum(q * values) / np.sum(q))
            variance = float(np.sum(q * (values - mean) ** 2) / np.sum(q)) / d.curvature1
            size = np.ptp(values) + abs(mean)
            out = worst_case(f, eta, d, p=p)
            # The next term is of order range^3/eta^2 <= 1e-11, with a factor k.
            error = abs(float(out.value) - mean - variance / (2 * eta)) - 12 * size**3 / eta**2
            assert error <= (1e-13 if arrays.eps < 1e-10 else 1e-5) * size, (d.name, m, eta)
            rounded = (arrays.eps * float(out.mu)) ** 2 / eta
            assert abs(float(out.gap)) <= 64 * arrays.eps * size + rounded, (d.name, m, eta)


# Wide enough for 64 bits of mantissa; elsewhere the oracle would be no better than the solver.
wide = pytest.mark.skipif(bool(np.finfo(np.longdouble).eps > 2e-19), reason="no extended precision here")


@wide
def test_long_rows(doubles: Arrays) -> None:
    for m, orders in (
        (2**14, (ENTROPIC, QUADRATIC, cressie_read(1.5))),
        (2**11, map(cressie_read, (-1, 0.5, 3))),
    ):
        f = np.random.default_rng(m).normal(size=m)
        for d, eta in product(orders, (1e-3, 1.0, 1e4)):
            assert d.family is not None
            value, weights = long_row(m, eta, d.family, d.parameter)
            out = worst_case(doubles.asarray(f), eta, d)
            w = doubles.numpy(out.weights)
            assert np.max(np.abs(w - weights)) <= 1e-12 * np.max(weights), (d.name, eta)
            # A sum of m roundings, of which a pairwise one would have log m.
            assert abs(np.sum(w) - 1) <= 1e-12, (d.name, eta)
            size = np.ptp(f) + abs(float(value))
            assert abs(float(out.value) - float(value)) <= 1e-13 * size, (d.name, eta)
            assert abs(float(out.gap)) <= 64 * doubles.eps * size, (d.name, eta)


@lru_cache(None)
def long_row(m: int, eta: float, family: str, parameter: float | None) -> tuple[Any, Any]:
    f = np.random.default_rng(m).normal(size=m)
    value, weights = oracles.solve_extended(f, eta, family, parameter)
    return value, weights.astype(np.float64)


def test_the_tolerance_would_notice_a_wrong_order() -> None:
    """A solution for a k that is off by 1e-9 is rejected."""
    case = Case((0.0, 0.3, 1.0), 0.5, None)
    out = worst_case(np.array(case.f), case.eta, cressie_read(1.5 + 1e-9))
    assert np.max(np.abs(out.weights - solved(case, "cressie_read", 1.5).weights)) > 1e-12


def test_mu_is_rounded_to_the_safe_side(arrays: Arrays) -> None:
    """Where mu is coarse against eta, and where s is next to a pole, the dual at mu is finite and close."""
    random = np.random.default_rng(9)
    coarse = 0.5 / arrays.eps**0.5  # an offset whose rounding is comparable with the first eta
    first = 1.5 * arrays.eps * coarse
    for offset, eta in ((coarse, first), (0.0, 1e-3), (0.0, 0.3), (0.0, 5.0), (0.0, 50.0)):
        f = random.random((100, 20))
        f = arrays.asarray(f - f.max(axis=-1, keepdims=True) + offset)
        for d in WITH_A_LIMIT:
            gap = arrays.numpy(worst_case(f, eta, d).gap)
            assert np.max(np.abs(gap)) <= 64 * arrays.eps * (1 + offset), (d.name, offset, eta)
    # Of many rows whose largest loss is next to the pole, none has an infinite dual.
    f = random.random((1000, 12))
    f = arrays.asarray(f - f.max(axis=-1, keepdims=True))
    for k in (-100, -300):
        eta = arrays.asarray((1 - k) * 10 ** random.uniform(-2, 0.3, size=1000))
        assert np.all(np.isfinite(arrays.numpy(worst_case(f, eta, cressie_read(k)).gap))), k

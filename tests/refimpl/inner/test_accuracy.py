"""`worst_case` agrees with exact rational and 50-digit solutions, for eta from 1e-10 to 1e10."""

from fractions import Fraction
from functools import lru_cache
from typing import Any, NamedTuple

import mpmath as mp
import numpy as np

from phiball.refimpl import Divergence, cressie_read, worst_case
from phiball.verification.oracles import exact_solver as oracles
from tests.support.arrays import Arrays
from tests.support.divergences import on_each, select

TENDING_TO_MEAN = [d for d in select() if d.family != "indicator" and d.parameter != 50]
"""Divergences whose value tends to the mean loss as eta increases."""


class Case(NamedTuple):
    f: tuple[float, ...]
    eta: float
    p: tuple[float, ...] | None


class Exact(NamedTuple):
    value: Any
    weights: Any
    unique: bool


def cases(*, single: bool, max_length: int) -> list[Case]:
    """Problems of up to `max_length` losses; if `single`, all inputs are exactly representable in float32."""
    random = np.random.default_rng(20 if single else 21)
    dtype = np.float32 if single else np.float64
    offsets = (0.0, 1.0, -1e3) if single else (0.0, -1e4, 1e8)
    problems = []
    # 1.37 avoids values of eta at which a kinked phi has several solutions up to rounding.
    exponents = [-10, -7, -4, -2, -1, -0.5, 0, 0.5, 1, 3, 4, 6, 8, 10]
    for n, eta in enumerate(1.37 * 10.0 ** np.array(exponents)):
        m = (1, 2, 3, 5, 8, 17, max_length)[n % 7]
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
        problems.append(
            Case(tuple(f.tolist()), float(dtype(eta * size)), None if p is None else tuple(p.tolist()))
        )
    return problems


@lru_cache(None)
def exact_solution(case: Case, family: str, parameter: float | None) -> Exact:
    answer = oracles.solve_exactly(case.f, case.eta, family, parameter, case.p)
    weights = np.array([float(w) for w in answer.weights])
    value = answer.value
    if isinstance(value, Fraction):
        with mp.workdps(50):
            value = mp.mpf(value.numerator) / value.denominator
    return Exact(value, weights, answer.unique)


def check(case: Case, d: Divergence, arrays: Arrays) -> None:
    assert d.family is not None
    exact = exact_solution(case, d.family, d.parameter)
    p = None if case.p is None else arrays.asarray(case.p)
    out = worst_case(arrays.asarray(case.f), case.eta, d, p=p)
    double = arrays.eps < 1e-10
    possible_losses = [v for v, q in zip(case.f, case.p or [1.0] * len(case.f), strict=True) if q > 0]
    size = max(possible_losses) - min(possible_losses) + abs(float(exact.value))
    w = arrays.numpy(out.weights).astype(np.float64)
    where = f"{d.name}: {case}"
    if exact.unique:
        assert np.max(np.abs(w - exact.weights)) <= (1e-12 if double else 1e-5) * np.max(exact.weights), where
    assert abs(np.sum(w) - 1) <= (1e-12 if double else 1e-5), where
    assert np.all(w >= 0), where
    assert abs(float(mp.mpf(float(out.value)) - exact.value)) <= (1e-13 if double else 1e-5) * size, where
    # Rounding mu by h increases the dual by h^2/(2 eta) E phi*''.
    mu_rounding = (arrays.eps * float(out.mu)) ** 2 / case.eta
    assert abs(float(out.gap)) <= 64 * arrays.eps * size + mu_rounding, where


@on_each(extreme=False)
def test_solution_agrees_with_the_exact_solver(d: Divergence, arrays: Arrays) -> None:
    # Large orders need hundreds of digits per operation, so their rows are short.
    max_length = 17 if abs(d.parameter or 0) >= 10 else 64
    for single in (True, False) if arrays.eps < 1e-10 else (True,):
        for case in cases(single=single, max_length=max_length):
            check(case, d, arrays)


def test_dual_at_the_rounded_mu_is_finite_and_accurate(arrays: Arrays) -> None:
    """The spacing of floats at mu is comparable to eta, or (f - mu)/eta is near a pole of phi*."""
    random = np.random.default_rng(9)
    coarse = 0.5 / arrays.eps**0.5  # an offset at which the spacing of floats is comparable to the first eta
    first = 1.5 * arrays.eps * coarse
    for offset, eta in ((coarse, first), (0.0, 1e-3), (0.0, 0.3), (0.0, 5.0), (0.0, 50.0)):
        f = random.random((100, 20))
        f = arrays.asarray(f - f.max(axis=-1, keepdims=True) + offset)
        for d in TENDING_TO_MEAN:
            gap = arrays.numpy(worst_case(f, eta, d).gap)
            assert np.max(np.abs(gap)) <= 64 * arrays.eps * (1 + offset), (d.name, offset, eta)
    # In many rows the largest loss is near the pole.
    f = random.random((1000, 12))
    f = arrays.asarray(f - f.max(axis=-1, keepdims=True))
    for k in (-100, -300):
        eta = arrays.asarray((1 - k) * 10 ** random.uniform(-2, 0.3, size=1000))
        assert np.all(np.isfinite(arrays.numpy(worst_case(f, eta, cressie_read(k)).gap))), k

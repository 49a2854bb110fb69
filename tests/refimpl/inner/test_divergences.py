"""Every field of every named divergence, against conjugates found numerically in 40 digits."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from functools import lru_cache
from math import inf
from typing import Any, NamedTuple

import mpmath as mp
import numpy as np
import pytest

from phiball.backends import ignore_float_warnings
from phiball.refimpl import (
    ENTROPIC,
    HINGE,
    QUADRATIC,
    Divergence,
    check_divergence,
    cressie_read,
    indicator,
)
from tests.support.arrays import Arrays
from tests.support.divergences import select

Real = Any  # an mpmath number
FLOOR = 1e-18  # what the numerical conjugates themselves are known to
EVERY, SMOOTH = select(limit=False), select(limit=False, smooth=True)  # limits: at the end of this file


def exact_phi(d: Divergence) -> Callable[[Real], Real]:
    """The paper's formula, in mpmath."""
    k: Any = d.parameter

    def power(x: Real) -> Real:
        if k == 0:
            return x - 1 - mp.log(x) if x > 0 else mp.inf
        if x == 0 and k < 0:
            return mp.inf
        return (x ** mp.mpf(k) - mp.mpf(k) * x + mp.mpf(k) - 1) / (mp.mpf(k) * (mp.mpf(k) - 1))

    formulas: dict[str | None, Callable[[Real], Real]] = {
        "entropic": lambda x: x * mp.log(x) - x + 1 if x > 0 else mp.mpf(1),
        "quadratic": lambda x: (x * x - 1) / 2,
        "absolute": lambda x: abs(x - 1),
        "hinge": lambda x: max(x - 1, mp.mpf(0)),
        "indicator": lambda x: mp.mpf(0) if k * x <= 1 else mp.inf,
        "cressie_read": power,
    }
    return formulas[d.family]


def constants(d: Divergence) -> tuple[float, float, float, float]:
    """phi'(0+), the subgradient at 1 nearest to 0, lim phi(t)/t, phi''(1)."""
    k: Any = d.parameter
    if d.family == "cressie_read":
        return (-1 / (k - 1) if k > 1 else -inf, 0.0, 1 / (1 - k) if k < 1 else inf, 1.0)
    return {
        "entropic": (-inf, 0.0, inf, 1.0),
        "quadratic": (0.0, 1.0, inf, 1.0),
        "absolute": (-1.0, 0.0, 1.0, inf),
        "hinge": (0.0, 0.0, 1.0, inf),
        "indicator": (0.0, 0.0, inf, inf if k == 1 else 0.0),
    }[str(d.family)]


class Point(NamedTuple):
    """At s: the conjugate, its maximiser x, and what one rounding of s moves them by, at most."""

    s: float
    conj: float
    x: float
    d2conj: float
    d3conj: float


def supremum(phi: Callable[[Real], Real], s: float) -> tuple[Real, Real]:
    """(sup over x >= 0 of s x - phi(x), its argument): a dense grid, then golden sections."""
    with mp.workdps(40):

        def score(x: Real) -> Real:
            return s * x - phi(x)

        grid = [mp.mpf(0), *(mp.mpf(10) ** (mp.mpf(e) / 16) for e in range(-96, 97))]
        values = [score(x) for x in grid]
        best = max(range(len(grid)), key=lambda i: values[i])
        a, d = grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)]
        ratio = (mp.sqrt(5) - 1) / 2
        b, c = d - ratio * (d - a), a + ratio * (d - a)
        fb, fc = score(b), score(c)
        for _ in range(95):  # 0.618^95 = 1e-20
            if fb >= fc:
                d, c, fc = c, b, fb
                b = d - ratio * (d - a)
                fb = score(b)
            else:
                a, b, fb = b, c, fc
                c = a + ratio * (d - a)
                fc = score(c)
        return max((score(x), x) for x in (a, b, c, d, grid[best]))


@lru_cache(None)
def points(d: Divergence) -> tuple[Point, ...]:
    """Points s that single precision holds exactly, where the density is between 1/100 and 100."""
    phi = exact_phi(d)
    slope0, _, recession, _ = constants(d)
    found = []
    with mp.workdps(40):
        if d in SMOOTH:
            ratios = [mp.mpf(x) for x in (0.01, 0.07, 0.3, 0.7, 0.95, 0.99, 1, 1.01, 1.1, 1.6, 3, 10, 100)]
            slopes = [mp.diff(phi, x) for x in ratios]
            ss = [float(np.float32(slope)) for slope in slopes if abs(slope) < 1e6]
        else:
            ss = [-3.0, -1.5, -0.75, -0.25, 0.25, 0.5, 0.75, 2.5]
        if slope0 > -inf:
            ss += [slope0 - 0.25, slope0 - 2]
        for s in ss:
            if s >= recession:
                continue
            conj, x = supremum(phi, s)
            d2 = d3 = mp.mpf(0)
            if d in SMOOTH and x > mp.mpf("1e-6"):
                # phi*''(s) = 1/phi''(x) and phi*'''(s) = -phi'''(x)/phi''(x)^3 at x = phi*'(s)
                second, third = mp.diff(phi, x, 2), mp.diff(phi, x, 3)
                d2, d3 = 1 / second, abs(third / second**3)
            if abs(s) * d2 < 1e4 * max(x, 1e-30) or x == 0:  # else s itself does not say where x is
                found.append(Point(s, float(conj), float(x), float(d2), float(d3)))
    return tuple(found)


def spread(value: float) -> float:
    """The size of a value, and of the error that exp makes of a rounded exponent."""
    return abs(value) * (1 + abs(float(np.log(abs(value))))) if value else 0.0


def test_conjugate_and_its_derivatives(arrays: Arrays) -> None:
    for d in EVERY:
        some = points(d)
        assert len(some) >= 5
        s = arrays.asarray([p.s for p in some])
        conj, x, bend = (arrays.numpy(f(s)).astype(np.float64) for f in (d.conj, d.dconj, d.d2conj))
        few = 16 * arrays.eps  # each is a handful of operations
        for i, p in enumerate(some):
            # A backward error of a few roundings in s, and a forward one in the result.
            phi = p.s * p.x - p.conj
            assert (
                abs(conj[i] - p.conj) <= few * (abs(p.s) * spread(p.x) + spread(p.conj) + abs(phi)) + FLOOR
            ), p
            assert abs(x[i] - p.x) <= few * (abs(p.s) * p.d2conj + spread(p.x)) + FLOOR, p
            assert abs(bend[i] - p.d2conj) <= few * (abs(p.s) * p.d3conj + spread(p.d2conj)), p


def test_phi(arrays: Arrays) -> None:
    for d in EVERY:
        phi = exact_phi(d)
        xs = [0.0, 0.0078125, 0.25, 0.75, 0.984375, 1.0, 1.015625, 1.25, 2.0, 3.5, 40.0]
        with ignore_float_warnings():
            out = arrays.numpy(d.phi(arrays.asarray(xs))).astype(np.float64)
        largest = float(arrays.xp.finfo(arrays.dtype).max)
        for x, value in zip(xs, out, strict=True):
            with mp.workdps(40):
                exact = phi(mp.mpf(x))
                # It is a difference of terms the size of x phi'(x), k times larger than phi itself.
                term = x * abs(mp.diff(phi, x)) if d in SMOOTH and x > 0 else exact
            if exact > largest / 1e3 or term > largest / 1e3:
                assert value > largest / 1e6
            else:
                bound = 16 * arrays.eps * (spread(float(exact)) + spread(float(term)) + abs(x - 1))
                assert abs(value - float(exact)) <= bound, x


def test_phi_is_infinite_below_zero_and_zero_at_one(arrays: Arrays) -> None:
    for d in EVERY:
        below = arrays.numpy(d.phi(arrays.asarray([-1e-30, -0.5, -3.0, -inf])))
        assert np.all(below == inf), d.name
        assert float(d.phi(arrays.asarray([1.0]))[0]) == 0.0, d.name


def test_densities_end_at_zero_and_at_infinity(arrays: Arrays) -> None:
    for d in EVERY:
        if d.recession < inf:
            s = arrays.asarray([d.recession * 1.001, d.recession + 3, 1e20])
            assert np.all(arrays.numpy(d.conj(s)) == inf), d.name
            assert np.all(arrays.numpy(d.dconj(s)) == inf), d.name
        if d.slope0 > -inf:
            s = arrays.asarray([d.slope0 - 0.125, d.slope0 - 10, -1e20])
            assert np.all(arrays.numpy(d.dconj(s)) == 0)
            assert np.all(arrays.numpy(d.d2conj(s)) == 0)
            at_zero = float(exact_phi(d)(mp.mpf(0)))
            assert arrays.numpy(d.conj(s)).tolist() == pytest.approx([-at_zero] * 3, rel=4 * arrays.eps)
        else:
            assert np.all(arrays.numpy(d.dconj(arrays.asarray([-2.0, -50.0]))) > 0)


def test_constants() -> None:
    for d in EVERY:
        found = (d.slope0, d.slope1, d.recession, d.curvature1)
        assert found == pytest.approx(constants(d), rel=1e-15), d.name


def test_arguments_are_kept(arrays: Arrays) -> None:
    values = [-2.5, -1.0, -0.25, 0.0, 0.5, 1.0, 3.0]
    for d in EVERY:
        for function in (d.phi, d.conj, d.dconj, d.d2conj):
            for shape in ((7,), (7, 1), (1, 7), (0,)):
                given = np.reshape(values, shape) if shape != (0,) else np.zeros(0)
                argument = arrays.asarray(given)
                out = function(argument)
                assert arrays.numpy(argument).tolist() == given.tolist(), d.name
                assert (out.shape, out.dtype) == (shape, arrays.dtype), d.name
                assert not np.any(np.isnan(arrays.numpy(out))), d.name


def test_constants_are_derived_from_the_functions(doubles: Arrays) -> None:
    for d in EVERY if doubles.backend == "numba" else select(core=True):
        assert check_divergence(d) == [], d.name
        if d.parameter in (0.99, 1.01):  # the conjugate overflows long before its domain ends
            continue
        derived = Divergence("mine", d.phi, d.conj, d.dconj, d.d2conj)
        found = (derived.slope0, derived.slope1, derived.recession)
        assert found == pytest.approx(constants(d)[:3], rel=1e-9, abs=1e-9), d.name
        if d == HINGE or d == indicator(1.0):  # straight on the left of 1, and kinked there
            assert derived.curvature1 in (0.0, inf)
        else:
            assert derived.curvature1 == pytest.approx(constants(d)[3], rel=1e-9), d.name
        assert (derived.family, derived.parameter) == (None, None)


def test_pickling() -> None:
    for d in EVERY:
        copy = pickle.loads(pickle.dumps(d))
        assert copy == d
        x = np.array([0.0, 0.5, 1.0, 2.0])
        for function in ("phi", "conj", "dconj", "d2conj"):
            assert np.array_equal(getattr(copy, function)(x), getattr(d, function)(x))


def test_equality() -> None:
    assert cressie_read(1) is cressie_read(1.0) is ENTROPIC
    assert len(set(EVERY)) == len(EVERY)
    assert indicator(0.25) == indicator(0.25)
    assert cressie_read(1.5) == cressie_read(1.5)
    assert cressie_read(1 + 1e-9) != cressie_read(1 - 1e-9)
    assert cressie_read(2) != QUADRATIC
    assert hash(cressie_read(3)) == hash(cressie_read(3.0))
    with pytest.raises(AttributeError):
        ENTROPIC.slope1 = 1.0  # type: ignore[misc]


# --- Close to the limits k = 0 and k = 1 of the Cressie-Read family, and close to x = 1 and s = 0 ---

NEAR = [sign * 10.0**-e for e in (3, 5, 7, 9, 11, 13, 14) for sign in (-1, 1)]
ORDERS = [*(1 + h for h in NEAR), *NEAR]
XS = [0.125, 0.5, 0.75, 1.5, 2.0, 8.0]
SS = [-8.0, -2.0, -0.5, 0.25, 0.75]
CLOSE = [sign * 2.0**-e for e in (3, 7, 10, 13, 17, 20) for sign in (-1, 1)]


def conj(s: float, k: float) -> Any:
    """((1 + (k-1) s)^(k/(k-1)) - 1)/k."""
    kk = mp.mpf(k)
    base = 1 + (kk - 1) * s
    return -mp.log(1 - mp.mpf(s)) if k == 0 else (base ** (kk / (kk - 1)) - 1) / kk


def dconj(s: float, k: float) -> Any:
    kk = mp.mpf(k)
    return (1 + (kk - 1) * s) ** (1 / (kk - 1))


def test_near_the_limits(arrays: Arrays) -> None:
    for k in ORDERS:
        d = cressie_read(k)
        phi = exact_phi(d)
        few = 32 * arrays.eps  # a handful of operations; exponents here are below 10
        with mp.workdps(50):
            for x, value in zip(XS, arrays.numpy(d.phi(arrays.asarray(XS))).tolist(), strict=True):
                # phi = x phi'(x) - phi*(phi'(x)) loses what the two terms have in common.
                term = x * mp.diff(phi, x)
                assert abs(value - phi(x)) <= few * (abs(phi(x)) + abs(term)), (k, x)
            for s, value in zip(SS, arrays.numpy(d.conj(arrays.asarray(SS))).tolist(), strict=True):
                assert abs(value / conj(s, k) - 1) <= few, (k, s)
            for s, value in zip(SS, arrays.numpy(d.dconj(arrays.asarray(SS))).tolist(), strict=True):
                assert abs(value / dconj(s, k) - 1) <= few, (k, s)


def test_near_the_minimum(arrays: Arrays) -> None:
    """conj is relatively accurate as s -> 0; phi has an error of eps abs(x - 1), not of eps."""
    for k in (-100.0, -2.0, -1e-9, 0.0, 1e-9, 0.5, 1 - 1e-9, 1 + 1e-9, 1.5, 2.0, 3.0, 50.0):
        d = cressie_read(k)
        phi = exact_phi(d)
        small = [h for h in CLOSE if abs(k * h) < 0.5]
        few = 16 * arrays.eps
        phis = arrays.numpy(d.phi(arrays.asarray([1 + h for h in small]))).tolist()
        conjs = arrays.numpy(d.conj(arrays.asarray(small))).tolist()
        with mp.workdps(50):
            for h, value in zip(small, phis, strict=True):
                assert abs(value - phi(mp.mpf(1 + h))) <= few * abs(h), (k, h)
            for s, value in zip(small, conjs, strict=True):
                # Beside s itself there is log(1 + (k-1) s)/(k-1), whose error grows with abs(k) s only.
                assert abs(value / conj(s, k) - 1) <= few, (k, s)

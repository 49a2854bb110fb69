"""The fields of every built-in divergence agree with the paper's formulas in 50 digits."""

import pickle
from collections.abc import Callable
from functools import lru_cache, partial
from math import inf
from typing import Any

import mpmath as mp
import numpy as np
import pytest

from phiball.backends import ignore_float_warnings
from phiball.refimpl import ENTROPIC, HINGE, QUADRATIC, Divergence, cressie_read, indicator
from phiball.refimpl.inner import check_divergence
from phiball.verification.oracles import definitions
from tests.support.arrays import Arrays
from tests.support.divergences import select

# Parameters near a limit are tested at the end of this file.
EVERY, SMOOTH = select(limit=False), select(limit=False, smooth=True)


def exact(function: Callable[..., Any], d: Divergence) -> Callable[[Any], Any]:
    return partial(function, family=str(d.family), parameter=d.parameter)


def constants(d: Divergence) -> tuple[float, float, float, float]:
    """slope0 = phi'(0+), slope1 = the subgradient at 1 nearest to 0, recession = lim phi(t)/t, phi''(1)."""
    k: Any = d.parameter
    if d.family == "cressie_read":
        return (-1 / (k - 1) if k > 1 else -inf, 0.0, 1 / (1 - k) if k < 1 else inf, 1.0)
    return {
        "entropic": (-inf, 0.0, inf, 1.0),
        "quadratic": (0.0, 1.0, inf, 1.0),
        "absolute": (-1.0, 0.0, 1.0, inf),
        "hinge": (0.0, 0.0, 1.0, inf),
        "indicator": (0.0, 0.0, inf, inf if k == 1 else 0.0),
    }.get(str(d.family), (d.slope0, d.slope1, d.recession, d.curvature1))


@lru_cache(None)
def conjugate_values(d: Divergence) -> list[tuple[float, list[float]]]:
    """Points s that are exact in single precision, with the conjugate and three derivatives at each."""
    phi, conj = exact(definitions.phi, d), exact(definitions.conjugate, d)
    slope0, _, recession, _ = constants(d)
    with mp.workdps(50):
        ss = [-3.0, -1.5, -0.75, -0.25, 0.25, 0.5, 0.75, 2.5]
        if d in SMOOTH:  # where the density is between 1/100 and 100
            ratios = map(mp.mpf, (0.01, 0.07, 0.3, 0.7, 0.95, 0.99, 1, 1.01, 1.1, 1.6, 3, 10, 100))
            slopes = [mp.diff(phi, x) for x in ratios]
            ss = [float(np.float32(slope)) for slope in slopes if abs(slope) < 1e6]
        if slope0 > -inf:
            ss += [slope0 - 0.25, slope0 - 2]
        found = [(s, [float(mp.diff(conj, s, n)) for n in range(4)]) for s in ss if s < recession]
        # At other points, rounding s changes the density by more than its size.
        return [(s, f) for s, f in found if abs(s) * abs(f[2]) < 1e4 * max(f[1], 1e-30) or f[1] == 0]


def exp_error(value: float) -> float:
    """abs(value) (1 + abs(log(value))): the error, in units of eps, of exp at a rounded exponent."""
    return abs(value) * (1 + abs(float(np.log(abs(value))))) if value else 0.0


def test_conjugate_and_its_derivatives_agree_with_50_digits(arrays: Arrays) -> None:
    for d in EVERY:
        some = conjugate_values(d)
        assert len(some) >= 5
        at = arrays.asarray([s for s, _ in some])
        found = [arrays.numpy(f(at)).astype(np.float64) for f in (d.conj, d.dconj, d.d2conj)]
        few = 16 * arrays.eps  # each is a handful of operations
        for i, (s, (conj, x, d2, d3)) in enumerate(some):
            # A backward error of a few roundings in s, and a forward error in the result.
            size = abs(s) * exp_error(x) + exp_error(conj) + abs(s * x - conj)
            assert abs(found[0][i] - conj) <= few * size, (d.name, s)
            assert abs(found[1][i] - x) <= few * (abs(s) * abs(d2) + exp_error(x)), (d.name, s)
            assert abs(found[2][i] - d2) <= few * (abs(s) * abs(d3) + exp_error(d2)) + 1e-30, (d.name, s)


def test_phi_agrees_with_40_digits(arrays: Arrays) -> None:
    for d in EVERY:
        phi = exact(definitions.phi, d)
        xs = [0.0, 0.0078125, 0.25, 0.75, 0.984375, 1.0, 1.015625, 1.25, 2.0, 3.5, 40.0]
        with ignore_float_warnings():
            out = arrays.numpy(d.phi(arrays.asarray(xs))).astype(np.float64)
        largest = float(arrays.xp.finfo(arrays.dtype).max)
        for x, value in zip(xs, out, strict=True):
            with mp.workdps(40):
                true = phi(mp.mpf(x))
                # phi is a difference of terms of size x phi'(x), k times as large as phi.
                term = x * abs(mp.diff(phi, x)) if d in SMOOTH and x > 0 else true
            if true > largest / 1e3 or term > largest / 1e3:
                assert value > largest / 1e6
            else:
                bound = 16 * arrays.eps * (exp_error(float(true)) + exp_error(float(term)) + abs(x - 1))
                assert abs(value - float(true)) <= bound, x
        below = arrays.numpy(d.phi(arrays.asarray([-1e-30, -0.5, -3.0, -inf])))
        assert np.all(below == inf), d.name
        assert out[xs.index(1.0)] == 0.0, d.name


def test_density_is_zero_below_slope0_and_infinite_above_recession(arrays: Arrays) -> None:
    for d in EVERY:
        if d.recession < inf:
            s = arrays.asarray([d.recession * 1.001, d.recession + 3, 1e20])
            assert np.all(arrays.numpy(d.conj(s)) == inf), d.name
            assert np.all(arrays.numpy(d.dconj(s)) == inf), d.name
        if d.slope0 > -inf:
            s = arrays.asarray([d.slope0 - 0.125, d.slope0 - 10, -1e20])
            assert np.all(arrays.numpy(d.dconj(s)) == 0)
            assert np.all(arrays.numpy(d.d2conj(s)) == 0)
            at_zero = float(exact(definitions.phi, d)(mp.mpf(0)))
            assert arrays.numpy(d.conj(s)).tolist() == pytest.approx([-at_zero] * 3, rel=4 * arrays.eps)
        else:
            assert np.all(arrays.numpy(d.dconj(arrays.asarray([-2.0, -50.0]))) > 0)


def test_functions_keep_shape_and_dtype_and_do_not_modify_arguments(arrays: Arrays) -> None:
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


def test_constants_agree_with_closed_forms_given_or_derived(doubles: Arrays) -> None:
    for d in EVERY if doubles.backend == "numba" else select(core=True):
        found = (d.slope0, d.slope1, d.recession, d.curvature1)
        assert found == pytest.approx(constants(d), rel=1e-15), d.name
        assert check_divergence(d) == [], d.name
        if d.parameter in (0.99, 1.01):  # the conjugate overflows long before its domain ends
            continue
        derived = Divergence("mine", d.phi, d.conj, d.dconj, d.d2conj)
        found = (derived.slope0, derived.slope1, derived.recession)
        assert found == pytest.approx(constants(d)[:3], rel=1e-9, abs=1e-9), d.name
        if d == HINGE or d == indicator(1.0):  # linear left of 1, with a kink at 1
            assert derived.curvature1 in (0.0, inf)
        else:
            assert derived.curvature1 == pytest.approx(constants(d)[3], rel=1e-9), d.name
        assert (derived.family, derived.parameter) == (None, None)


def test_pickled_divergence_is_equal() -> None:
    for d in EVERY:
        copy = pickle.loads(pickle.dumps(d))
        assert copy == d
        x = np.array([0.0, 0.5, 1.0, 2.0])
        for function in ("phi", "conj", "dconj", "d2conj"):
            assert np.array_equal(getattr(copy, function)(x), getattr(d, function)(x))


def test_divergences_are_equal_if_family_and_parameter_are() -> None:
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


def test_cressie_read_is_accurate_near_orders_0_and_1(arrays: Arrays) -> None:
    for k in ORDERS:
        d = cressie_read(k)
        phi, conj = exact(definitions.phi, d), exact(definitions.conjugate, d)
        few = 32 * arrays.eps  # a handful of operations; exponents here are below 10
        with mp.workdps(50):
            for x, value in zip(XS, arrays.numpy(d.phi(arrays.asarray(XS))).tolist(), strict=True):
                # The terms of phi = x phi'(x) - phi*(phi'(x)) cancel.
                term = x * mp.diff(phi, x)
                assert abs(value - phi(mp.mpf(x))) <= few * (abs(phi(mp.mpf(x))) + abs(term)), (k, x)
            for s, value in zip(SS, arrays.numpy(d.conj(arrays.asarray(SS))).tolist(), strict=True):
                assert abs(value / conj(mp.mpf(s)) - 1) <= few, (k, s)
            for s, value in zip(SS, arrays.numpy(d.dconj(arrays.asarray(SS))).tolist(), strict=True):
                assert abs(value / mp.diff(conj, s) - 1) <= few, (k, s)


def test_cressie_read_is_accurate_near_its_minimum(arrays: Arrays) -> None:
    """conj has a small relative error as s -> 0, and the error of phi is a few eps times abs(x - 1)."""
    for k in (-100.0, -2.0, -1e-9, 0.0, 1e-9, 0.5, 1 - 1e-9, 1 + 1e-9, 1.5, 2.0, 3.0, 50.0):
        d = cressie_read(k)
        phi, conj = exact(definitions.phi, d), exact(definitions.conjugate, d)
        small = [h for h in CLOSE if abs(k * h) < 0.5]
        few = 16 * arrays.eps
        phis = arrays.numpy(d.phi(arrays.asarray([1 + h for h in small]))).tolist()
        conjs = arrays.numpy(d.conj(arrays.asarray(small))).tolist()
        with mp.workdps(50):
            for h, value in zip(small, phis, strict=True):
                assert abs(value - phi(mp.mpf(1 + h))) <= few * abs(h), (k, h)
            for s, value in zip(small, conjs, strict=True):
                # The error of log(1 + (k-1) s)/(k-1) grows only with abs(k) s.
                assert abs(value / conj(mp.mpf(s)) - 1) <= few, (k, s)

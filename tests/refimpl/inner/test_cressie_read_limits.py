"""The Cressie-Read family close to its limits k = 0 and k = 1, and close to x = 1 and s = 0."""

from __future__ import annotations

from functools import partial
from typing import Any

import mpmath as mp

from phiball.refimpl import ENTROPIC, cressie_read
from tests.support.arrays import Arrays

NEAR = [sign * 10.0**-e for e in (3, 5, 7, 9, 11, 13, 14) for sign in (-1, 1)]
ORDERS = [*(1 + h for h in NEAR), *NEAR]
XS = [0.125, 0.5, 0.75, 1.5, 2.0, 8.0]
SS = [-8.0, -2.0, -0.5, 0.25, 0.75]
CLOSE = [sign * 2.0**-e for e in (3, 7, 10, 13, 17, 20) for sign in (-1, 1)]


def phi(x: float, k: float) -> Any:
    """The textbook formula, whose cancellation 50 digits survive."""
    xx, kk = mp.mpf(x), mp.mpf(k)
    if k == 0:
        return xx - 1 - mp.log(xx)
    return (xx**kk - kk * xx + kk - 1) / (kk * (kk - 1))


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
        few = 32 * arrays.eps  # a handful of operations; exponents here are below 10
        with mp.workdps(50):
            for x, value in zip(XS, arrays.numpy(d.phi(arrays.asarray(XS))).tolist(), strict=True):
                # phi = x phi'(x) - phi*(phi'(x)) loses what the two terms have in common.
                term = x * mp.diff(partial(phi, k=k), x)
                assert abs(value - phi(x, k)) <= few * (abs(phi(x, k)) + abs(term)), (k, x)
            for s, value in zip(SS, arrays.numpy(d.conj(arrays.asarray(SS))).tolist(), strict=True):
                assert abs(value / conj(s, k) - 1) <= few, (k, s)
            for s, value in zip(SS, arrays.numpy(d.dconj(arrays.asarray(SS))).tolist(), strict=True):
                assert abs(value / dconj(s, k) - 1) <= few, (k, s)


def test_near_the_minimum(arrays: Arrays) -> None:
    """conj is relatively accurate as s -> 0; phi has an error of eps abs(x - 1), not of eps."""
    for k in (-100.0, -2.0, -1e-9, 0.0, 1e-9, 0.5, 1 - 1e-9, 1 + 1e-9, 1.5, 2.0, 3.0, 50.0):
        d = cressie_read(k)
        small = [h for h in CLOSE if abs(k * h) < 0.5]
        few = 16 * arrays.eps
        phis = arrays.numpy(d.phi(arrays.asarray([1 + h for h in small]))).tolist()
        conjs = arrays.numpy(d.conj(arrays.asarray(small))).tolist()
        with mp.workdps(50):
            for h, value in zip(small, phis, strict=True):
                assert abs(value - phi(1 + h, k)) <= few * abs(h), (k, h)
            for s, value in zip(small, conjs, strict=True):
                # Beside s itself there is log(1 + (k-1) s)/(k-1), whose error grows with abs(k) s only.
                assert abs(value / conj(s, k) - 1) <= few, (k, s)


def test_the_limits_are_approached(arrays: Arrays) -> None:
    """Continuity in k: the change is at most a constant times the change of k."""
    x, s = arrays.asarray([0.25, 0.5, 1.5, 3.0]), arrays.asarray([-2.0, -0.5, 0.25, 0.5])
    for limit, d in ((1.0, ENTROPIC), (0.0, cressie_read(0))):
        for h in NEAR:
            near = cressie_read(limit + h)
            for a, b in ((near.phi(x), d.phi(x)), (near.conj(s), d.conj(s)), (near.dconj(s), d.dconj(s))):
                change = abs(arrays.numpy(a) - arrays.numpy(b)).max()
                assert change <= 30 * abs(h) + 64 * arrays.eps  # 30 > the largest derivative in k here

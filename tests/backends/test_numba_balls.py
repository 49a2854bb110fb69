"""The compiled twins for points of balls give what the reference gives, to rounding, on any numbers."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from itertools import product
from math import inf
from typing import Any

import numpy as np
import pytest

from phiball.backends import array_namespace, rng, to_numpy, use
from phiball.refimpl.laws import moments, tilting, uniform
from phiball.refimpl.validation import all_finite

SHAPES = [(1, 1, 1), (3, 5, 10), (2, 70, 3), (4, 1, 100), (2, 2, 3, 7), (0, 4, 3), (700, 8, 6)]


def numbers(make: Callable[[Any], Any], shape: tuple[int, ...]) -> dict[str, Any]:
    """Random numbers of all kinds, with centres and tilts of many sizes; one tilt is 0."""
    g = np.random.default_rng(sum(shape))
    s = g.normal(size=(*shape[:-2], shape[-1])) * 10.0 ** g.uniform(-8, 3, size=(*shape[:-2], 1))
    s[:1] = 0
    made = {
        "uniform": g.random(shape),
        "normal": g.normal(size=shape),
        "u": g.random(shape[:-1]),
        "z": g.normal(size=(*shape[:-2], shape[-1])),
        "s": s,
    }
    return {name: make(x) for name, x in made.items()}


def placed(norm: float) -> Callable[[Any], Any]:
    def draw(x: dict[str, Any]) -> Any:
        b = x["normal" if norm == 2 else "uniform"]
        return (uniform.placed(b, None if norm == inf else x["u"], x["z"], norm, 0.7),)

    return draw


def aimed_2(x: dict[str, Any]) -> Any:
    xp = array_namespace(x["z"])
    below = 2 * xp.astype(x["u"], xp.float64) ** 3
    whole = xp.sum(xp.astype(x["s"], xp.float64), axis=-1)
    return tilting.aimed_2(x["normal"], x["u"], below, whole, x["z"], x["s"], 0.7)


def first_kept(x: dict[str, Any]) -> Any:
    xp = array_namespace(x["z"])
    u = xp.reshape(x["uniform"], (-1,))
    k = u.shape[0] // 6
    t = xp.astype(xp.reshape(x["normal"], (-1,))[:k], xp.float64) ** 8
    below, found = tilting.first_kept(t, 5, xp.reshape(u[: 6 * k], (3, 2, k)))
    return xp.where(found, below, xp.zeros_like(below)), xp.astype(found, xp.float64)


WORK: dict[str, Callable[[dict[str, Any]], Any]] = {
    "norm 1": placed(1.0),
    "norm 2": placed(2.0),
    "norm inf": placed(inf),
    "drawn inf": lambda x: (uniform.uniform_inf(x["z"], x["u"].shape[-1], 0.7, rng(5)),),
    "tilted inf": lambda x: tilting.tilted_inf(x["z"], x["s"], x["u"].shape[-1], 0.7, rng(5)),
    "tilted 2": aimed_2,
    "along the tilt": first_kept,
}


def makers() -> list[Callable[[Any], Any]]:
    """Arrays of NumPy and, if it is installed, of torch, in both precisions."""
    made: list[Callable[[Any], Any]] = [lambda x, d=d: x.astype(d) for d in (np.float32, np.float64)]
    if find_spec("torch"):
        torch = import_module("torch")
        made += [lambda x, d=d: torch.asarray(x, dtype=d) for d in (torch.float32, torch.float64)]
    return made


@pytest.mark.parametrize("name", WORK)
def test_the_twins_agree(name: str) -> None:
    for make, shape in product(makers(), SHAPES):
        with use("numba"):
            found = [to_numpy(x) for x in WORK[name](numbers(make, shape))]
        with use("numpy"):
            exact = [to_numpy(x) for x in WORK[name](numbers(make, shape))]
        s = to_numpy(numbers(make, shape)["s"])
        # A log-weight is the difference of terms of the size of s.b.
        slack = 50 * np.finfo(s.dtype).eps * (1 + np.abs(s).sum(axis=-1).max(initial=0))
        for a, b in zip(found, exact, strict=True):
            assert a.dtype == b.dtype
            assert a.shape == b.shape
            assert np.allclose(a, b, rtol=0, atol=slack)


def test_finite_numbers_are_told_from_others() -> None:
    """Wherever the one that is not stands, and where the sum of the finite ones overflows."""
    for make, n, bad in product(makers(), (1, 7, 1003), (np.nan, np.inf, -np.inf)):
        largest = np.full(n, np.finfo(to_numpy(make(np.ones(1))).dtype).max)
        with use("numba"):
            assert all_finite(make(largest))
            for place in (0, n // 2, n - 1):
                assert not all_finite(make(np.where(np.arange(n) == place, bad, largest)))


@pytest.mark.parametrize("d", [1, 2, 10, 39, 40, 41, 784])
def test_sizes_of_tilts(d: int) -> None:
    s = 10.0 ** np.linspace(-300, 300, 400)[:, None] * np.random.default_rng(d).normal(size=(400, d))
    s[0], found = 0.0, []
    for backend in ("numba", "numpy"):
        with use(backend):
            found.append(tilting.tilt_sizes(s, 0.7, *moments.debye_series(d / 2)))
    assert np.allclose(found[0], found[1], rtol=1e-14, atol=0)

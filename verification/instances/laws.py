"""The levels F^l, grad F^l and G^l of a finite law, by enumeration of all samples of 2^l points."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import combinations_with_replacement
from math import exp, factorial, hypot, prod, sinh
from typing import Any, TypeAlias

import numpy as np
from hypothesis import strategies as st

from phiball.backends import Array, active, to_numpy
from phiball.refimpl import ENTROPIC
from phiball.verification.instances.strategies import powers_of_ten
from phiball.verification.oracles.inner import inner

Solve: TypeAlias = Callable[..., Any]
Weights: TypeAlias = Callable[..., tuple[Array, Array]]
Bound: TypeAlias = Callable[["Law", int], float]


@dataclass(frozen=True)
class Law:
    """Losses f, their gradients g in the plane and probabilities p: the law nu_z of one data point."""

    f: tuple[float, ...]
    g: tuple[tuple[float, float], ...]
    p: tuple[float, ...]
    eta: float

    def __str__(self) -> str:
        return f"(f = {self.f}, grad f = {self.g}, p = {self.p}, eta = {self.eta!r})"

    @property
    def height(self) -> float:
        """B, the largest loss; the least is 0."""
        return max(self.f)

    @property
    def ratio(self) -> float:
        """B/eta."""
        return self.height / self.eta

    @property
    def lipschitz(self) -> float:
        """L_f."""
        return max(hypot(*v) for v in self.g)

    @property
    def chi_square(self) -> float:
        """sinh^2(B/(2 eta)), which bounds the chi-square divergence of the weights of every sample."""
        return sinh(self.ratio / 2) ** 2

    @property
    def limit(self) -> tuple[float, Any]:
        """F and grad F, from 50 digits."""
        best = inner(self.f, self.eta, "entropic", p=self.p)
        return float(best.value), np.array([float(w) for w in best.weights]) @ np.array(self.g)


@st.composite
def laws(draw: st.DrawFn) -> Law:
    """Two or three losses, 0 and B among them, of any weights and gradients; B/eta from 1e-3 to 10."""
    eta = draw(st.sampled_from([1.0, 0.1, 10.0]))
    ratio = draw(st.one_of(st.sampled_from([1.0, 0.1, 2.0, 4.0, 1e-3]), powers_of_ten(-1, 1)))
    L = draw(st.sampled_from([1.0, 100.0, 0.1]))
    between = draw(st.lists(st.floats(0, 1, width=32), max_size=1))
    shares = draw(
        st.lists(st.sampled_from([1, 2, 10, 100]), min_size=2 + len(between), max_size=2 + len(between))
    )
    directions = [(-L, 0.0), (L, 0.0), (0.0, L), (0.6 * L, -0.8 * L), (0.0, 0.0)]
    # The loss B has a gradient of full length, the others perhaps none.
    g = [draw(st.sampled_from(directions[:4] if k == 1 else directions)) for k in range(len(shares))]
    f = [0.0, ratio * eta, *(v * ratio * eta for v in between)]
    return Law(tuple(f), tuple(g), tuple(c / sum(shares) for c in shares), eta)


TWO_POINTS = Law((0.0, 1.0), ((-1.0, 0.0), (1.0, 0.0)), (0.5, 0.5), 1.0)
"""f = 0 or 1 with equal probabilities, eta = 1, gradients -1 and 1: the instance of the curves."""


@cache
def _whole(atoms: int, n: int) -> tuple[Any, Any, Any]:
    """All samples of n points up to order: rows (R, n), counts of the atoms, and the number of orders."""
    rows = np.array(list(combinations_with_replacement(range(atoms), n)))
    counts = np.stack([(rows == k).sum(axis=1) for k in range(atoms)], axis=1)
    orders = np.array([float(factorial(n) // prod(map(factorial, c))) for c in counts.tolist()])
    return rows, counts, orders


def _sample(law: Law, n: int) -> tuple[Any, Any]:
    """Rows of indices, and their chances."""
    rows, counts, orders = _whole(len(law.f), n)
    return rows, orders * np.prod(np.array(law.p) ** counts, axis=1)


def _losses(law: Law, rows: Any) -> Array:
    xp = active().namespace
    return xp.asarray(np.array(law.f)[rows], dtype=xp.float64)


def level_mean(law: Law, level: int, solve: Solve) -> tuple[float, Any]:
    """F^l and grad F^l by `solve`, the solver of the inner problem."""
    rows, chance = _sample(law, 2**level)
    out = solve(_losses(law, rows), law.eta, ENTROPIC)
    each = np.einsum("rn,rnd->rd", to_numpy(out.weights), np.array(law.g)[rows])
    return float(chance @ to_numpy(out.value)), chance @ each


def difference_moment(law: Law, level: int, weights: Weights) -> float:
    """E|G^l|^2 by `weights`, which gives those of G^l."""
    if level == 0:
        rows, chance = _sample(law, 1)
    else:
        half, own = _sample(law, 2 ** (level - 1))
        first, second = (v.ravel() for v in np.indices((len(half), len(half))))
        rows, chance = np.concatenate([half[first], half[second]], axis=1), own[first] * own[second]
    _, w = weights(_losses(law, rows), law.eta, ENTROPIC, telescoping=True)
    # One matrix product a coordinate: rows of weights against rows of gradients.
    each = [np.einsum("rn,rn->r", to_numpy(w), np.array(law.g)[rows, d]) for d in range(2)]
    return float(chance @ sum(v**2 for v in each))


def rounding(law: Law) -> float:
    """How far the weights and the values over eta are off by rounding, where e^(B/eta) is their spread."""
    return 2.0**-42 * (1 + law.ratio)


def growth(law: Law, power: float) -> float:
    """e^(power B/eta)."""
    return exp(power * law.ratio)

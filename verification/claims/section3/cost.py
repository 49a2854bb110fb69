"""Section 3 of the paper, the costs: of Algorithm 2, and of the estimators that call it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from math import log2
from typing import Any, TypeAlias

import numpy as np

from phiball.backends import Array
from phiball.refimpl import RTMLMC, Divergence, bisection, cressie_read
from phiball.refimpl.inner.worst_case import WorstCase
from phiball.verification.framework.claim import claim
from phiball.verification.framework.evidence import Curve, Evidence, Verdict
from phiball.verification.instances.arrays import array
from phiball.verification.instances.printed_algorithms import (
    Algorithm,
    Output,
    algorithm2,
    corrected_bracket,
    iterations,
    printed_iterations,
)

Solver: TypeAlias = Callable[..., WorstCase]
Levels: TypeAlias = Callable[[int], tuple[float, ...]]
CENTRED = cressie_read(2)  # (x - 1)^2/2, of which kappa = 1
ETA = 0.1


class Meter:
    """A divergence like the centred quadratic one, that counts the points at which (phi')^-1 is asked for."""

    def __init__(self) -> None:
        self.queries = 0
        self.phi = replace(CENTRED, name="counted", dconj=self._counted, family=None, parameter=None)

    def _counted(self, s: Array) -> Array:
        self.queries += int(np.prod(s.shape))
        return CENTRED.dconj(s)


def losses(m: int) -> Any:
    """m losses in [0, 1], spread evenly, both ends among them, in no order."""
    return np.random.default_rng(m).permutation(np.linspace(0, 1, m)) if m > 1 else np.ones(1)


def queries_of_algorithm2(f: Any, eps: float, algorithm: Algorithm = algorithm2) -> tuple[int, int]:
    """How often Algorithm 2 asks for (phi')^-1 at precision eps, and T."""
    meter, rows = Meter(), array(f)
    low, high = corrected_bracket(rows, ETA, meter.phi)
    T = iterations(high - low, 1.0, ETA, eps)
    algorithm(rows, ETA, meter.phi, T, (low, high))
    return meter.queries, T


def queries_of_bisection(f: Any, eps: float, solve: Solver) -> int:
    """The same for the library's bisection, which stops at a certified gap of eps."""
    meter = Meter()
    solve(array(f), ETA, meter.phi, tol=eps)
    return meter.queries


SIZES = (4, 16, 64, 256, 1024)
PRECISIONS = tuple(10.0**-k for k in range(1, 9))
BITS = tuple(log2(1 / eps) for eps in PRECISIONS)


@claim(
    "Proposition 2 (IV)",
    id="C9",
    verdict=Verdict.HOLDS,
    formula=r"\text{cost} = O(m T) = O\left(m \log \frac{1}{\epsilon}\right)",
    assumptions="the cost is the number of losses looked at; (x - 1)^2/2, losses in [0, 1], eta = 0.1",
)
def cost_of_algorithm2(
    algorithm: Algorithm = algorithm2, solve: Solver = bisection
) -> Iterator[Evidence | Curve]:
    """Algorithm 2 looks at each of the m losses once in each of its T halvings, and T is O(log 1/eps)."""
    for m in SIZES[::2]:
        for eps in PRECISIONS[1::2]:
            queries, T = queries_of_algorithm2(losses(m), eps, algorithm)
            yield Evidence(abs(queries - m * T), 0.0, f"m = {m}, eps = {eps:g}: {queries} queries, T = {T}")
            certified = queries_of_bisection(losses(m), eps, solve)
            # The gap is (eta/2)(1 + chi^2)(s - 1)^2, chi^2 < 1/eta: log2(1/eta)/2 more halvings, rounded up.
            extra = 1 + log2(1 / ETA) / 2
            yield Evidence(certified - m * (T + extra), 0.0, f"m = {m}, eps = {eps:g}: {certified} certified")
    for title, label, x, runs in (
        ("queries of Algorithm 2, eps = 1e-6", "losses m", SIZES, [(m, 1e-6) for m in SIZES]),
        ("queries of Algorithm 2, m = 64", "log2(1/eps)", BITS, [(64, eps) for eps in PRECISIONS]),
    ):
        counts = tuple(queries_of_algorithm2(losses(m), eps, algorithm)[0] for m, eps in runs)
        bound = tuple(m * (printed_iterations(1.0, 1.0, ETA, eps) + 1) for m, eps in runs)
        curve = Curve(title, label, "queries", "the paper's m T, T rounded up", x, counts, bound)
        yield curve
        yield curve.at_most(1.0, 2.0**-44)
        yield curve.below_bound()


@cost_of_algorithm2.mutant("looks at each loss twice", replaces="algorithm")
def _(f: Array, eta: float, phi: Divergence, T: int, bracket: tuple[float, float]) -> Output:
    algorithm2(f, eta, phi, T, bracket)
    return algorithm2(f, eta, phi, T, bracket)


@cost_of_algorithm2.mutant("takes 1/sqrt(eps) steps", replaces="solve")
def _(rows: Array, eta: float, phi: Divergence, *, tol: float) -> WorstCase:
    for _ in range(int(tol**-0.5)):
        phi.dconj(rows)
    return bisection(rows, eta, phi, tol=tol)


# --- The estimators -------------------------------------------------------------------------------


def _probabilities(level: int) -> tuple[float, ...]:
    return RTMLMC(level).probabilities


def points_solved(level: int) -> int:
    """The points of the inner problems of G^l, both halves among them."""
    return 2 << level if level else 1


def queries_of_level(level: int, eps: float, *, telescoping: bool) -> int:
    """What Algorithm 2 asks for in g^l, or in G^l where `telescoping`."""
    f = losses(2**level)
    parts = [f, *(np.split(f, 2) if telescoping and level else ())]
    return sum(queries_of_algorithm2(part, eps)[0] for part in parts)


@claim(
    "Proposition 3 (IV)",
    id="D13",
    verdict=Verdict.HOLDS,
    formula=(
        r"\text{SG: } O\left(2^L \log \frac{1}{\epsilon}\right), \quad "
        r"\text{RT-MLMC, in the mean: } O\left(L \log \frac{1}{\epsilon}\right)"
    ),
    assumptions=(
        "one data point; every inner problem solved by Algorithm 2 to precision eps; losses in [0, 1]"
    ),
)
def cost_of_estimators(
    law: Levels = _probabilities, points: Callable[[int], int] = points_solved
) -> Iterator[Evidence | Curve]:
    """SG costs O(2^L log 1/eps) queries, and RT-MLMC O(L log 1/eps) on average."""
    levels, eps = tuple(range(1, 11)), 1e-4
    T = iterations(1.0, 1.0, ETA, eps)
    for top in (0, *levels):
        solved = sum(p * points(k) for k, p in enumerate(law(top)))
        exact = (1 + 2 * top) / (2 - 2.0**-top)
        yield Evidence(abs(solved - exact), 2.0**-44 * exact, f"L = {top}: (1 + 2L)/(2 - 2^-L) points solved")
    level_costs = [queries_of_level(k, eps, telescoping=True) for k in range(levels[-1] + 1)]
    random = [sum(p * q for p, q in zip(law(top), level_costs, strict=False)) for top in levels]
    plain = [queries_of_level(top, eps, telescoping=False) for top in levels]
    order = [(1 + 2 * top) / (2 - 2.0**-top) for top in levels]
    few = [
        sum(p * queries_of_level(k, e, telescoping=True) for k, p in enumerate(law(6))) for e in PRECISIONS
    ]
    halvings = [iterations(1.0, 1.0, ETA, e) for e in PRECISIONS]
    for title, label, x, y, bound in (
        ("queries of RT-MLMC", "L", levels, random, [T * v for v in order]),
        ("queries of SG", "2^L", [2**top for top in levels], plain, [T * 2**top for top in levels]),
        ("queries of RT-MLMC, L = 6", "log2(1/eps)", BITS, few, [v * order[5] for v in halvings]),
    ):
        words = "T times the points solved"
        curve = Curve(title, label, "queries per data point", words, tuple(x), tuple(y), tuple(bound))
        yield curve
        yield curve.at_most(1.0, 0.1)  # one point has a bracket of width 0, so the lowest levels cost less
        yield curve.below_bound(2.0**-44)


@cost_of_estimators.mutant("draws every level alike", replaces="law")
def _(level: int) -> tuple[float, ...]:
    return (1 / (level + 1),) * (level + 1)


@cost_of_estimators.mutant("does not count the halves", replaces="points")
def _(level: int) -> int:
    return 1 << level

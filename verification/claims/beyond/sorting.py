"""Beyond the paper: Example 3 solved exactly after a sort, where Algorithm 2 solves it to a precision."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction
from math import ceil, log2
from typing import TypeAlias

import numpy as np

from phiball.refimpl import QUADRATIC, worst_case
from phiball.verification.framework.claim import claim
from phiball.verification.framework.evidence import Curve, Evidence, Verdict
from phiball.verification.instances.arrays import numbers
from phiball.verification.instances.strategies import Problem, problems
from phiball.verification.instances.tolerances import value_tolerance
from phiball.verification.oracles import definitions


class Counted:
    """A number that counts how often it is compared with another."""

    comparisons = 0

    def __init__(self, value: Fraction) -> None:
        self.value = value

    def __lt__(self, other: Counted) -> bool:
        Counted.comparisons += 1
        return self.value < other.value


Filler: TypeAlias = Callable[[list[Fraction], Fraction], Fraction]


def sort_and_fill(f: list[Fraction], eta: Fraction) -> Fraction:
    """mu* of Example 3: the j largest losses lie above it, with sum (f - mu) = m eta, for the least j."""
    ranked = [loss.value for loss in sorted(map(Counted, f))][::-1]
    total, mu = Fraction(0), Fraction(0)
    for j, v in enumerate(ranked, start=1):
        total += v
        mu = (total - len(f) * eta) / j
        if j == len(f) or ranked[j] <= mu:
            break
    return mu


@claim(
    "Proposition 2 (IV), Example 3",
    id="C9-exact",
    verdict=Verdict.HOLDS,
    formula=r"\mu^* = \frac{1}{j} \left(\sum_{i \le j} f_{(i)} - m \eta\right), \quad f_{(j+1)} \le \mu^* < "
    r"f_{(j)}",
    assumptions="phi = (x^2 - 1)/2, f sorted downwards; exact arithmetic",
    examples=150,
    problem=problems(laws=False),
)
def sorting_solves_example_3(problem: Problem, fill: Filler = sort_and_fill) -> Iterator[Evidence]:
    """A sort and one pass give mu* of Example 3, and with it gamma* and the value, exactly."""
    f, eta, m = [Fraction(v) for v in problem.f], Fraction(problem.eta), len(problem.f)
    mu = fill(f, eta)
    gamma = [max(v - mu, Fraction(0)) / (m * eta) for v in f]
    # Feasible, and stationary where positive: the conditions that suffice for a concave problem.
    yield Evidence(float(abs(sum(gamma) - 1)), 0.0, "gamma sums to one")
    value = sum(w * v - eta / m * ((m * w) ** 2 - 1) / 2 for w, v in zip(gamma, f, strict=True))
    solution = worst_case(problem.losses, problem.eta, QUADRATIC)
    off = abs(definitions.difference(float(solution.value), value))
    yield Evidence(off, value_tolerance(problem), "the value of the solver")
    scale = 2.0**-44 * (1 + problem.size / problem.eta)
    off = max(abs(w - float(g)) for w, g in zip(numbers(solution.weights), gamma, strict=True))
    yield Evidence(off, scale, "its weights")


@claim(
    "Proposition 2 (IV), Example 3",
    id="C9-sort",
    verdict=Verdict.HOLDS,
    formula=r"\text{comparisons} \le m \lceil \log_2 m \rceil",
    assumptions="phi = (x^2 - 1)/2; losses in random order",
)
def sorting_costs_m_log_m(fill: Filler = sort_and_fill, seed: int = 0) -> Iterator[Evidence | Curve]:
    """The exact solution of Example 3 takes at most m ceil(log2 m) comparisons, whatever the precision."""
    sizes, counts = (4, 16, 64, 256, 1024), []
    for m in sizes:
        f = [Fraction(int(v), m) for v in np.random.default_rng(seed + m).permutation(m)]
        Counted.comparisons = 0
        fill(f, Fraction(1, 10))
        counts.append(Counted.comparisons)
        limit = m * ceil(log2(m))
        yield Evidence.at_most(counts[-1], limit, 0.0, f"m = {m}: {counts[-1]} comparisons, at most {limit}")
    yield Curve(
        "comparisons of the exact solver",
        "losses m",
        "comparisons",
        "m log2 m",
        sizes,
        tuple(counts),
        tuple(m * log2(m) for m in sizes),
    )


sorting_solves_example_3.mutant("keeps every loss active")(lambda f, eta: sum(f, Fraction(0)) / len(f) - eta)


@sorting_costs_m_log_m.mutant("looks for the largest loss again and again")
def _(f: list[Fraction], eta: Fraction) -> Fraction:
    left = [Counted(v) for v in f]
    while left:
        left.remove(max(left))
    return sort_and_fill(f, eta)

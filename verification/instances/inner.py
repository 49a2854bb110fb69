"""Inner problems in exact binary fractions, and comparisons of two solutions, for the claims on a solver."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from math import inf

from hypothesis import strategies as st

from phiball.refimpl import Divergence, WorstCase
from phiball.verification.claims.section2.duality import (
    ROUNDING,
    exact_law,
    numbers,
    primal_tolerance,
    value_tolerance,
)
from phiball.verification.framework.evidence import Evidence
from phiball.verification.instances.strategies import Problem, powers_of_ten
from phiball.verification.oracles import definitions

LABEL = "Eq. (expression:R)"
FORMULA = (
    r"R = \max_{\gamma \in \Delta^m} \sum_i \gamma_i f_i - "
    r"\eta \sum_i p_i \phi\left(\frac{\gamma_i}{p_i}\right)"
)

VALUE, PRIMAL, WEIGHTS, MASS = (
    "the value",
    "the primal at the weights",
    "the weights",
    "the mass of the weights",
)
"""What a piece of evidence is about; `verify_solver` reads these words."""


@dataclass(frozen=True)
class Reordered:
    """An inner problem, and an order to put its points in."""

    problem: Problem
    order: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.problem}, order {self.order}"

    @property
    def other(self) -> Problem:
        """The problem with its points in that order."""
        p = self.problem.p
        law = None if p is None else tuple(p[i] for i in self.order)
        return Problem(tuple(self.problem.f[i] for i in self.order), self.problem.eta, law)


@st.composite
def dyadic_problems(draw: st.DrawFn, min_size: int = 1, max_size: int = 6) -> Problem:
    """Losses that are multiples of 1/8 up to 4, with ties: adding 2^20 to them or doubling them is exact."""
    f = draw(st.lists(st.integers(-32, 32), min_size=min_size, max_size=max_size))
    eta = draw(st.one_of(st.sampled_from([1.0, 0.5, 4.0, 0.03125]), powers_of_ten(-2.0, 2.0)))
    return Problem(tuple(v / 8 for v in f), eta, draw(laws(len(f))))


@st.composite
def laws(draw: st.DrawFn, m: int) -> tuple[float, ...] | None:
    """None for the uniform law, or probabilities of very different size, zeros among them."""
    if not draw(st.booleans()):
        return None
    counts = draw(st.lists(st.sampled_from([1, 0, 2, 1000]), min_size=m, max_size=m))
    return tuple(c / sum(counts) for c in counts) if any(counts) else None


@st.composite
def reordered(draw: st.DrawFn) -> Reordered:
    """A problem and a permutation of its points."""
    problem = draw(dyadic_problems(min_size=2))
    return Reordered(problem, tuple(draw(st.permutations(range(len(problem.f))))))


def mean(problem: Problem) -> Fraction:
    """E f under the reference law, exactly."""
    pairs = zip(problem.f, exact_law(problem), strict=True)
    return sum((Fraction(v) * q for v, q in pairs), Fraction(0))


def value_is(solution: WorstCase, value: float, problem: Problem, times: float = 1.0) -> Evidence:
    """The value against a number, up to the rounding of the problem, `times` over."""
    off = abs(definitions.difference(float(solution.value), value))
    return Evidence(off, times * value_tolerance(problem), VALUE)


def primal_is(solution: WorstCase, value: float, problem: Problem, d: Divergence) -> Evidence:
    """The primal value at the weights against a number: so are weights judged that are not unique."""
    instance = (problem.eta, d.family or "", d.parameter, problem.p)
    reached = definitions.primal(problem.f, numbers(solution.weights), *instance)
    off = abs(definitions.difference(reached, value))
    return Evidence(off, 2 * primal_tolerance(problem, d), PRIMAL)


def weights_are(
    solution: WorstCase, expected: list[float], value: float, problem: Problem, d: Divergence
) -> Iterator[Evidence]:
    """The weights against those of an equal problem; where phi is kinked, by what they attain."""
    if not 0 < d.curvature1 < inf:
        yield primal_is(solution, value, problem, d)
        return
    off = max(abs(w - v) for w, v in zip(numbers(solution.weights), expected, strict=True))
    # A rounding of f moves f/eta by that much, and the weights with it.
    yield Evidence(off, ROUNDING * (1 + problem.size / problem.eta), WEIGHTS)

"""Section 3 of the paper, Algorithm 2: the bracket of mu and the number of halvings."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import ceil, floor, log, sqrt
from typing import TypeAlias

from hypothesis import strategies as st

from phiball.backends import Array, array_namespace
from phiball.refimpl import ABSOLUTE, QUADRATIC, Divergence, dual_value, worst_case
from phiball.verification.framework.assessment import Assessment, Consequence, Kind
from phiball.verification.framework.claim import claim
from phiball.verification.framework.evidence import Evidence, Verdict
from phiball.verification.instances.assumptions import each
from phiball.verification.instances.divergences import KAPPA, NAMED
from phiball.verification.instances.printed_algorithms import (
    Bracket,
    corrected_bracket,
    iterations,
    printed_bracket,
    printed_iterations,
)
from phiball.verification.instances.solutions import value_exactly
from phiball.verification.instances.strategies import Problem, powers_of_ten, problems
from phiball.verification.instances.tolerances import bisection_tolerance

# --- The bracket ----------------------------------------------------------------------------------


def _excess(bracket: tuple[float, float], problem: Problem, phi: Divergence) -> float:
    """The least dual value on the bracket minus the least of all: zero if the bracket meets argmin."""
    f, eta = problem.losses, problem.eta
    # No dual value is below the optimal one, whatever the solver thinks mu is; D is convex.
    nearest = min(max(float(worst_case(f, eta, phi).mu), bracket[0]), bracket[1])
    return float(dual_value(f, nearest, eta, phi)) - value_exactly(problem, phi)


@claim(
    "Proposition 2, bracket",
    id="C1",
    verdict=Verdict.HOLDS,
    formula=r"\mu^* \in \left[\min_i f_i,\; \max_i f_i - \eta K\right], \quad K = \lim_{s \to 0+} \phi'(s)",
    assumptions="phi >= 0 convex with phi(1) = 0, as the Definition asks; with K = -inf the upper end is "
    "max f - eta (min f - max f)",
    quote=r"Also, it can be verified that the optimal multiplier belongs to the interval "
    r"$[\underline{\mu}, \overline{\mu}]$",
    remark="Example 3 as printed is negative below 1, and its multiplier may lie outside: see A3.",
    examples=300,
    problem=problems(laws=False),
    phi=st.sampled_from([d for d in (*KAPPA, *NAMED) if d != QUADRATIC]),
)
def printed_bracket_holds_mu(
    problem: Problem, phi: Divergence, bracket: Bracket = printed_bracket
) -> Evidence:
    """The bracket [min f, max f - eta K] contains a dual solution."""
    ends = bracket(problem.losses, problem.eta, phi)
    return Evidence(_excess(ends, problem, phi), bisection_tolerance(problem), "the dual on the bracket")


@printed_bracket_holds_mu.mutant("starts at the mean")
def _(f: Array, eta: float, phi: Divergence) -> tuple[float, float]:
    mean = float(array_namespace(f).mean(f))
    return mean, max(mean, printed_bracket(f, eta, phi)[1])


@claim(
    "Proposition 2, bracket",
    id="C2",
    section="beyond",
    verdict=Verdict.HOLDS,
    formula=(
        r"\mu^* \in \left[\min_i f_i - \eta g,\; \max_i f_i - \eta g\right], \quad g \in "
        r"\partial\phi(1)"
    ),
    assumptions="phi convex with phi(1) = 0, of any sign, Example 3 among them; g a subgradient of phi at 1; "
    "the bracket is cut at max f - eta lim phi(t)/t",
    examples=300,
    problem=problems(laws=False),
    phi=st.sampled_from([*KAPPA, *NAMED]),
    tilt=st.floats(-1, 1),
)
def corrected_bracket_holds_mu(
    problem: Problem, phi: Divergence, tilt: float, bracket: Bracket = corrected_bracket
) -> Iterator[Evidence]:
    """A bracket as wide as the range of f contains a dual solution, whatever phi is."""
    low, high = bracket(problem.losses, problem.eta, phi)
    yield Evidence(
        _excess((low, high), problem, phi), bisection_tolerance(problem), "the dual on the bracket"
    )
    yield Evidence(high - low - problem.spread, bisection_tolerance(problem), "the width")
    if phi == ABSOLUTE:  # every number in [-1, 1] is a subgradient at 1
        low, high = min(problem.f) - problem.eta * tilt, max(problem.f) - problem.eta * tilt
        low = max(low, max(problem.f) - problem.eta)
        yield Evidence(
            _excess((low, high), problem, phi), bisection_tolerance(problem), "another subgradient"
        )


corrected_bracket_holds_mu.mutant("the printed bracket")(printed_bracket)


@corrected_bracket_holds_mu.mutant("has the sign of g wrong")
def _(f: Array, eta: float, phi: Divergence) -> tuple[float, float]:
    low, high = corrected_bracket(f, eta, phi)
    return low + 2 * eta * phi.slope1, high + 2 * eta * phi.slope1


# --- The number of halvings -----------------------------------------------------------------------

Count: TypeAlias = Callable[[float, float, float, float], int]


@claim(
    "Proposition 2, T",
    id="C7",
    verdict=Verdict.CORRECTED,
    formula=r"T = \frac{1}{2} \log_2 \frac{\varrho^2}{2 \kappa \eta \epsilon}",
    assumptions="a bracket of width rho >= 0; kappa, eta, eps > 0",
    quote=r"$T= \frac{1}{2}\log_2\left( \frac{\varrho^2}{2\kappa\eta}\cdot\frac{1}{\epsilon} \right)$",
    correction="rounded up to a whole number, and at least 1",
    assessment=Assessment(
        Kind.IMPRECISE,
        Consequence.NONE,
        "As printed T need not be whole, and is negative where the bracket is narrow already.",
    ),
    corrected=(
        r"T = \max\left(1, \left\lceil \frac{1}{2} \log_2 \frac{\varrho^2}{2 \kappa \eta "
        r"\epsilon}\right\rceil\right)"
    ),
    examples=300,
    width=st.one_of(st.just(0.0), powers_of_ten(-3, 3)),
    kappa=powers_of_ten(-2, 2),
    eta=powers_of_ten(-2, 2),
    eps=powers_of_ten(-6, 0),
)
def number_of_halvings(
    width: float, kappa: float, eta: float, eps: float, count: Count = iterations
) -> Iterator[Evidence]:
    """After T halvings the bracket is within sqrt(2 eta kappa eps), and T is the least such number."""
    T = count(width, kappa, eta, eps)
    yield Evidence(max(abs(T - round(T)), 1.0 - T), 0.0, "T is a positive whole number")
    aim = sqrt(2 * eta * kappa * eps)
    slack = 2.0**-44 * aim  # where T is whole before it is rounded, the two sides are equal
    yield Evidence.at_most(width * 2.0**-T, aim, slack, "the bracket after T halvings")
    if T > 1:
        yield Evidence(aim - width * 2.0 ** (1 - T), slack, "one halving fewer is not enough")


UNITS = (1.0, 1.0, 0.01)  # kappa, eta and eps


def _within_not_a_number_of_halvings() -> Iterator[Evidence]:
    yield from each(("kappa, eta and eps are positive", min(UNITS) > 0))


@number_of_halvings.counterexample(margin=1.49, meets=_within_not_a_number_of_halvings)
def _not_a_number_of_halvings() -> Iterator[Evidence]:
    for width, words in ((0.1, "log2(0.01/0.02)/2"), (0.0, "log2(0)/2, one loss or equal ones")):
        T = printed_iterations(width, *UNITS)
        yield Evidence(1 - T, 0.0, f"width {width:g}, kappa = eta = 1, eps = 0.01: T = {words}: {T:.4g}")


@number_of_halvings.mutant("rounds down")
def _(width: float, kappa: float, eta: float, eps: float) -> int:
    return max(1, floor(max(printed_iterations(width, kappa, eta, eps), 1.0)))


@number_of_halvings.mutant("takes the natural logarithm")
def _(width: float, kappa: float, eta: float, eps: float) -> int:
    return max(1, ceil(max(printed_iterations(width, kappa, eta, eps), 1.0) * log(2)))

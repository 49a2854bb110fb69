"""Section 3 of the paper, Algorithm 2: the bracket of mu and the number of halvings."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import ceil, floor, log, sqrt
from typing import TypeAlias

from hypothesis import strategies as st

from phiball.backends import Array, array_namespace
from phiball.refimpl import ABSOLUTE, QUADRATIC, Divergence, dual_value, worst_case
from phiball.verification.framework.claim import claim
from phiball.verification.framework.evidence import Evidence, Verdict
from phiball.verification.instances.divergences import KAPPA, NAMED
from phiball.verification.instances.printed_algorithms import (
    Bracket,
    algorithm2,
    corrected_bracket,
    iterations,
    printed_bracket,
    printed_iterations,
)
from phiball.verification.instances.strategies import Problem, powers_of_ten, problems
from phiball.verification.instances.tolerances import bisection_tolerance

# --- The bracket ----------------------------------------------------------------------------------


def _excess(bracket: tuple[float, float], problem: Problem, phi: Divergence) -> float:
    """The least dual value on the bracket minus the least of all: zero if the bracket meets argmin."""
    f, eta = problem.losses, problem.eta
    best = worst_case(f, eta, phi)
    nearest = min(max(float(best.mu), bracket[0]), bracket[1])  # D is convex
    return float(dual_value(f, nearest, eta, phi) - best.value)


@claim(
    "Algorithm 2, bracket",
    id="C1",
    verdict=Verdict.CORRECTED,
    formula=r"\mu^* \in \left[\min_i f_i,\; \max_i f_i - \eta K\right], \quad K = \lim_{s \to 0+} \phi'(s)",
    assumptions="phi convex with phi(1) = 0; with K = -inf the upper end is max f - eta (min f - max f)",
    quote="the optimal multiplier belongs to the interval",
    correction="phi >= 0 is needed; Example 3 misses mu* iff mean f - min f < eta, by the difference",
    corrected=r"\phi \ge 0 \;\Rightarrow\; \mu^* \in \left[\min_i f_i,\; \max_i f_i - \eta K\right]",
    examples=300,
    problem=problems(laws=False),
    phi=st.sampled_from([QUADRATIC, *KAPPA, *NAMED]),
)
def printed_bracket_holds_mu(
    problem: Problem, phi: Divergence, bracket: Bracket = printed_bracket
) -> Evidence:
    """The bracket [min f, max f - eta K] contains a dual solution."""
    low, high = bracket(problem.losses, problem.eta, phi)
    if phi != QUADRATIC:
        return Evidence(
            _excess((low, high), problem, phi), bisection_tolerance(problem), "the dual on the bracket"
        )
    mu = float(worst_case(problem.losses, problem.eta, phi).mu)
    mean = sum(v - min(problem.f) for v in problem.f) / len(problem.f)
    missed = max(low - mu, mu - high, 0.0)
    return Evidence(
        abs(missed - max(problem.eta - mean, 0.0)),
        bisection_tolerance(problem),
        "the distance of mu* to the bracket",
    )


@printed_bracket_holds_mu.counterexample(margin=0.94)
def _bracket_of_example_3() -> Evidence:
    problem = Problem((0.0, 0.1), 1.0)
    low, high = printed_bracket(problem.losses, 1.0, QUADRATIC)
    mu = float(worst_case(problem.losses, 1.0, QUADRATIC).mu)
    out = algorithm2(problem.losses, 1.0, QUADRATIC, 60, (low, high))
    excess = _excess((low, high), problem, QUADRATIC)
    return Evidence(
        low - mu,
        0.0,
        f"Example 3, f = {problem.f}, eta = 1: mu* = {mu:.4g} outside [{low:g}, {high:g}], "
        f"sum of gamma {out.h + 1:.4g}, D(mu) too large by {excess:.5g}",
    )


@printed_bracket_holds_mu.mutant("swaps the signs of eta K")
def _(f: Array, eta: float, phi: Divergence) -> tuple[float, float]:
    low, high = printed_bracket(f, eta, phi)
    return low, max(low, 2 * float(array_namespace(f).max(f)) - high)


@printed_bracket_holds_mu.mutant("starts at the mean")
def _(f: Array, eta: float, phi: Divergence) -> tuple[float, float]:
    mean = float(array_namespace(f).mean(f))
    return mean, max(mean, printed_bracket(f, eta, phi)[1])


@claim(
    "Algorithm 2, bracket",
    id="C2",
    verdict=Verdict.CORRECTED,
    formula=r"\mu^* \in \left[\min_i f_i,\; \max_i f_i - \eta K\right], \quad K = \lim_{s \to 0+} \phi'(s)",
    assumptions="phi convex with phi(1) = 0, of any sign; g a subgradient of phi at 1",
    quote="the optimal multiplier belongs to the interval",
    correction="[min f - eta g, max f - eta g], g a subgradient of phi at 1, cut at max f - eta lim phi(t)/t",
    corrected=(
        r"\mu^* \in \left[\min_i f_i - \eta g,\; \max_i f_i - \eta g\right], \quad g \in "
        r"\partial\phi(1)"
    ),
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


@corrected_bracket_holds_mu.counterexample(margin=1.0)
def _one_point() -> Evidence:
    problem = Problem((1.0,), 1.0)
    out = algorithm2(problem.losses, 1.0, QUADRATIC, 60, printed_bracket(problem.losses, 1.0, QUADRATIC))
    return Evidence(
        -out.h, 0.0, f"Example 3, one point: the printed bracket gives gamma of mass {out.h + 1:g}"
    )


@corrected_bracket_holds_mu.mutant("the printed bracket")
def _(f: Array, eta: float, phi: Divergence) -> tuple[float, float]:
    return printed_bracket(f, eta, phi)


@corrected_bracket_holds_mu.mutant("forgets eta")
def _(f: Array, eta: float, phi: Divergence) -> tuple[float, float]:
    return corrected_bracket(f, 1.0, phi)


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
    quote="T = 1/2 log_2(rho^2/(2 kappa eta) 1/eps)",
    correction="T = max(1, ceil(log2(width^2/(2 kappa eta eps))/2))",
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
    yield Evidence(width * 2.0**-T - aim, slack, "the bracket after T halvings")
    if T > 1:
        yield Evidence(aim - width * 2.0 ** (1 - T), slack, "one halving fewer is not enough")


@number_of_halvings.counterexample(margin=1.49)
def _not_a_number_of_halvings() -> Iterator[Evidence]:
    for width in (0.1, 0.0):
        T = printed_iterations(width, 1.0, 1.0, 0.01)
        yield Evidence(1 - T, 0.0, f"width {width:g}, kappa = eta = 1, eps = 0.01: T = {T:.4g}")


@number_of_halvings.mutant("rounds down")
def _(width: float, kappa: float, eta: float, eps: float) -> int:
    return max(1, floor(max(printed_iterations(width, kappa, eta, eps), 1.0)))


@number_of_halvings.mutant("takes the natural logarithm")
def _(width: float, kappa: float, eta: float, eps: float) -> int:
    return max(1, ceil(max(printed_iterations(width, kappa, eta, eps), 1.0) * log(2)))


@number_of_halvings.mutant("forgets the factor 1/2")
def _(width: float, kappa: float, eta: float, eps: float) -> int:
    return max(1, ceil(2 * max(printed_iterations(width, kappa, eta, eps), 0.5)))

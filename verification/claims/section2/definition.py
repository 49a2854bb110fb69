"""Section 2 of the paper: the conditions on phi, and the primal's constraint."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from math import inf, isfinite

from hypothesis import strategies as st

from phiball.backends import Array, active, array_namespace
from phiball.refimpl import QUADRATIC, Divergence, primal_value, worst_case
from phiball.refimpl.inner.divergences import centred
from phiball.verification.framework.assessment import Assessment, Consequence, Kind
from phiball.verification.framework.claim import claim
from phiball.verification.framework.evidence import Evidence, Verdict
from phiball.verification.instances.arrays import array, numbers
from phiball.verification.instances.divergences import divergences
from phiball.verification.instances.faulty_solvers import without_law
from phiball.verification.instances.printed_algorithms import algorithm2, printed_bracket
from phiball.verification.instances.solutions import Solver, solved
from phiball.verification.instances.strategies import Problem, problems
from phiball.verification.instances.tolerances import ROUNDING, value_tolerance
from phiball.verification.oracles import definitions
from phiball.verification.oracles.inner import solve_exactly

# --- The definition of phi ------------------------------------------------------------------------

GRID = [0.25 * k for k in range(33)]


@claim(
    "Definition 1",
    id="A3",
    verdict=Verdict.CORRECTED,
    formula=r"\phi:\mathbb{R}\to\mathbb{R}_+\cup\{\infty\}\ \text{convex},\quad \phi(1)=0,"
    r"\quad \phi(x)=\infty\ \text{for}\ x<0",
    quote=r"Let $\phi:~\mathbb{R}\to\mathbb{R}_+\cup\{\infty\}$ be a convex lower semi-continuous function "
    r"such that $\phi(1)=0, \phi(x)=\infty$ if $x<0$.",
    correction="Example 3 is to be written (x - 1)^2/2: phi(x) - phi'(1)(x - 1) is not negative, and leaves "
    "every risk as it is, with mu larger by eta phi'(1)",
    assessment=Assessment(
        Kind.IMPRECISE,
        Consequence.REPAIR,
        "Example 3 is negative below 1, so that it is no phi of the Definition, and the bracket of "
        "Algorithm 2, which is right for every phi >= 0, misses its multiplier.",
    ),
    corrected=r"\tilde\phi(x) = \phi(x) - g\,(x-1),\ g\in\partial\phi(1):\quad \tilde\phi\ge 0,"
    r"\quad \tilde R = R,\quad \tilde\mu^* = \mu^* + \eta g",
    problem=problems(),
    d=st.one_of(st.just(QUADRATIC), divergences()),
)
def centred_phi_keeps_the_definition(
    problem: Problem, d: Divergence, repair: Callable[[Divergence], Divergence] = centred
) -> Iterator[Evidence]:
    """Each phi, less its tangent at 1, is convex and non-negative with phi(1) = 0, and has the same risk."""
    c = repair(d)
    values = numbers(c.phi(array(GRID)))
    yield Evidence(-min(values), ROUNDING, f"phi >= 0: the least value is {min(values):.4g}")
    yield Evidence(abs(numbers(c.phi(array([1.0])))[0]), ROUNDING, "phi(1) = 0")
    yield Evidence(0.0 if numbers(c.phi(array([-1e-3])))[0] == inf else inf, 0.0, "infinite below 0")
    bends = [
        2 * b - (a + e)
        for a, b, e in zip(values, values[1:], values[2:], strict=False)
        if isfinite(b) or isfinite(a + e)
    ]
    yield Evidence(max(bends), ROUNDING * max(v for v in values if isfinite(v)), "convex on a grid")
    exact = solve_exactly(problem.f, problem.eta, d.family or "", d.parameter, problem.p).value
    solution = solved(worst_case, problem, c)
    error = abs(definitions.difference(float(solution.value), exact))
    yield Evidence(error, value_tolerance(problem), "the risk")
    before = definitions.dual(
        problem.f,
        float(solution.mu) - problem.eta * d.slope1,
        problem.eta,
        d.family or "",
        d.parameter,
        problem.p,
    )
    # mu - eta is rounded at the size of eta, where the dual is flat.
    slack = value_tolerance(problem) + ROUNDING * problem.eta
    yield Evidence(abs(definitions.difference(before, exact)), slack, "the multiplier")


@centred_phi_keeps_the_definition.counterexample(margin=0.5)
def _negative_phi() -> Evidence:
    xp = active().namespace
    least = float(QUADRATIC.phi(xp.zeros(1, dtype=xp.float64))[0])
    return Evidence(-least, 0.0, f"phi(x) = (x^2 - 1)/2 of Example 3: phi(0) = {least}")


@centred_phi_keeps_the_definition.counterexample(margin=0.94)
def _bracket_of_example_3() -> Evidence:
    problem = Problem((0.0, 0.1), 1.0)
    low, high = printed_bracket(problem.losses, 1.0, QUADRATIC)
    mu = float(worst_case(problem.losses, 1.0, QUADRATIC).mu)
    out = algorithm2(problem.losses, 1.0, QUADRATIC, 60, (low, high))
    return Evidence(
        low - mu,
        0.0,
        f"Example 3, f = {problem.f}, eta = 1: E(f - mu)_+ = eta gives mu* = 0.05 - 1 = {mu:.4g}, outside "
        f"the printed bracket [{low:g}, {high:g}] of Algorithm 2, whose weights then add up to "
        f"{out.h + 1:.4g}",
    )


@centred_phi_keeps_the_definition.mutant("leaves phi as printed")
def _(d: Divergence) -> Divergence:
    return d


@centred_phi_keeps_the_definition.mutant("raises phi until it is non-negative")
def _(d: Divergence) -> Divergence:
    if d is not QUADRATIC:
        return d
    return replace(d, phi=lambda x: d.phi(x) + 0.5, conj=lambda s: d.conj(s) - 0.5, family=None)


# --- The constraint of the primal -----------------------------------------------------------------


@claim(
    "Eq. (Primal-phi-Reg)",
    id="A6",
    verdict=Verdict.HOLDS,
    formula=r"D_\phi(\gamma,\gamma_0)<\infty \;\Rightarrow\; \gamma\ll\gamma_0"
    r" \;\Rightarrow\; \text{ess.sup}_\gamma\|\zeta_1-\zeta_2\|\le\rho",
    assumptions="D is infinite unless gamma has a density with respect to gamma_0, as in the Definition",
    examples=50,
    problem=problems(laws=False),
    d=divergences(),
    outside=st.lists(st.sampled_from([10.0, 1e6, -1.0]), min_size=1, max_size=3),
)
def constraint_is_redundant(
    problem: Problem,
    d: Divergence,
    outside: list[float],
    solve: Solver = worst_case,
    primal: Callable[..., Array] = primal_value,
) -> Iterator[Evidence]:
    """Points out of reach take no weight and leave the value as it is, whatever their loss, unconstrained."""
    m, k = len(problem.f), len(outside)
    width = max(problem.spread, problem.eta)
    far = tuple(max(problem.f) + v * width for v in outside)
    wide = Problem(problem.f + far, problem.eta, (1 / m,) * m + (0.0,) * k)
    solution = solved(solve, wide, d)
    yield Evidence(max(numbers(solution.weights)[m:]), 0.0, "the weight out of reach")
    exact = solve_exactly(problem.f, problem.eta, d.family or "", d.parameter).value
    error = abs(definitions.difference(float(solution.value), exact))
    yield Evidence(error, value_tolerance(problem), "the value")
    gamma = [(1 - 2.0**-20) / m] * m + [2.0**-20 / k] * k
    reached = float(primal(wide.losses, array(gamma), wide.eta, d, p=wide.law))
    yield Evidence(0.0 if reached == -inf else inf, 0.0, f"a little mass out of reach gives {reached}")


constraint_is_redundant.mutant("ignores the reference law", replaces="solve")(without_law)


@constraint_is_redundant.mutant("counts only points of positive reference", replaces="primal")
def _(losses: Array, gamma: Array, eta: float, d: Divergence, *, p: Array) -> Array:
    xp = array_namespace(losses)
    kept = xp.where(p > 0, gamma, xp.zeros_like(gamma))
    return primal_value(losses, kept / xp.sum(kept), eta, d, p=p)

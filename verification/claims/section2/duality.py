"""Section 2 of the paper: strong duality, and the worst cases of Examples 1 to 5."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from math import inf

import mpmath as mp
import numpy as np
from hypothesis import strategies as st

from phiball.backends import Array
from phiball.refimpl import ABSOLUTE, ENTROPIC, HINGE, QUADRATIC, Divergence, indicator, worst_case
from phiball.refimpl.inner.worst_case import WorstCase
from phiball.verification.framework.assessment import Assessment, Consequence, Kind
from phiball.verification.framework.claim import claim
from phiball.verification.framework.evidence import Evidence, Quantity, Verdict
from phiball.verification.instances.arrays import numbers
from phiball.verification.instances.assumptions import bounded_loss, in_the_definition
from phiball.verification.instances.divergences import divergences
from phiball.verification.instances.faulty_solvers import (
    LARGEST_LOSS,
    MULTIPLIER_FOR_VALUE,
    even_on_the_support,
    without_atom,
    without_law,
)
from phiball.verification.instances.solutions import Solver, exact_law, solution_is, solved
from phiball.verification.instances.strategies import Problem, problems
from phiball.verification.instances.tolerances import ROUNDING, primal_tolerance, value_tolerance
from phiball.verification.oracles import definitions
from phiball.verification.oracles.inner import solve_exactly

# --- Theorem 1 (I) --------------------------------------------------------------------------------


@claim(
    "Theorem 1 (I)",
    id="A1",
    verdict=Verdict.CORRECTED,
    any_solver=True,
    formula=r"\sup_{\zeta\ge 0,\ \mathbb{E}[\zeta]=1}"
    r"\left\{\mathbb{E}[f\zeta]-\eta\,\mathbb{E}[\phi(\zeta)]\right\} ="
    r" \inf_{\mu\in\mathbb{R}}\left\{\mu+\mathbb{E}\left[(\eta\phi)^*(f-\mu)\right]\right\}",
    assumptions="eta > 0; expectations under the reference law around one z, over which the risk is a mean",
    quote=r"Then for any $\eta>0$, it holds that [...] "
    r"$\eqref{Eq:primal:WDRO:phi:reg} = \eqref{Eq:dual:WDRO:phi:reg}$",
    correction="it is enough that phi is finite around 1, or that f is bounded above",
    assessment=Assessment(
        Kind.ASSUMPTION,
        Consequence.RESULT,
        "A phi that allows no density below 1 leaves only the uniform law, so that the primal is E f; if f "
        "is unbounded, the dual is infinite all the same.",
    ),
    corrected=r"1\in\text{int}\,\text{dom}\,\phi\ \text{or}\ \text{ess.sup}\,f<\infty"
    r" \;\Rightarrow\; \text{primal} = \text{dual}",
    examples=100,
    problem=problems(),
    d=divergences(),
)
def strong_duality(problem: Problem, d: Divergence, solve: Solver = worst_case) -> Iterator[Evidence]:
    """The optimal values of the primal and of the dual problem are equal."""
    instance = (problem.eta, d.family or "", d.parameter, problem.p)
    tolerance = value_tolerance(problem)
    primal = solve_exactly(problem.f, *instance).value
    dual = definitions.dual_minimum(problem.f, *instance)
    # The search for the dual ends at 2e-19 of an interval that is a few eta wide at least.
    apart = abs(definitions.difference(primal, dual))
    yield Evidence(apart, tolerance + 1e-18 * problem.eta, "the exact primal and dual")

    solution = solved(solve, problem, d)
    mass = sum(Fraction(w) for w in numbers(solution.weights))
    yield Evidence(abs(float(mass - 1)), ROUNDING, "the mass of the weights", Quantity.MASS)
    reached = definitions.primal(problem.f, numbers(solution.weights), *instance)
    short = abs(definitions.difference(primal, reached))
    yield Evidence(short, primal_tolerance(problem, d), "the primal at the weights")
    bound = definitions.dual(problem.f, float(solution.mu), *instance)
    yield Evidence(abs(definitions.difference(bound, primal)), tolerance, "the dual at mu")
    yield Evidence(abs(definitions.difference(float(solution.value), primal)), tolerance, "the value")


@strong_duality.counterexample(
    margin=1.0, meets=lambda: in_the_definition(lambda x: x - 1 if x >= 1 else inf)
)
def _no_interior() -> Evidence:
    # phi = x - 1 on [1, inf) has phi* = s up to s = 1, and infinity beyond; f = -log|z| is Exp(1).
    eta = 1.0
    primal = mp.quad(lambda z: -mp.log(z), [0, 1])  # zeta >= 1 of mean 1 is 1, at no cost
    beyond = [mp.exp(-max(mu + eta, 0)) for mu in range(-50, 1000)]  # P(f > mu + eta)
    dual = inf if min(beyond) > 0 else -inf
    return Evidence(
        dual - float(primal),
        0.0,
        "phi = x - 1 on [1, inf), f = -log abs(z) for z uniform on [-1, 1], eta = 1: a density of mean 1 "
        f"that is at least 1 is 1, so the primal is E f = {float(primal):.6g}; phi*(s) is infinite for s > "
        f"1, and f > mu + 1 with probability min(1, exp(-mu - 1)) > 0 for every mu, so the dual is {dual}",
    )


strong_duality.mutant("drops the atom at the maximum")(without_atom)


@strong_duality.mutant("gives the multiplier of the centred phi")
def _(losses: Array, eta: float, d: Divergence, *, p: Array | None = None) -> WorstCase:
    s = worst_case(losses, eta, d, p=p)
    return replace(s, mu=s.mu + eta * d.slope1)


strong_duality.mutant("ignores the reference law")(without_law)


@claim(
    "Theorem 1 (I)",
    id="A1-conic",
    part_of="A1",
    verdict=Verdict.HOLDS,
    any_solver=True,
    formula=r"\max_{\gamma\in\Delta_m}\left\{\sum_i\gamma_i f_i-\eta\sum_i p_i\,"
    r"\phi\left(\frac{\gamma_i}{p_i}\right)\right\} ="
    r" \min_\mu\left\{\mu+\eta\sum_i p_i\,\phi^*\left(\frac{f_i-\mu}{\eta}\right)\right\}",
    assumptions="finite support; the phi of Examples 1 to 5",
)
def strong_duality_by_cones(solve: Solver = worst_case) -> Iterator[Evidence]:
    """The dual optimal value is what a conic solver finds for the primal, for the paper's five phi."""
    rng = np.random.default_rng(1)
    for d in (ENTROPIC, QUADRATIC, ABSOLUTE, HINGE, indicator(0.3)):
        for _ in range(40):
            m = int(rng.integers(1, 12))
            eta = float(rng.choice([0.05, 0.3, 1.0, 4.0]))
            problem = Problem(
                tuple(rng.normal(size=m).tolist()), eta, tuple(rng.dirichlet(np.ones(m)).tolist())
            )
            primal = definitions.conic(problem.f, eta, d.family or "", d.parameter, problem.p)
            dual = float(solved(solve, problem, d).value)
            # 1e-6 is what the conic solver promises, at its default settings.
            yield Evidence(abs(primal - dual) / max(1, problem.size), 1e-6, f"{d.name}, {problem}")


strong_duality_by_cones.mutant("gives all the mass to the maximum")(LARGEST_LOSS)


# --- Example 1 ------------------------------------------------------------------------------------


def _value_at_risk(f: tuple[float, ...], law: list[Fraction], alpha: float) -> float:
    """The left-side (1 - alpha)-quantile: the least t with P(f <= t) >= 1 - alpha."""
    pairs = list(zip(f, law, strict=True))
    return min(t for t, q in pairs if q and sum(r for v, r in pairs if v <= t) >= 1 - Fraction(alpha))


@claim(
    "Example 1",
    id="E1",
    verdict=Verdict.CORRECTED,
    any_solver=True,
    formula=r"R = \text{AV@R}_\alpha(f) = \inf_\mu\left\{\mu+\frac{1}{\alpha}\mathbb{E}[f-\mu]_+\right\},"
    r"\quad \mu^* = \text{V@R}_\alpha(f),"
    r"\quad \zeta^*(\omega) = \frac{1}{\alpha}\,1\{f(\omega)\ge\text{V@R}_\alpha(f)\}",
    assumptions="phi = 0 on [0, 1/alpha] and infinite beyond; V@R is the left-side (1 - alpha)-quantile",
    quote=r"define $\zeta_z^*(\omega)=\alpha^{-1}\cdot\textbf{1}\{f(\omega)\ge \mu_z^*\}.$",
    correction="true if f equals its quantile q with probability 0; else density (alpha - P(f > q)) / "
    "(alpha P(f = q)) where f = q",
    remark="The value and the multiplier are as printed. V@R is a minimiser of the dual, not always the only "
    "one: for f = (0, 1) and alpha = 1/2 it is 0, and every mu in [0, 1] is one.",
    assessment=Assessment(
        Kind.ASSUMPTION,
        Consequence.NONE,
        "Where f is flat at its quantile, as a ReLU network or a ramp loss can be, the printed density has a "
        "mass above 1.",
    ),
    corrected=r"\zeta^* = \frac{1}{\alpha}\left(1\{f>q\}+\lambda\,1\{f=q\}\right),\quad"
    r" \lambda = \frac{\alpha-\nu(f>q)}{\nu(f=q)},\quad q = \text{V@R}_\alpha(f)",
    problem=problems(),
    alpha=st.one_of(st.sampled_from([0.5, 0.75, 0.25, 1.0, 0.1]), st.floats(0.05, 1.0)),
)
def indicator_is_average_value_at_risk(
    problem: Problem, alpha: float, solve: Solver = worst_case
) -> Iterator[Evidence]:
    """Indicator: the value is AV@R, V@R is a multiplier, and the density is 1/alpha above V@R."""
    law, a = exact_law(problem), Fraction(alpha)
    f = [Fraction(v) for v in problem.f]
    # mu + E(f - mu)_+ / alpha is convex and piecewise linear: it is least at one of the losses.
    avar = min(
        mu + sum(q * max(v - mu, Fraction(0)) for v, q in zip(f, law, strict=True)) / a
        for mu, r in zip(f, law, strict=True)
        if r
    )
    quantile = _value_at_risk(problem.f, law, alpha)
    above = sum((q for v, q in zip(f, law, strict=True) if v > quantile), Fraction(0))
    at = sum((q for v, q in zip(f, law, strict=True) if v == quantile), Fraction(0))
    share = (a - above) / at
    zeta = [(1 if v > quantile else share if v == quantile else Fraction(0)) / a for v in f]
    value = sum(q * z * v for q, z, v in zip(law, zeta, f, strict=True))
    yield Evidence(abs(float(value - avar)), 0.0, "the corrected worst case and AV@R, in exact arithmetic")
    excess = sum(q * max(v - Fraction(quantile), Fraction(0)) for v, q in zip(f, law, strict=True))
    at_quantile = Fraction(quantile) + excess / a
    yield Evidence(abs(float(at_quantile - avar)), 0.0, "the dual at mu = V@R, in exact arithmetic")
    yield from solution_is(solved(solve, problem, indicator(alpha)), avar, zeta, problem)


def _within_mass_of_an_atom() -> Iterator[Evidence]:
    yield from in_the_definition(indicator(0.75))
    yield from bounded_loss((0.0, 1.0))


@indicator_is_average_value_at_risk.counterexample(margin=0.33, meets=_within_mass_of_an_atom)
def _mass_of_an_atom() -> Evidence:
    f, law, alpha = (0.0, 1.0), [Fraction(1, 2)] * 2, 0.75
    quantile = _value_at_risk(f, law, alpha)
    zeta = [1 / alpha if v >= quantile else 0.0 for v in f]
    mass = sum(q * z for q, z in zip(law, zeta, strict=True))
    note = (
        f"f = (0, 1) with probability 1/2 each, alpha = {alpha}: V@R = {quantile:g}, so both densities are "
        f"1/0.75 = 4/3, and their mass is {float(mass):.4g}, not 1"
    )
    return Evidence(mass - 1, 0.0, note)


indicator_is_average_value_at_risk.mutant("does not split the atom at the quantile")(even_on_the_support)


indicator_is_average_value_at_risk.mutant("gives the value at risk itself")(MULTIPLIER_FOR_VALUE)

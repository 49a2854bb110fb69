"""Section 2: Examples 1 to 5, and the remark on small eta."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction
from functools import partial
from itertools import chain
from math import inf

import mpmath as mp
from hypothesis import strategies as st

from phiball.backends import Array, array_namespace, ignore_float_warnings
from phiball.refimpl import ABSOLUTE, ENTROPIC, HINGE, QUADRATIC, Divergence, indicator, worst_case
from phiball.refimpl.inner.worst_case import WorstCase
from phiball.verification.framework.assessment import Assessment, Consequence, Kind
from phiball.verification.framework.claim import claim
from phiball.verification.framework.evidence import Evidence, Quantity, Verdict
from phiball.verification.instances.assumptions import bounded_loss, in_the_definition
from phiball.verification.instances.conversion import to_floats
from phiball.verification.instances.solutions import Solver, exact_distribution, solution_is, solved, value_is
from phiball.verification.instances.solver_mutants import (
    MULTIPLIER_FOR_VALUE,
    even_on_the_support,
    quadratic_without_half,
    with_divergence,
    with_eta,
    without_atom,
)
from phiball.verification.instances.strategies import InnerProblem, powers_of_ten, problems
from phiball.verification.instances.tolerances import ROUNDING, primal_tolerance, value_tolerance
from phiball.verification.oracles import definitions
from phiball.verification.oracles.exact_solver import solve_exactly

# --- Example 1 ------------------------------------------------------------------------------------


def _value_at_risk(f: tuple[float, ...], distribution: list[Fraction], alpha: float) -> float:
    """The left-side (1 - alpha)-quantile of f: the smallest t with P(f <= t) >= 1 - alpha."""
    pairs = list(zip(f, distribution, strict=True))
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
    correction="true if f equals its quantile q with probability 0; otherwise the density at f = q is "
    "(alpha - P(f > q)) / (alpha P(f = q))",
    remark="The printed value and multiplier are correct. V@R minimises the dual but need not be the only "
    "minimiser: for f = (0, 1) and alpha = 1/2, V@R is 0 and every mu in [0, 1] is a minimiser.",
    assessment=Assessment(
        Kind.ASSUMPTION,
        Consequence.NONE,
        "If f equals its quantile with positive probability, as for a ReLU network or a ramp loss that is "
        "constant on a part of the ball, the printed density can have mass above 1.",
    ),
    corrected=r"\zeta^* = \frac{1}{\alpha}\left(1\{f>q\}+\lambda\,1\{f=q\}\right),\quad"
    r" \lambda = \frac{\alpha-\nu(f>q)}{\nu(f=q)},\quad q = \text{V@R}_\alpha(f)",
    problem=problems(),
    alpha=st.one_of(st.sampled_from([0.5, 0.75, 0.25, 1.0, 0.1]), st.floats(0.05, 1.0)),
)
def indicator_is_average_value_at_risk(
    problem: InnerProblem, alpha: float, solve: Solver = worst_case
) -> Iterator[Evidence]:
    """Indicator: the value is AV@R, V@R is an optimal multiplier, and the density above V@R is 1/alpha."""
    distribution, a = exact_distribution(problem), Fraction(alpha)
    f = [Fraction(v) for v in problem.f]
    # mu + E(f - mu)_+ / alpha is convex and piecewise linear in mu, so some loss minimises it.
    avar = min(
        mu + sum(q * max(v - mu, Fraction(0)) for v, q in zip(f, distribution, strict=True)) / a
        for mu, r in zip(f, distribution, strict=True)
        if r
    )
    quantile = _value_at_risk(problem.f, distribution, alpha)
    above = sum((q for v, q in zip(f, distribution, strict=True) if v > quantile), Fraction(0))
    at = sum((q for v, q in zip(f, distribution, strict=True) if v == quantile), Fraction(0))
    share = (a - above) / at
    zeta = [(1 if v > quantile else share if v == quantile else Fraction(0)) / a for v in f]
    value = sum(q * z * v for q, z, v in zip(distribution, zeta, f, strict=True))
    yield Evidence(abs(float(value - avar)), 0.0, "the loss under the corrected worst case is AV@R, exactly")
    excess = sum(q * max(v - Fraction(quantile), Fraction(0)) for v, q in zip(f, distribution, strict=True))
    at_quantile = Fraction(quantile) + excess / a
    yield Evidence(abs(float(at_quantile - avar)), 0.0, "the dual at mu = V@R is AV@R, exactly")
    yield from solution_is(solved(solve, problem, indicator(alpha)), avar, zeta, problem)


@indicator_is_average_value_at_risk.counterexample(
    margin=0.33, meets=lambda: chain(in_the_definition(indicator(0.75)), bounded_loss((0.0, 1.0)))
)
def _mass_of_an_atom() -> Evidence:
    f, distribution, alpha = (0.0, 1.0), [Fraction(1, 2)] * 2, 0.75
    quantile = _value_at_risk(f, distribution, alpha)
    zeta = [1 / alpha if v >= quantile else 0.0 for v in f]
    mass = sum(q * z for q, z in zip(distribution, zeta, strict=True))
    note = (
        f"f = (0, 1) with probability 1/2 each, alpha = {alpha}: V@R = {quantile:g}, so the density is "
        f"1/0.75 = 4/3 at both points, and its mass is {float(mass):.4g}, not 1"
    )
    return Evidence(mass - 1, 0.0, note)


indicator_is_average_value_at_risk.mutant("does not split the atom at the quantile")(even_on_the_support)
indicator_is_average_value_at_risk.mutant("returns the value at risk")(MULTIPLIER_FOR_VALUE)


# --- Example 2 ------------------------------------------------------------------------------------


@claim(
    "Example 2",
    id="E2",
    verdict=Verdict.HOLDS,
    any_solver=True,
    formula=r"\mu^* = R = \eta\log\mathbb{E}\left[e^{f/\eta}\right],\quad"
    r" \zeta^*(\omega) = \frac{e^{f(\omega)/\eta}}{\mathbb{E}\left[e^{f/\eta}\right]}",
    assumptions="phi = x log x - x + 1 for x >= 0; the expectation is finite",
    problem=problems(),
)
def entropic_is_log_sum_exp(problem: InnerProblem, solve: Solver = worst_case) -> Iterator[Evidence]:
    """Entropic: mu* and the value are eta log E exp(f/eta), and zeta* = exp((f - mu*)/eta)."""
    with mp.workdps(definitions.DIGITS):
        distribution = [mp.mpf(q.numerator) / q.denominator for q in exact_distribution(problem)]
        eta = mp.mpf(problem.eta)
        mu = eta * mp.log(mp.fsum(q * mp.exp(v / eta) for q, v in zip(distribution, problem.f, strict=True)))
        gamma = [q * mp.exp((v - mu) / eta) for q, v in zip(distribution, problem.f, strict=True)]
    solution = solved(solve, problem, ENTROPIC)
    tolerance = value_tolerance(problem)
    yield Evidence(abs(definitions.exact_difference(float(solution.value), mu)), tolerance, "the value")
    yield Evidence(abs(definitions.exact_difference(float(solution.mu), mu)), tolerance, "mu", Quantity.MU)
    errors = [
        abs(definitions.exact_difference(w, g))
        for w, g in zip(to_floats(solution.weights), gamma, strict=True)
    ]
    yield Evidence(max(errors), ROUNDING, "the weights", Quantity.WEIGHTS)


entropic_is_log_sum_exp.mutant("omits eta in the exponent")(with_eta(lambda eta: 1.0))


# --- Example 3 ------------------------------------------------------------------------------------


@claim(
    "Example 3",
    id="E3",
    verdict=Verdict.HOLDS,
    any_solver=True,
    formula=r"\mathbb{E}[f-\mu^*]_+ = \eta,\quad \zeta^*(\omega) = \frac{(f(\omega)-\mu^*)_+}{\eta},\quad"
    r" R = \inf_\mu\left\{\frac{1}{2\eta}\mathbb{E}[f-\mu]_+^2+\frac{\eta}{2}+\mu\right\}",
    assumptions="phi = (x^2 - 1)/2 for x >= 0; phi < 0 on [0, 1), contrary to Definition 1: see A3",
    problem=problems(),
)
def quadratic_is_a_positive_part(problem: InnerProblem, solve: Solver = worst_case) -> Iterator[Evidence]:
    """Quadratic: E(f - mu*)_+ = eta, zeta* = (f - mu*)_+/eta, R = mu* + eta/2 + E(f - mu*)_+^2/(2 eta)."""
    solution = solved(solve, problem, QUADRATIC)
    distribution, eta, mu = exact_distribution(problem), Fraction(problem.eta), Fraction(float(solution.mu))
    above = [max(Fraction(v) - mu, Fraction(0)) for v in problem.f]
    scale = problem.size + problem.eta  # the size of mu, which is about E f - eta for large eta
    mean = sum(q * v for q, v in zip(distribution, above, strict=True))
    yield Evidence(abs(float(mean - eta)), ROUNDING * scale, "E(f - mu)_+ = eta", Quantity.MU)
    errors = [
        abs(float(w - q * v / eta))
        for w, q, v in zip(to_floats(solution.weights), distribution, above, strict=True)
    ]
    yield Evidence(max(errors), ROUNDING * scale / problem.eta, "the weights", Quantity.WEIGHTS)
    square = sum(q * v * v for q, v in zip(distribution, above, strict=True))
    formula = mu + eta / 2 + square / (2 * eta)
    exact = solve_exactly(problem.f, problem.eta, "quadratic", p=problem.p).value
    yield Evidence(abs(float(formula - exact)), value_tolerance(problem), "the printed formula")
    yield value_is(solution, exact, problem)


@quadratic_is_a_positive_part.mutant("returns the multiplier of (x - 1)^2/2")
def _(losses: Array, eta: float, d: Divergence, *, p: Array | None = None) -> WorstCase:
    s = worst_case(losses, eta, d, p=p)
    return replace(s, mu=s.mu + eta)


quadratic_is_a_positive_part.mutant("drops the factor 1/2 of phi")(quadratic_without_half)


# --- Examples 4 and 5 -----------------------------------------------------------------------------


def _kinked(problem: InnerProblem, d: Divergence, solve: Solver) -> Iterator[Evidence]:
    """Check Example 4 or 5 with the corrected density, where c is 2 eta (Example 4) or eta (Example 5).

    With top = max f, the density is zeta = 1{f > top - c} + P(f <= top - c)/P(f = top) 1{f = top}.
    """
    distribution, eta = exact_distribution(problem), Fraction(problem.eta)
    c = 2 * eta if d is ABSOLUTE else eta
    f = [Fraction(v) for v in problem.f]
    pairs = list(zip(f, distribution, strict=True))
    top = max(v for v, q in pairs if q)
    value = sum((q * max(v, top - c) for v, q in pairs), Fraction(0))
    below = sum((q for v, q in pairs if v <= top - c), Fraction(0))
    at_top = sum(q for v, q in pairs if v == top)
    zeta = [(Fraction(v > top - c) + (below / at_top if v == top else 0)) for v in f]
    cost = sum(
        q * (abs(z - 1) if d is ABSOLUTE else max(z - 1, Fraction(0)))
        for q, z in zip(distribution, zeta, strict=True)
    )
    reached = sum(q * z * v for (v, q), z in zip(pairs, zeta, strict=True)) - eta * cost
    yield Evidence(abs(float(value - reached)), 0.0, "the corrected worst case attains the value, exactly")
    mass = sum(q * z for q, z in zip(distribution, zeta, strict=True))
    yield Evidence(abs(float(mass - 1)), 0.0, "the mass of the corrected worst case")

    instance = (problem.eta, d.family or "", d.parameter, problem.p)
    with mp.workdps(definitions.DIGITS):
        printed_mu = mp.mpf(float(top)) - mp.mpf(problem.eta)
    at_mu = definitions.dual_objective(problem.f, printed_mu, *instance)
    tolerance = value_tolerance(problem)
    yield Evidence(
        abs(definitions.exact_difference(at_mu, value)), tolerance, "the dual at mu* = max f - eta"
    )

    solution = solved(solve, problem, d)
    largest = max(top - eta, min(v for v, q in pairs if q) + (eta if d is ABSOLUTE else 0))
    mu = Fraction(float(solution.mu))
    outside = max(top - eta - mu, mu - largest)  # the minimisers are [top - eta, largest]
    yield Evidence(float(outside), tolerance, "the distance of mu from the set of minimisers", Quantity.MU)
    # If a loss equals top - c, up to rounding, the weights are not unique: compare the value only.
    ambiguous = any(abs(v - (top - c)) <= Fraction(ROUNDING) * (abs(top) + c) for v, q in pairs if q)
    checks = list(solution_is(solution, value, zeta, problem))
    yield from checks[:1] if ambiguous else checks
    primal = definitions.primal_objective(problem.f, to_floats(solution.weights), *instance)
    short = abs(definitions.exact_difference(primal, value))
    yield Evidence(short, primal_tolerance(problem, d), "the primal at the weights")


def _printed_mass(c: float, phi: str) -> Evidence:
    """Evidence that the printed density, 1 where f >= max f - c eta, has mass below 1."""
    f, eta = (0.0, 0.5, 1.0), 0.2
    mass = sum(1 / 3 for v in f if v + c * eta - max(f) >= 0)
    return Evidence(
        1 - mass,
        0.0,
        f"phi = {phi} on [0, inf), f = (0, 1/2, 1) with probability 1/3 each, eta = {eta}: only f = 1 is at "
        f"least 1 - {c * eta:g}, so the printed density has mass {mass:.4g}, not 1",
    )


kinked_claim = partial(
    claim,
    verdict=Verdict.CORRECTED,
    any_solver=True,
    correction="the printed value is correct; the missing mass moves to the maximum of f. If the maximum has "
    "positive probability, the missing mass forms an atom there; otherwise no worst case exists (A7), and "
    "the missing mass concentrates at the maximum only in the limit",
    assessment=Assessment(
        Kind.FALSE,
        Consequence.RESULT,
        "The printed density is 0 below its threshold and 1 above it, so its mass is less than 1 whenever "
        "f is below the threshold with positive probability.",
    ),
    problem=problems(),
)


def corrected(c: str) -> str:
    """The corrected worst case in LaTeX, for the threshold max f - c, if P(f = max f) > 0."""
    return (
        r"\nu(f=\|f\|_\infty)>0:\quad"
        r" \zeta^* = 1\{f>\|f\|_\infty-" + c + r"\} + \frac{\nu(f\le\|f\|_\infty-" + c + r")}"
        r"{\nu(f=\|f\|_\infty)}\,1\{f=\|f\|_\infty\}"
    )


@kinked_claim(
    "Example 4",
    id="E4",
    formula=r"\mu^* = \|f\|_\infty-\eta,\quad \zeta^*(\omega) = 1\{f(\omega)+2\eta-\|f\|_\infty\ge 0\},\quad"
    r" R = \|f\|_\infty-2\eta+\mathbb{E}\left[f-\|f\|_\infty+2\eta\right]_+",
    assumptions="phi = abs(x - 1) for x >= 0; f is bounded above; the norm of f stands for ess-sup f",
    quote=r"$\zeta_z^*(\omega) = \textbf{1}\Big\{ f(\omega) + 2\eta - \|f\|_{\nu_z, \infty}\ge 0 \Big\}.$",
    corrected=corrected(r"2\eta"),
)
def absolute_value_has_an_atom(problem: InnerProblem, solve: Solver = worst_case) -> Iterator[Evidence]:
    """Absolute value: R = E max(f, max f - 2 eta); the mass of f <= max f - 2 eta moves to the maximum."""
    yield from _kinked(problem, ABSOLUTE, solve)


@absolute_value_has_an_atom.counterexample(
    margin=0.66, meets=lambda: chain(in_the_definition(ABSOLUTE), bounded_loss((0.0, 0.5, 1.0)))
)
def _mass_absolute() -> Evidence:
    return _printed_mass(2.0, "abs(x - 1)")


@kinked_claim(
    "Example 5",
    id="E5",
    formula=r"\mu^* = \|f\|_\infty-\eta,\quad \zeta^*(\omega) = 1\{f(\omega)-\mu^*\ge 0\},\quad"
    r" R = \|f\|_\infty-\eta+\mathbb{E}\left[f-\|f\|_\infty+\eta\right]_+",
    assumptions="phi = (x - 1)_+ for x >= 0; f is bounded above; the norm of f stands for ess-sup f",
    quote=r"$\zeta_z^*(\omega)=\textbf{1}\{f(\omega) - \mu_z^*\ge 0\}.$",
    corrected=corrected(r"\eta"),
)
def hinge_has_an_atom(problem: InnerProblem, solve: Solver = worst_case) -> Iterator[Evidence]:
    """Hinge: R = E max(f, max f - eta); the mass of f <= max f - eta moves to the maximum."""
    yield from _kinked(problem, HINGE, solve)


@hinge_has_an_atom.counterexample(
    margin=0.66, meets=lambda: chain(in_the_definition(HINGE), bounded_loss((0.0, 0.5, 1.0)))
)
def _mass_hinge() -> Evidence:
    return _printed_mass(1.0, "(x - 1)_+")


absolute_value_has_an_atom.mutant("drops the atom at the maximum")(without_atom)
hinge_has_an_atom.mutant("drops the atom at the maximum")(without_atom)
absolute_value_has_an_atom.mutant("uses the hinge")(with_divergence(lambda d: HINGE))
hinge_has_an_atom.mutant("uses the absolute value")(with_divergence(lambda d: ABSOLUTE))


# --- Small eta ------------------------------------------------------------------------------------

OVERFLOWING = InnerProblem((0.0, 1.0), 1e-6)  # exp(f/eta) = exp(1e6)


@claim(
    "Example 3, remark on small eta",
    id="E7",
    verdict=Verdict.HOLDS,
    formula=r"\eta\log\mathbb{E}\left[e^{f/\eta}\right] ="
    r" \max f + \eta\log\mathbb{E}\left[e^{(f-\max f)/\eta}\right]",
    quote=r"using small $\eta$ in entropic regularization can lead to numerical errors due to the "
    r"log-sum-exp operator",
    remark="These errors occur if exp(f/eta) is evaluated directly. With the maximum of f subtracted first, "
    "the value is accurate to rounding for every eta, as it is for the quadratic phi.",
    examples=100,
    problem=problems(),
    ratio=powers_of_ten(-15.0, 0.0),
    d=st.sampled_from([ENTROPIC, QUADRATIC]),
)
def exact_for_small_eta(
    problem: InnerProblem, ratio: float, d: Divergence, solve: Solver = worst_case
) -> Iterator[Evidence]:
    """exp(f/eta) overflows for small eta; with the maximum of f subtracted, the value is accurate."""
    small = replace(problem, eta=ratio * (problem.spread or 1.0))
    exact = solve_exactly(small.f, small.eta, d.family or "", None, small.p).value
    got = float(solved(solve, small, d).value)
    error = inf if abs(got) == inf else abs(definitions.exact_difference(got, exact))
    yield Evidence(error, value_tolerance(small), f"eta = {small.eta:.4g}")
    naive = float(solved(_naive(lambda f: 0 * f[0]), OVERFLOWING, ENTROPIC).value)
    yield Evidence(
        0.0 if naive == inf else inf, 0.0, f"{OVERFLOWING}: direct evaluation of exp(f/eta) gives {naive}"
    )


def _naive(shift: Callable[[Array], Array]) -> Solver:
    """A solver that evaluates eta log E exp((f - shift)/eta) + shift directly."""

    def solve(losses: Array, eta: float, d: Divergence, *, p: Array | None = None) -> WorstCase:
        s = worst_case(losses, eta, d, p=p)
        if d is not ENTROPIC:
            return s
        xp = array_namespace(losses)
        distribution = xp.full_like(losses, 1 / losses.shape[-1]) if p is None else p
        with ignore_float_warnings():
            mean = xp.sum(
                xp.where(
                    distribution > 0,
                    distribution * xp.exp((losses - shift(losses)) / eta),
                    xp.zeros_like(distribution),
                )
            )
            return replace(s, value=shift(losses) + eta * xp.log(mean))

    return solve


exact_for_small_eta.mutant("evaluates exp(f/eta) directly")(_naive(lambda f: 0 * f[0]))
exact_for_small_eta.mutant("shifts by the mean")(_naive(lambda f: array_namespace(f).mean(f)))

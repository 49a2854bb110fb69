"""Section 3 of the paper, Proposition 2 (II) and (III): how close gamma and mu of Algorithm 2 are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import exp, sqrt

from hypothesis import strategies as st

from phiball.backends import Array, array_namespace
from phiball.refimpl import ENTROPIC, Divergence, worst_case
from phiball.verification.claims.section3.bracket import rounding
from phiball.verification.claims.section3.value import SMOOTH, dual_at, dual_value_is_within_eps, run
from phiball.verification.framework.claim import claim
from phiball.verification.framework.evidence import Evidence, Verdict
from phiball.verification.instances.divergences import KAPPA
from phiball.verification.instances.printed_algorithms import (
    Algorithm,
    Bracket,
    Output,
    algorithm2,
    corrected_bracket,
    printed_bracket,
)
from phiball.verification.instances.strategies import Problem, moderate_problems, precisions

# --- gamma and mu ---------------------------------------------------------------------------------

BRACKETS = st.sampled_from([corrected_bracket, printed_bracket])


def _non_negative(phi: Divergence, bracket: Bracket) -> Bracket:
    """The bracket asked for, but the corrected one where phi takes negative values (Example 3)."""
    return corrected_bracket if phi.slope1 else bracket


@claim(
    "Proposition 2 (II)",
    id="C5",
    section=3,
    verdict=Verdict.HOLDS,
    formula=r"\|\gamma - \gamma^*\|_\infty \le \frac{1}{m} \sqrt{\frac{2 \epsilon}{\kappa \eta}}",
    assumptions="phi kappa-strongly convex; T rounded up; a bracket that holds mu*",
    examples=200,
    problem=moderate_problems(),
    phi=st.sampled_from(SMOOTH),
    eps=precisions(),
    bracket=BRACKETS,
)
def gamma_is_close(
    problem: Problem, phi: Divergence, eps: float, bracket: Bracket, algorithm: Algorithm = algorithm2
) -> Evidence:
    """max abs(gamma - gamma*) <= sqrt(2 eps/(kappa eta))/m, for a bracket that holds mu* and T rounded up."""
    out = run(problem, phi, eps, bracket=_non_negative(phi, bracket), algorithm=algorithm)
    best = worst_case(problem.losses, problem.eta, phi)
    xp = array_namespace(best.weights)
    error = float(xp.max(xp.abs(out.gamma - best.weights)))
    bound = sqrt(2 * eps / (KAPPA[phi] * problem.eta)) / len(problem.f)
    # A rounding of mu, of the size of f, moves m gamma by that over kappa eta.
    return Evidence(error - bound, 2.0**-40 * (1 + rounding_ratio(problem, phi)))


def rounding_ratio(problem: Problem, phi: Divergence) -> float:
    """How much the rounding of f and mu is magnified in the weights."""
    return (problem.size + problem.eta) / (KAPPA[phi] * problem.eta)


@claim(
    "Proposition 2 (III)",
    id="C6",
    section=3,
    verdict=Verdict.HOLDS,
    formula=r"\mathrm{dist}(\mu, \mathcal{S}^*) \le \varrho\, 2^{-T} = \sqrt{2 \eta \kappa \epsilon}",
    assumptions="phi kappa-strongly convex; T rounded up; a bracket that holds mu*",
    examples=200,
    problem=moderate_problems(),
    phi=st.sampled_from(SMOOTH),
    eps=precisions(),
    bracket=BRACKETS,
)
def mu_is_close(
    problem: Problem, phi: Divergence, eps: float, bracket: Bracket, algorithm: Algorithm = algorithm2
) -> Evidence:
    """abs(mu - mu*) <= sqrt(2 eta kappa eps), for a bracket that holds mu* and T rounded up."""
    out = run(problem, phi, eps, bracket=_non_negative(phi, bracket), algorithm=algorithm)
    mu = float(worst_case(problem.losses, problem.eta, phi).mu)
    return Evidence(abs(out.mu - mu) - sqrt(2 * problem.eta * KAPPA[phi] * eps), rounding(problem))


# --- The entropy, which is not strongly convex ----------------------------------------------------


def local_kappa(problem: Problem) -> float:
    """exp(-range/eta): phi'' = 1/x is at least this at every density that the bracket allows."""
    return exp(-problem.spread / problem.eta)


@claim(
    "Proposition 2, entropic phi",
    id="C8",
    section=3,
    verdict=Verdict.CORRECTED,
    formula=(
        r"\|\gamma - \gamma^*\|_\infty \le \frac{1}{m} \sqrt{\frac{2 \epsilon}{\kappa \eta}}, \quad "
        r"\phi(x) = x \log x - x + 1"
    ),
    assumptions="Proposition 2 applied to the entropy, whose phi'' = 1/x has no positive lower bound",
    quote="Since phi is strongly convex",
    correction="kappa = exp(-range(f)/eta) with the bracket [min f, max f]; phi''(1) = 1 is no modulus",
    corrected=r"\kappa = \exp\left(-\frac{\max f - \min f}{\eta}\right)",
    examples=200,
    problem=moderate_problems().filter(lambda problem: problem.spread <= 30 * problem.eta),
    eps=precisions(),
)
def entropic_guarantee(
    problem: Problem,
    eps: float,
    kappa: Callable[[Problem], float] = local_kappa,
    algorithm: Algorithm = algorithm2,
) -> Iterator[Evidence]:
    """Algorithm 2 keeps its guarantees on gamma and on the value for the entropic phi."""
    yield from _entropic(problem, eps, kappa(problem), algorithm)


def _entropic(problem: Problem, eps: float, kappa: float, algorithm: Algorithm) -> Iterator[Evidence]:
    out = run(problem, ENTROPIC, eps, kappa=kappa, algorithm=algorithm)
    best = worst_case(problem.losses, problem.eta, ENTROPIC)
    xp = array_namespace(best.weights)
    error = float(xp.max(xp.abs(out.gamma - best.weights)))
    bound = sqrt(2 * eps / (kappa * problem.eta)) / len(problem.f)
    slack = 2.0**-40 * (1 + (problem.size + problem.eta) / problem.eta)
    yield Evidence(error - bound, slack, f"gamma is off by {error:.4g}, the bound is {bound:.4g}")
    over = dual_at(problem, ENTROPIC, out) - float(best.value)
    yield Evidence(over - eps, rounding(problem), "D(mu) - R <= eps")


@entropic_guarantee.counterexample(margin=0.057)
def _kappa_one() -> Evidence:
    problem, eps = Problem((5.0,) + (0.0,) * 7, 1.0), 0.01
    evidence = next(_entropic(problem, eps, 1.0, algorithm2))
    return Evidence(evidence.violation, 0.0, f"kappa = 1, {problem}, eps = {eps}: {evidence.note}")


@entropic_guarantee.mutant("takes kappa = phi''(1)", replaces="kappa")
def _(problem: Problem) -> float:
    return 1.0


# --- Faults that every guarantee must notice ------------------------------------------------------


@dual_value_is_within_eps.mutant("moves the wrong end of the bracket")
@gamma_is_close.mutant("moves the wrong end of the bracket")
@mu_is_close.mutant("moves the wrong end of the bracket")
@entropic_guarantee.mutant("moves the wrong end of the bracket", replaces="algorithm")
def _(f: Array, eta: float, phi: Divergence, T: int, bracket: tuple[float, float]) -> Output:
    low, high = bracket
    out = algorithm2(f, eta, phi, 1, bracket)
    for _ in range(1, T):
        low, high = (out.mu, high) if out.h <= 0 else (low, out.mu)
        out = algorithm2(f, eta, phi, 1, (low, high))
    return out


@dual_value_is_within_eps.mutant("halves two times too few")
@gamma_is_close.mutant("halves two times too few")
@mu_is_close.mutant("halves two times too few")
def _(f: Array, eta: float, phi: Divergence, T: int, bracket: tuple[float, float]) -> Output:
    return algorithm2(f, eta, phi, max(1, T - 2), bracket)


@dual_value_is_within_eps.mutant("starts from the printed bracket")
@gamma_is_close.mutant("starts from the printed bracket")
@mu_is_close.mutant("starts from the printed bracket")
def _(f: Array, eta: float, phi: Divergence, T: int, bracket: tuple[float, float]) -> Output:
    return algorithm2(f, eta, phi, T + 3, printed_bracket(f, eta, phi))


@dual_value_is_within_eps.mutant("forgets eta in (f - mu)/eta")
@gamma_is_close.mutant("forgets eta in (f - mu)/eta")
@mu_is_close.mutant("forgets eta in (f - mu)/eta")
@entropic_guarantee.mutant("forgets eta in (f - mu)/eta", replaces="algorithm")
def _(f: Array, eta: float, phi: Divergence, T: int, bracket: tuple[float, float]) -> Output:
    return algorithm2(f, 1.0, phi, T, bracket)

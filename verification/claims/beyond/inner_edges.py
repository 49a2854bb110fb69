"""The inner problem at its edges: zero probabilities, ties, one point, extreme eta, and the certificate."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from math import inf

import mpmath as mp
from hypothesis import strategies as st

from phiball.backends import Array, array_namespace
from phiball.refimpl import Divergence, indicator, worst_case
from phiball.refimpl.inner.worst_case import WorstCase
from phiball.verification.framework.claim import claim
from phiball.verification.framework.evidence import Evidence, Quantity, Verdict
from phiball.verification.instances.arrays import numbers
from phiball.verification.instances.divergences import divergences
from phiball.verification.instances.solutions import (
    Solver,
    exact_law,
    exact_mean,
    solved,
    value_is,
    weights_are,
)
from phiball.verification.instances.strategies import Problem, dyadic_problems, problems
from phiball.verification.instances.tolerances import ROUNDING, primal_tolerance, value_tolerance
from phiball.verification.oracles import definitions

inner_claim = partial(claim, "Eq. (14)", verdict=Verdict.HOLDS, any_solver=True, examples=60)


def _law(losses: Array, p: Array | None) -> Array:
    return array_namespace(losses).full_like(losses, 1 / losses.shape[-1]) if p is None else p


# --- Probabilities --------------------------------------------------------------------------------


@inner_claim(
    id="E14",
    formula=r"p_i = 0 \Rightarrow \gamma_i = 0",
    assumptions="the other points have positive probability",
    problem=dyadic_problems(),
    extra=st.lists(st.sampled_from([0.0, 1000.0, -1000.0]), min_size=1, max_size=2),
    d=divergences(),
)
def zero_probability_has_no_weight(
    problem: Problem, extra: list[float], d: Divergence, solve: Solver = worst_case
) -> Iterator[Evidence]:
    """A point of zero probability has zero weight, and changes nothing, however large its loss."""
    wider = Problem((*problem.f, *extra), problem.eta, (*problem.probabilities, *(0.0 for _ in extra)))
    alone, solution = solved(solve, problem, d), solved(solve, wider, d)
    weights = numbers(solution.weights)
    m = len(problem.f)
    yield Evidence(
        max(map(abs, weights[m:])), 0.0, "the weight of a point of zero probability", Quantity.MASS
    )
    yield value_is(solution, float(alone.value), problem)
    kept = replace(alone, weights=solution.weights[:m])
    yield from weights_are(kept, numbers(alone.weights), float(alone.value), problem, d)


@zero_probability_has_no_weight.mutant("ignores the reference law")
def _(losses: Array, eta: float, d: Divergence, *, p: Array | None = None) -> WorstCase:
    return worst_case(losses, eta, d)


@zero_probability_has_no_weight.mutant("replaces a probability of zero by 1e-9")
def _(losses: Array, eta: float, d: Divergence, *, p: Array | None = None) -> WorstCase:
    xp, law = array_namespace(losses), _law(losses, p)
    law = xp.where(law > 0, law, xp.full_like(law, 1e-9))
    return worst_case(losses, eta, d, p=law / xp.sum(law))


@inner_claim(
    id="E15",
    formula=r"f_i = f_j \Rightarrow \frac{\gamma_i}{p_i} = \frac{\gamma_j}{p_j}",
    problem=problems(),
    copies=st.integers(2, 3),
    d=divergences(),
)
def ties_share_their_weight(
    problem: Problem, copies: int, d: Divergence, solve: Solver = worst_case
) -> Iterator[Evidence]:
    """Equal losses share their weight in proportion to their probabilities."""
    p = None if problem.p is None else tuple(q / copies for q in problem.p) * copies
    weights = numbers(solved(solve, Problem(problem.f * copies, problem.eta, p), d).weights)
    m = len(problem.f)
    for i in range(m):
        tied = weights[i::m]
        yield Evidence(max(tied) - min(tied), ROUNDING, "the weights of equal losses", Quantity.MASS)


@ties_share_their_weight.mutant("gives the weight of equal losses to the first")
def _(losses: Array, eta: float, d: Divergence, *, p: Array | None = None) -> WorstCase:
    s = worst_case(losses, eta, d, p=p)
    xp = array_namespace(losses)
    same = losses[:, None] == losses[None, :]
    earlier = xp.arange(losses.shape[-1])
    first = xp.sum(xp.astype(same & (earlier[None, :] < earlier[:, None]), xp.int64), axis=1) == 0
    total = xp.sum(xp.where(same, s.weights[None, :], xp.zeros_like(s.weights)[None, :]), axis=1)
    return replace(s, weights=xp.where(first, total, xp.zeros_like(total)))


@ties_share_their_weight.mutant("breaks ties by noise")
def _(losses: Array, eta: float, d: Divergence, *, p: Array | None = None) -> WorstCase:
    xp = array_namespace(losses)
    noise = xp.astype(xp.arange(losses.shape[-1]), losses.dtype)
    return worst_case(losses + 1e-3 * eta * noise, eta, d, p=p)


# --- Special cases --------------------------------------------------------------------------------


@inner_claim(
    id="E18",
    formula=r"\phi = \iota_{[0, 1]} \Rightarrow \gamma = p, \quad R = \mathbb{E} f",
    problem=problems(),
)
def risk_level_one_is_the_mean(problem: Problem, solve: Solver = worst_case) -> Iterator[Evidence]:
    """At alpha = 1 the indicator leaves no choice: the weights are p and the value is the mean."""
    solution = solved(solve, problem, indicator(1.0))
    off = definitions.difference(float(solution.value), exact_mean(problem))
    yield Evidence(abs(off), value_tolerance(problem), "the value at alpha = 1")
    errors = [abs(w - q) for w, q in zip(numbers(solution.weights), exact_law(problem), strict=True)]
    yield Evidence(float(max(errors)), ROUNDING, "the weights at alpha = 1", Quantity.WEIGHTS)


@risk_level_one_is_the_mean.mutant("leaves out the lowest loss")
def _(losses: Array, eta: float, d: Divergence, *, p: Array | None = None) -> WorstCase:
    return worst_case(losses, eta, indicator(max(1 - 1 / losses.shape[-1], 0.5)), p=p)


@inner_claim(
    id="E19",
    formula=r"\max f - \eta D(\gamma_{top}) \le R \le \max f, \quad R \le \mathbb{E} f + "
    r"\frac{(\max f - \min f)^2}{\eta} \text{ if } \eta \ge 10^9 (\max f - \min f)",
    problem=problems(),
    ratio=st.sampled_from([1e-9, 1e9, 1e-15, 1e15]),
    d=divergences(),
)
def extreme_eta_overflows_nothing(
    problem: Problem, ratio: float, d: Divergence, solve: Solver = worst_case
) -> Iterator[Evidence]:
    """A tiny or a huge eta overflows nothing: the value is near the largest loss, or the mean."""
    extreme = replace(problem, eta=ratio * (problem.spread or 1.0))
    value, tolerance = float(solved(solve, extreme, d).value), value_tolerance(extreme)
    pairs = list(zip(problem.f, exact_law(problem), strict=True))
    top = max(problem.charged)
    yield Evidence(value - top, tolerance, "the value, and the largest loss")
    if ratio > 1 and d.family != "indicator":
        above = definitions.difference(value, exact_mean(problem))
        yield Evidence(above - problem.spread**2 / extreme.eta, tolerance, "the value, and the mean")
    elif ratio < 1:
        # What it costs to move all the mass to the largest loss; infinite for some phi, which say nothing.
        mass = float(sum(q for v, q in pairs if v == top))
        cost = mass * definitions.phi(mp.mpf(1) / mass, d.family or "", d.parameter)
        if mass < 1:
            cost += (1 - mass) * definitions.phi(mp.mpf(0), d.family or "", d.parameter)
        if cost < inf:
            yield Evidence(float(top - extreme.eta * cost - value), tolerance, "the value at a tiny eta")


@extreme_eta_overflows_nothing.mutant("adds 1e-6 to eta")
def _(losses: Array, eta: float, d: Divergence, *, p: Array | None = None) -> WorstCase:
    return worst_case(losses, eta + 1e-6, d, p=p)


@extreme_eta_overflows_nothing.mutant("caps the exponent at 700")
def _(losses: Array, eta: float, d: Divergence, *, p: Array | None = None) -> WorstCase:
    xp = array_namespace(losses)
    return worst_case(xp.where(losses > 700 * eta, xp.full_like(losses, 700 * eta), losses), eta, d, p=p)


@inner_claim(
    id="E20",
    formula=r"m = 1 \Rightarrow \gamma = 1, \quad R = f_1",
    problem=problems(max_size=1, laws=False),
    d=divergences(),
)
def one_point_has_all_the_weight(
    problem: Problem, d: Divergence, solve: Solver = worst_case
) -> Iterator[Evidence]:
    """One point has all the weight, and its loss is the value."""
    solution = solved(solve, problem, d)
    yield value_is(solution, problem.f[0], problem)
    yield Evidence(abs(numbers(solution.weights)[0] - 1), ROUNDING, "the weights", Quantity.WEIGHTS)


@one_point_has_all_the_weight.mutant("keeps the penalty phi(0)")
def _(losses: Array, eta: float, d: Divergence, *, p: Array | None = None) -> WorstCase:
    s = worst_case(losses, eta, d, p=p)
    return replace(s, value=s.value + eta / 2)


@one_point_has_all_the_weight.mutant("divides by m - 1, or by one half")
def _(losses: Array, eta: float, d: Divergence, *, p: Array | None = None) -> WorstCase:
    s = worst_case(losses, eta, d, p=p)
    return replace(s, weights=s.weights / max(losses.shape[-1] - 1, 0.5))


# --- The certificate ------------------------------------------------------------------------------


@inner_claim(
    id="E17",
    formula=r"gap = D(\mu) - P(\gamma), \quad P(\gamma) \le R \le D(\mu)",
    problem=problems(),
    d=divergences(),
)
def gap_is_dual_minus_primal(
    problem: Problem, d: Divergence, solve: Solver = worst_case
) -> Iterator[Evidence]:
    """The gap is the dual value at mu minus the primal value at the weights, as it says."""
    solution = solved(solve, problem, d)
    instance = (problem.eta, d.family or "", d.parameter, problem.p)
    dual = definitions.dual(problem.f, float(solution.mu), *instance)
    primal = definitions.primal(problem.f, numbers(solution.weights), *instance)
    gap, tolerance = definitions.difference(dual, primal), 2 * primal_tolerance(problem, d)
    yield Evidence(abs(float(solution.gap) - gap), tolerance, "the gap", Quantity.GAP)
    value = float(solution.value)
    yield Evidence(
        definitions.difference(primal, value), tolerance, "the value, and the primal at the weights"
    )
    yield Evidence(definitions.difference(value, dual), tolerance, "the value, and the dual at mu")


@gap_is_dual_minus_primal.mutant("says zero without looking")
def _(losses: Array, eta: float, d: Divergence, *, p: Array | None = None) -> WorstCase:
    s = worst_case(losses, eta, d, p=p)
    return replace(s, mu=s.mu + eta, gap=0 * s.gap)


@gap_is_dual_minus_primal.mutant("divides the gap by eta")
def _(losses: Array, eta: float, d: Divergence, *, p: Array | None = None) -> WorstCase:
    s = worst_case(losses, eta, d, p=p)
    xp = array_namespace(losses)
    spread = xp.max(losses) - xp.min(losses)
    law = _law(losses, p)
    short = xp.sum((s.weights - law) * losses)
    return replace(s, weights=law, gap=short / eta if float(spread) > 0 else s.gap)


@risk_level_one_is_the_mean.mutant("takes the largest loss at alpha = 1")
@gap_is_dual_minus_primal.mutant("gives the largest loss as the value")
def _(losses: Array, eta: float, d: Divergence, *, p: Array | None = None) -> WorstCase:
    s = worst_case(losses, eta, d, p=p)
    return replace(s, value=array_namespace(losses).max(losses))

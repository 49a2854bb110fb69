"""Beyond the paper: properties of any solver of the inner problem, and Example 3 solved by sorting."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction
from functools import partial
from math import ceil, inf, log2
from typing import TypeAlias

import mpmath as mp
from hypothesis import strategies as st

from phiball.backends import Array, active, array_namespace
from phiball.refimpl import QUADRATIC, Divergence, worst_case
from phiball.refimpl.inner.worst_case import WorstCase
from phiball.verification.framework.claim import claim
from phiball.verification.framework.evidence import Evidence, Quantity, Verdict
from phiball.verification.instances.conversion import array, to_floats
from phiball.verification.instances.divergence_catalog import divergences
from phiball.verification.instances.solutions import (
    Solver,
    exact_distribution,
    exact_mean,
    exact_value,
    primal_is,
    solved,
    value_is,
    weights_are,
)
from phiball.verification.instances.solver_mutants import (
    LARGEST_LOSS,
    p_or_uniform,
    with_answer,
    with_eta,
    with_losses,
    without_p,
)
from phiball.verification.instances.strategies import InnerProblem, dyadic_problems, powers_of_ten, problems
from phiball.verification.instances.tolerances import ROUNDING, primal_tolerance, value_tolerance
from phiball.verification.oracles import definitions

inner_claim = partial(claim, "Eq. (14)", verdict=Verdict.HOLDS, any_solver=True, examples=60)

# --- Signs, offsets and mass ----------------------------------------------------------------------


@inner_claim(
    id="E8",
    formula=r"R = \max_{\gamma \in \Delta^m} \sum_i \gamma_i f_i - "
    r"\eta \sum_i p_i \phi\left(\frac{\gamma_i}{p_i}\right)",
    assumptions="max f < 0",
    problem=problems(),
    d=divergences(),
)
def negative_losses_are_solved(
    problem: InnerProblem, d: Divergence, solve: Solver = worst_case
) -> Iterator[Evidence]:
    """The value and the weights are optimal if all losses are negative."""
    top = max(problem.f)
    negative = InnerProblem(tuple(v - top - 1 for v in problem.f), problem.eta, problem.p)
    exact, solution = exact_value(negative, d), solved(solve, negative, d)
    yield value_is(solution, exact, negative)
    yield primal_is(solution, exact, negative, d)


negative_losses_are_solved.mutant("clips losses at zero")(
    with_losses(lambda losses: array_namespace(losses).clip(losses, 0.0, None))
)


@inner_claim(
    id="E9",
    formula=r"R(f + c) = R(f) + c, \quad \gamma(f + c) = \gamma(f)",
    problem=dyadic_problems(min_size=2),
    c=st.sampled_from([2.0**20, 1.0, -(2.0**20), -1024.0]),
    d=divergences(),
)
def constant_preserves_the_weights(
    problem: InnerProblem, c: float, d: Divergence, solve: Solver = worst_case
) -> Iterator[Evidence]:
    """A constant added to all losses is added to the value, and does not change the weights."""
    plain = solved(solve, problem, d)
    moved = replace(problem, f=tuple(v + c for v in problem.f))
    solution = solved(solve, moved, d)
    yield value_is(solution, float(plain.value) + c, moved)
    yield from weights_are(solution, to_floats(plain.weights), float(solution.value), moved, d)


constant_preserves_the_weights.mutant("scales the value by 1 - 1e-6")(
    with_answer(value=lambda answer, _: answer.value * (1 - 1e-6))
)


@inner_claim(
    id="E10", formula=r"\gamma \ge 0, \quad \sum_i \gamma_i = 1", problem=problems(), d=divergences()
)
def weights_are_probabilities(
    problem: InnerProblem, d: Divergence, solve: Solver = worst_case
) -> Iterator[Evidence]:
    """The weights are nonnegative and sum to one, up to rounding."""
    weights = to_floats(solved(solve, problem, d).weights)
    yield Evidence(-min(weights), 0.0, "the smallest weight", Quantity.MASS)
    mass = sum(map(Fraction, weights), Fraction(0))
    note = f"the mass of the weights, {float(mass):.6g}"
    yield Evidence(abs(float(mass - 1)), ROUNDING, note, Quantity.MASS)


weights_are_probabilities.mutant("returns a mass of 1.006")(
    with_answer(weights=lambda answer, _: answer.weights * 1.006)
)


# --- Rows, zero probabilities, ties and extreme eta -----------------------------------------------


@inner_claim(
    id="E13",
    formula=r"R(f_1, \ldots, f_n)_k = R(f_k), \qquad \gamma(f_1, \ldots, f_n)_k = \gamma(f_k)",
    assumptions="losses of shape (n, m); eta is a number or has shape (n,)",
    rows=st.lists(st.lists(st.integers(-32, 32), min_size=4, max_size=4), min_size=2, max_size=3),
    eta=powers_of_ten(-2.0, 2.0),
    eta_per_row=st.booleans(),
    d=divergences(),
)
def rows_are_independent(
    rows: list[list[int]], eta: float, eta_per_row: bool, d: Divergence, solve: Solver = worst_case
) -> Iterator[Evidence]:
    """The value and the weights of a row do not depend on the other rows of its batch."""
    etas = [eta * (1 + k) if eta_per_row else eta for k in range(len(rows))]
    losses = active().namespace.stack([array([v / 8 for v in row]) for row in rows])
    batch = solve(losses, array(etas) if eta_per_row else eta, d)
    values, weights = to_floats(batch.value), to_floats(batch.weights)
    for k, row in enumerate(rows):
        problem = InnerProblem(tuple(v / 8 for v in row), etas[k])
        alone = solved(solve, problem, d)
        row_weights = weights[4 * k : 4 * k + 4]
        yield value_is(alone, values[k], problem)
        yield from weights_are(alone, row_weights, values[k], problem, d)
        from_batch = replace(alone, weights=array(row_weights))
        yield primal_is(from_batch, float(alone.value), problem, d)


@rows_are_independent.mutant("normalizes over the whole batch")
def _(losses: Array, eta: float, d: Divergence, *, p: Array | None = None) -> WorstCase:
    s = worst_case(losses, eta, d, p=p)
    return replace(s, weights=s.weights / losses.shape[0]) if losses.ndim > 1 else s


@inner_claim(
    id="E14",
    formula=r"p_i = 0 \Rightarrow \gamma_i = 0",
    assumptions="the other points have positive probability",
    problem=dyadic_problems(),
    extra=st.lists(st.sampled_from([0.0, 1000.0, -1000.0]), min_size=1, max_size=2),
    d=divergences(),
)
def zero_probability_has_no_weight(
    problem: InnerProblem, extra: list[float], d: Divergence, solve: Solver = worst_case
) -> Iterator[Evidence]:
    """A point of probability zero has weight zero and no influence, however large its loss."""
    wider = InnerProblem((*problem.f, *extra), problem.eta, (*problem.probabilities, *(0.0 for _ in extra)))
    alone, solution = solved(solve, problem, d), solved(solve, wider, d)
    m = len(problem.f)
    added = max(map(abs, to_floats(solution.weights)[m:]))
    yield Evidence(added, 0.0, "the weight of a point of probability zero", Quantity.MASS)
    yield value_is(solution, float(alone.value), problem)
    first_m = replace(alone, weights=solution.weights[:m])
    yield from weights_are(first_m, to_floats(alone.weights), float(alone.value), problem, d)


zero_probability_has_no_weight.mutant("ignores the reference distribution")(without_p)


@zero_probability_has_no_weight.mutant("replaces a probability of zero by 1e-9")
def _(losses: Array, eta: float, d: Divergence, *, p: Array | None = None) -> WorstCase:
    xp, distribution = array_namespace(losses), p_or_uniform(losses, p)
    distribution = xp.where(distribution > 0, distribution, xp.full_like(distribution, 1e-9))
    return worst_case(losses, eta, d, p=distribution / xp.sum(distribution))


@inner_claim(
    id="E15",
    formula=r"f_i = f_j \Rightarrow \frac{\gamma_i}{p_i} = \frac{\gamma_j}{p_j}",
    problem=problems(),
    copies=st.integers(2, 3),
    d=divergences(),
)
def ties_share_their_weight(
    problem: InnerProblem, copies: int, d: Divergence, solve: Solver = worst_case
) -> Iterator[Evidence]:
    """Equal losses share their weight in proportion to their probabilities."""
    p = None if problem.p is None else tuple(q / copies for q in problem.p) * copies
    weights = to_floats(solved(solve, InnerProblem(problem.f * copies, problem.eta, p), d).weights)
    m = len(problem.f)
    for i in range(m):
        tied = weights[i::m]
        yield Evidence(max(tied) - min(tied), ROUNDING, "the weights of equal losses", Quantity.MASS)


@ties_share_their_weight.mutant("breaks ties by noise")
def _(losses: Array, eta: float, d: Divergence, *, p: Array | None = None) -> WorstCase:
    xp = array_namespace(losses)
    noise = xp.astype(xp.arange(losses.shape[-1]), losses.dtype)
    return worst_case(losses + 1e-3 * eta * noise, eta, d, p=p)


@inner_claim(
    id="E19",
    formula=r"\max f - \eta D(\gamma_{top}) \le R \le \max f, \quad R \le \mathbb{E} f + "
    r"\frac{(\max f - \min f)^2}{\eta} \text{ if } \eta \ge 10^9 (\max f - \min f)",
    assumptions="gamma_top is the reference distribution restricted to f = max f and normalised; the second "
    "bound is not checked for the indicator",
    problem=problems(),
    ratio=st.sampled_from([1e-9, 1e9, 1e-15, 1e15]),
    d=divergences(),
)
def extreme_eta_does_not_overflow(
    problem: InnerProblem, ratio: float, d: Divergence, solve: Solver = worst_case
) -> Iterator[Evidence]:
    """At a tiny or huge eta nothing overflows: the value is close to the largest loss, or to the mean."""
    extreme = replace(problem, eta=ratio * (problem.spread or 1.0))
    value, tolerance = float(solved(solve, extreme, d).value), value_tolerance(extreme)
    top = max(problem.charged)
    yield Evidence(value - top, tolerance, "the value is at most the largest loss")
    if ratio > 1 and d.family != "indicator":
        above = definitions.exact_difference(value, exact_mean(problem))
        excess = above - problem.spread**2 / extreme.eta
        yield Evidence(excess, tolerance, "at a huge eta the value is close to the mean")
    elif ratio < 1:
        # `cost` is the divergence of gamma_top; if it is infinite, there is nothing to check.
        mass = float(sum(q for v, q in zip(problem.f, exact_distribution(problem), strict=True) if v == top))
        cost = mass * definitions.phi(mp.mpf(1) / mass, d.family or "", d.parameter)
        if mass < 1:
            cost += (1 - mass) * definitions.phi(mp.mpf(0), d.family or "", d.parameter)
        if cost < inf:
            short = float(top - extreme.eta * cost - value)
            yield Evidence(short, tolerance, "at a tiny eta the value is close to the largest loss")


extreme_eta_does_not_overflow.mutant("adds 1e-6 to eta")(with_eta(lambda eta: eta + 1e-6))


# --- The certificate ------------------------------------------------------------------------------


@inner_claim(
    id="E17",
    formula=r"gap = D(\mu) - P(\gamma), \quad P(\gamma) \le R \le D(\mu)",
    problem=problems(),
    d=divergences(),
)
def gap_is_dual_minus_primal(
    problem: InnerProblem, d: Divergence, solve: Solver = worst_case
) -> Iterator[Evidence]:
    """The reported gap is the dual value at mu minus the primal value at the weights."""
    solution = solved(solve, problem, d)
    instance = (problem.eta, d.family or "", d.parameter, problem.p)
    dual = definitions.dual_objective(problem.f, float(solution.mu), *instance)
    primal = definitions.primal_objective(problem.f, to_floats(solution.weights), *instance)
    gap, tolerance = definitions.exact_difference(dual, primal), 2 * primal_tolerance(problem, d)
    yield Evidence(abs(float(solution.gap) - gap), tolerance, "the gap", Quantity.GAP)
    value = float(solution.value)
    below, above = (definitions.exact_difference(*pair) for pair in ((primal, value), (value, dual)))
    yield Evidence(below, tolerance, "the value is at least the primal at the weights")
    yield Evidence(above, tolerance, "the value is at most the dual at mu")


@gap_is_dual_minus_primal.mutant("always reports a gap of zero")
def _(losses: Array, eta: float, d: Divergence, *, p: Array | None = None) -> WorstCase:
    s = worst_case(losses, eta, d, p=p)
    return replace(s, mu=s.mu + eta, gap=0 * s.gap)


gap_is_dual_minus_primal.mutant("returns the largest loss as the value")(LARGEST_LOSS)


class Counted:
    """A number; `Counted.comparisons` counts the comparisons of all instances."""

    comparisons = 0

    def __init__(self, value: Fraction) -> None:
        self.value = value

    def __lt__(self, other: Counted) -> bool:
        Counted.comparisons += 1
        return self.value < other.value


Filler: TypeAlias = Callable[[list[Fraction], Fraction], Fraction]


def sort_and_fill(f: list[Fraction], eta: Fraction) -> Fraction:
    """mu* of Example 3, by sorting the m losses in descending order f_(1) >= f_(2) >= ...

    mu* = (f_(1) + ... + f_(j) - m eta)/j for the smallest j with f_(j+1) <= mu*.
    """
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
    r"f_{(j)}; \quad \text{comparisons} \le m \lceil \log_2 m \rceil",
    assumptions="phi = (x^2 - 1)/2; f sorted in descending order; exact arithmetic",
    examples=150,
    problem=problems(nonuniform=False),
)
def sorting_solves_example_3(problem: InnerProblem, fill: Filler = sort_and_fill) -> Iterator[Evidence]:
    """Sorting, with at most m ceil(log2 m) comparisons, and one pass over the losses solve Example 3."""
    f, eta, m = [Fraction(v) for v in problem.f], Fraction(problem.eta), len(problem.f)
    Counted.comparisons = 0
    mu = fill(f, eta)
    yield Evidence.at_most(Counted.comparisons, m * ceil(log2(m)), 0.0, f"comparisons of {m} losses")
    gamma = [max(v - mu, Fraction(0)) / (m * eta) for v in f]
    # gamma satisfies stationarity by its formula, so mass 1 makes it optimal: the problem is concave.
    yield Evidence(float(abs(sum(gamma) - 1)), 0.0, "gamma sums to one")
    value = sum(w * v - eta / m * ((m * w) ** 2 - 1) / 2 for w, v in zip(gamma, f, strict=True))
    solution = worst_case(problem.losses, problem.eta, QUADRATIC)
    yield value_is(solution, value, problem)
    slack = 2.0**-44 * (1 + problem.size / problem.eta)
    error = max(abs(w - float(g)) for w, g in zip(to_floats(solution.weights), gamma, strict=True))
    yield Evidence(error, slack, "the weights of the library")


sorting_solves_example_3.mutant("keeps every loss active")(lambda f, eta: sum(f, Fraction(0)) / len(f) - eta)

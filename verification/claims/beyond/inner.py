"""The inner problem, which Section 2 defines and Section 3.2 solves: what any solver of it must satisfy."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from functools import partial

from hypothesis import strategies as st

from phiball.backends import Array, active, array_namespace
from phiball.refimpl import Divergence, worst_case
from phiball.refimpl.inner.worst_case import WorstCase
from phiball.verification.framework.claim import claim
from phiball.verification.framework.evidence import Evidence, Quantity, Verdict
from phiball.verification.instances.arrays import array, numbers
from phiball.verification.instances.divergences import divergences
from phiball.verification.instances.solutions import (
    Solver,
    exact_mean,
    primal_is,
    solved,
    value_is,
    weights_are,
)
from phiball.verification.instances.strategies import (
    Problem,
    Reordered,
    dyadic_problems,
    powers_of_ten,
    problems,
    reordered,
)
from phiball.verification.instances.tolerances import ROUNDING, value_tolerance
from phiball.verification.oracles import definitions
from phiball.verification.oracles.inner import solve_exactly

inner_claim = partial(claim, "Eq. (14)", verdict=Verdict.HOLDS, any_solver=True, examples=60)


def _uniform(s: WorstCase, losses: Array) -> WorstCase:
    xp = array_namespace(losses)
    m = losses.shape[-1]
    return replace(s, value=xp.mean(losses, axis=-1), weights=xp.full_like(losses, 1 / m))


# --- Signs and offsets ----------------------------------------------------------------------------


@inner_claim(
    id="E8",
    formula=r"R = \max_{\gamma \in \Delta^m} \sum_i \gamma_i f_i - "
    r"\eta \sum_i p_i \phi\left(\frac{\gamma_i}{p_i}\right)",
    assumptions="max f < 0",
    problem=problems(),
    d=divergences(),
)
def negative_losses_are_solved(
    problem: Problem, d: Divergence, solve: Solver = worst_case
) -> Iterator[Evidence]:
    """All losses negative: the value and the weights are optimal as for any other losses."""
    top = max(problem.f)
    negative = Problem(tuple(v - top - 1 for v in problem.f), problem.eta, problem.p)
    exact = solve_exactly(negative.f, negative.eta, d.family or "", d.parameter, negative.p).value
    solution = solved(solve, negative, d)
    off = abs(definitions.difference(float(solution.value), exact))
    yield Evidence(off, value_tolerance(negative), "the value")
    yield primal_is(solution, exact, negative, d)


@negative_losses_are_solved.mutant("uniform weights when all losses are negative")
def _(losses: Array, eta: float, d: Divergence, *, p: Array | None = None) -> WorstCase:
    s = worst_case(losses, eta, d, p=p)
    return _uniform(s, losses) if float(array_namespace(losses).max(losses)) < 0 else s


@negative_losses_are_solved.mutant("clips losses at zero")
def _(losses: Array, eta: float, d: Divergence, *, p: Array | None = None) -> WorstCase:
    return worst_case(array_namespace(losses).clip(losses, 0.0, None), eta, d, p=p)


@inner_claim(
    id="E9",
    formula=r"R(f + c) = R(f) + c, \quad \gamma(f + c) = \gamma(f)",
    problem=dyadic_problems(min_size=2),
    c=st.sampled_from([2.0**20, 1.0, -(2.0**20), -1024.0]),
    d=divergences(),
)
def constant_leaves_the_weights(
    problem: Problem, c: float, d: Divergence, solve: Solver = worst_case
) -> Iterator[Evidence]:
    """A constant added to all losses is added to the value, and leaves the weights as they are."""
    plain = solved(solve, problem, d)
    moved = replace(problem, f=tuple(v + c for v in problem.f))
    solution = solved(solve, moved, d)
    yield value_is(solution, float(plain.value) + c, moved)
    yield from weights_are(solution, numbers(plain.weights), float(solution.value), moved, d)


@constant_leaves_the_weights.mutant("uniform weights beside a large offset")
def _(losses: Array, eta: float, d: Divergence, *, p: Array | None = None) -> WorstCase:
    s = worst_case(losses, eta, d, p=p)
    return _uniform(s, losses) if float(array_namespace(losses).max(losses)) > 1e5 else s


@constant_leaves_the_weights.mutant("regularises the mean as well")
def _(losses: Array, eta: float, d: Divergence, *, p: Array | None = None) -> WorstCase:
    s = worst_case(losses, eta, d, p=p)
    return replace(s, value=s.value * (1 - 1e-6))


# --- Mass -----------------------------------------------------------------------------------------


@inner_claim(
    id="E10",
    formula=r"\gamma \ge 0, \quad \sum_i \gamma_i = 1",
    problem=problems(),
    d=divergences(),
)
def weights_are_probabilities(
    problem: Problem, d: Divergence, solve: Solver = worst_case
) -> Iterator[Evidence]:
    """The weights are not negative, and their mass is one to rounding."""
    weights = numbers(solved(solve, problem, d).weights)
    yield Evidence(-min(weights), 0.0, "the least weight", Quantity.MASS)
    mass = sum(map(Fraction, weights), Fraction(0))
    yield Evidence(
        abs(float(mass - 1)), ROUNDING, f"the mass of the weights, {float(mass):.6g}", Quantity.MASS
    )


@weights_are_probabilities.mutant("stops at a mass of 1.006")
def _(losses: Array, eta: float, d: Divergence, *, p: Array | None = None) -> WorstCase:
    s = worst_case(losses, eta, d, p=p)
    return replace(s, weights=s.weights * 1.006)


@weights_are_probabilities.mutant("borrows from the lowest loss")
def _(losses: Array, eta: float, d: Divergence, *, p: Array | None = None) -> WorstCase:
    s = worst_case(losses, eta, d, p=p)
    xp = array_namespace(losses)
    shift = 0.1 * (losses - xp.mean(losses)) / (1 + xp.max(xp.abs(losses)))
    return replace(s, weights=s.weights + shift)


# --- Scale, order and rows ------------------------------------------------------------------------


@inner_claim(
    id="E11",
    formula=r"R(c f; c \eta) = c R(f; \eta), \quad \gamma(c f; c \eta) = \gamma(f; \eta), \quad c > 0",
    problem=dyadic_problems(),
    k=st.integers(-30, 30),
    d=divergences(),
)
def units_do_not_matter(
    problem: Problem, k: int, d: Divergence, solve: Solver = worst_case
) -> Iterator[Evidence]:
    """Losses and eta in another unit give the value in that unit, and the same weights."""
    plain, c = solved(solve, problem, d), 2.0**k
    scaled = Problem(tuple(c * v for v in problem.f), c * problem.eta, problem.p)
    solution = solved(solve, scaled, d)
    # In the larger of the two units, so that an error counts for what it is.
    off = abs(float(solution.value) - c * float(plain.value)) / max(c, 1.0)
    yield Evidence(off, value_tolerance(scaled) / max(c, 1.0), "the value")
    yield from weights_are(solution, numbers(plain.weights), float(solution.value), scaled, d)


@units_do_not_matter.mutant("adds 1e-8 to eta")
def _(losses: Array, eta: float, d: Divergence, *, p: Array | None = None) -> WorstCase:
    return worst_case(losses, eta + 1e-8, d, p=p)


@units_do_not_matter.mutant("forgets eta")
def _(losses: Array, eta: float, d: Divergence, *, p: Array | None = None) -> WorstCase:
    return worst_case(losses, 1.0, d, p=p)


@inner_claim(
    id="E12",
    formula=r"R(f_{\pi}) = R(f), \quad \gamma(f_{\pi}) = \gamma(f)_{\pi}",
    case=reordered(),
    d=divergences(),
)
def order_does_not_matter(case: Reordered, d: Divergence, solve: Solver = worst_case) -> Iterator[Evidence]:
    """Points in another order have the same value, and their weights in that order."""
    plain, solution = solved(solve, case.problem, d), solved(solve, case.other, d)
    yield value_is(solution, float(plain.value), case.problem)
    weights = numbers(plain.weights)
    expected = [weights[i] for i in case.order]
    yield from weights_are(solution, expected, float(plain.value), case.other, d)


@order_does_not_matter.mutant("forgets to undo the sorting")
def _(losses: Array, eta: float, d: Divergence, *, p: Array | None = None) -> WorstCase:
    s = worst_case(losses, eta, d, p=p)
    xp = array_namespace(losses)
    return replace(s, weights=xp.take(s.weights, xp.argsort(losses)))


@order_does_not_matter.mutant("favours the first point")
def _(losses: Array, eta: float, d: Divergence, *, p: Array | None = None) -> WorstCase:
    xp = array_namespace(losses)
    first = xp.astype(xp.arange(losses.shape[-1]) == 0, losses.dtype)
    return worst_case(losses + 1e-6 * first, eta, d, p=p)


@inner_claim(
    id="E13",
    formula=r"R(f_1, \ldots, f_n)_k = R(f_k), \qquad \gamma(f_1, \ldots, f_n)_k = \gamma(f_k)",
    assumptions="losses of shape (n, m), and eta a number or of shape (n,)",
    rows=st.lists(st.lists(st.integers(-32, 32), min_size=4, max_size=4), min_size=2, max_size=3),
    eta=powers_of_ten(-2.0, 2.0),
    eta_per_row=st.booleans(),
    d=divergences(),
)
def rows_are_independent(
    rows: list[list[int]], eta: float, eta_per_row: bool, d: Divergence, solve: Solver = worst_case
) -> Iterator[Evidence]:
    """Each row of a batch has the value and the weights that it has alone."""
    etas = [eta * (1 + k) if eta_per_row else eta for k in range(len(rows))]
    losses = active().namespace.stack([array([v / 8 for v in row]) for row in rows])
    together = solve(losses, array(etas) if eta_per_row else eta, d)
    values, weights = numbers(together.value), numbers(together.weights)
    for k, row in enumerate(rows):
        problem = Problem(tuple(v / 8 for v in row), etas[k])
        alone = solved(solve, problem, d)
        own = weights[4 * k : 4 * k + 4]
        yield value_is(alone, values[k], problem)
        yield from weights_are(alone, own, values[k], problem, d)
        row_of = replace(alone, weights=array(own))
        yield primal_is(row_of, float(alone.value), problem, d)


@rows_are_independent.mutant("normalises over the whole batch")
def _(losses: Array, eta: float, d: Divergence, *, p: Array | None = None) -> WorstCase:
    s = worst_case(losses, eta, d, p=p)
    return replace(s, weights=s.weights / losses.shape[0]) if losses.ndim > 1 else s


@rows_are_independent.mutant("solves the first row for all")
def _(losses: Array, eta: float | Array, d: Divergence, *, p: Array | None = None) -> WorstCase:
    s = worst_case(losses, eta, d, p=p)
    xp = array_namespace(losses)
    first = s.weights[:1, ...] if losses.ndim > 1 else s.weights
    return replace(s, weights=xp.broadcast_to(first, losses.shape))


@rows_are_independent.mutant("takes the largest eta for all")
def _(losses: Array, eta: float | Array, d: Divergence, *, p: Array | None = None) -> WorstCase:
    xp = array_namespace(losses)
    return worst_case(losses, eta if isinstance(eta, float) else float(xp.max(eta)), d, p=p)


# --- Between the mean and the largest loss --------------------------------------------------------


@inner_claim(
    id="E16",
    formula=r"\mathbb{E} f \le R(f; \eta') \le R(f; \eta) \le \max f, \quad \eta \le \eta'",
    assumptions="the largest loss of positive probability",
    problem=problems(),
    ratio=st.sampled_from([2.0, 1.125, 100.0]),
    d=divergences(),
)
def value_falls_with_eta(
    problem: Problem, ratio: float, d: Divergence, solve: Solver = worst_case
) -> Iterator[Evidence]:
    """The value lies between the mean and the largest loss, and does not grow with eta."""
    tolerance = value_tolerance(problem)
    values = [
        float(solved(solve, replace(problem, eta=eta), d).value) for eta in (problem.eta, ratio * problem.eta)
    ]
    for value in values:
        yield Evidence(float(exact_mean(problem) - Fraction(value)), tolerance, "the value, and the mean")
        yield Evidence(value - max(problem.charged), tolerance, "the value, and the largest loss")
    yield Evidence(values[1] - values[0], 2 * tolerance, "the value at a larger eta")


@value_falls_with_eta.mutant("multiplies by eta in place of dividing")
def _(losses: Array, eta: float, d: Divergence, *, p: Array | None = None) -> WorstCase:
    return worst_case(losses, 1 / eta, d, p=p)


@value_falls_with_eta.mutant("sums where it should average")
def _(losses: Array, eta: float, d: Divergence, *, p: Array | None = None) -> WorstCase:
    s = worst_case(losses, eta, d, p=p)
    xp = array_namespace(losses)
    return replace(s, value=s.value + eta * xp.log(xp.sum(xp.ones_like(losses))))

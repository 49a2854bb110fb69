"""Solutions of inner problems, and their comparison with exact ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction
from math import inf
from typing import Any, TypeAlias

import mpmath as mp
import numpy as np

from phiball.refimpl import ENTROPIC, QUADRATIC, Divergence, cressie_read
from phiball.refimpl.inner.worst_case import WorstCase
from phiball.verification.framework.evidence import Evidence, Quantity
from phiball.verification.instances.conversion import to_floats
from phiball.verification.instances.divergence_catalog import QUARTIC, mixed, restricted
from phiball.verification.instances.strategies import InnerProblem
from phiball.verification.instances.tolerances import ROUNDING, primal_tolerance, value_tolerance
from phiball.verification.oracles import definitions, row_solver
from phiball.verification.oracles.exact_solver import solve_exactly

Solver: TypeAlias = Callable[..., WorstCase]
"""A solver of the inner problem with the signature of `worst_case`."""


def solved(solve: Solver, problem: InnerProblem, d: Divergence) -> WorstCase:
    """Pass a problem to `solve`, as arrays of the active backend."""
    return solve(problem.losses, problem.eta, d, p=problem.distribution)


def oracle_arguments(
    problem: InnerProblem, d: Divergence
) -> tuple[float, str, float | None, tuple[float, ...] | None]:
    """eta, the family of phi, its parameter and p: the arguments of oracles."""
    return problem.eta, d.family or "", d.parameter, problem.p


def exact_value(problem: InnerProblem, d: Divergence) -> Any:
    """The optimal value, as a fraction or in 50 digits."""
    return solve_exactly(problem.f, *oracle_arguments(problem, d)).value


def exact_distribution(problem: InnerProblem) -> list[Fraction]:
    """p as fractions that sum to one."""
    distribution = [Fraction(q) for q in problem.probabilities]
    return [q / sum(distribution) for q in distribution]


def exact_mean(problem: InnerProblem) -> Fraction:
    """E f under the reference distribution, exactly."""
    pairs = zip(problem.f, exact_distribution(problem), strict=True)
    return sum((Fraction(v) * q for v, q in pairs), Fraction(0))


def shortfall_bound(problem: InnerProblem, d: Divergence) -> float:
    """A bound on max f - R, where R is the risk, that tends to 0 with eta.

    R is at least the primal value of any density. The bound uses the density that equals e where f < max f
    and has the remaining mass at the maximum. If phi(0) is finite, e = 0; else e = eta/(max f - min f), but
    at most 1/2.
    """
    top = max(problem.charged)
    rows = [(v, q) for v, q in zip(problem.f, problem.probabilities, strict=True) if q]
    q = sum(p for v, p in rows if v == top)
    if q >= 1 or not problem.spread:
        return 0.0
    infinite = definitions.phi(mp.mpf(0), d.family or "", d.parameter) == mp.inf
    e = min(problem.eta / problem.spread, 0.5) if infinite else 0.0
    at_top = (1 - e * (1 - q)) / q
    cost = q * definitions.phi(mp.mpf(at_top), d.family or "", d.parameter)
    cost += (1 - q) * definitions.phi(mp.mpf(e), d.family or "", d.parameter)
    return e * sum(p * (top - v) for v, p in rows) + problem.eta * float(cost)


# --- Solutions by oracles ---------------------------------------------------------------------------

STRONG = {
    QUADRATIC: row_solver.EXAMPLE_3,
    cressie_read(2): row_solver.square(),
    mixed(1.0): row_solver.mixture(1.0),
    mixed(0.1): row_solver.mixture(0.1),
    QUARTIC: row_solver.QUARTIC,
}
"""The oracle's version of each strongly convex phi."""

CLIPPED = restricted(cressie_read(2), 0.0, 1.01)
"""(x - 1)^2/2 on [0, 1.01]; the chi-square E x^2 - 1 of any density x is at most 1.01 E x - 1 = 0.01."""
_CLIPPED = row_solver.square(1.01)


def rows_exactly(rows: Any, eta: float, phi: Divergence) -> row_solver.Solution:
    """mu*, gamma* and value of each row of equally likely losses, for entropic and strongly convex phi."""
    f = np.asarray(rows, dtype=float)
    if phi == ENTROPIC:
        value, weights = row_solver.solve_closed_form(f, eta, "entropic")
        return row_solver.Solution(value, weights, value)
    return row_solver.solve_rows(f, eta, _CLIPPED if phi is CLIPPED else STRONG[phi])


def value_exactly(problem: InnerProblem, phi: Divergence) -> float:
    """The optimal value under equally likely losses, for named and for strongly convex phi."""
    if phi in STRONG:
        return float(row_solver.solve_rows(problem.f, problem.eta, STRONG[phi]).value)
    return float(solve_exactly(problem.f, problem.eta, phi.family or "", phi.parameter).value)


# --- Comparisons ----------------------------------------------------------------------------------


def value_is(solution: WorstCase, value: Any, problem: InnerProblem, times: float = 1.0) -> Evidence:
    """Compare the value with the exact one, up to `times` the rounding error of the problem."""
    off = abs(definitions.exact_difference(float(solution.value), value))
    return Evidence(off, times * value_tolerance(problem), "the value")


def primal_is(solution: WorstCase, value: float, problem: InnerProblem, d: Divergence) -> Evidence:
    """Compare the primal value at the weights with the exact one, as the weights need not be unique."""
    reached = definitions.primal_objective(
        problem.f, to_floats(solution.weights), *oracle_arguments(problem, d)
    )
    off = abs(definitions.exact_difference(reached, value))
    return Evidence(off, 2 * primal_tolerance(problem, d), "the primal at the weights")


def weights_are(
    solution: WorstCase, expected: list[float], value: float, problem: InnerProblem, d: Divergence
) -> Iterator[Evidence]:
    """Compare the weights with expected ones, or the primal values if phi has a kink or is flat at 1."""
    if not 0 < d.curvature1 < inf:
        yield primal_is(solution, value, problem, d)
        return
    off = max(abs(w - v) for w, v in zip(to_floats(solution.weights), expected, strict=True))
    # The rounding error of f/eta carries over to the weights.
    yield Evidence(off, ROUNDING * (1 + problem.size / problem.eta), "the weights", Quantity.WEIGHTS)


def solution_is(
    solution: WorstCase, value: Fraction, ratios: list[Fraction], problem: InnerProblem
) -> Iterator[Evidence]:
    """Compare the value and the weights with exact ones, given as density ratios zeta = gamma/p."""
    yield value_is(solution, value, problem)
    exact = [q * z for q, z in zip(exact_distribution(problem), ratios, strict=True)]
    errors = [abs(w - v) for w, v in zip(to_floats(solution.weights), exact, strict=True)]
    yield Evidence(max(errors), ROUNDING, "the weights", Quantity.WEIGHTS)

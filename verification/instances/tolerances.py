"""How far rounding, quadrature and sampling may take a result from the truth."""

from __future__ import annotations

from math import inf

from phiball.refimpl import Divergence
from phiball.verification.instances.strategies import InnerProblem

ROUNDING = 2.0**-44
"""What a value may lose to rounding, relative to max abs f: 256 units, a dozen sums of a dozen terms."""

QUADRATURE = 2e-11
"""What the rules for one integral promise, refimpl's 1e-12 and the oracle's, relative to rho times g."""

TEST_LEVEL = 1e-8
"""The chance that one statistical test fails by bad luck; a claim states that of all its tests together."""

NORMAL_QUANTILE = 5.75
"""A normal error exceeds this many standard errors with probability TEST_LEVEL, in one direction or both."""


def value_tolerance(problem: InnerProblem) -> float:
    """Rounding of a value: first order in f, and second order in the weights, at which phi is flat."""
    return ROUNDING * problem.size + ROUNDING**2 * problem.eta


def primal_tolerance(problem: InnerProblem, d: Divergence) -> float:
    """The same for the primal at given weights: a kinked phi is not flat, and their rounding costs eta."""
    return value_tolerance(problem) + (ROUNDING * problem.eta if d.curvature1 == inf else 0.0)


def bisection_tolerance(problem: InnerProblem) -> float:
    """Rounding in Algorithm 2: D(mu) - R is a difference of numbers of the size of f and eta."""
    return 2.0**-40 * (problem.size + problem.eta)

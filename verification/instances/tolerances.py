"""Tolerances for rounding, quadrature and sampling errors."""

from __future__ import annotations

from math import inf

from phiball.refimpl import Divergence
from phiball.verification.instances.strategies import InnerProblem

ROUNDING = 2.0**-44
"""The rounding error of a value relative to max abs f: 256 ulp, for a dozen sums of a dozen terms."""

QUADRATURE = 2e-11
"""The error of an integral relative to rho |grad f|: 1e-12 of refimpl plus the error of the oracle."""

TEST_LEVEL = 1e-8
"""The error level of one statistical test; a claim declares the sum over all its tests."""

NORMAL_QUANTILE = 5.75
"""A normal error exceeds this many standard errors with probability at most TEST_LEVEL."""


def value_tolerance(problem: InnerProblem) -> float:
    """A tolerance for the optimal value; near the optimum, an error of the weights enters only squared."""
    return ROUNDING * problem.size + ROUNDING**2 * problem.eta


def primal_tolerance(problem: InnerProblem, d: Divergence) -> float:
    """A tolerance for the primal value at weights, whose error enters linearly if phi has a kink at 1."""
    return value_tolerance(problem) + (ROUNDING * problem.eta if d.curvature1 == inf else 0.0)


def bisection_tolerance(problem: InnerProblem) -> float:
    """A tolerance for the dual value of Algorithm 2 minus the risk, two sums of terms of size f and eta."""
    return 2.0**-40 * (problem.size + problem.eta)

"""The paper's own assumptions as checks, so that a counterexample is seen to lie within them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import inf, isfinite

from phiball.refimpl import Divergence
from phiball.verification.framework.evidence import Evidence
from phiball.verification.instances.arrays import array, numbers
from phiball.verification.instances.tolerances import ROUNDING

STEP = 1 / 64
GRID = [STEP * k for k in range(1, 8 * 64 + 1)]


def in_the_definition(phi: Divergence | Callable[[float], float]) -> Iterator[Evidence]:
    """Definition 1: phi is convex, not negative, 0 at 1 and infinite below 0; seen on a grid of (0, 8]."""
    value = _values(phi)
    at = value(GRID)
    yield Evidence(abs(value([1.0])[0]), ROUNDING, "phi(1) = 0")
    yield Evidence(-min(at), ROUNDING, "phi >= 0")
    yield Evidence(_least_bend(at, 0.0), ROUNDING * max(v for v in at if isfinite(v)), "phi convex")
    yield Evidence(0.0 if value([-1e-3])[0] == inf else inf, 0.0, "phi infinite below 0")


def strongly_convex(phi: Divergence, kappa: float) -> Iterator[Evidence]:
    """The assumption of Section 3: phi - kappa x^2/2 is convex; seen on a grid."""
    at = _values(phi)(GRID)
    slack = ROUNDING * max(v for v in at if isfinite(v))
    yield Evidence(_least_bend(at, kappa), slack, f"phi strongly convex with kappa = {kappa:g}")


def _values(phi: Divergence | Callable[[float], float]) -> Callable[[list[float]], list[float]]:
    if isinstance(phi, Divergence):
        return lambda x: numbers(phi.phi(array(x)))
    return lambda x: [phi(v) for v in x]


def _least_bend(at: list[float], kappa: float) -> float:
    """By how much a second difference falls below kappa STEP^2, at most; infinite if the domain has a gap."""
    finite = [k for k, v in enumerate(at) if isfinite(v)]
    if finite != list(range(finite[0], finite[-1] + 1)):
        return inf
    inside = [at[k] for k in finite]
    bends = [a - 2 * b + c for a, b, c in zip(inside, inside[1:], inside[2:], strict=False)]
    return kappa * STEP**2 - min(bends)

"""Section 5 of the paper: the covering number of the robust losses, and the divergence in its proof."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeAlias

import numpy as np
from hypothesis import strategies as st

from phiball.backends import Array, active, array_namespace
from phiball.refimpl import (
    ABSOLUTE,
    ENTROPIC,
    HINGE,
    QUADRATIC,
    Divergence,
    cressie_read,
    indicator,
    primal_value,
    worst_case,
)
from phiball.verification.framework.assessment import Assessment, Consequence, Kind
from phiball.verification.framework.claim import claim
from phiball.verification.framework.evidence import Evidence, Verdict
from phiball.verification.instances.arrays import array
from phiball.verification.instances.assumptions import each, strongly_convex
from phiball.verification.instances.faulty_solvers import with_losses
from phiball.verification.instances.function_classes import classes, robust_class_is_no_richer
from phiball.verification.instances.solutions import Solver
from phiball.verification.instances.strategies import Problem, powers_of_ten, problems
from phiball.verification.instances.tolerances import primal_tolerance, value_tolerance
from phiball.verification.oracles import definitions
from phiball.verification.oracles.inner import solve_exactly

Value: TypeAlias = Callable[..., Array]

# --- The covering number of the robust losses -----------------------------------------------------

STRICT = (ENTROPIC, QUADRATIC, *(cressie_read(k) for k in (0.5, 0.0, 1.5, 3.0)))
"""Strictly convex, as the paper's proposition asks."""


@claim(
    "Proposition 5",
    id="I1",
    verdict=Verdict.HOLDS,
    formula=(
        r"\mathcal{N}(\mathcal{G}_{adv|S}, \epsilon, |\cdot|) \le \mathcal{N}(\mathcal{G}_{|S}, \epsilon, "
        r"\|\cdot\|_\infty)"
    ),
    assumptions="phi strictly convex; losses in [0, 1]",
    examples=60,
    family=classes(),
    eta=powers_of_ten(-3, 2),
    phi=st.sampled_from(STRICT),
)
def covering_of_robust_losses(
    family: list[list[list[float]]], eta: float, phi: Divergence, solve: Solver = worst_case
) -> Iterator[Evidence]:
    """The robust losses of a class are covered by as many centres as its losses on the ball."""
    yield from robust_class_is_no_richer(family, eta, phi, solve)


covering_of_robust_losses.mutant("doubles the losses")(with_losses(lambda losses: 2 * losses))


# --- The divergence in the proof ------------------------------------------------------------------


@claim(
    "Proof of Proposition 5",
    id="I2",
    verdict=Verdict.CORRECTED,
    formula=(
        r"T(g) = \sup_P \left\{ \mathbb{E}_P[g] - \eta\, \mathbb{E}_{b \sim P}\left[\phi\left("
        r"\frac{dP}{d\beta}(b)\right)\right] \right\}"
    ),
    assumptions="T(g) is the dual value; beta uniform on the ball of radius rho, B_1(0) in the proof",
    quote=r"$\bE_{\bP}[g] - \eta\bE_{b\sim\bP}"
    r"\left[\phi\left(\frac{\diff\bP(b)}{\diff\beta(b)}\right)\right]$",
    correction="the expectation of phi is under beta, as in the Definition",
    assessment=Assessment(
        Kind.MISPRINT, Consequence.NONE, "The divergence is the expectation of phi under beta, not under P."
    ),
    corrected=(
        r"T(g) = \sup_P \left\{ \mathbb{E}_P[g] - \eta\, \mathbb{E}_{b \sim \beta}\left[\phi\left("
        r"\frac{dP}{d\beta}(b)\right)\right] \right\}"
    ),
    examples=25,
    problem=problems(max_size=4),
    phi=st.sampled_from([*STRICT[:3], ABSOLUTE, HINGE, indicator(0.5)]),
)
def divergence_under_beta(
    problem: Problem, phi: Divergence, objective: Value = primal_value
) -> Iterator[Evidence]:
    """T(g) is the value of the primal problem, whose divergence is an expectation under beta."""
    instance = (problem.eta, phi.family or "", phi.parameter, problem.p)
    best = worst_case(problem.losses, problem.eta, phi, p=problem.law)
    reached = float(objective(problem.losses, best.weights, problem.eta, phi, p=problem.law))
    exact = solve_exactly(problem.f, *instance).value
    # Rounding in the weights costs eta times phi' where phi is not flat.
    slack = primal_tolerance(problem, phi) + 2.0**-40 * problem.spread
    yield Evidence(abs(definitions.difference(reached, exact)), slack, "the primal at its worst case")
    dual = definitions.dual_minimum(problem.f, *instance)
    slack = value_tolerance(problem) + 1e-18 * problem.eta
    yield Evidence(abs(definitions.difference(dual, exact)), slack, "T(g) and the primal, exactly")


def under_the_worst_case(
    losses: Array, weights: Array, eta: float, phi: Divergence, p: Array | None = None
) -> Array:
    """The printed objective, with phi averaged under P itself."""
    xp = array_namespace(losses)
    law = xp.full_like(losses, 1 / losses.shape[-1]) if p is None else p / xp.sum(p)
    charged = weights > 0
    ratio = xp.where(charged, weights / xp.where(law > 0, law, xp.ones_like(law)), xp.ones_like(law))
    cost = xp.where(charged, weights * phi.phi(ratio), xp.zeros_like(law))
    return xp.sum(weights * losses, axis=-1) - eta * xp.sum(cost, axis=-1)


ZERO_ONE = (0.0, 1.0)


def _within_printed_divergence() -> Iterator[Evidence]:
    yield from strongly_convex(QUADRATIC, 1.0)  # hence strictly convex
    inside = all(0 <= v <= 1 for v in ZERO_ONE)
    yield from each(("phi that of Example 3", QUADRATIC.name == "quadratic"), ("losses in [0, 1]", inside))


@divergence_under_beta.counterexample(margin=0.08, meets=_within_printed_divergence)
def _printed_divergence() -> Iterator[Evidence]:
    # f = (0, 1), quadratic phi, eta = 1: the printed objective at P = (1/2 - e, 1/2 + e) is 1/2 + e - 6 e^2.
    q = np.linspace(0, 1, 2401)
    xp = active().namespace
    weights = array(np.stack([1 - q, q], axis=-1))
    highest = float(xp.max(under_the_worst_case(array(ZERO_ONE), weights, 1.0, QUADRATIC)))
    true = float(definitions.dual_minimum(ZERO_ONE, 1.0, "quadratic"))
    yield Evidence(
        true - highest,
        0.0,
        "f = (0, 1) with probability 1/2 each, Example 3, eta = 1: at P = (1/2 - e, 1/2 + e) the printed "
        f"objective is 1/2 + e - 6 e^2, at most {highest:.6f}; T = 5/8 = {true:.6f}",
    )
    weights, zero = array([0.9, 0.1]), array([0.0, 0.0])
    right = -float(primal_value(zero, weights, 1.0, QUADRATIC))
    printed = -float(under_the_worst_case(zero, weights, 1.0, QUADRATIC))
    yield Evidence(
        printed - right,
        0.0,
        f"P = (0.9, 0.1), beta = (1/2, 1/2): the divergence is ((1.8^2 - 1) + (0.2^2 - 1))/4 = {right:.4g}; "
        f"as printed it is 0.9 (1.8^2 - 1)/2 + 0.1 (0.2^2 - 1)/2 = {printed:.4g}",
    )


divergence_under_beta.mutant("the printed expectation")(under_the_worst_case)

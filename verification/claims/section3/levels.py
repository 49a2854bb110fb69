"""Section 3, Lemma EC.5 for Theorem 3: bias, second moment and smoothness of the levels."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from math import exp

import numpy as np
from hypothesis import strategies as st

from phiball.refimpl import ENTROPIC, worst_case
from phiball.refimpl.sampling import signed_weights
from phiball.verification.framework.assessment import Assessment, Consequence, Kind
from phiball.verification.framework.claim import claim
from phiball.verification.framework.evidence import Curve, Evidence, Verdict
from phiball.verification.instances.assumptions import in_the_definition, on_an_interval
from phiball.verification.instances.enumeration import (
    ENUMERATED,
    LEVELS,
    Bound,
    Weights,
    difference_moment,
    gradient_error,
    level_mean,
)
from phiball.verification.instances.loss_distributions import (
    BOUNDED,
    LIPSCHITZ,
    TWO_POINTS,
    DiscreteDistribution,
    QuadraticLosses,
    Smoothness,
    bounded_distributions,
    gradient_change,
    quadratic_losses,
)
from phiball.verification.instances.solutions import Solver
from phiball.verification.instances.solver_mutants import with_answer, with_eta, without_halves
from phiball.verification.oracles.exact_levels import two_point_level


def _level_curve(title: str, y_label: str, y: list[float], bound: Bound) -> Curve:
    """The curve of y over 2^l for l in LEVELS, with the bound for the two-point distribution."""
    limits = [bound(TWO_POINTS, k) for k in LEVELS]
    points = tuple(2.0**k for k in LEVELS)
    return Curve(title, "2^l", y_label, "printed bound", points, tuple(y), tuple(limits))


def _agrees_with_oracle(name: str, computed: list[float], exact: list[float]) -> Evidence:
    """Compare enumerated levels of the two-point distribution with the binomial sums of the oracle."""
    error = float(np.max(np.abs(np.array(computed) - np.array(exact))))
    return Evidence(error, TWO_POINTS.rounding, f"{name} minus its binomial sum")


# --- The value ------------------------------------------------------------------------------------


def value_bound(distribution: DiscreteDistribution, level: int) -> float:
    """The bound of Lemma EC.5 (I)."""
    return distribution.eta * distribution.growth(2) * 2.0 ** -(level + 1)


@claim(
    "Lemma EC.5 (I), bias of the value",
    id="G1",
    verdict=Verdict.HOLDS,
    formula=r"\left| F^{\ell}(\theta) - F(\theta) \right| \le \eta e^{2B/\eta} \cdot 2^{-(\ell+1)}",
    assumptions=BOUNDED,
    distribution=bounded_distributions(),
    level=st.integers(0, 3),
)
def value_bias_is_bounded(
    distribution: DiscreteDistribution, level: int, solve: Solver = worst_case, bound: Bound = value_bound
) -> Evidence:
    """F^l is within eta e^(2B/eta)/2^(l+1) of F."""
    value, _ = level_mean(distribution, level, solve)
    return Evidence.at_most(
        abs(value - distribution.limit[0]),
        bound(distribution, level),
        distribution.eta * distribution.rounding,
    )


@claim(
    "Lemma EC.5 (I), bias of the value",
    id="G1-rate",
    part_of="G1",
    verdict=Verdict.HOLDS,
    formula=r"\left| F^{\ell}(\theta) - F(\theta) \right| = O(2^{-\ell})",
    assumptions="f = 0 or 1 with equal probabilities, eta = 1; l = 0, ..., 8 by binomial sums",
)
def value_bias_rate(solve: Solver = worst_case, bound: Bound = value_bound) -> Iterator[Evidence | Curve]:
    """The bias of the value of level l decreases like 2^-l and is below the bound."""
    values = [level_mean(TWO_POINTS, k, solve)[0] for k in LEVELS]
    yield _agrees_with_oracle("F^l", values, [two_point_level(k, 0.5, 1.0).value for k in LEVELS])
    F = TWO_POINTS.limit[0]
    curve = _level_curve("bias of the value", "F - F^l", [F - v for v in values], bound)
    yield curve
    yield curve.below_bound()
    yield curve.exactly(-1, 0.03)  # 2^l (F - F^l) decreases from 0.120 to its limit 0.107


# --- The gradient ---------------------------------------------------------------------------------


def squared_bound(distribution: DiscreteDistribution, level: int) -> float:
    """The bound of Lemma EC.5 (II) and (III)."""
    return distribution.lipschitz**2 * distribution.growth(4) * 2.0**-level


@claim(
    "Lemma EC.5 (II), bias of the gradient",
    id="G2",
    verdict=Verdict.HOLDS,
    formula=r"\left\| \nabla F^{\ell}(\theta) - \nabla F(\theta) \right\|_2^2"
    r" \le L_f^2 e^{4B/\eta} \cdot 2^{-\ell}",
    assumptions=LIPSCHITZ,
    distribution=bounded_distributions(),
    level=st.integers(0, 3),
)
def gradient_bias_is_bounded(
    distribution: DiscreteDistribution, level: int, solve: Solver = worst_case, bound: Bound = squared_bound
) -> Evidence:
    """The squared bias of the gradient of level l is at most L_f^2 e^(4B/eta)/2^l."""
    error = gradient_error(distribution, level, solve)
    return Evidence.at_most(
        error, bound(distribution, level), distribution.lipschitz**2 * distribution.rounding
    )


@claim(
    "Lemma EC.5 (II), bias of the gradient",
    id="G2-rate",
    part_of="G2",
    verdict=Verdict.HOLDS,
    formula=r"\left\| \nabla F^{\ell}(\theta) - \nabla F(\theta) \right\|_2^2 = O(2^{-\ell})",
    assumptions="f = 0 or 1 with equal probabilities and gradients -1 or 1, eta = 1; l = 0, ..., 8",
)
def gradient_bias_rate(
    solve: Solver = worst_case, bound: Bound = squared_bound
) -> Iterator[Evidence | Curve]:
    """The squared bias of the gradient decreases at least like 2^-l and is below the bound."""
    gradients = [float(level_mean(TWO_POINTS, k, solve)[1][0]) for k in LEVELS]
    yield _agrees_with_oracle("grad F^l", gradients, [two_point_level(k, 0.5, 1.0).gradient for k in LEVELS])
    errors = [gradient_error(TWO_POINTS, k, solve) for k in LEVELS]
    curve = _level_curve("squared bias of the gradient", "|grad F^l - grad F|^2", errors, bound)
    yield curve
    yield curve.below_bound()
    yield curve.at_most(-1, 0.0)


# --- The differences ------------------------------------------------------------------------------


@claim(
    "Lemma EC.5 (III), second moment of a level",
    id="G3",
    verdict=Verdict.HOLDS,
    formula=r"\mathbb{E} \left\| G^{\ell}(\theta, \zeta^{\ell}) \right\|_2^2"
    r" \le L_f^2 e^{4B/\eta} \cdot 2^{-\ell}",
    assumptions=LIPSCHITZ,
    distribution=bounded_distributions(),
    level=st.integers(0, 3),
)
def difference_is_bounded(
    distribution: DiscreteDistribution,
    level: int,
    weights: Weights = signed_weights,
    bound: Bound = squared_bound,
) -> Evidence:
    """The second moment of G^l is at most L_f^2 e^(4B/eta)/2^l."""
    moment = difference_moment(distribution, level, weights)
    return Evidence.at_most(
        moment, bound(distribution, level), distribution.lipschitz**2 * distribution.rounding
    )


@claim(
    "Lemma EC.5 (III), second moment of a level",
    id="G3-rate",
    part_of="G3",
    verdict=Verdict.HOLDS,
    formula=r"\mathbb{E} \left\| G^{\ell}(\theta, \zeta^{\ell}) \right\|_2^2 = O(2^{-\ell})",
    assumptions="f = 0 or 1 with equal probabilities and gradients -1 or 1, eta = 1; l = 0, ..., 8",
)
def difference_rate(
    weights: Weights = signed_weights, bound: Bound = squared_bound
) -> Iterator[Evidence | Curve]:
    """The second moment of G^l decreases at least like 2^-l and is below the bound."""
    exact = [two_point_level(k, 0.5, 1.0).moment for k in LEVELS]
    moments: list[float] = []
    for k in ENUMERATED:
        moments.append(difference_moment(TWO_POINTS, k, weights))
        yield _agrees_with_oracle(f"E|G^{k}|^2", moments[-1:], exact[k : k + 1])
    moments += exact[len(moments) :]
    curve = _level_curve("second moment of a level", "E|G^l|^2", moments, bound)
    yield curve
    yield curve.below_bound()
    yield curve.at_most(-1, 0.0)


# --- Smoothness -----------------------------------------------------------------------------------


def _smoothness(S: float, L: float, ratio: float, eta: float) -> float:
    """(S + L^2/eta) e^ratio + (L^2/eta) e^(2 ratio), where ratio = B/eta."""
    return (S + L**2 / eta) * exp(ratio) + L**2 / eta * exp(2 * ratio)


def corrected_smoothness(f: QuadraticLosses) -> float:
    """(S_f + L_f^2/eta) e^(B/eta) + (L_f^2/eta) e^(2B/eta)."""
    return _smoothness(f.smoothness, f.lipschitz, f.ratio, f.eta)


@claim(
    "Lemma EC.5 (IV), smoothness of a level",
    id="G4",
    verdict=Verdict.CORRECTED,
    formula=r"\overline{S} = (S_f^2 + L_f^2/\eta) e^{B/\eta} + L_f^2/\eta \, e^{2B/\eta}",
    assumptions="0 <= f <= B, f is L_f-Lipschitz and S_f-smooth in theta; the entropic phi",
    quote=r"$\overline{S}:=(S_f^2 + L_f^2/\eta)e^{B/\eta} + L_f^2/\eta e^{2B/\eta}.$",
    correction="S_f in place of S_f^2; in fact S_f + L_f^2/eta is sufficient (G4-sharp)",
    assessment=Assessment(
        Kind.MISPRINT,
        Consequence.NONE,
        "S_f^2 and L_f^2/eta have different units; if S_f < 1, the printed constant can be too small.",
    ),
    corrected=r"\overline{S} = (S_f + L_f^2/\eta) e^{B/\eta} + L_f^2/\eta \, e^{2B/\eta}",
    examples=120,
    f=quadratic_losses().filter(lambda f: f.ratio <= 100),
    places=st.tuples(st.floats(-1, 1), st.floats(-1, 1)),
)
def level_is_smooth(
    f: QuadraticLosses,
    places: tuple[float, float],
    solve: Solver = worst_case,
    smoothness: Smoothness = corrected_smoothness,
) -> Evidence:
    """Every F^l is S-smooth with S = (S_f + L_f^2/eta) e^(B/eta) + (L_f^2/eta) e^(2B/eta)."""
    change, distance = gradient_change(f, places, solve)
    S = smoothness(f)
    note = f"the gradient changes by {change:.4g} over a distance of {distance:.4g}; bound {S * distance:.4g}"
    return Evidence.at_most(change, S * distance, f.rounding, note)


@level_is_smooth.counterexample(
    margin=0.01,
    meets=lambda: chain(
        in_the_definition(ENTROPIC),
        on_an_interval(lambda t: 0.05 * t * t, -0.1, 0.1, lipschitz=0.01, smooth=0.1, between=(0.0, 0.0005)),
    ),
)
def _flat_parabola() -> Evidence:
    f = QuadraticLosses(((0.0, 0.0, 0.1),), 0.1, 1.0)
    printed = _smoothness(f.smoothness**2, f.lipschitz, f.ratio, f.eta)
    change, distance = gradient_change(f, (-1.0, 1.0), worst_case)
    return Evidence(
        change - printed * distance,
        0.0,
        "f = 0.05 theta^2 on Theta = [-0.1, 0.1], so S_f = 0.1, L_f = 0.01, B = 0.0005, eta = 1: the "
        f"printed constant is {printed:.4g}, but the gradient 0.1 theta has Lipschitz constant "
        f"{change / distance:.4g}",
    )


# --- Mutants --------------------------------------------------------------------------------------


value_bias_is_bounded.mutant("adds the logarithm of the number of points", replaces="solve")(
    with_answer(value=lambda s, losses: s.value + np.log(losses.shape[-1]))
)
value_bias_rate.mutant("doubles eta", replaces="solve")(with_eta(lambda eta: 2 * eta))
gradient_bias_rate.mutant("doubles eta", replaces="solve")(with_eta(lambda eta: 2 * eta))


@gradient_bias_is_bounded.mutant("has a constant that decreases with B", replaces="bound")
@difference_is_bounded.mutant("has a constant that decreases with B", replaces="bound")
def _(distribution: DiscreteDistribution, level: int) -> float:
    return distribution.lipschitz**2 * distribution.growth(-4) * 2.0**-level


difference_is_bounded.mutant("does not subtract the halves", replaces="weights")(without_halves)
difference_rate.mutant("does not subtract the halves", replaces="weights")(without_halves)


@level_is_smooth.mutant("the printed constant", replaces="smoothness")
def _(f: QuadraticLosses) -> float:
    return _smoothness(f.smoothness**2, f.lipschitz, f.ratio, f.eta)

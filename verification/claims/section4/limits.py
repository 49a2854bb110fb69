"""Section 4 of the paper, Theorem 4: the three limits of the regulariser as rho and eta vanish."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf, sqrt

import numpy as np

from phiball.backends import Array
from phiball.refimpl import ABSOLUTE, ENTROPIC, HINGE, QUADRATIC, Ball, Divergence, r1, r2, surrogate
from phiball.verification.framework.assessment import Assessment, Consequence, Kind
from phiball.verification.framework.claim import claim
from phiball.verification.framework.evidence import Curve, Evidence, Verdict
from phiball.verification.instances.arrays import array, mean
from phiball.verification.instances.assumptions import in_the_definition
from phiball.verification.instances.divergences import absolute_on
from phiball.verification.instances.regularizers import (
    DATA,
    GRADIENTS,
    PLANE_BEND,
    PLANE_GRADIENTS,
    Linear,
    Variation,
    plane_regulariser,
    shortfall_of_r1,
)
from phiball.verification.instances.tolerances import QUADRATURE
from phiball.verification.oracles.effects import line_risk, parabola

S = 3.0  # abs(f'') <= 3
FOUR = (ENTROPIC, QUADRATIC, ABSOLUTE, HINGE)


def true_regulariser(rho: float, eta: float, phi: Divergence) -> float:
    """E = the mean of R(f; z) - f(z) over the two data points."""

    def at(z: float) -> float:
        return line_risk(
            lambda b: np.sin(z + b) - np.sin(z) + b * (2 * z + b),
            (-rho, rho),
            eta,
            phi.family or "",
            phi.parameter,
        )

    return float(np.mean([at(z) for z in DATA]))


# --- rho/eta -> C ---------------------------------------------------------------------------------


@claim(
    "Theorem 4 (I)",
    id="H3",
    verdict=Verdict.HOLDS,
    formula=(
        r"\left| \mathcal{E}(f;\rho,\eta) - \mathcal{R}_1(f;\rho,\eta) \right| = o(\rho) \quad "
        r"(\rho/\eta \to C)"
    ),
    assumptions="the gradient of f is Lipschitz; rho, eta -> 0; two data points each of sin z + z^2 on a "
    "line "
    "and of sin(x) cos(y) + x y/2 in the plane",
)
def r1_at_a_fixed_ratio(regulariser: Linear = r1) -> Iterator[Evidence | Curve]:
    """With rho/eta -> C, R1 is the regulariser up to o(rho), and up to O(rho^2) if the ratio is C."""
    C = 2.0
    scales = tuple(10 ** (-k / 2) for k in range(3, 9))
    g = array([[v] for v in GRADIENTS])

    def error(rho: float, ratio: float, phi: Divergence) -> float:
        return abs(true_regulariser(rho, rho / ratio, phi) - mean(regulariser(g, Ball(2, rho), C, phi)))

    for phi in FOUR:
        curve = Curve(
            f"E - R1 at rho/eta = {C:g}, {phi.name} phi",
            "rho",
            "abs(E - R1)",
            "E[S] rho^2, the paper's linearisation",
            scales,
            tuple(error(rho, C, phi) for rho in scales),
            tuple(S * rho**2 for rho in scales),
        )
        yield curve
        # f has a third derivative, which moves the error by a part of about rho.
        yield curve.exactly(2.0, 0.02)
        yield curve.below_bound()
    plane = array(PLANE_GRADIENTS)
    for phi, ratio in ((ENTROPIC, 2.0), (QUADRATIC, 0.5)):  # the oracle needs a large eta for the second
        curve = Curve(
            f"E - R1 in the plane, rho/eta = {ratio:g}, {phi.name} phi",
            "rho",
            "abs(E - R1)",
            "E[S] rho^2, the paper's linearisation",
            scales,
            tuple(
                abs(
                    plane_regulariser(rho, rho / ratio, phi.family or "")
                    - mean(regulariser(plane, Ball(2, rho), ratio, phi))
                )
                for rho in scales
            ),
            tuple(PLANE_BEND * rho**2 for rho in scales),
        )
        yield curve
        yield curve.exactly(2.0, 0.05)
        yield curve.below_bound()
    curve = Curve(
        "E - R1 at rho/eta = C (1 + sqrt(rho)), entropic phi",
        "rho",
        "abs(E - R1)",
        "rho: the paper's o(rho) must fall faster",
        scales,
        tuple(error(rho, C * (1 + sqrt(rho)), ENTROPIC) for rho in scales),
        scales,
    )
    yield curve
    # rho abs(rho/eta - C) is rho^1.5, with rho^2 beside it, a fifth of it at the first scale.
    yield curve.exactly(1.5, 0.1)
    yield curve.below_bound()


@r1_at_a_fixed_ratio.mutant("takes C for 1/C")
def _(g: Array, ball: Ball, C: float, phi: Divergence) -> Array:
    return r1(g, ball, 1 / C, phi)


# --- rho/eta -> infinity --------------------------------------------------------------------------


HALF = absolute_on(0.5)
"""Finite at large x, as Assumption 1 (I) wants it, and infinite near 0."""


@claim(
    "Theorem 4 (II)",
    id="H4",
    verdict=Verdict.CORRECTED,
    formula=(
        r"\left| \mathcal{E}(f;\rho,\eta) - \mathcal{R}_2(f;\rho,\eta) \right| = o(\rho) \quad "
        r"(\rho/\eta \to \infty)"
    ),
    assumptions="the gradient of f is Lipschitz; rho, eta -> 0; Assumption 1 on phi",
    quote=r"When $\rho/\eta\to\infty$ and suppose additionally Assumption~\ref{Assumption:divergence} holds, "
    r"then",
    correction="true if phi is finite on (0, inf), as in Examples 2 to 5",
    assessment=Assessment(
        Kind.ASSUMPTION,
        Consequence.RESULT,
        "It repeats the argument of Proposition 1, and needs the same condition on phi near 0.",
        follows=("B1",),
    ),
    corrected=(
        r"(0,\infty) \subseteq \mathrm{dom}\,\phi \;\Rightarrow\; \left| \mathcal{E} - \mathcal{R}_2 \right| "
        r"= o(\rho)"
    ),
)
def r2_at_a_large_ratio(regulariser: Variation = r2) -> Iterator[Evidence | Curve]:
    """With rho/eta -> infinity, the dual norm of the gradient is the regulariser up to o(rho)."""
    scales = tuple(10.0**-k for k in (2, 3, 4, 5, 6))
    g = array([[v] for v in GRADIENTS])
    rates = {ENTROPIC: -0.4, QUADRATIC: -0.25, ABSOLUTE: -0.5, HINGE: -0.5}
    for phi in FOUR:
        # eta = rho^1.5, so that rho/eta = rho^-0.5 and eta is larger than the error of linearisation.
        y = [abs(true_regulariser(rho, rho**1.5, phi) - mean(regulariser(g, Ball(2, rho)))) for rho in scales]
        bound = [
            S * rho + float(np.mean([shortfall_of_r1(v, rho**-0.5, phi) for v in GRADIENTS]))
            for rho in scales
        ]
        curve = Curve(
            f"(E - R2)/rho at rho/eta = rho^-0.5, {phi.name} phi",
            "1/rho",
            "abs(E - R2)/rho",
            "E[S] rho + what the linear risk lacks of the dual norm",
            tuple(1 / rho for rho in scales),
            tuple(v / rho for v, rho in zip(y, scales, strict=True)),
            tuple(bound),
        )
        yield curve
        # In C = rho/eta: log(C)/C, C^-1/2, 1/C, 1/C. The logarithm costs a fifth of the first exponent, and
        # the curvature, rho beside rho^0.5, 0.014 of the last.
        yield curve.at_most(rates[phi], 0.02)
        yield curve.below_bound(QUADRATURE)
    box = [(1.0, 1.0), (-2.0, 2.0)]
    y = [sum(line_risk(*parabola(a, b, rho), rho**1.5, "entropic") for a, b in box) for rho in scales]
    R2 = [mean(regulariser(array([[a for a, _ in box]]), Ball(inf, rho))) for rho in scales]
    curve = Curve(
        "(E - R2)/rho at rho/eta = rho^-0.5, entropic phi, norm inf in the plane",
        "1/rho",
        "abs(E - R2)/rho",
        "E[S] rho + what the linear risk lacks of the dual norm",
        tuple(1 / rho for rho in scales),
        tuple(abs(a - b) / rho for a, b, rho in zip(y, R2, scales, strict=True)),
        tuple(3 * rho + sum(shortfall_of_r1(a, rho**-0.5, ENTROPIC) for a, _ in box) for rho in scales),
    )
    yield curve
    yield curve.at_most(-0.4, 0.02)
    yield curve.below_bound(QUADRATURE)


@r2_at_a_large_ratio.counterexample(margin=0.49, meets=lambda: in_the_definition(HALF))
def _infinite_near_zero() -> Iterator[Evidence]:
    C = 1e4
    g = array([[1.0]])
    got = mean(surrogate(g, Ball(2, 1.0), 1 / C, HALF))
    # At mu = 1 - 1/C the dual integrand is x above 1 - 2/C, and (x + 1 - 2/C)/2 below.
    exact = 1 - 2 / C - ((2 - 2 / C) ** 2 / 4 - (2 / C) ** 2 / 2) / 2
    printed = mean(r2(g, Ball(2, 1.0)))
    yield Evidence(
        printed - exact,
        0.0,
        "phi = abs(x - 1) on [1/2, inf), f = z, rho/eta = 1e4: half of the uniform law on [-1, 1] stays, so "
        f"that E/rho is below 1/2: {exact:.4f}, and R2/rho = {printed:g}",
    )
    yield Evidence(printed - got, 0.0, f"the library finds the same: {got:.4f}")


@r2_at_a_large_ratio.mutant("takes the norm itself, not its dual")
def _(g: Array, ball: Ball) -> Array:
    return ball.radius * ball.length(g)

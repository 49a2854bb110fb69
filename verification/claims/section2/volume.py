"""Section 2 of the paper: the volume of the ball on which the reference law is uniform."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import exp, inf, sqrt

import numpy as np

from phiball.backends import active
from phiball.refimpl import Ball
from phiball.verification.framework.assessment import Assessment, Consequence, Kind, Reading
from phiball.verification.framework.claim import claim
from phiball.verification.framework.evidence import Evidence, Verdict
from phiball.verification.instances.assumptions import each
from phiball.verification.instances.tolerances import NORMAL_QUANTILE, ROUNDING, TEST_LEVEL
from phiball.verification.oracles import uniform

POINTS = 20_000


def volume_in_space(ball: Ball, d: int) -> float:
    """The library's volume of the ball in R^d."""
    return exp(ball.log_volume(d))


@claim(
    "Eq. (4)",
    id="A5",
    verdict=Verdict.CORRECTED,
    formula=r"\text{vol}(B_\rho(z)) = V_\rho\ \text{for every}\ z\in Z,\quad"
    r" B_\rho(z)=\{z'\in Z:\ \|z'-z\|\le\rho\}",
    quote=r"since the volume of $\mathbb{B}_{\rho}(z)$ is independent of the choice of $z$",
    correction="true if Z is all of R^d; else V_rho is to be V_rho(z)",
    assessment=Assessment(
        Kind.ASSUMPTION,
        Consequence.NONE,
        "The ball is that part of it which lies in Z, and at the border of Z a part is cut off.",
        reading="the ball is cut off at the border of Z, as where the introduction defines it",
        others=(Reading("no ball around a data point reaches the border of Z", "true"),),
    ),
    corrected=r"Z=\mathbb{R}^d:\quad \text{vol}(B_\rho(z)) = \rho^d\,\text{vol}(B_1(0))",
    error_level=18 * TEST_LEVEL,
)
def volume_does_not_depend_on_the_centre(
    volume: Callable[[Ball, int], float] = volume_in_space, seed: int = 0
) -> Iterator[Evidence]:
    """In R^d the ball has one volume around every z, that of the textbook."""
    rng = np.random.default_rng(seed)
    xp = active().namespace
    for norm in (1.0, 2.0, inf):
        for d in (1, 2, 4):
            ball = Ball(norm, 0.45)
            got, exact = volume(ball, d), float(uniform.volume(norm, 0.45, d))
            yield Evidence(abs(got - exact), ROUNDING * exact, f"norm {norm}, d = {d}: {got:.6g}")
            share = got / 0.9**d
            for centre in (0.0, 10.0):
                cube = centre + rng.uniform(-0.45, 0.45, size=(POINTS, d))
                inside = ball.contains(xp.asarray(cube), xp.full((d,), centre, dtype=xp.float64))
                hits = int(xp.sum(xp.astype(inside, xp.int64)))
                spread = sqrt(max(share * (1 - share), 0.0) / POINTS)
                off = abs(hits / POINTS - share)
                yield Evidence(
                    off, NORMAL_QUANTILE * spread + ROUNDING, f"norm {norm}, d = {d}, around {centre}"
                )


CENTRES, RADIUS = (0.0, 0.5), 0.2


def _within_interval() -> Iterator[Evidence]:
    inside = all(0 <= z <= 1 for z in CENTRES)
    yield from each(("both centres lie in Z = [0, 1], which is closed", inside), ("rho > 0", RADIUS > 0))


@volume_does_not_depend_on_the_centre.counterexample(margin=0.19, meets=_within_interval)
def _interval() -> Evidence:
    rho = RADIUS
    inside = [min(z + rho, 1.0) - max(z - rho, 0.0) for z in CENTRES]
    return Evidence(
        inside[1] - inside[0],
        0.0,
        f"Z = [0, 1], rho = {rho}: the ball around 0 is [0, 0.2], of length {inside[0]:.4g}, that around 1/2 "
        f"is [0.3, 0.7], of length {inside[1]:.4g}",
    )


@volume_does_not_depend_on_the_centre.mutant("takes the Euclidean ball for every norm")
def _(ball: Ball, d: int) -> float:
    return exp(Ball(2, ball.radius).log_volume(d))

"""One table of norms, and the distributions and estimators that tests draw with."""

from __future__ import annotations

from math import inf

from phiball.refimpl import RTMLMC, SG, Ball, Gaussian

NORMS = (1, 2, inf)
"""Those with a projection and a tilted distribution in closed form."""
ANY_NORM = (*NORMS, 1.5, 3)
"""Also one on each side of 2 between them."""
LARGE_NORM = 60
"""Close to the maximum norm, where powers may underflow."""


def distributions(radius: float, deviation: float | None = None) -> list[Ball | Gaussian]:
    """A ball of each norm in closed form, and a Gaussian distribution."""
    return [*(Ball(norm, radius) for norm in NORMS), Gaussian(radius if deviation is None else deviation)]


DISTRIBUTIONS = distributions(0.5)
ESTIMATORS = (SG(0), SG(3), RTMLMC(4), RTMLMC(4, "stratified"))
EVENTS = ((), (5,), (4, 3), (2, 6, 6))
"""Shapes of one data point."""

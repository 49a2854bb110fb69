"""Norms, distributions and estimators for tests."""

from math import inf

from phiball.refimpl import RTMLMC, SG, Ball, Gaussian

NORMS = (1, 2, inf)
"""Norms that support projections and tilted samples."""
ANY_NORM = (*NORMS, 1.5, 3)
"""NORMS, and one more exponent on each side of 2."""
LARGE_NORM = 60
"""An exponent so large that powers may underflow."""


def distributions(radius: float, deviation: float | None = None) -> list[Ball | Gaussian]:
    """A ball for each of NORMS, and a Gaussian."""
    return [*(Ball(norm, radius) for norm in NORMS), Gaussian(radius if deviation is None else deviation)]


DISTRIBUTIONS = distributions(0.5)
ESTIMATORS = (SG(0), SG(3), RTMLMC(4), RTMLMC(4, "stratified"))
EVENTS = ((), (5,), (4, 3), (2, 6, 6))
"""Shapes of one data point."""

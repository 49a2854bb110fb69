"""The mathematics of phi-divergence regularised adversarial learning, one file a concept."""

from phiball.refimpl.balls import Ball, Gaussian
from phiball.refimpl.check import check_divergence
from phiball.refimpl.divergences import (
    ABSOLUTE,
    ENTROPIC,
    HINGE,
    QUADRATIC,
    Divergence,
    cressie_read,
    indicator,
)
from phiball.refimpl.worst_case import WorstCase, bisection, dual_value, primal_value, worst_case

__all__ = [
    "ABSOLUTE",
    "ENTROPIC",
    "HINGE",
    "QUADRATIC",
    "Ball",
    "Divergence",
    "Gaussian",
    "WorstCase",
    "bisection",
    "check_divergence",
    "cressie_read",
    "dual_value",
    "indicator",
    "primal_value",
    "worst_case",
]

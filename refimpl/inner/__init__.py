"""The inner problem: the worst-case distribution of a row of losses, with a certificate."""

from phiball.refimpl.inner.divergence_check import check_divergence
from phiball.refimpl.inner.divergences import (
    ABSOLUTE,
    ENTROPIC,
    HINGE,
    QUADRATIC,
    Divergence,
    cressie_read,
    hockey_stick,
    indicator,
)
from phiball.refimpl.inner.duality import bisection, dual_value, primal_value
from phiball.refimpl.inner.jvp import WorstCaseTangent, worst_case_jvp
from phiball.refimpl.inner.worst_case import WorstCase, worst_case

__all__ = [
    "ABSOLUTE",
    "ENTROPIC",
    "HINGE",
    "QUADRATIC",
    "Divergence",
    "WorstCase",
    "WorstCaseTangent",
    "bisection",
    "check_divergence",
    "cressie_read",
    "dual_value",
    "hockey_stick",
    "indicator",
    "primal_value",
    "worst_case",
    "worst_case_jvp",
]

"""The inner problem: the worst-case distribution of a row of losses, with a certificate."""

from phiball.refimpl.inner.check import check_divergence
from phiball.refimpl.inner.constrained import ConstrainedWorstCase, constrained_worst_case
from phiball.refimpl.inner.divergences import (
    ABSOLUTE,
    ENTROPIC,
    HINGE,
    QUADRATIC,
    Divergence,
    cressie_read,
    indicator,
)
from phiball.refimpl.inner.products import WorstCaseTangent, worst_case_jvp
from phiball.refimpl.inner.ragged import worst_case_ragged
from phiball.refimpl.inner.worst_case import (
    WorstCase,
    bisection,
    dual_value,
    primal_value,
    worst_case,
)

__all__ = [
    "ABSOLUTE",
    "ENTROPIC",
    "HINGE",
    "QUADRATIC",
    "ConstrainedWorstCase",
    "Divergence",
    "WorstCase",
    "WorstCaseTangent",
    "bisection",
    "check_divergence",
    "constrained_worst_case",
    "cressie_read",
    "dual_value",
    "indicator",
    "primal_value",
    "worst_case",
    "worst_case_jvp",
    "worst_case_ragged",
]

"""Risks of a model: regularized, adversarial and budgeted, and the worst-case density."""

from phiball.refimpl.risk.adversarial_risk import AdversarialRisk, adversarial_risk
from phiball.refimpl.risk.constrained import ConstrainedRisk, constrained_risk
from phiball.refimpl.risk.density import (
    Density,
    Draws,
    worst_case_density,
    worst_case_sample,
)
from phiball.refimpl.risk.quadrature import Integral, Quadrature, integrated_risk, quadrature
from phiball.refimpl.risk.robust_risk import Estimate, robust_risk

__all__ = [
    "AdversarialRisk",
    "ConstrainedRisk",
    "Density",
    "Draws",
    "Estimate",
    "Integral",
    "Quadrature",
    "adversarial_risk",
    "constrained_risk",
    "integrated_risk",
    "quadrature",
    "robust_risk",
    "worst_case_density",
    "worst_case_sample",
]

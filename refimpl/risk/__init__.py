"""Risks of a model: robust and adversarial risk, and the worst-case distribution."""

from phiball.refimpl.risk.adversarial_risk import AdversarialRisk, adversarial_risk
from phiball.refimpl.risk.density import (
    Density,
    WorstCaseSample,
    worst_case_density,
    worst_case_sample,
)
from phiball.refimpl.risk.estimate import Estimate
from phiball.refimpl.risk.quadrature import Quadrature, QuadratureRule, quadrature_rule
from phiball.refimpl.risk.robust_risk import robust_risk

__all__ = [
    "AdversarialRisk",
    "Density",
    "Estimate",
    "Quadrature",
    "QuadratureRule",
    "WorstCaseSample",
    "adversarial_risk",
    "quadrature_rule",
    "robust_risk",
    "worst_case_density",
    "worst_case_sample",
]

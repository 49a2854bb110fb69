"""Linear models: robust risks computed without sampling, and fits with a bound on their suboptimality."""

from phiball.refimpl.linear.fit import LinearModel, fit_linear_model
from phiball.refimpl.linear.losses import (
    LinearLoss,
    huber_loss,
    quantile_loss,
    smoothed_hinge_loss,
)
from phiball.refimpl.linear.problem import LinearProblem, Reweighting
from phiball.refimpl.linear.risk import LinearRisk, linear_model_risk

__all__ = [
    "LinearLoss",
    "LinearModel",
    "LinearProblem",
    "LinearRisk",
    "Reweighting",
    "fit_linear_model",
    "huber_loss",
    "linear_model_risk",
    "quantile_loss",
    "smoothed_hinge_loss",
]

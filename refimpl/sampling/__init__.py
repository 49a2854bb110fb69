"""Drawing perturbed points: gradient estimators and proposals."""

from phiball.refimpl.sampling.estimators import RTMLMC, SG, Level
from phiball.refimpl.sampling.pointwise_loss import PointwiseLoss, pointwise_loss
from phiball.refimpl.sampling.proposals import Tilted, Uniform
from phiball.refimpl.sampling.weights import signed_weights

__all__ = [
    "RTMLMC",
    "SG",
    "Level",
    "PointwiseLoss",
    "Tilted",
    "Uniform",
    "pointwise_loss",
    "signed_weights",
]

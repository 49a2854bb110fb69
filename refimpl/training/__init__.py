"""Losses for training a model."""

from phiball.refimpl.training.loss_check import check_loss
from phiball.refimpl.training.regularized_loss import RegularizedLoss, SignedPoints
from phiball.refimpl.training.robust_loss import RobustLoss

__all__ = [
    "RegularizedLoss",
    "RobustLoss",
    "SignedPoints",
    "check_loss",
]

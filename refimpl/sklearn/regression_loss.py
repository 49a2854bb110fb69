"""The loss by which a regressor is scored: a given one, or the loss that it minimizes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.base import is_classifier
from sklearn.linear_model import PoissonRegressor, QuantileRegressor

from phiball.refimpl.linear.losses import LinearLoss, quantile_loss, valid_loss
from phiball.refimpl.sklearn.base import RobustLinearModel


@dataclass(frozen=True)
class RegressionLoss:
    """A loss of predictions.

    Arguments:
    - `loss`: the loss as a function of the linear predictor, which is the logarithm of the prediction for the
      Poisson loss, and the prediction itself for all others.
    """

    loss: LinearLoss

    @property
    def factor(self) -> float:
        """scikit-learn's metric (squared error, deviance, ...) divided by the loss."""
        return 2.0 if self.loss.name in ("squared", "poisson") else 1.0

    def link(self, prediction: Any) -> Any:
        """The linear predictor that belongs to a prediction."""
        return np.log(np.maximum(prediction, 1e-300)) if self.loss.name == "poisson" else prediction

    def losses(self, prediction: Any, y: Any) -> Any:
        """The loss of each prediction for its target in y."""
        return self.loss.jet(self.link(np.asarray(prediction, dtype=np.float64)), y)[0]


def regression_loss(model: Any, loss: LinearLoss | str | None) -> RegressionLoss | None:
    """The loss of a regressor: `loss` if given, else the one that it minimizes; None for a classifier."""
    if loss is not None:
        found = valid_loss(loss)
        if not isinstance(found, LinearLoss) or "hinge" in found.name or found.name == "logistic":
            raise ValueError(f"loss is {loss!r}, a loss of classifiers; expected the loss of a regressor")
        if model is not None and is_classifier(model):
            raise ValueError(f"loss is {loss!r}, and the model is a classifier; expected None")
        return RegressionLoss(found)
    if model is None or is_classifier(model):
        return None
    last = model.steps[-1][1] if hasattr(model, "steps") else model
    name: LinearLoss | str = "poisson" if isinstance(last, PoissonRegressor) else "squared"
    if isinstance(last, RobustLinearModel):
        name = last._loss()
    elif isinstance(last, QuantileRegressor):
        name = quantile_loss(last.quantile)
    found = valid_loss(name)
    assert isinstance(found, LinearLoss)
    return RegressionLoss(found)

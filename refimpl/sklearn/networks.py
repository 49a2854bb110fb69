"""Networks of torch trained with `RegularizedLoss`, with the interface of scikit-learn by skorch."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from skorch import NeuralNetClassifier, NeuralNetRegressor
from skorch.dataset import unpack_data
from skorch.utils import to_tensor

from phiball.backends import input_gradient, rng
from phiball.refimpl.attacks import pgm
from phiball.refimpl.inner.divergences import Divergence
from phiball.refimpl.laws.balls import Ball
from phiball.refimpl.sampling.estimators import SG
from phiball.refimpl.sklearn.base import named_divergence
from phiball.refimpl.training.regularized_loss import RegularizedLoss


class _RobustNet:
    """A training step with the robust loss in place of the plain one; all else is skorch's.

    - `module`: a torch module, or its class. `criterion`: the loss, which is called with reduction="none".
    - `radius`, `norm`, `eta`, `divergence`: as in `RobustLinearModel`. `level`: 2^level points per example.
    - `seed`: of the perturbations; the weights of the network have that of torch.

    All other parameters are skorch's: max_epochs, lr, optimizer, batch_size, callbacks (EarlyStopping,
    ProgressBar), train_split, verbose; so are `partial_fit`, `save_params` and `history`.
    """

    radius: float
    norm: float
    eta: float
    divergence: str | Divergence
    level: int
    seed: int
    device: str

    def _settings(
        self, radius: float, norm: float, eta: float, divergence: str | Divergence, level: int, seed: int
    ) -> None:
        self.radius = radius
        self.norm = norm
        self.eta = eta
        self.divergence = divergence
        self.level = level
        self.seed = seed

    def initialize(self) -> Any:
        """Make the network, and the source of its perturbations."""
        super().initialize()  # type: ignore[misc]
        self.source_ = rng(self.seed)
        return self

    def __getstate__(self) -> Any:
        """All but the source of perturbations, which starts anew."""
        kept: Any = super().__getstate__()
        state = dict(kept)
        state.pop("source_", None)
        return state

    def __setstate__(self, state: Any) -> None:
        """The inverse of `__getstate__`."""
        super().__setstate__(state)  # type: ignore[misc]
        self.source_ = rng(self.seed)

    def _losses(self, yi: Any) -> Any:
        function: Any = type(self.criterion_)(reduction="none")  # type: ignore[attr-defined]

        def losses(z: Any, i: Any) -> Any:
            return function(self.infer(z), yi[i]).reshape(len(z), -1).mean(dim=1)  # type: ignore[attr-defined]

        return losses

    def train_step_single(self, batch: Any, **fit_params: Any) -> dict[str, Any]:
        """Leave the gradient of the robust loss of a batch."""
        self._set_training(True)  # type: ignore[attr-defined]
        Xi, yi = unpack_data(batch)
        Xi, yi = to_tensor(Xi, device=self.device), to_tensor(yi, device=self.device)
        objective = RegularizedLoss(
            Ball(self.norm, self.radius),
            eta=self.eta,
            divergence=named_divergence(self.divergence),
            estimator=SG(self.level),
        )
        loss = objective(self._losses(yi), Xi, rng=self.source_)
        loss.backward()
        with torch.no_grad():
            return {"loss": loss.detach(), "y_pred": self.infer(Xi)}  # type: ignore[attr-defined]

    def attack(self, X: Any, y: Any, ball: Ball) -> Any:
        """The points of the ball around each row of X that projected gradient steps find, in float64."""
        self._set_training(False)  # type: ignore[attr-defined]
        labels = np.searchsorted(self.classes_, y) if hasattr(self, "classes_") else np.asarray(y)
        kind = torch.int64 if hasattr(self, "classes_") else torch.float32
        targets = torch.as_tensor(labels, dtype=kind, device=self.device)
        if kind is torch.float32:
            targets = targets.reshape(len(X), -1)
        losses = self._losses(targets)
        points = torch.as_tensor(np.asarray(X, dtype=np.float32), device=self.device)

        def gradient(x: Any, i: Any) -> Any:
            return input_gradient(losses, x, i)

        found = pgm(gradient, points, ball, loss=losses, rng=rng(self.seed))
        return found.detach().cpu().numpy().astype(np.float64)


class RobustClassifier(_RobustNet, NeuralNetClassifier):  # type: ignore[misc]
    """A network of torch that classifies, trained against perturbed features; see `_RobustNet`.

    The module returns the scores of the classes, before a softmax.
    """

    def __init__(
        self,
        module: Any,
        *,
        radius: float = 0.1,
        norm: float = 2,
        eta: float = 0.1,
        divergence: str | Divergence = "entropic",
        level: int = 2,
        seed: int = 0,
        criterion: Any = torch.nn.CrossEntropyLoss,
        **kwargs: Any,
    ) -> None:
        self._settings(radius, norm, eta, divergence, level, seed)
        super().__init__(module, criterion=criterion, **kwargs)


class RobustRegressor(_RobustNet, NeuralNetRegressor):  # type: ignore[misc]
    """A network of torch that predicts numbers, trained against perturbed features; see `_RobustNet`.

    Targets have the shape that the module returns, (n, 1) as a rule.
    """

    def __init__(
        self,
        module: Any,
        *,
        radius: float = 0.1,
        norm: float = 2,
        eta: float = 0.1,
        divergence: str | Divergence = "entropic",
        level: int = 2,
        seed: int = 0,
        criterion: Any = torch.nn.MSELoss,
        **kwargs: Any,
    ) -> None:
        self._settings(radius, norm, eta, divergence, level, seed)
        super().__init__(module, criterion=criterion, **kwargs)

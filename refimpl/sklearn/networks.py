"""Torch networks trained with `RegularizedLoss`, as scikit-learn estimators through skorch."""

from __future__ import annotations

from copy import deepcopy
from importlib.util import find_spec
from typing import Any

if find_spec("torch") is None or find_spec("skorch") is None:
    raise ImportError(
        "phiball.sklearn.networks needs torch and skorch, and one of them is not installed: "
        "pip install 'phiball[sklearn,torch]', or '.[sklearn,torch]' in a clone",
        name="torch" if find_spec("torch") is None else "skorch",
    )

import numpy as np
import torch
from skorch import NeuralNetClassifier, NeuralNetRegressor
from skorch.dataset import unpack_data
from skorch.utils import to_tensor

from phiball.backends import Rng, as_rng
from phiball.refimpl.attacks import pgm
from phiball.refimpl.distributions.balls import Ball
from phiball.refimpl.distributions.norms import as_norm
from phiball.refimpl.inner.divergences import Divergence, as_divergence
from phiball.refimpl.sampling.estimators import SG
from phiball.refimpl.sklearn.base import by_feature
from phiball.refimpl.training.regularized_loss import RegularizedLoss


class _RobustNet:
    """A skorch network trained with the robust loss.

    - `module`: a torch module, or its class. A module is copied, so that every fit starts from its weights.
    - `criterion`: the class of the loss, which is created with reduction="none".
    - `radius`, `norm`, `eta`, `divergence`, `feature_scale`: as in `RobustLinearModel`.
    - `level`: each example is perturbed at 2^level points.
    - `random_state`: the seed or generator of the perturbations, as in scikit-learn. (torch initializes the
      weights of the network.)

    Other parameters and methods are those of skorch, such as max_epochs, lr, optimizer, batch_size,
    callbacks, train_split and verbose; `partial_fit`, `save_params` and `history`.
    """

    radius: float
    norm: str | float
    eta: float
    divergence: str | Divergence
    level: int
    random_state: Any
    feature_scale: Any
    device: str
    _criterion: Any

    def __init__(
        self,
        module: Any,
        *,
        radius: float = 0.1,
        norm: str | float = 2,
        eta: float = 0.1,
        divergence: str | Divergence = "entropic",
        level: int = 2,
        random_state: Any = 0,
        feature_scale: Any = None,
        criterion: Any = None,
        **kwargs: Any,
    ) -> None:
        self.radius = radius
        self.norm = norm
        self.eta = eta
        self.divergence = divergence
        self.level = level
        self.random_state = random_state
        self.feature_scale = feature_scale
        super().__init__(module, criterion=criterion or self._criterion, **kwargs)  # type: ignore[call-arg]

    def initialized_instance(self, instance_or_cls: Any, kwargs: Any) -> Any:
        """Copy a module that is given as an instance; skorch creates one from a class."""
        made = super().initialized_instance(instance_or_cls, kwargs)  # type: ignore[misc]
        return deepcopy(made) if made is instance_or_cls else made

    def check_data(self, X: Any, y: Any) -> None:
        """Set `n_features_in_` before training."""
        super().check_data(X, y)  # type: ignore[misc]
        width = _feature_count(X)
        if width is not None:
            self.n_features_in_ = width

    def fit_loop(self, X: Any, y: Any = None, epochs: int | None = None, **fit_params: Any) -> Any:
        """Train for some epochs; sample weights are not supported."""
        if "sample_weight" in fit_params:
            raise TypeError(
                f"{type(self).__name__} does not support sample_weight: repeat or resample the rows by their "
                "weights"
            )
        return super().fit_loop(X, y, epochs=epochs, **fit_params)  # type: ignore[misc]

    def forward_iter(self, X: Any, *args: Any, **kwargs: Any) -> Any:
        """Check the number of features, and yield the outputs of the network batch by batch."""
        width = _feature_count(X)
        expected = getattr(self, "n_features_in_", width)
        if width is not None and width != expected:
            raise ValueError(f"X has {width} features; expected {expected}, as in training")
        return super().forward_iter(X, *args, **kwargs)  # type: ignore[misc]

    def get_dataset(self, X: Any, y: Any = None) -> Any:
        """Convert data frames to arrays, and return skorch's dataset."""
        if hasattr(X, "columns"):
            self.columns_ = list(X.columns)
            X = X.to_numpy()
        y = y.to_numpy() if hasattr(y, "to_numpy") else y
        if isinstance(y, np.ndarray):
            self.flat_ = y.ndim == 1
        return super().get_dataset(_writeable(X), _writeable(y))  # type: ignore[misc]

    def _dtype(self) -> Any:
        parameter = next(self.module_.parameters(), None)  # type: ignore[attr-defined]
        return torch.get_default_dtype() if parameter is None else parameter.dtype

    def _to_network_input(self, x: Any) -> Any:
        """`x` as a tensor; floating-point data are converted to the dtype of the network."""
        x = to_tensor(x, device=self.device)
        return x.to(self._dtype()) if torch.is_tensor(x) and x.is_floating_point() else x

    def infer(self, x: Any, **fit_params: Any) -> Any:
        """The outputs of the network, for data of any floating-point dtype."""
        return super().infer(self._to_network_input(x), **fit_params)  # type: ignore[misc]

    def initialize(self) -> Any:
        """Create the network, and the random number generator of the perturbations."""
        super().initialize()  # type: ignore[misc]
        self.rng_ = _as_rng(self.random_state)
        return self

    def __getstate__(self) -> Any:
        """The state without the random number generator, which restarts from `random_state`."""
        state: Any = super().__getstate__()
        return {name: value for name, value in dict(state).items() if name != "rng_"}

    def __setstate__(self, state: Any) -> None:
        """The inverse of `__getstate__`."""
        super().__setstate__(state)  # type: ignore[misc]
        self.rng_ = _as_rng(self.random_state)

    def _losses(self, yi: Any) -> Any:
        """The function losses(z, i) of the network, for examples with targets yi[i] perturbed to z."""
        function: Any = type(self.criterion_)(reduction="none")  # type: ignore[attr-defined]

        def losses(z: Any, i: Any) -> Any:
            out = self.infer(z)
            classes = len(getattr(self, "classes_", ()))
            if out.ndim == 2 and classes and out.shape[1] != classes:
                raise ValueError(
                    f"the module returns {out.shape[1]} scores; expected one per class, {classes}; pass "
                    "classes=[0, 1, ...] if some classes do not occur in y"
                )
            return function(out, _like_predictions(yi[i], out)).reshape(len(z), -1).mean(dim=1)

        return losses

    def train_step_single(self, batch: Any, **fit_params: Any) -> dict[str, Any]:
        """Compute the robust loss of a batch and its gradient."""
        self._set_training(True)  # type: ignore[attr-defined]
        Xi, yi = unpack_data(batch)
        Xi, yi = self._to_network_input(Xi), to_tensor(yi, device=self.device)
        scale = self.feature_scale
        if scale is not None:
            scale = by_feature("feature_scale", scale, getattr(self, "columns_", None), Xi.shape[1])
        objective = RegularizedLoss(
            Ball(as_norm(self.norm), self.radius, feature_scale=scale),
            eta=self.eta,
            divergence=as_divergence(self.divergence),
            estimator=SG(self.level),
        )
        loss = objective(self._losses(yi), Xi, rng=self.rng_)
        loss.backward()
        with torch.no_grad():
            return {"loss": loss.detach(), "y_pred": self.infer(Xi)}

    def attack(self, X: Any, y: Any, ball: Ball) -> Any:
        """The adversarial points that `pgm` finds in the ball around each row of X, in float64."""
        self._set_training(False)  # type: ignore[attr-defined]
        labels = np.searchsorted(self.classes_, y) if hasattr(self, "classes_") else np.asarray(y)
        kind = torch.int64 if hasattr(self, "classes_") else self._dtype()
        losses = self._losses(torch.as_tensor(labels, dtype=kind, device=self.device))
        points = torch.as_tensor(np.array(X, dtype=np.float64), dtype=self._dtype(), device=self.device)
        found = pgm(losses, points, ball, rng=_as_rng(self.random_state))
        return found.detach().cpu().numpy().astype(np.float64)


def _as_rng(random_state: Any) -> Rng:
    """An `Rng` from a random state of scikit-learn."""
    if isinstance(random_state, np.random.RandomState):
        random_state = int(random_state.randint(2**31 - 1))
    return as_rng(random_state)


def _feature_count(X: Any) -> int | None:
    """The number of features of a data frame or an array (n, d); None for other data, such as images."""
    shape: Any = getattr(X, "shape", ())
    return int(shape[1]) if len(shape) == 2 else None


def _writeable(x: Any) -> Any:
    """`x`, copied if it is a read-only array, about which torch warns."""
    return x.copy() if isinstance(x, np.ndarray) and not x.flags.writeable else x


def _like_predictions(y: Any, out: Any) -> Any:
    """Targets y in the shape and dtype of predictions `out`: (n,) and (n, 1) would broadcast to (n, n)."""
    if not y.is_floating_point():
        return y
    y = y.to(out.dtype)
    if y.shape != out.shape and (y.numel() != out.numel() or len(y) != len(out)):
        raise ValueError(
            f"y has shape {tuple(y.shape)}; expected the shape of the predictions, {tuple(out.shape)}"
        )
    return y.reshape(out.shape)


class RobustClassifier(_RobustNet, NeuralNetClassifier):  # type: ignore[misc]
    """A torch classifier trained against perturbed features.

    The module returns one logit per class; the labels are the whole numbers 0, 1, ...
    """

    __doc__ += _RobustNet.__doc__.partition("\n")[2]  # type: ignore[union-attr]
    _criterion = torch.nn.CrossEntropyLoss

    def check_data(self, X: Any, y: Any) -> None:
        """Raise unless labels are the whole numbers 0, 1, ..."""
        super().check_data(X, y)
        if y is not None and hasattr(y, "dtype"):
            found = np.unique(np.asarray(y))
            known = np.arange(len(found) if self.classes is None else len(self.classes))
            if found.dtype.kind not in "iu" or not np.isin(found, known).all():
                raise ValueError(
                    f"y has the labels {found[:5].tolist()}; expected the whole numbers 0, 1, ...: use "
                    "LabelEncoder"
                )


class RobustRegressor(_RobustNet, NeuralNetRegressor):  # type: ignore[misc]
    """A torch regressor trained against perturbed features.

    Targets and predictions have the shape that the module returns, or (n,) if it returns (n, 1).
    """

    __doc__ += _RobustNet.__doc__.partition("\n")[2]  # type: ignore[union-attr]
    _criterion = torch.nn.MSELoss

    def predict(self, X: Any) -> Any:
        """The predictions, in the shape of the targets."""
        found = super().predict(X)
        flat = getattr(self, "flat_", False) and found.ndim == 2 and found.shape[1] == 1
        return found[:, 0] if flat else found

    def get_loss(self, y_pred: Any, y_true: Any, *args: Any, **kwargs: Any) -> Any:
        """The unperturbed loss, for validation."""
        aligned = _like_predictions(to_tensor(y_true, device=self.device), y_pred)
        return super().get_loss(y_pred, aligned, *args, **kwargs)

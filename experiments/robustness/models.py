"""One interface for torch modules, scikit-learn estimators, functions and model files."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from phiball.backends import Array, array_namespace, as_rng, without_gradient
from phiball.experiments.framework.requirements import require
from phiball.refimpl.certify import SmoothedClassifier
from phiball.refimpl.linear import LinearModel

CLASSIFIER, REGRESSOR = "classifier", "regressor"
MODEL_FILES = (".pt2", ".onnx")
TORCH_FILES = (".pt", ".pth", ".ts", ".jit", ".torchscript")  # refused with advice
N_PROXY = 8  # samples per point of the loss that attacks on a smoothed classifier maximize


@dataclass(frozen=True)
class Model:
    """A model under test.

    - `outputs`: a function from points (n, ...) to logits (n, classes) or predictions (n,).
    - `kind`: "classifier" or "regressor".
    - `gradient`: a function from points and labels (n,) to the gradients of the losses in the points. Torch
      modules need none.
    - `to_array`: converts data to the library, dtype and device that `outputs` takes.
    - `evaluating`: a context manager that puts the model into evaluation mode.
    - `was_training`: whether a torch module was in training mode.
    - `module`: the torch module, or None for other models.
    - `exported`: whether it was exported, by torch.export or TorchScript, so that its layers are unknown.
    - `affine`: (coef (C, d), intercept (C,)) of scores that are affine; several pairs, each of two classes,
      for a classifier that averages their probabilities; () for other models.
    - `smoothed`: a `SmoothedClassifier`, or None. `outputs` are then the logarithms of the shares of
      its votes, and attacks maximize the loss of `proxy`, those of mean probabilities at a few samples.
    - `source`: the model as the caller gave it, which is sent to other processes.
    """

    name: str
    kind: str
    outputs: Callable[[Array], Array]
    to_array: Callable[[Any], Array]
    gradient: Callable[[Array, Array], Array] | None = None
    evaluating: Callable[[], AbstractContextManager[None]] = nullcontext
    was_training: bool = False
    module: Any = None
    exported: bool = False
    affine: tuple[tuple[Any, Any], ...] = ()
    smoothed: Any = None
    proxy: Callable[[Array], Array] | None = None
    source: Any = None

    @property
    def differentiable(self) -> bool:
        """Whether the gradients of the losses can be computed."""
        return self.module is not None or self.gradient is not None

    def n_classes(self, x: Array) -> int:
        """The number of scores per point."""
        return int(self.outputs(x[:1]).shape[-1])

    def losses(self, x: Array, y: Array) -> Array:
        """The loss (n,) that attacks maximize: cross-entropy, or the squared error of a regressor."""
        return self._losses_and_errors(self.attacked(x), y)[0]

    @property
    def attacked(self) -> Callable[[Array], Array]:
        """The outputs whose loss attacks maximize."""
        return self.proxy or self.outputs

    def score(self, x: Array, y: Array) -> tuple[Any, Any]:
        """(losses, wrong), NumPy arrays (n,); `wrong` is 1 for misclassified points, and 0 for regressors."""
        with without_gradient():
            loss, wrong = self._losses_and_errors(self.outputs(x), y)
        return to_float64(loss), to_float64(wrong)

    def _losses_and_errors(self, out: Array, y: Array) -> tuple[Array, Array]:
        xp = array_namespace(out)
        if self.kind == REGRESSOR:
            if tuple(out.shape) not in ((y.shape[0],), (y.shape[0], 1)):
                raise ValueError(
                    f"model {self.name!r} returns shape {tuple(out.shape)} for {y.shape[0]} floating-point "
                    "targets; expected one prediction each, or labels of an integer dtype for a classifier"
                )
            out = xp.reshape(out, (out.shape[0],))
            loss = (out - xp.astype(y, out.dtype, copy=False)) ** 2
            return loss, xp.zeros_like(loss)
        if out.ndim == 1:  # predicted labels: the zero-one loss
            if xp.isdtype(out.dtype, "real floating") and bool(xp.any(out != xp.round(out))):
                raise ValueError(
                    f"model {self.name!r} returns numbers (n,) that are not labels; expected labels, or "
                    "logits (n, classes), or (n, 1) for two classes"
                )
            wrong = xp.astype(out != xp.astype(y, out.dtype, copy=False), xp.float64)
            return wrong, wrong
        top = xp.max(out, axis=-1, keepdims=True)
        own = xp.take_along_axis(out, y[:, None], axis=-1)[:, 0]
        loss = xp.log(xp.sum(xp.exp(out - top), axis=-1)) + top[:, 0] - own
        return loss, xp.astype(xp.argmax(out, axis=-1) != y, loss.dtype)


def to_float64(x: Array) -> Any:
    """Convert an array of any library to a NumPy array of doubles."""
    return as_numpy(x).astype(np.float64)


def as_numpy(x: Any) -> Any:
    """Convert an array of any library to a NumPy array of the same dtype (float32 for bfloat16)."""
    if not hasattr(x, "detach"):
        return np.asarray(x)
    x = x.detach().cpu()
    return x.float().numpy() if str(x.dtype) == "torch.bfloat16" else x.numpy()


def as_model(name: str, model: Any, kind: str, classes: Any = None, points: Any = None) -> Model:
    """Convert a torch module, a scikit-learn estimator, a file or a function to a `Model`.

    - `classes`: the class labels in the order of the scores, for estimators.
    - `points`: (data, perturbed data), both (n, d), at which the outputs of a linear estimator are checked;
      it then has gradients, also after affine steps of a pipeline.
    """
    if isinstance(model, Model):
        return model
    loaded = load_model(Path(model)) if isinstance(model, (str, Path)) else model
    made = _as_model(name, loaded, kind, classes, points)
    return replace(made, outputs=_named(name, kind, made.outputs), source=model)


class ModelError(ValueError):
    """Raised when a model raises an exception, which is the cause."""


def _named(name: str, kind: str, outputs: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """Wrap `outputs`: exceptions name the model, and one logit becomes the scores of two classes."""

    def call(x: Array) -> Array:
        try:
            out = outputs(x)
        except Exception as error:
            raise ModelError(f"model {name!r} failed with {type(error).__name__}: {error}") from error
        return _two_columns(out) if kind == CLASSIFIER else out

    return call


def _as_model(name: str, model: Any, kind: str, classes: Any, points: Any) -> Model:
    if isinstance(model, SmoothedClassifier):
        return _smoothed(_as_model(name, model.classifier, kind, classes, points), model)
    if isinstance(model, LinearModel):
        coef = np.atleast_2d(to_float64(model.coef))
        intercept = np.broadcast_to(to_float64(model.intercept), len(coef))
        if kind == CLASSIFIER and len(coef) == 1:
            coef, intercept = np.concatenate([0 * coef, coef]), np.append(0.0, intercept)
        return _affine_model(name, kind, lambda x: x @ coef.T + intercept, [(coef, intercept)])
    if _is_instance(model, "torch.nn", "Module"):
        return _torch_model(name, model, kind)
    if _is_instance(model, "sklearn.base", "BaseEstimator"):
        return _estimator(name, model, kind, classes, points)
    if callable(model):
        return Model(name, kind, lambda x: np.asarray(model(x)), _doubles)
    raise TypeError(
        f"model {name!r} is {type(model).__name__}; expected a torch module, a scikit-learn estimator, a "
        "function from arrays to predictions, or the name of a .pt2 or .onnx file"
    )


def load_model(file: Path) -> Any:
    """Load the model of a .pt2 (torch.export) or .onnx file; pickles are refused."""
    if file.suffix == ".pt2":
        torch = require("torch", user="a .pt2 file", extra="torch")
        return torch.export.load(str(file)).module()
    if file.suffix == ".onnx":
        runtime = require("onnxruntime", user="a .onnx file", extra="onnx")
        session = runtime.InferenceSession(str(file.resolve()), providers=["CPUExecutionProvider"])
        source = session.get_inputs()[0]
        dtype = np.float64 if "double" in source.type else np.float32
        return lambda x: session.run(None, {source.name: np.asarray(x, dtype=dtype)})[0]
    if file.suffix in TORCH_FILES:
        raise ValueError(
            f"{file} is a TorchScript file or a pickle; expected a file model.pt2, written by "
            'torch.export.save(torch.export.export(network, (x,)), "model.pt2"), or in Python the module '
            "itself, such as torch.jit.load(file)"
        )
    raise ValueError(
        f"{file} has the suffix {file.suffix!r}; expected .pt2 or .onnx (pickles are refused, because "
        "loading one can run any code)"
    )


def dump_model(model: Model) -> bytes:
    """Serialize a model, or the content of its file, for another process."""
    source = model.source
    if isinstance(source, (str, Path)):
        file = Path(source).resolve()
        content = {file.name: file.read_bytes()}
        if file.suffix == ".onnx":  # the weights may be in other files, which it names
            for other in file.parent.iterdir():
                if other.is_file() and other.name.encode() in content[file.name]:
                    content[other.name] = other.read_bytes()
        return pickle.dumps((file.name, content))
    try:
        loky = require("joblib.externals.loky.backend.reduction", user="a report with n_jobs", extra="verify")
        return bytes(loky.dumps((None, source)))  # unlike pickle, also lambdas and objects of __main__
    except (TypeError, AttributeError, pickle.PicklingError) as error:
        raise TypeError(
            f"model {model.name!r} cannot be sent to another process ({error}); expected a model that can be "
            "pickled, or n_jobs=None"
        ) from None


def restore_model(content: bytes) -> Any:
    """Load a model that `dump_model` serialized; called in a worker of the same run."""
    name, source = pickle.loads(content)
    if name is None:
        return source
    with TemporaryDirectory() as folder:
        for file, data in source.items():
            Path(folder, file).write_bytes(data)
        return load_model(Path(folder, name))


def _is_instance(model: Any, module: str, name: str) -> bool:
    """Whether the model is an instance of class `name` of `module`, which is not imported."""
    return any(
        base.__name__ == name and base.__module__.startswith(module.split(".")[0])
        for base in type(model).__mro__
    )


def _doubles(x: Any) -> Any:
    x = as_numpy(x)
    return x.astype(np.float64) if x.dtype.kind in "fbu" or x.dtype == object else x


def _torch_model(name: str, module: Any, kind: str) -> Model:
    torch = import_module("torch")
    parameter = next(module.parameters(), None)
    dtype = parameter.dtype if parameter is not None else torch.get_default_dtype()
    device = parameter.device if parameter is not None else torch.device("cpu")
    half = dtype in (torch.float16, torch.bfloat16)  # attacks run in single precision
    single = torch.float32 if half else dtype

    def to_array(x: Any) -> Any:
        x = torch.as_tensor(x)
        return x.to(device=device, dtype=single if x.is_floating_point() else None)

    def outputs(x: Any) -> Any:
        out = module(x.to(dtype) if half and x.is_floating_point() else x)
        out = out.to(single) if half and out.is_floating_point() else out
        if kind == CLASSIFIER and out.ndim == 1 and out.is_floating_point():
            out = out[:, None]  # logits: labels have no gradient
        return out

    # An exported program replaces the method `train` by one that raises: it has only one mode.
    exported = "train" in vars(module) or isinstance(module, torch.jit.ScriptModule)
    was_training = any(part.training for part in module.modules()) and "train" not in vars(module)

    @contextmanager
    def evaluating() -> Iterator[None]:
        modes = [(part, part.training) for part in module.modules()]
        if was_training:
            module.eval()
        for part in module.modules():
            part.training = False
        try:
            yield
        finally:
            for part, training in modes:
                part.training = training

    return Model(name, kind, outputs, to_array, None, evaluating, was_training, module, exported)


def _estimator(name: str, estimator: Any, kind: str, classes: Any, points: Any) -> Model:
    if kind == REGRESSOR:
        part = _find_affine(estimator, lambda x: np.reshape(estimator.predict(x), (len(x), -1)), points)
        return _affine_model(name, kind, estimator.predict, [part])
    if classes is not None and len(estimator.classes_) != len(classes):
        raise ValueError(
            f"model {name!r} has {len(estimator.classes_)} classes and the labels {len(classes)}; expected "
            "the same number"
        )
    # Some classifiers do not predict the class with the largest score: the scores of others are used.
    scores = [
        partial(function, estimator)
        for function, name in ((_decisions, "decision_function"), (_probabilities, "predict_proba"))
        if hasattr(estimator, name)
    ]
    if points is not None:
        x = np.concatenate(points)
        decides = import_module("phiball.refimpl.sklearn.affine_models").decides
        scores = [function for function in scores if decides(estimator, x, function(x))]
    if not scores:
        return Model(name, kind, partial(_labels, estimator), _doubles)
    part = _find_affine(estimator, scores[0], points)
    if part is not None:
        return _affine_model(name, kind, scores[0], [part])
    members = getattr(estimator, "calibrated_classifiers_", []) if len(estimator.classes_) == 2 else []
    sigmoid = all(
        hasattr(m.calibrators[0], "a_") and hasattr(m.estimator, "decision_function") for m in members
    )
    parts = [_find_affine(m.estimator, partial(_log_odds, m), points) for m in members if sigmoid]
    return _affine_model(name, kind, scores[-1], parts)


def _find_affine(estimator: Any, outputs: Callable[[Any], Any], points: Any) -> tuple[Any, Any] | None:
    """(coef (C, d), intercept (C,)) of the outputs (n, C) of a linear model, else None."""
    affine_models = import_module("phiball.refimpl.sklearn.affine_models")
    if points is None or not affine_models.is_linear(estimator):
        return None
    found = affine_models.find_affine(outputs, *points)
    if found is None:
        return None
    return found.slopes, np.mean(found.values - points[0] @ found.slopes.T, axis=0)


def _affine_model(name: str, kind: str, outputs: Callable[[Any], Any], parts: list[Any]) -> Model:
    """A model that is affine, or averages the probabilities of affine `parts`; without gradients if None."""
    if not parts or any(part is None for part in parts):
        return Model(name, kind, outputs, _doubles)

    def gradient(x: Any, y: Any) -> Any:
        if kind == REGRESSOR:
            return 2 * (np.reshape(outputs(x), (-1, 1)) - y[:, None]) * parts[0][0]
        logs = []
        for coef, intercept in parts:
            scores = x @ coef.T + intercept
            top = scores.max(axis=1, keepdims=True)
            logs.append(scores - top - np.log(np.exp(scores - top).sum(axis=1, keepdims=True)))
        own = np.stack([log[np.arange(len(x)), y] for log in logs])
        share = np.exp(own - own.max(axis=0))
        share /= share.sum(axis=0)  # of each part in the probability of the class
        gradients = (np.exp(log) @ coef - coef[y] for log, (coef, _) in zip(logs, parts, strict=True))
        return sum(weight[:, None] * g for weight, g in zip(share, gradients, strict=True))

    return Model(name, kind, outputs, _doubles, gradient, affine=tuple(parts))


def _smoothed(base: Model, smoothed: SmoothedClassifier) -> Model:
    """The model of a smoothed classifier; `base` is that of the classifier that it samples."""

    def proxy(x: Any) -> Any:
        xp = array_namespace(x)
        noise = smoothed.noise.sample(xp.zeros_like(x), N_PROXY, rng=as_rng(0), event_ndim=x.ndim - 1)
        points = xp.reshape(x[:, None, ...] + noise, (-1, *x.shape[1:]))
        scores = _two_columns(xp.reshape(base.outputs(points), (points.shape[0], -1)))
        e = xp.exp(scores - xp.max(scores, axis=1, keepdims=True))
        p = xp.reshape(e / xp.sum(e, axis=1, keepdims=True), (x.shape[0], N_PROXY, -1))
        return xp.log(xp.clip(xp.mean(p, axis=1), min=1e-30))

    def outputs(x: Any) -> Any:
        shares = smoothed(x)
        return array_namespace(shares).log(array_namespace(shares).clip(shares, min=0.5 / smoothed.n_samples))

    return replace(base, outputs=outputs, gradient=None, affine=(), smoothed=smoothed, proxy=proxy)


def _two_columns(out: Array) -> Array:
    """Scores (n, classes), from scores of the same shape or from one logit (n, 1)."""
    xp = array_namespace(out)
    return xp.concat([xp.zeros_like(out), out], axis=1) if out.ndim == 2 and out.shape[1] == 1 else out


def _log_odds(member: Any, x: Any) -> Any:
    """The scores of two classes of a sigmoid calibration of a decision function."""
    calibration = member.calibrators[0]
    out = -(calibration.a_ * member.estimator.decision_function(x) + calibration.b_)
    return np.stack([np.zeros_like(out), out], axis=-1)


def _decisions(estimator: Any, x: Any) -> Any:
    out = np.asarray(estimator.decision_function(x), dtype=np.float64)
    return np.stack([np.zeros_like(out), out], axis=-1) if out.ndim == 1 else out


def _labels(estimator: Any, x: Any) -> Any:
    return np.searchsorted(estimator.classes_, estimator.predict(x))


def _probabilities(estimator: Any, x: Any) -> Any:
    return np.log(np.maximum(estimator.predict_proba(x), 1e-30))  # 1e-30 bounds the loss by 69

"""Models of any kind behind one interface: scores or predictions of arrays, and gradients if there are."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from phiball.backends import Array, array_namespace, input_gradient
from phiball.experiments.framework.requirements import require

CLASSIFIER, REGRESSOR = "classifier", "regressor"


@dataclass(frozen=True)
class Model:
    """A model under test.

    - `outputs`: a function of points (n,) + event that returns scores (n, classes), whose softmax are the
      probabilities, or predictions (n,).
    - `kind`: "classifier" or "regressor".
    - `gradient`: None without gradients; else a function of points, labels and the loss(x, i).
    - `to_array`: brings data into the library, dtype and device that `outputs` takes.
    - `evaluating`: a context in which the model is to be run.
    - `module`: the torch module, if it is one.
    - `source`: what was given for it: what goes to another process.
    """

    name: str
    kind: str
    outputs: Callable[[Array], Array]
    to_array: Callable[[Any], Array]
    gradient: Callable[[Array, Array], Callable[[Array, Array], Array]] | None = None
    evaluating: Callable[[], AbstractContextManager[None]] = nullcontext
    was_training: bool = False
    module: Any = None
    source: Any = None

    def classes_of(self, x: Array) -> int:
        """How many scores a point has."""
        return int(self.outputs(x[:1]).shape[-1])

    def losses(self, x: Array, y: Array) -> Array:
        """The loss of each point: cross-entropy, or the squared error of a regressor."""
        return self._score(self.outputs(x), y)[0]

    def judge(self, x: Array, y: Array) -> tuple[Any, Any]:
        """(losses, wrong), each (n,), as NumPy arrays: a classifier is wrong at 1, a regressor at none."""
        loss, wrong = self._score(self.outputs(x), y)
        return to_numpy(loss), to_numpy(wrong)

    def _score(self, out: Array, y: Array) -> tuple[Array, Array]:
        xp = array_namespace(out)
        if self.kind == REGRESSOR:
            out = xp.reshape(out, (out.shape[0],))
            loss = (out - xp.astype(y, out.dtype, copy=False)) ** 2
            return loss, xp.zeros_like(loss)
        if out.ndim == 1:  # labels, which have no loss but that of being wrong
            wrong = xp.astype(out != xp.astype(y, out.dtype, copy=False), xp.float64)
            return wrong, wrong
        top = xp.max(out, axis=-1, keepdims=True)
        own = xp.take_along_axis(out, y[:, None], axis=-1)[:, 0]
        loss = xp.log(xp.sum(xp.exp(out - top), axis=-1)) + top[:, 0] - own
        return loss, xp.astype(xp.argmax(out, axis=-1) != y, loss.dtype)


def to_numpy(x: Array) -> Any:
    """An array of any library as a NumPy array of doubles."""
    return np.asarray(x.detach().cpu().double() if hasattr(x, "detach") else x, dtype=np.float64)


def as_model(name: str, model: Any, kind: str, classes: Any = None) -> Model:
    """Return a torch module, a scikit-learn estimator, a file or a function as a `Model`.

    - `classes`: the labels of the data in the order of the scores, for estimators that have their own.
    """
    if isinstance(model, Model):
        return model
    loaded = load_model(Path(model)) if isinstance(model, (str, Path)) else model
    made = _as_model(name, loaded, kind, classes)
    return replace(made, outputs=_named(name, made.outputs), source=model)


class ModelError(ValueError):
    """A model under test has raised; its own error is the cause."""


def _named(name: str, outputs: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """`outputs`, whose errors name the model."""

    def call(x: Array) -> Array:
        try:
            return outputs(x)
        except Exception as error:
            raise ModelError(f"model {name!r} failed with {type(error).__name__}: {error}") from error

    return call


def _as_model(name: str, model: Any, kind: str, classes: Any) -> Model:
    if _is_instance(model, "torch.nn", "Module"):
        return _torch_model(name, model, kind)
    if _is_instance(model, "sklearn.base", "BaseEstimator"):
        return _estimator(name, model, kind, classes)
    if callable(model):
        return Model(name, kind, lambda x: np.asarray(model(x)), _doubles)
    raise TypeError(
        f"model {name!r} is {type(model).__name__}; expected a torch module, a scikit-learn estimator, a "
        "function from arrays to predictions, or the name of a .pt2 or .onnx file"
    )


def load_model(file: Path) -> Any:
    """Return the model of a .pt2 (torch.export) or .onnx file; a pickle is never loaded."""
    if file.suffix == ".pt2":
        torch = require("torch", user="a .pt2 file", extra="torch")
        module = torch.export.load(str(file)).module()
        module.eval = lambda: module  # an exported program has one mode; its own eval() raises
        module.training = False
        return module
    if file.suffix == ".onnx":
        runtime = require("onnxruntime", user="a .onnx file", extra="onnx")
        session = runtime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
        source = session.get_inputs()[0]
        dtype = np.float64 if "double" in source.type else np.float32
        return lambda x: session.run(None, {source.name: np.asarray(x, dtype=dtype)})[0]
    raise ValueError(
        f"{file} has the ending {file.suffix!r}; expected .pt2 or .onnx (a pickle could run any code, and is "
        "not loaded)"
    )


def packed(model: Model) -> bytes:
    """A model as bytes that another process can load; a file goes along with what it holds."""
    source = model.source
    if isinstance(source, (str, Path)):
        return pickle.dumps((Path(source).suffix, Path(source).read_bytes()))
    try:
        loky = require("joblib.externals.loky.backend.reduction", user="a report with jobs", extra="verify")
        return bytes(loky.dumps((None, source)))  # which takes lambdas and what __main__ defines
    except (TypeError, AttributeError, pickle.PicklingError) as error:
        raise TypeError(
            f"model {model.name!r} cannot be sent to another process ({error}); expected one that can be "
            "pickled, or no jobs"
        ) from None


def unpacked(content: bytes) -> Any:
    """The model of `packed`: these bytes come from the process that this one works for."""
    suffix, source = pickle.loads(content)
    if suffix is None:
        return source
    with TemporaryDirectory() as folder:
        file = Path(folder, f"model{suffix}")
        file.write_bytes(source)
        return load_model(file)


def _is_instance(model: Any, module: str, name: str) -> bool:
    """Whether the model is of a class, without importing the library that defines it."""
    return any(
        base.__name__ == name and base.__module__.startswith(module.split(".")[0])
        for base in type(model).__mro__
    )


def _doubles(x: Any) -> Any:
    x = to_numpy(x) if hasattr(x, "detach") else np.asarray(x)
    return x.astype(np.float64) if x.dtype.kind in "fbu" or x.dtype == object else x


def _torch_model(name: str, module: Any, kind: str) -> Model:
    torch = import_module("torch")
    parameter = next(module.parameters(), None)
    dtype = parameter.dtype if parameter is not None else torch.get_default_dtype()
    device = parameter.device if parameter is not None else torch.device("cpu")
    half = dtype in (torch.float16, torch.bfloat16)  # points are found in single precision, and then rounded
    single = torch.float32 if half else dtype

    def to_array(x: Any) -> Any:
        x = torch.as_tensor(x)
        return x.to(device=device, dtype=single if x.is_floating_point() else None)

    def outputs(x: Any) -> Any:
        out = module(x.to(dtype) if half and x.is_floating_point() else x)
        out = out.to(single) if half and out.is_floating_point() else out
        return out[:, 0] if out.ndim == 2 and out.shape[1] == 1 and kind == REGRESSOR else out

    @contextmanager
    def evaluating() -> Iterator[None]:
        training = module.training
        module.eval()
        try:
            yield
        finally:
            if training:
                module.train()

    def gradient(x: Any, y: Any) -> Callable[[Any, Any], Any]:
        return lambda z, i: input_gradient(lambda z, i: model.losses(z, y[i]), z, i)

    model = Model(name, kind, outputs, to_array, gradient, evaluating, bool(module.training), module)
    return model


def _estimator(name: str, estimator: Any, kind: str, classes: Any) -> Model:
    if kind == REGRESSOR:
        plain = _is_linear(estimator, "predict")
        slope = np.reshape(estimator.coef_, (-1,)) if plain else None

        def gradient(x: Any, y: Any) -> Callable[[Any, Any], Any]:
            return lambda z, i: 2 * (estimator.predict(z) - y[i])[:, None] * slope

        return Model(name, kind, estimator.predict, _doubles, gradient if plain else None)
    if classes is not None and len(estimator.classes_) != len(classes):
        raise ValueError(
            f"model {name!r} knows {len(estimator.classes_)} classes, and the labels have {len(classes)}; "
            "expected the same"
        )
    coef = np.asarray(estimator.coef_) if _is_linear(estimator, "decision_function") else None
    if coef is None:
        scores = _probabilities if hasattr(estimator, "predict_proba") else _decisions
        return Model(name, kind, lambda x: scores(estimator, x), _doubles)
    if coef.shape[0] == 1:
        coef = np.concatenate([np.zeros_like(coef), coef])

    def slopes(x: Any, y: Any) -> Callable[[Any, Any], Any]:
        def at(z: Any, i: Any) -> Any:
            out = _decisions(estimator, z)
            e = np.exp(out - out.max(axis=-1, keepdims=True))
            probabilities = e / e.sum(axis=-1, keepdims=True)
            probabilities[np.arange(len(z)), y[i]] -= 1.0
            return probabilities @ coef

        return at

    return Model(name, kind, lambda x: _decisions(estimator, x), _doubles, slopes)


def _is_linear(estimator: Any, method: str) -> bool:
    """Whether a method of an estimator returns coef.x + intercept, as tried on two points."""
    coef = getattr(estimator, "coef_", None)
    if not isinstance(coef, np.ndarray) or not hasattr(estimator, method):
        return False
    coef = np.atleast_2d(coef)
    x = np.stack([np.zeros(coef.shape[1]), np.linspace(-1.0, 1.0, coef.shape[1])])
    expected = x @ coef.T + estimator.intercept_
    out = np.reshape(getattr(estimator, method)(x), (2, -1))
    return out.shape == expected.shape and bool(np.allclose(out, expected))


def _decisions(estimator: Any, x: Any) -> Any:
    out = np.asarray(estimator.decision_function(x), dtype=np.float64)
    return np.stack([np.zeros_like(out), out], axis=-1) if out.ndim == 1 else out


def _probabilities(estimator: Any, x: Any) -> Any:
    return np.log(np.maximum(estimator.predict_proba(x), 1e-30))  # a loss of at most 69

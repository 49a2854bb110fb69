"""`pointwise_loss`: the losses of a model at perturbed points, with the labels of their data points."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf

from phiball.backends import Array, array_namespace, detach, device, is_array_api_obj, is_traced, to_single
from phiball.refimpl.validation import check_same_array_type

ExampleLoss = Callable[[Array, Array], Array]


@dataclass(frozen=True)
class PointwiseLoss:
    """A loss(x, i) made by `pointwise_loss`: the losses of a model at points x, with labels y[i].

    >>> import numpy as np
    >>> loss = pointwise_loss(lambda x: x[:, 0], np.array([0.0, 3.0]))
    >>> loss.with_labels(np.array([1.0]))(np.array([[4.0]]), np.array([0]))  # (4 - 1)^2
    array([9.])
    """

    model: Callable[[Array], Array]
    y: Array | None = None
    loss: ExampleLoss | None = None

    def __call__(self, x: Array, i: Array) -> Array:
        """Return the losses (k,) at points x (k,) + event, which belong to the data points i (k,)."""
        if self.y is None:
            raise ValueError("pointwise_loss has no labels; expected its argument y, or batches (x, y)")
        check_same_array_type("y", self.y, x, other="x")
        y = array_namespace(self.y).take(self.y, i, axis=0)
        return (self.loss or default_loss)(self.model(x), y)

    def with_labels(self, y: Array) -> PointwiseLoss:
        """The same loss with the labels y of another batch."""
        return replace(self, y=y)


def pointwise_loss(
    model: Callable[[Array], Array], y: Array | None = None, loss: ExampleLoss | None = None
) -> PointwiseLoss:
    """Make the function loss(x, i) that phiball takes everywhere, from a model and its labels.

    Arguments:
    - `model`: a function of points (k,) + event, such as a torch module.
    - `y` (N, ...): the labels or targets of the data points; None if the data come in batches (x, y).
    - `loss`: a function of outputs and labels with one loss per example, such as
      `torch.nn.CrossEntropyLoss(reduction="none")`. The default is `default_loss`.

    Returns a function loss(x, i) of points x (k,) + event, which belong to the data points i (k,).

    >>> import numpy as np
    >>> loss = pointwise_loss(lambda x: x @ np.array([1.0, 2.0]), np.array([0.0, 3.0]))
    >>> loss(np.ones((2, 2)), np.array([1, 0]))  # the squared errors (3 - 3)^2 and (3 - 0)^2
    array([0., 9.])
    """
    if not callable(model):
        raise TypeError(f"model is {model!r}; expected a function of points, such as a torch module")
    if y is not None and (not is_array_api_obj(y) or y.ndim == 0):
        raise TypeError(f"y is {y!r}; expected an array of labels or targets, one per data point")
    if loss is not None and not callable(loss):
        raise TypeError(f"loss is {loss!r}; expected a function loss(outputs, y), or None")
    return PointwiseLoss(model, y, loss)


def default_loss(output: Array, y: Array) -> Array:
    """Cross-entropy for labels of an integer dtype, mean squared error for floating-point targets.

    Arguments:
    - `output`: the outputs of the model. For labels 0 to classes - 1, logits (k, classes); for labels 0 and 1
      also one logit, (k,) or (k, 1); for targets, the shape of y.
    - `y`: integer or boolean labels (k,), or targets (k, ...).

    Returns the losses (k,), in float32 for outputs in half precision.
    """
    if not is_array_api_obj(output):
        raise TypeError(
            f"the model returns {type(output).__name__}; expected an array; for other outputs, pass loss="
        )
    xp = array_namespace(output)
    output, k = to_single(output), y.shape[0]
    if output.ndim == 0 or output.shape[0] != k:
        raise ValueError(f"the model returns shape {tuple(output.shape)} for {k} points; expected ({k}, ...)")
    if xp.isdtype(y.dtype, "real floating"):
        flat, targets = xp.reshape(output, (k, -1)), xp.reshape(y, (k, -1))
        if flat.shape != targets.shape:
            raise ValueError(
                f"the model returns shape {tuple(output.shape)} for targets of shape {tuple(y.shape)}; "
                "expected one output per target, or labels of an integer dtype"
            )
        error = flat - xp.astype(targets, flat.dtype, copy=False)
        return xp.mean(error * error, axis=1)
    labels = xp.reshape(xp.astype(y, xp.int64, copy=False), (-1,))
    if labels.shape[0] != k or output.ndim > 2:
        raise ValueError(
            f"the model returns shape {tuple(output.shape)} for labels of shape {tuple(y.shape)}; expected "
            "(k, classes), or another loss="
        )
    logits = xp.reshape(output, (k, -1))
    if logits.shape[1] == 1:  # one logit for two classes
        logits = xp.concat([xp.zeros_like(logits), logits], axis=1)
    if not is_traced(labels) and xp.any((labels < 0) | (labels >= logits.shape[1])):
        raise ValueError(
            f"y contains a label outside 0 to {logits.shape[1] - 1}; expected one output of the model per "
            "class, or targets of a floating-point dtype"
        )
    top = detach(xp.max(logits, axis=1, keepdims=True))
    log_sum = top[:, 0] + xp.log(xp.sum(xp.exp(logits - top), axis=1))
    return log_sum - xp.take_along_axis(logits, labels[:, None], axis=1)[:, 0]


def class_margin(output: Array, y: Array) -> tuple[Array, Array]:
    """(the largest score of another class minus the score of class y, the scale of the scores), for each row.

    The outputs are those of `default_loss` for labels. The scale is the distance between the largest and the
    third-largest score, or 1 for two classes.
    """
    xp = array_namespace(output)
    scores = xp.reshape(output, (output.shape[0], -1))
    if scores.shape[1] == 1:
        scores = xp.concat([xp.zeros_like(scores), scores], axis=1)
    labels = xp.astype(xp.reshape(y, (-1, 1)), xp.int64, copy=False)
    own = labels == xp.arange(scores.shape[1], device=device(scores))
    other = xp.max(xp.where(own, xp.full_like(scores, -inf), scores), axis=1)
    margin = other - xp.take_along_axis(scores, labels, axis=1)[:, 0]
    if scores.shape[1] == 2:
        return margin, xp.ones_like(margin)
    ordered = xp.sort(scores, axis=1)
    return margin, ordered[:, -1] - ordered[:, -3] + 1e-12

"""`certified_margins`: lower bounds on the margins of a classifier over a ball."""

from __future__ import annotations

from math import inf
from typing import Any

from phiball.backends import Array, array_namespace, device, is_torch, library, without_gradient
from phiball.backends.torch_layers import network_layers
from phiball.refimpl.certify.input_set import InputSet
from phiball.refimpl.certify.networks import NetworkBounds
from phiball.refimpl.distributions.balls import Ball
from phiball.refimpl.linear.fit import LinearModel
from phiball.refimpl.numerics import to_double
from phiball.refimpl.sampling.streaming import valid_data

METHODS = ("crown", "crown-ibp", "interval")


def certified_margins(model: Any, x: Array, y: Array, ball: Ball, *, method: str = "crown") -> Array:
    """Lower bounds on the margins of a classifier over the ball around each data point.

    Arguments:
    - `model`: a torch module in evaluation mode that returns scores (N, classes), or one score (N, 1) that is
      positive for class 1, made of Linear, Conv2d, ReLU, LeakyReLU, average pooling, BatchNorm, Flatten and
      sums. Or a linear model, as a `LinearModel` or a pair (coef, intercept) of arrays like x, with coef
      (classes, d), or (d,) for two classes.
    - `x` (N,) + event: the data points, in float32 or float64.
    - `y` (N,): the labels, integers from 0.
    - `ball`: a `Ball` of any norm, with optional `clip` and `feature_scale`.
    - `method`: "crown"; "interval", which is much faster and never tighter; or "crown-ibp", with interval
      bounds inside the network and CROWN for the margins. With convolutions, "crown" is by far the slowest,
      as it bounds every neuron of unknown sign separately. For linear models the margins are exact.

    Returns an array (N, classes). Its entry (n, c) is at most score y[n] minus score c at every point that
    `ball.contains` around x[n], within `clip`; it is inf for c = y[n]. If all entries of a row are positive,
    no perturbation in the ball changes the class. The bounds include the rounding of the model in the dtype
    of x, for sums in any order; they do not cover TF32, autocast or Winograd convolutions.

    >>> import torch
    >>> from phiball import Ball
    >>> from phiball.certify import certified_margins
    >>> network = torch.nn.Sequential(torch.nn.Linear(2, 2, bias=False), torch.nn.ReLU()).eval()
    >>> _ = network[0].weight.data.copy_(torch.eye(2))
    >>> x, y = torch.tensor([[1.0, 0.0], [0.2, 0.0]]), torch.tensor([0, 0])
    >>> margins = certified_margins(network, x, y, Ball("linf", 0.25))
    >>> print((margins.amin(dim=1) > 0).tolist(), round(float(margins[0, 1]), 4))
    [True, False] 0.5
    """
    x = valid_data(x)
    if not isinstance(ball, Ball):
        raise TypeError(f"ball is {ball!r}; expected a Ball such as Ball('linf', 0.1)")
    if method not in METHODS:
        raise ValueError(f"method is {method!r}; expected one of {', '.join(METHODS)}")
    if isinstance(model, LinearModel):
        model = model.coef, model.intercept
    with without_gradient():
        if isinstance(model, tuple) and len(model) == 2:
            return _linear_margins(*model, x, y, ball)
        if is_torch(x) and callable(getattr(model, "named_modules", None)):
            return _network_margins(model, x, y, ball, method)
    raise TypeError(
        f"model is {type(model).__name__} and x a {library(x)} array; expected a torch module and a tensor, "
        "or a linear model (coef, intercept)"
    )


def _network_margins(network: Any, x: Array, y: Array, ball: Ball, method: str) -> Array:
    xp = array_namespace(x)
    layers = network_layers(network, x)
    if len(layers[-1].shape) != 1:
        shape = ("N", *layers[-1].shape)
        raise ValueError(f"the network returns shape {shape}; expected scores (N, classes)")
    eps = float(xp.finfo(x.dtype).eps)
    bounds = NetworkBounds(layers, InputSet(x, ball), eps=eps, crown=method == "crown")
    last, rows, own = len(layers) - 1, *_differences(y, x, layers[-1].shape[0])
    parts, size = [], bounds.chunk_size(rows.shape[1])
    for start in range(0, x.shape[0], size):
        part = xp.arange(start, min(start + size, x.shape[0]), device=device(x))
        margins = bounds.minimum(last, xp.take(rows, part, axis=0), part, relax=False, exact=True)
        if method != "interval":
            crown = bounds.minimum(last, xp.take(rows, part, axis=0), part, exact=True)
            margins = xp.maximum(margins, crown)
        parts.append(margins)
    margins = xp.concat(parts)
    return _finish(margins - xp.sum(xp.abs(rows) * bounds.error[last][:, None, :], axis=-1), own, x)


def _linear_margins(coef: Array, intercept: Array, x: Array, y: Array, ball: Ball) -> Array:
    xp = array_namespace(x, coef)
    d = x.shape[1] if x.ndim == 2 else 0
    W = xp.reshape(to_double(coef), (-1, coef.shape[-1]))
    if W.shape[1] != d:
        raise ValueError(f"coef has shape {tuple(coef.shape)} and x {tuple(x.shape)}; expected x (N, d)")
    b = xp.asarray(intercept, dtype=xp.float64, device=device(x))
    b = xp.broadcast_to(xp.reshape(b, (-1,)), (W.shape[0],))
    inputs = InputSet(x, ball)
    rows, own = _differences(y, x, W.shape[0])
    margins = inputs.minimum(rows @ W, exact=True) + rows @ b
    size = xp.maximum(xp.abs(inputs.low), xp.abs(inputs.high))
    # The rounding of the scores in the dtype of x, and of this bound; see `NetworkBounds`.
    error = 2 * float(xp.finfo(x.dtype).eps) * (d + 4) * (size @ xp.abs(W).T + xp.abs(b))
    return _finish(margins - xp.sum(xp.abs(rows) * error[:, None, :], axis=-1), own, x)


def _differences(y: Array, x: Array, outputs: int) -> tuple[Array, Array]:
    """Rows (N, classes, outputs) with score y minus score c, and the mask (N, classes) of c = y."""
    xp = array_namespace(x)
    classes = max(outputs, 2)
    labels = valid_labels(y, x, classes)
    own = labels[:, None] == xp.arange(classes, device=device(x))
    if outputs == 1:
        sign = xp.astype(2 * labels - 1, xp.float64)
        return xp.broadcast_to(sign[:, None, None], (*own.shape, 1)), own
    hot = xp.astype(own, xp.float64)
    return hot[:, None, :] - xp.eye(classes, dtype=xp.float64, device=device(x)), own


def valid_labels(y: Array, x: Array, classes: int) -> Array:
    """The labels y as int64; raise unless they are (N,) integers from 0 to classes - 1."""
    xp = array_namespace(x, y)
    if not xp.isdtype(y.dtype, ("integral", "bool")) or tuple(y.shape) != (x.shape[0],):
        raise ValueError(
            f"y has dtype {y.dtype} and shape {tuple(y.shape)}; expected {x.shape[0]} integer labels"
        )
    labels = xp.astype(y, xp.int64)
    if xp.any((labels < 0) | (labels >= classes)):
        raise ValueError(f"y contains a label outside 0 to {classes - 1}, the classes of the model")
    return labels


def _finish(margins: Array, own: Array, x: Array) -> Array:
    """Margins rounded down to the dtype of x: -inf instead of NaN, inf for the class itself."""
    xp = array_namespace(x)
    margins = margins - float(xp.finfo(x.dtype).eps) * xp.abs(margins)
    margins = xp.where(xp.isnan(margins), xp.full_like(margins, -inf), margins)
    return xp.astype(xp.where(own, xp.full_like(margins, inf), margins), x.dtype)

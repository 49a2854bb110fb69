"""Gradients of losses in their points, for the library that differentiates by itself."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from importlib import import_module
from typing import Any

from phiball.backends.arrays import Array, _is_torch, is_array_api_obj, library


def input_gradient(
    loss: Callable[[Array, Array], Array], x: Array, i: Array, *, create_graph: bool = False
) -> Array:
    """The gradient of each loss(x, i) in its own x, by torch's automatic differentiation.

    Arguments:
    - `loss`: a function of x (k, ...) and i (k,) that returns losses (k,), each of which depends on its own x
      alone. Batch normalisation in training mode mixes the points: the gradient is then that of the sum.
    - `x` (k, ...): a floating-point tensor, which is not modified.
    - `i` (k,): the index of the data point that each x comes from, passed on to `loss`.
    - `create_graph`: True keeps the graph, so that a function of the gradients can be trained.

    Returns a tensor of the shape of `x`, after one forward and one backward pass. The parameters of a model
    keep their .grad, and the model keeps its mode. Under torch.no_grad() or torch.inference_mode() the
    gradients are the same.

    Raises ValueError if the loss does not depend on x: with zeros, an attack would make any model look
    robust. Raises TypeError for an array of a library that does not differentiate.

    Functions that take a gradient(x, i), such as attacks, take `functools.partial(input_gradient, loss)`.

    >>> import torch
    >>> from phiball.backends import input_gradient
    >>> x = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    >>> input_gradient(lambda x, i: torch.sum(x**2, -1), x, torch.arange(2)).tolist()
    [[2.0, 4.0], [6.0, 8.0]]
    """
    if not _is_torch(x):
        kind = f"a {library(x)} array" if is_array_api_obj(x) else f"of type {type(x).__name__}"
        raise TypeError(
            f"x is {kind}, which has no automatic differentiation; expected a torch tensor, or, where "
            "one is taken, a function gradient(x, i)"
        )
    if not x.is_floating_point():
        raise TypeError(f"x has dtype {x.dtype}; expected floating-point numbers")
    if x.ndim == 0:
        raise ValueError("x has shape (); expected at least one axis, the first of which counts the points")
    torch: Any = import_module("torch")
    with torch.inference_mode(False), torch.enable_grad():
        # With a graph to be kept, what x itself was made from stays in it.
        point = x if create_graph and x.requires_grad else x.detach().clone().requires_grad_()
        losses = loss(point, i)
        if not _is_torch(losses) or tuple(losses.shape) != tuple(x.shape[:1]):
            got = f"shape {tuple(losses.shape)}" if _is_torch(losses) else f"type {type(losses).__name__}"
            raise ValueError(
                f"loss(x, i) has {got}; expected a tensor of shape {tuple(x.shape[:1])}, one loss for each "
                "x (reduction='none' in torch's losses)"
            )
        gradient = None
        if losses.requires_grad:
            (gradient,) = torch.autograd.grad(
                losses.sum(), point, create_graph=create_graph, allow_unused=True
            )
    if gradient is None:
        raise ValueError(
            "loss(x, i) does not depend on x; expected losses computed from x by torch operations, "
            "without detach() or no_grad() between them"
        )
    return gradient


def differentiates(x: Array) -> bool:
    """Whether the library of `x` differentiates by itself, so that `input_gradient` needs only a loss.

    >>> import numpy as np
    >>> differentiates(np.zeros(3))
    False
    """
    return _is_torch(x)


def backward(scalar: Array) -> None:
    """Add the gradient of a torch scalar to the .grad of the parameters that it was computed from.

    Raises TypeError for an array of another library, ValueError if nothing requires a gradient.

    >>> import torch
    >>> theta = torch.tensor(3.0, requires_grad=True)
    >>> backward(theta**2)
    >>> float(theta.grad)
    6.0
    """
    if not _is_torch(scalar):
        raise TypeError(
            f"the losses are a {library(scalar)} array, which has no automatic differentiation; expected "
            "torch tensors, or, where one is taken, a gradient function"
        )
    if not scalar.requires_grad:
        raise ValueError(
            "the losses do not depend on anything that requires a gradient; expected a model with parameters "
            "that are trained, called without torch.no_grad()"
        )
    scalar.backward()


def without_gradient() -> AbstractContextManager[Any]:
    """A context in which torch, if it has been imported, records no gradient.

    >>> import torch
    >>> theta = torch.tensor(3.0, requires_grad=True)
    >>> with without_gradient():
    ...     (theta**2).requires_grad
    False
    """
    torch = sys.modules.get("torch")
    return nullcontext() if torch is None else torch.no_grad()

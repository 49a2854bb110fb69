"""Gradients of losses with respect to their points, by torch, JAX or a function of the user."""

from __future__ import annotations

from functools import partial

from phiball.backends import Array, array_namespace, detach, differentiates, library, losses_and_gradient
from phiball.refimpl.sampling.streaming import evaluate
from phiball.refimpl.types import Gradient, Loss
from phiball.refimpl.validation import check_array, check_same_array_type


def check_gradient(gradient: Gradient | None, x: Array) -> None:
    """Raise unless `gradient` is a function, or None and the library of x differentiates by itself."""
    if gradient is None and not differentiates(x):
        raise TypeError(
            f"gradient is None and x is a {library(x)} array, without automatic differentiation; expected "
            "a function gradient(x, i), or arrays of torch or JAX"
        )
    if gradient is not None and not callable(gradient):
        raise TypeError(f"gradient is {gradient!r}; expected a function gradient(x, i), or None")


def loss_gradients(
    loss: Loss | None, gradient: Gradient | None, x: Array, i: Array
) -> tuple[Array | None, Array]:
    """(losses, gradients), without a graph: the losses at x, and the gradient of each loss in its point.

    With a function `gradient`, the losses are None.
    """
    if gradient is None:
        losses, g = losses_and_gradient(partial(evaluate, loss, half=True), x, i)
        return detach(losses), detach(g)
    g = gradient(x, i)
    check_array("gradient(x, i)", g)
    check_same_array_type("gradient(x, i)", g, x, other="x")
    if tuple(g.shape) != tuple(x.shape):
        raise ValueError(f"gradient(x, i) has shape {tuple(g.shape)}; expected {tuple(x.shape)}, as x")
    return None, array_namespace(x).astype(detach(g), x.dtype, copy=False)

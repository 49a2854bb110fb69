"""Gradients of losses with respect to their points, from torch or from a function of the caller."""

from __future__ import annotations

from functools import partial

from phiball.backends import Array, array_namespace, detach, differentiates, library, losses_and_gradient
from phiball.refimpl.sampling.streaming import evaluate
from phiball.refimpl.types import Gradient, Loss
from phiball.refimpl.validation import check_array, check_same_array_type


def check_gradient(gradient: Gradient | None, x: Array) -> None:
    """Raise unless the gradients in x can be computed: by a function, or by the library of x."""
    if gradient is None and not differentiates(x):
        raise TypeError(
            f"gradient is None and x is a {library(x)} array, without automatic differentiation; expected "
            "a function gradient(x, i), or torch tensors"
        )
    if gradient is not None and not callable(gradient):
        raise TypeError(f"gradient is {gradient!r}; expected a function gradient(x, i), or None")


def loss_gradients(
    loss: Loss | None, gradient: Gradient | None, x: Array, i: Array
) -> tuple[Array | None, Array]:
    """Compute the gradient of each loss in its own x, and the losses if torch computes them on the way.

    Returns (losses, gradients), without a graph; losses is None where a function `gradient` is given.
    """
    if gradient is None:
        losses, g = losses_and_gradient(partial(evaluate, loss, half=True), x, i)
        return detach(losses), g
    g = gradient(x, i)
    check_array("gradient(x, i)", g)
    check_same_array_type("gradient(x, i)", g, x, other="x")
    if tuple(g.shape) != tuple(x.shape):
        raise ValueError(f"gradient(x, i) has shape {tuple(g.shape)}; expected that of x, {tuple(x.shape)}")
    return None, array_namespace(x).astype(detach(g), x.dtype, copy=False)

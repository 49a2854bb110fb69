"""The toy loss of the paper's Section 2.2: a random network on a line, with many local maxima.

    f(z) = g(z)^2,  g(z) = W4 Sigmoid(W3 Sp(W2 Sp(W1 z'))),  z' = (z, sqrt|z|, z^2, sin z, cos z)

Sp(t) = log(1 + exp(t)) is the softplus. The printed shapes of the matrices do not fit; here W3 (printed as a
second W2) is 10 x 512 and W4 is 1 x 10.
"""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt
from typing import Any, TypeAlias

import numpy as np

from phiball.backends import Array

Weights: TypeAlias = tuple[Array, Array, Array, Array]

READINGS = ("literal", "scaled")


def draw_weights(
    reading: str, normal: Callable[[tuple[int, int]], Any], *, width: int, units: int, first_std: float
) -> Weights:
    """Draw the weights W1 to W4, in this order, with `normal(shape)`.

    The reading `literal` is the printed distribution: N(0, 1), and N(0, first_std^2) for W1. The sigmoids are
    then saturated, and the loss is a staircase. `scaled` divides W3 by sqrt(width), and the loss is smooth.
    """
    W1, W2, W3, W4 = (normal(shape) for shape in ((width, 5), (width, width), (units, width), (1, units)))
    return first_std * W1, W2, W3 / sqrt(width) if reading == "scaled" else W3, W4


def network_loss(weights: Weights, z: Array) -> Array:
    """Return f at each z."""
    W1, W2, W3, W4 = weights
    basis = np.stack([z, np.sqrt(np.abs(z)), z * z, np.sin(z), np.cos(z)])
    g = (W4 @ _sigmoid(W3 @ _softplus(W2 @ _softplus(W1 @ basis))))[0]
    return g**2


def _softplus(t: Array) -> Array:
    return np.maximum(t, 0) + np.log1p(np.exp(-np.abs(t)))


def _sigmoid(t: Array) -> Array:
    e = np.exp(-np.abs(t))
    return np.where(t >= 0, 1.0, e) / (1 + e)


def count_maxima(f: Array, height: float) -> int:
    """Count the local maxima of `f` with prominence at least `height`, including ends and plateaus."""
    count = 0
    rising, low, high = True, -np.inf, -np.inf
    for value in f.tolist():
        low, high = min(low, value), max(high, value)
        if rising and high - value >= height:
            count, rising, low = count + 1, False, value
        elif not rising and value - low >= height:
            rising, high = True, value
    return count + rising

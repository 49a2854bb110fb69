"""What Section 6 prints of Q-learning, and the toy loss of Remark 4, with weights of the printed law."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
from scipy.special import expit

Losses: TypeAlias = Callable[[int, Any], Any]

RETURNS = (
    *((469.42, 19.03), (487.11, 9.09), (187.63, 29.40), (394.12, 12.01)),
    *((355.54, 28.89), (443.17, 9.98), (271.41, 20.70), (418.42, 13.64)),
)
"""Means and error bars of the table of Q-learning, of ten trials each."""


def shapes() -> tuple[tuple[int, int], ...]:
    """Of W_1 to W_4, so that g is a function from R to R."""
    return ((512, 5), (512, 512), (10, 512), (1, 10))


@lru_cache(maxsize=1)
def toy_weights(seed: int) -> list[Any]:
    """W_1 to W_4, drawn from the printed law."""
    rng = np.random.default_rng(seed)
    # N(0, 0.25) is read as a variance, in the convention of N(0, I).
    drawn = [rng.standard_normal(size=shape, dtype=np.float32) for shape in shapes()]
    return [drawn[0] / 2, *drawn[1:]]


def toy_loss(seed: int, z: Any) -> Any:
    """f(z) = g(z)^2 at each z, with weights drawn from the printed law."""
    W1, W2, W3, W4 = toy_weights(seed)

    def softplus(t: Any) -> Any:
        return np.maximum(t, 0) + np.log1p(np.exp(-np.abs(t)))

    basis = np.stack([z, np.sqrt(np.abs(z)), z * z, np.sin(z), np.cos(z)])
    return (W4 @ expit(W3 @ softplus(W2 @ softplus(W1 @ basis))))[0] ** 2

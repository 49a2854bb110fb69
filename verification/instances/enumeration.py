"""The estimators of Section 3.1 on a law of a few points: every draw of every level, with its probability."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import hypot, log2
from typing import Any, TypeAlias

import numpy as np
from hypothesis import strategies as st

from phiball.backends import Array, active, array_namespace, to_numpy
from phiball.refimpl import Divergence
from phiball.verification.instances.divergences import KAPPA
from phiball.verification.instances.strategies import powers_of_ten
from phiball.verification.oracles import levels as oracles_levels

Rows: TypeAlias = Callable[[Array, float, Divergence, float], Array]
"""gamma of each row of losses, for eta, phi and the precision eps."""


@dataclass(frozen=True)
class Law:
    """A law of a few points: the loss f, the gradient g and the probability p of each, and eta."""

    f: tuple[float, ...]
    g: tuple[tuple[float, float], ...]
    p: tuple[float, ...]
    eta: float

    def __str__(self) -> str:
        return f"(f = {self.f}, grad f = {self.g}, p = {self.p}, eta = {self.eta!r})"

    @property
    def lipschitz(self) -> float:
        """L_f, the largest length of a gradient."""
        return max(hypot(*v) for v in self.g)


@st.composite
def laws(draw: st.DrawFn, max_points: int = 2) -> Law:
    """Two points or more: ties, opposite and equal gradients, eta from far below the range to far above."""
    k = draw(st.integers(2, max_points))
    losses = st.one_of(st.integers(0, 3).map(float), st.floats(0, 3, width=32, allow_subnormal=False))
    f = draw(st.lists(losses, min_size=k, max_size=k))
    gradients = st.sampled_from([(1.0, 0.0), (-1.0, 0.0), (0.0, 1.0), (0.6, 0.8), (0.1, 0.0)])
    g = draw(st.lists(gradients, min_size=k, max_size=k))
    counts = draw(st.lists(st.sampled_from([1, 2, 10]), min_size=k, max_size=k))
    return Law(tuple(f), tuple(g), tuple(c / sum(counts) for c in counts), draw(powers_of_ten(-2.0, 2.0)))


def on_backend(values: Any) -> Array:
    """A NumPy array of float64 as one of the active backend."""
    xp = active().namespace
    return xp.asarray(np.array(values, dtype=float), dtype=xp.float64)


def halved(rows: Array, eta: float, phi: Divergence, T: Any, upper: float = 0.0) -> Array:
    """gamma of Algorithm 2 after T halvings (a number or one a row), on every row.

    The bracket is the corrected one, made wider above by `upper`.
    """
    xp = array_namespace(rows)
    m = rows.shape[-1]
    low = xp.min(rows, axis=-1) - eta * phi.slope1
    high = xp.max(rows, axis=-1) - eta * phi.slope1 + upper
    count = on_backend(np.broadcast_to(T, tuple(low.shape)))
    mu = low
    for t in range(int(xp.max(count))):
        mu = xp.where(count > t, (low + high) / 2, mu)
        h = xp.mean(phi.dconj((rows - mu[..., None]) / eta), axis=-1) - 1
        high, low = xp.where(h <= 0, mu, high), xp.where(h <= 0, low, mu)
    return phi.dconj((rows - mu[..., None]) / eta) / m


def algorithm2_rows(rows: Array, eta: float, phi: Divergence, eps: float) -> Array:
    """gamma of Algorithm 2 on every row, with T = max(1, ceil(T)) halvings for the precision eps."""
    f = to_numpy(rows)
    width = f.max(axis=-1) - f.min(axis=-1)
    least = np.sqrt(2 * KAPPA[phi] * eta * eps)
    T = np.ceil(np.log2(np.maximum(width, 2 * least)) - log2(least))
    return halved(rows, eta, phi, T)


def level_weights(f: Any, level: int, solve: Callable[[Array], Array], *, telescoping: bool) -> Any:
    """The weights of g^l, or of G^l where `telescoping`, on all draws of 2^l of the points with losses f."""
    picks = oracles_levels.draws(len(f), 2**level)
    rows = on_backend(np.asarray(f, dtype=float)[picks])
    whole = to_numpy(solve(rows))
    if not telescoping or level == 0:
        return picks, whole
    half = 2 ** (level - 1)
    parts = [to_numpy(solve(rows[:, place])) for place in (slice(None, half), slice(half, None))]
    return picks, whole - np.concatenate(parts, axis=-1) / 2


def moments(p: Any, g: Any, picks: Any, weights: Any) -> tuple[Any, float]:
    """E V and E|V|^2 for V = sum_i w_i g_i, the draws having the law p."""
    chance = oracles_levels.chances(p, picks)
    V = (weights[:, :, None] * np.asarray(g, dtype=float)[picks]).sum(axis=1)
    return chance @ V, float(chance @ (V * V).sum(axis=-1))

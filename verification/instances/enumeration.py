"""The estimators of Section 3.1 on discrete distributions, by enumeration of all draws of a level.

A draw of level l consists of 2^l points. g^l is the gradient of its risk: the sum of the points' gradients,
weighted by the worst case. G^l is g^l minus the mean of g^(l-1) over the two halves of the draw; G^0 is g^0.
F^l is the expected risk of a draw, and F the risk of the whole distribution.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import combinations_with_replacement
from math import factorial, log2, prod
from typing import Any, TypeAlias

import numpy as np

from phiball.backends import Array, Rng, array_namespace, to_numpy
from phiball.refimpl import ENTROPIC, RTMLMC, Divergence
from phiball.verification.instances.conversion import array
from phiball.verification.instances.divergence_catalog import KAPPA
from phiball.verification.instances.loss_distributions import DiscreteDistribution
from phiball.verification.instances.solutions import Solver
from phiball.verification.oracles import row_solver

RowSolver: TypeAlias = Callable[[Array, float, Divergence, float], Array]
"""A function of rows of losses, eta, phi and the precision eps that returns the weights gamma of each row."""
Weights: TypeAlias = Callable[..., tuple[Array, Array]]
"""A function with the signature of `signed_weights`, which returns the value and the weights of each row."""
Bound: TypeAlias = Callable[[DiscreteDistribution, int], float]
"""A bound as a function of the distribution and the level."""

LEVELS = range(9)
# The levels at which E|G^l|^2 is enumerated: a draw of level l > 0 is a pair of draws of level l - 1, and at
# higher levels there are too many pairs.
ENUMERATED = range(7)

# --- Ordered draws --------------------------------------------------------------------------------


def bisected_weights(rows: Array, eta: float, phi: Divergence, T: Any, upper: float = 0.0) -> Array:
    """gamma of Algorithm 2 on every row, after T bisection steps (a number, or one per row).

    For each row f, the bracket is [min f - eta phi'(1), max f - eta phi'(1) + upper]; see claim C2.
    """
    xp = array_namespace(rows)
    m = rows.shape[-1]
    low = xp.min(rows, axis=-1) - eta * phi.slope1
    high = xp.max(rows, axis=-1) - eta * phi.slope1 + upper
    count = array(np.broadcast_to(T, tuple(low.shape)))
    mu = low
    for t in range(int(xp.max(count))):
        mu = xp.where(count > t, (low + high) / 2, mu)
        h = xp.mean(phi.dconj((rows - mu[..., None]) / eta), axis=-1) - 1
        high, low = xp.where(h <= 0, mu, high), xp.where(h <= 0, low, mu)
    return phi.dconj((rows - mu[..., None]) / eta) / m


def algorithm2_rows(rows: Array, eta: float, phi: Divergence, eps: float) -> Array:
    """gamma of Algorithm 2 on every row, with the steps for the precision eps, rounded up and at least 1."""
    f = to_numpy(rows)
    width = f.max(axis=-1) - f.min(axis=-1)
    target = np.sqrt(2 * KAPPA[phi] * eta * eps)  # the width after T steps
    T = np.ceil(np.log2(np.maximum(width, 2 * target)) - log2(target))
    return bisected_weights(rows, eta, phi, T)


def level_weights(f: Any, level: int, solve: Callable[[Array], Array], *, telescoping: bool) -> Any:
    """All draws of a level, as rows of indices, and their weights in g^l, or in G^l if `telescoping`."""
    picks = row_solver.draws(len(f), 2**level)
    rows = array(np.asarray(f, dtype=float)[picks])
    whole = to_numpy(solve(rows))
    if not telescoping or level == 0:
        return picks, whole
    half = 2 ** (level - 1)
    halves = [to_numpy(solve(rows[:, part])) for part in (slice(None, half), slice(half, None))]
    return picks, whole - np.concatenate(halves, axis=-1) / 2


def gradient_moments(p: Any, g: Any, picks: Any, weights: Any) -> tuple[Any, float]:
    """E V and E|V|^2 for V = sum_i w_i g_i, where i runs over the points of a random draw.

    The points have probabilities p and gradients g. `picks` and `weights` have one row for each draw: the
    indices of its points, and their weights w.
    """
    chance = row_solver.chances(p, picks)
    V = (weights[:, :, None] * np.asarray(g, dtype=float)[picks]).sum(axis=1)
    return chance @ V, float(chance @ (V * V).sum(axis=-1))


def rt_moments(
    distribution: DiscreteDistribution, level: int, solve: Callable[[Array], Array]
) -> tuple[Any, float]:
    """E V and E|V|^2 of the RT-MLMC estimate V with the levels l = 0, ..., `level`, by enumeration.

    E V = sum_l E G^l and E|V|^2 = sum_l E|G^l|^2/P(l), where P(l) is the probability of level l.
    """
    mean, square = np.zeros(2), 0.0
    for k, chance in enumerate(RTMLMC(level).probabilities):
        term, term_square = gradient_moments(
            distribution.p, distribution.g, *level_weights(distribution.f, k, solve, telescoping=True)
        )
        mean, square = mean + term, square + term_square / chance
    return mean, square


def largest_chi_square(
    distribution: DiscreteDistribution, level: int, weights: Callable[[Any], Any]
) -> float:
    """The largest chi-square of the weights over all draws: the smallest C of Assumption 3 (I)."""
    rows = np.asarray(distribution.f, dtype=float)[row_solver.draws(len(distribution.f), 2**level)]
    return float(row_solver.chi_square(weights(rows)).max())


# --- Unordered draws, for the entropic phi --------------------------------------------------


@cache
def _unordered_draws(atoms: int, n: int) -> tuple[Any, Any, Any]:
    """All R unordered draws of n points: their indices (R, n), the counts (R, atoms), and the orders (R,).

    A row of the counts has the number of times that each atom is in the draw. The orders are the numbers of
    ordered draws with the same points.
    """
    rows = np.array(list(combinations_with_replacement(range(atoms), n)))
    counts = np.stack([(rows == k).sum(axis=1) for k in range(atoms)], axis=1)
    orders = np.array([float(factorial(n) // prod(map(factorial, c))) for c in counts.tolist()])
    return rows, counts, orders


def _sample(distribution: DiscreteDistribution, n: int) -> tuple[Any, Any]:
    """All unordered draws of n points, as rows of indices, and their probabilities."""
    rows, counts, orders = _unordered_draws(len(distribution.f), n)
    return rows, orders * np.prod(np.array(distribution.p) ** counts, axis=1)


def level_mean(distribution: DiscreteDistribution, level: int, solve: Solver) -> tuple[float, Any]:
    """F^l and grad F^l = E g^l, with inner problems solved by `solve`."""
    rows, chance = _sample(distribution, 2**level)
    out = solve(array(np.array(distribution.f)[rows]), distribution.eta, ENTROPIC)
    gradients = np.einsum("rn,rnd->rd", to_numpy(out.weights), np.array(distribution.g)[rows])
    return float(chance @ to_numpy(out.value)), chance @ gradients


def exact_level_mean(distribution: DiscreteDistribution, level: int) -> Any:
    """grad F^l from the closed form of the entropic weights."""
    rows, chance = _sample(distribution, 2**level)
    _, weights = row_solver.solve_closed_form(np.array(distribution.f)[rows], distribution.eta, "entropic")
    return chance @ np.einsum("rn,rnd->rd", weights, np.array(distribution.g)[rows])


def difference_moment(distribution: DiscreteDistribution, level: int, weights: Weights) -> float:
    """E|G^l|^2, with the weights of G^l computed by `weights`."""
    if level == 0:
        rows, chance = _sample(distribution, 1)
    else:
        half, p = _sample(distribution, 2 ** (level - 1))
        first, second = (v.ravel() for v in np.indices((len(half), len(half))))
        rows, chance = np.concatenate([half[first], half[second]], axis=1), p[first] * p[second]
    _, w = weights(array(np.array(distribution.f)[rows]), distribution.eta, ENTROPIC, telescoping=True)
    coordinates = [np.einsum("rn,rn->r", to_numpy(w), np.array(distribution.g)[rows, d]) for d in range(2)]
    return float(chance @ sum(v**2 for v in coordinates))


def gradient_error(distribution: DiscreteDistribution, level: int, solve: Solver) -> float:
    """|grad F^l - grad F|^2."""
    _, gradient = level_mean(distribution, level, solve)
    return float(np.sum((gradient - distribution.limit[1]) ** 2))


def second_moment_of(distribution: DiscreteDistribution, top: int, weights: Weights) -> float:
    """E|V|^2 = sum_l E|G^l|^2/P(l) of RT-MLMC with the levels 0, ..., `top`."""
    p = RTMLMC(top).probabilities
    return sum(difference_moment(distribution, k, weights) / p[k] for k in range(top + 1))


# --- All draws in one batch: the code of a data point determines its draw -------------------


@dataclass(frozen=True)
class ListedDistribution:
    """A distribution on 0, ..., k - 1 whose "samples" for a data point (c, i) are the base-k digits of c.

    c is the code of the data point, and i its index. If consecutive rows of x are the same data point, the
    first row takes the first n digits, the second row the next n, and so on.
    """

    k: int

    def sample(self, x: Array, n_samples: int, *, rng: Rng, event_ndim: int = 1) -> Array:
        """The next n digits of each x (N, 2), as points (N, n, 2) with second coordinate i."""
        n = n_samples
        code, index = to_numpy(x)[:, 0].astype(int), to_numpy(x)[:, 1]
        is_first = np.concatenate([[True], index[1:] != index[:-1]])
        row = np.arange(len(code))
        earlier_rows = row - np.maximum.accumulate(np.where(is_first, row, 0))  # of the same data point
        digits = code[:, None] // self.k ** (earlier_rows[:, None] * n + np.arange(n)) % self.k
        points = np.stack([digits, np.broadcast_to(index[:, None], digits.shape)], axis=-1)
        return array_namespace(x).asarray(points, dtype=x.dtype)


class EvenNumbers(Rng):
    """Deterministic "uniform" numbers: row r gets the midpoint of cell r mod `cells` of [0, 1].

    The cells are `cells` intervals of equal length. `permutation` gives row r the same cell, so RT-MLMC with
    stratified levels uses the same cells as with random levels.
    """

    def __init__(self, cells: int) -> None:
        super().__init__(0)
        self.cells = cells

    def uniform(self, shape: tuple[int, ...], *, like: Array, low: float = 0.0, high: float = 1.0) -> Array:
        """((r mod cells) + 1/2)/cells, or 1/2 for a single number."""
        if shape == ():
            return array_namespace(like).asarray(0.5, dtype=like.dtype)
        number = np.arange(int(np.prod(shape))) % self.cells
        return array_namespace(like).asarray(((number + 0.5) / self.cells).reshape(shape), dtype=like.dtype)

    def permutation(self, n: int, *, like: Array) -> Array:
        """Group the rows by cell: row r moves to block r mod `cells`."""
        row = np.arange(n)
        return array_namespace(like).asarray(row % self.cells * (n // self.cells) + row // self.cells)


def batch_of_all_draws(k: int, level: int) -> tuple[Any, EvenNumbers]:
    """Data points (N, 2) that list each draw of 2^L from k points once per cell, and the generator.

    L is `level`. There are 2^(L+1) - 1 cells of equal length. The probability P(l) = 2^-l/(2 - 2^-L) of level
    l is the length of 2^(L-l) cells. So the mean over the batch is the exact expectation over draws and
    levels.
    """
    cells = 2 ** (level + 1) - 1
    codes = np.repeat(np.arange(k ** (2**level)), cells)
    return np.stack([codes, np.arange(len(codes))], axis=1).astype(float), EvenNumbers(cells)

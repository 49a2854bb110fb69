"""The estimators of Section 3.1 on a law of a few points: all draws of a level, with their probabilities."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import combinations_with_replacement
from math import factorial, log2, prod
from typing import Any, TypeAlias

import numpy as np
from hypothesis import strategies as st

from phiball.backends import Array, active, array_namespace, rng, to_numpy
from phiball.refimpl import ENTROPIC, RTMLMC, Divergence, dual_value, indicator
from phiball.verification.instances.arrays import array
from phiball.verification.instances.divergences import KAPPA
from phiball.verification.instances.laws import Law
from phiball.verification.instances.solutions import Solver
from phiball.verification.instances.strategies import powers_of_ten
from phiball.verification.oracles import levels, uniform

RowSolver: TypeAlias = Callable[[Array, float, Divergence, float], Array]
"""gamma of each row of losses, for eta, phi and the precision eps."""
Weights: TypeAlias = Callable[..., tuple[Array, Array]]
"""The values and the weights of rows of losses, called as `signed_weights` is."""
Bound: TypeAlias = Callable[[Law, int], float]
"""A bound for a law and a level."""

LEVELS = range(9)
ENUMERATED = range(7)  # the pairs of halves of the higher levels are many

# --- Ordered draws --------------------------------------------------------------------------------


def halved(rows: Array, eta: float, phi: Divergence, T: Any, upper: float = 0.0) -> Array:
    """gamma of Algorithm 2 after T halvings (a number, or one per row), on every row.

    The bracket is the corrected one, made wider above by `upper`.
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
    """gamma of Algorithm 2 on every row, with T = max(1, ceil(T)) halvings for the precision eps."""
    f = to_numpy(rows)
    width = f.max(axis=-1) - f.min(axis=-1)
    least = np.sqrt(2 * KAPPA[phi] * eta * eps)
    T = np.ceil(np.log2(np.maximum(width, 2 * least)) - log2(least))
    return halved(rows, eta, phi, T)


def level_weights(f: Any, level: int, solve: Callable[[Array], Array], *, telescoping: bool) -> Any:
    """The weights of g^l, or of G^l where `telescoping`, on all draws of 2^l of the points with losses f."""
    picks = levels.draws(len(f), 2**level)
    rows = array(np.asarray(f, dtype=float)[picks])
    whole = to_numpy(solve(rows))
    if not telescoping or level == 0:
        return picks, whole
    half = 2 ** (level - 1)
    parts = [to_numpy(solve(rows[:, place])) for place in (slice(None, half), slice(half, None))]
    return picks, whole - np.concatenate(parts, axis=-1) / 2


def moments(p: Any, g: Any, picks: Any, weights: Any) -> tuple[Any, float]:
    """E V and E|V|^2 for V = sum_i w_i g_i, the draws having the law p."""
    chance = levels.chances(p, picks)
    V = (weights[:, :, None] * np.asarray(g, dtype=float)[picks]).sum(axis=1)
    return chance @ V, float(chance @ (V * V).sum(axis=-1))


def rt_moments(law: Law, level: int, solve: Callable[[Array], Array]) -> tuple[Any, float]:
    """E V and E|V|^2 = sum_l E|G^l|^2/P(l) of RT-MLMC, by enumeration."""
    mean, square = np.zeros(2), 0.0
    for k, chance in enumerate(RTMLMC(level).probabilities):
        own, own_square = moments(law.p, law.g, *level_weights(law.f, k, solve, telescoping=True))
        mean, square = mean + own, square + own_square / chance
    return mean, square


def largest_chi_square(law: Law, level: int, weights: Callable[[Any], Any]) -> float:
    """The largest chi-square of the weights over all draws: the least C of Assumption 3 (I) for them."""
    rows = np.asarray(law.f, dtype=float)[levels.draws(len(law.f), 2**level)]
    return float(levels.chi_square(weights(rows)).max())


# --- Draws up to their order, for the entropic phi --------------------------------------------------


@cache
def _whole(atoms: int, n: int) -> tuple[Any, Any, Any]:
    """All samples of n points up to order: rows (R, n), counts of the atoms, and the number of orders."""
    rows = np.array(list(combinations_with_replacement(range(atoms), n)))
    counts = np.stack([(rows == k).sum(axis=1) for k in range(atoms)], axis=1)
    orders = np.array([float(factorial(n) // prod(map(factorial, c))) for c in counts.tolist()])
    return rows, counts, orders


def _sample(law: Law, n: int) -> tuple[Any, Any]:
    """Rows of indices, and their chances."""
    rows, counts, orders = _whole(len(law.f), n)
    return rows, orders * np.prod(np.array(law.p) ** counts, axis=1)


def level_mean(law: Law, level: int, solve: Solver) -> tuple[float, Any]:
    """F^l and grad F^l by `solve`, the solver of the inner problem."""
    rows, chance = _sample(law, 2**level)
    out = solve(array(np.array(law.f)[rows]), law.eta, ENTROPIC)
    gradients = np.einsum("rn,rnd->rd", to_numpy(out.weights), np.array(law.g)[rows])
    return float(chance @ to_numpy(out.value)), chance @ gradients


def exact_level_mean(law: Law, level: int) -> Any:
    """grad F^l by the closed form of the entropic weights."""
    rows, chance = _sample(law, 2**level)
    _, weights = levels.solve(np.array(law.f)[rows], law.eta, "entropic")
    return chance @ np.einsum("rn,rnd->rd", weights, np.array(law.g)[rows])


def difference_moment(law: Law, level: int, weights: Weights) -> float:
    """E|G^l|^2 by `weights`, which gives those of G^l."""
    if level == 0:
        rows, chance = _sample(law, 1)
    else:
        half, own = _sample(law, 2 ** (level - 1))
        first, second = (v.ravel() for v in np.indices((len(half), len(half))))
        rows, chance = np.concatenate([half[first], half[second]], axis=1), own[first] * own[second]
    _, w = weights(array(np.array(law.f)[rows]), law.eta, ENTROPIC, telescoping=True)
    # One product per coordinate: rows of weights against rows of gradients.
    coordinates = [np.einsum("rn,rn->r", to_numpy(w), np.array(law.g)[rows, d]) for d in range(2)]
    return float(chance @ sum(v**2 for v in coordinates))


def gradient_error(law: Law, level: int, solve: Solver) -> float:
    """|grad F^l - grad F|^2."""
    _, gradient = level_mean(law, level, solve)
    return float(np.sum((gradient - law.limit[1]) ** 2))


def second_moment_of(law: Law, top: int, weights: Weights) -> float:
    """E|V|^2 of RT-MLMC with the levels 0, ..., L: level l counts with 1/P(l)."""
    p = RTMLMC(top).probabilities
    return sum(difference_moment(law, k, weights) / p[k] for k in range(top + 1))


def bias_of_two(eta: float, phi: Divergence, solve: Solver) -> float:
    """F - F^1 for f uniform on [0, 1]: the distance t of two points has density 2 (1 - t)."""
    kinks = (eta, 2 * eta)
    nodes, weights = uniform.graded(kinks)
    rows = array(np.stack([np.zeros_like(nodes), nodes], axis=-1))
    above = to_numpy(solve(rows, eta, phi).value) - nodes / 2  # over the mean
    F = uniform.value(eta, phi.family or "", phi.parameter)
    return F - 0.5 - float((weights * 2 * (1 - nodes) * above).sum())


def bias_of_order_statistics(n: int, alpha: float, solve: Solver) -> float:
    """F - F^n of AV@R for f uniform on [0, 1]: it is linear in the order statistics, of means i/(n + 1)."""
    rows = array(np.arange(1, n + 1) / (n + 1))
    return 1 - alpha / 2 - float(solve(rows, 1.0, indicator(alpha)).value)


def bias_by_sampling(
    n: int, eta: float, phi: Divergence, solve: Solver, rows: int, seed: int
) -> tuple[float, float]:
    """F - F^n for f uniform on [0, 1], and its standard error.

    On every sample the dual at the mu* of the law has mean F and is above the value, by little.
    """
    xp = active().namespace
    f = rng(seed + n).uniform((rows, n), like=xp.zeros(1, dtype=xp.float64))
    mu = uniform.multiplier(eta, phi.family or "")
    over = to_numpy(dual_value(f, mu, eta, phi) - solve(f, eta, phi).value)
    return float(over.mean()), float(over.std(ddof=1)) / rows**0.5


@dataclass(frozen=True)
class QuadraticLosses:
    """f_i = c_i + g_i theta + h_i theta^2/2 on abs(theta) <= tau, one for each perturbed point."""

    terms: tuple[tuple[float, float, float], ...]
    tau: float
    eta: float

    def __str__(self) -> str:
        return f"((c, g, h) = {self.terms}, tau = {self.tau!r}, eta = {self.eta!r})"

    @property
    def lipschitz(self) -> float:
        """L_f."""
        return max(abs(g) + abs(h) * self.tau for _, g, h in self.terms)

    @property
    def smoothness(self) -> float:
        """S_f."""
        return max(abs(h) for _, _, h in self.terms)

    @property
    def height(self) -> float:
        """A bound B on the range of the losses, which a constant moves to [0, B]."""
        swing = [abs(g) * self.tau + abs(h) * self.tau**2 / 2 for _, g, h in self.terms]
        up = max(c + s for (c, _, _), s in zip(self.terms, swing, strict=True))
        return up - min(c - s for (c, _, _), s in zip(self.terms, swing, strict=True))

    @property
    def ratio(self) -> float:
        """B/eta."""
        return self.height / self.eta

    @property
    def rounding(self) -> float:
        """Of a gradient, whose weights are off by the rounding of f over eta."""
        size = max(abs(c) for c, _, _ in self.terms) + self.height
        return 2.0**-46 * self.lipschitz * (1 + size / self.eta)


Smoothness: TypeAlias = Callable[[QuadraticLosses], float]


@st.composite
def quadratic_losses(draw: st.DrawFn) -> QuadraticLosses:
    """One to four of them; flat, steep or bent ones, B/eta up to about 100."""
    eta = draw(st.sampled_from([1.0, 0.1, 10.0]))
    tau = draw(st.sampled_from([1.0, 0.1, 0.01]))
    offset = st.one_of(st.just(0.0), st.floats(0, 1, width=32))
    slope = st.one_of(st.sampled_from([0.0, 1.0, -1.0, 0.1]), st.floats(-2, 2, width=32))
    bend = st.one_of(st.sampled_from([0.0, 0.1, 1.0, -1.0]), st.floats(-4, 4, width=32))
    term = st.tuples(offset, slope, bend)
    # Two losses that are equal at 0, with opposite gradients, change their weights the most.
    twins = term.map(lambda t: [t, (t[0], -t[1], -t[2])])
    terms = draw(st.one_of(st.lists(term, min_size=1, max_size=4), twins))
    unit = draw(st.one_of(st.sampled_from([1.0, 10.0, 0.1]), powers_of_ten(-1, 1)))
    return QuadraticLosses(tuple((c, unit * g, unit * h) for c, g, h in terms), tau, eta)


def gradient_change(
    f: QuadraticLosses, places: tuple[float, float], solve: Callable[..., Any]
) -> tuple[float, float]:
    """|grad F^l(theta) - grad F^l(theta')| on these points as the sample, and |theta - theta'|."""
    theta = np.array([[f.tau * place] for place in places])
    c, g, h = np.array(f.terms).T
    losses = array(c + g * theta + h * theta**2 / 2)
    weights = to_numpy(solve(losses, f.eta, ENTROPIC).weights)
    first, second = (weights * (g + h * theta)).sum(axis=-1)
    return float(abs(first - second)), float(abs(theta[0, 0] - theta[1, 0]))

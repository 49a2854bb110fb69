"""Robust tabular Q-learning (Section 6.2), compiled: the entropic worst case of a value, and whole runs."""

from __future__ import annotations

from typing import Any

import numpy as np

from phiball.backends.arrays import Array
from phiball.backends.numba.compilation import compiled, subroutine
from phiball.backends.numba.elementary_functions import exp_minus
from phiball.backends.numba.solve import as_numpy_view, contiguous, to_library


@subroutine()
def soft_minimum(Q: Any, a: int, index: Any, weight: Any, eta: float) -> float:
    """-eta log sum_j weight_j exp(-q_j/eta), where q_j = Q[index_j, a], or max Q[index_j] for a = -1."""
    low = np.inf
    for j in range(index.size):
        if weight[j] > 0.0:
            low = min(low, _q_value(Q, index[j], a))
    excess = 0.0
    for j in range(index.size):
        if weight[j] > 0.0:
            excess += weight[j] * exp_minus((low - _q_value(Q, index[j], a)) / eta, 1.0)
    if excess > -0.25:  # large eta: log1p of the sum minus one is more accurate
        return low - eta * float(np.log1p(excess))
    total = 0.0
    for j in range(index.size):
        if weight[j] > 0.0:
            total += weight[j] * exp_minus((low - _q_value(Q, index[j], a)) / eta, 0.0)
    return low - eta * float(np.log(total))


@subroutine()
def _q_value(Q: Any, s: int, a: int) -> float:
    """Q[s, a], or the largest entry of Q[s] for a = -1."""
    if a >= 0:
        entry: float = Q[s, a]
        return entry
    best = Q[s, 0]
    for b in range(1, Q.shape[1]):
        best = max(best, Q[s, b])
    return float(best)


@compiled()
def landing_value(Q: Any, index: Any, weight: Any, eta: float, inside: bool) -> float:
    """The entropic `robust_value` of one neighbourhood: states `index` (k,) with probabilities `weight` (k,).

    Q is (S, A). `inside` puts the maximum over actions inside the soft minimum.
    """
    if inside:
        return soft_minimum(Q, -1, index, weight, eta)
    best = -np.inf
    for a in range(Q.shape[1]):
        best = max(best, soft_minimum(Q, a, index, weight, eta))
    return best


@compiled()
def neighbourhood_at(x: Any, low: Any, width: Any, bins: Any, radius: Any, index: Any, weight: Any) -> int:
    """Fill `index` and `weight` with `Grid.neighbourhood_at` of one state x (d,); return their used length.

    Both need at least as many entries as the product over dimensions of min(bins, ceil(2 radius/width) + 1).
    """
    count = 1
    index[0], weight[0] = 0, 1.0
    for j in range(x.size):
        u, a, n = (x[j] - low[j]) / width[j], radius[j] / width[j], bins[j]
        k = int(min(n, np.ceil(2 * a) + 1))
        first = int(min(max(np.floor(u - a), 0.0), n - k))
        for old in range(count - 1, -1, -1):  # backwards, since each entry is replaced by k entries
            cell, mass = index[old], weight[old]
            above = 1.0
            for i in range(k - 1, -1, -1):
                below = min(max((first + i - u + a) / (2 * a), 0.0), 1.0) if i > 0 else 0.0
                index[old * k + i] = cell * n + first + i
                weight[old * k + i] = mass * (above - below)
                above = below
        count *= k
    return count


@subroutine()
def _draw_state(cumulative: Any, u: float) -> int:
    """The state that the uniform number u selects; states without probability are never drawn."""
    total = cumulative[-1]
    drawn: int = np.searchsorted(cumulative, u * total, side="right")
    return min(drawn, int(np.searchsorted(cumulative, total, side="left")))


@compiled()
def q_loop(
    tables: Any,
    distributions: Any,
    uniforms: Any,
    schedules: Any,
    neighbourhood: Any,
    discount: float,
    eta: float,
    inside: bool,
    out: Any,
) -> None:
    """The loop of `q_run`; overwrites the arrays of `out` = (Q, visits, rewards, ended).

    - `tables`: reward (S, A) and terminal (S,).
    - `distributions`, `uniforms`, `schedules`: as in the reference `q_run`.
    - `neighbourhood`: index and weight, both (S, k).
    """
    reward, terminal = tables
    cumulative, first = distributions
    alphas, epsilons = schedules
    index, weight = neighbourhood
    Q, visits, rewards, ended = out
    actions = Q.shape[1]
    s = -1
    for t in range(uniforms.shape[0]):
        if s < 0:
            s = _draw_state(first, uniforms[t, 3])
        if uniforms[t, 0] < epsilons[t]:
            a = min(int(uniforms[t, 1] * actions), actions - 1)
        else:
            a = 0
            for b in range(1, actions):
                if Q[s, b] > Q[s, a]:
                    a = b
        s_next = _draw_state(cumulative[s, a], uniforms[t, 2])
        target = reward[s, a]
        if not terminal[s_next]:
            target += discount * landing_value(Q, index[s_next], weight[s_next], eta, inside)
        alpha = alphas[visits[s, a]]
        Q[s, a] = (1.0 - alpha) * Q[s, a] + alpha * target
        visits[s, a] += 1
        rewards[t] = reward[s, a]
        ended[t] = terminal[s_next]
        s = -1 if terminal[s_next] else s_next


def q_run(
    Q: Array,
    mdp: Any,
    distributions: tuple[Array, Array],
    uniforms: Array,
    schedules: tuple[Array, Array],
    perturbation: Any,
    estimator: Any,
    rng: Any,
) -> Any:
    """Run Q-learning like `q_run` in refimpl/qlearning/q_learning.py: (Q, visits, rewards, ended).

    Returns NotImplemented unless the arrays are float64 in main memory, the divergence is entropic and
    `estimator` is None. (In float32, rounding errors would soon lead this run and the reference to different
    states.)
    """
    if perturbation.phi.family != "entropic" or estimator is not None:
        return NotImplemented
    neighbourhood = perturbation.neighbourhood
    floats = Q, *distributions, uniforms, *schedules, neighbourhood.weight, mdp.reward
    views = [as_numpy_view(x) for x in (*floats, neighbourhood.index, mdp.terminal)]
    if any(x is None for x in views) or any(x.dtype != np.float64 for x in views[: len(floats)]):
        return NotImplemented
    table, cumulative, first, draws, alphas, epsilons, weight, reward, index, terminal = map(
        contiguous, views
    )
    steps = draws.shape[0]
    out = table.copy(), np.zeros(table.shape, np.int64), np.empty(steps), np.empty(steps, np.bool_)
    tables, distributions = (reward, terminal), (cumulative, first)
    eta, inside = perturbation.eta, perturbation.maximum.value == "inside"
    q_loop(tables, distributions, draws, (alphas, epsilons), (index, weight), mdp.discount, eta, inside, out)
    return tuple(to_library(x, Q) for x in out)

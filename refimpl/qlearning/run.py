"""Robust tabular Q-learning: the update of Section 6.2, and runs of it on a simulated process."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from math import isfinite

from phiball.backends import Array, Rng, array_namespace, device, kernel, to_numpy
from phiball.refimpl.inner.divergences import Divergence, valid_divergence
from phiball.refimpl.printing import one_line
from phiball.refimpl.qlearning.bellman import (
    DecisionProcess,
    Maximum,
    valid_discount,
    valid_maximum,
    valid_problem,
    valid_table,
)
from phiball.refimpl.qlearning.grid import Neighbourhood
from phiball.refimpl.qlearning.neighbours import EXACT, Neighbours
from phiball.refimpl.validation import (
    check_same_array_type,
    valid_array,
    valid_count,
    valid_distribution,
    valid_eta,
    valid_rng,
)


def q_update(
    Q: Array,
    s: int,
    a: int,
    reward: float,
    s_next: int,
    done: bool,
    *,
    alpha: float,
    discount: float,
    neighbourhood: Neighbourhood,
    eta: float,
    divergence: Divergence,
    maximum: Maximum = Maximum.OUTSIDE,
    neighbours: Neighbours = EXACT,
    rng: Rng | None = None,
) -> Array:
    r"""Update one entry of the table: $Q(s, a) \leftarrow (1 - \alpha) Q(s, a) + \alpha (r + \beta V(s'))$.

    Arguments:
    - `Q` (S, A): the table, which is not modified.
    - `s`, `a`, `reward`: the step taken; `done`: whether it ended the episode, so that V(s') = 0.
    - `s_next`: the row of `neighbourhood` that the step led to: a state of a table, or 0 for the single row
      of `Grid.perturbed` at a continuous state.
    - `alpha`: the step size, in (0, 1]; `discount`: $\beta$, in [0, 1).
    - `neighbourhood`, `eta`, `divergence`, `maximum`: as in `robust_value`, which gives V.
    - `neighbours`: how V is computed: `ExactNeighbours()`, `SampledNeighbours(level)` or
      `TelescopedNeighbours(level)`. The last two need `rng`.

    Returns a new table (S, A).

    Reference: Eq. (Q:learning) of Section 6.2.

    >>> import numpy as np
    >>> from phiball.refimpl import ENTROPIC
    >>> from phiball.qlearning import Grid
    >>> distribution = Grid((0.0,), (2.0,), (2,)).perturbed(np.array([[1.0]]), 0.5)
    >>> options = dict(alpha=0.5, discount=0.9, neighbourhood=distribution, eta=1.0, divergence=ENTROPIC)
    >>> np.round(q_update(np.array([[0.0], [1.0]]), 0, 0, 1.0, 0, False, **options), 4).tolist()
    [[0.6709], [1.0]]
    """
    valid_table(Q, neighbourhood)
    if Q.ndim != 2:
        raise ValueError(f"Q has shape {tuple(Q.shape)}; expected (S, A)")
    for name, i, n in (
        ("s", s, Q.shape[0]),
        ("a", a, Q.shape[1]),
        ("s_next", s_next, neighbourhood.index.shape[0]),
    ):
        if isinstance(i, bool) or not isinstance(i, int) or not 0 <= i < n:
            raise ValueError(f"{name} is {i!r}; expected a whole number from 0 to {n - 1}")
    if not (isinstance(alpha, (int, float)) and 0 < alpha <= 1):
        raise ValueError(f"alpha is {alpha!r}; expected a number in (0, 1]")
    if not (isinstance(reward, (int, float)) and isfinite(reward)):
        raise ValueError(f"reward is {reward!r}; expected a finite number")
    valid_discount(discount)
    target = float(reward)
    if not done:
        row = _row(neighbourhood, s_next)
        target += discount * float(neighbours(Q, row, eta, divergence, maximum, rng)[0])
    return _moved(Q, s, a, alpha, target)


def _row(distribution: Neighbourhood, i: int) -> Neighbourhood:
    return Neighbourhood(distribution.index[i : i + 1, :], distribution.weight[i : i + 1, :])


def _moved(Q: Array, s: int, a: int, alpha: float, target: float) -> Array:
    xp = array_namespace(Q)
    place = xp.reshape(xp.arange(Q.shape[0] * Q.shape[1], device=device(Q)), Q.shape) == s * Q.shape[1] + a
    return xp.where(place, (1 - alpha) * Q + alpha * target, Q)


@dataclass(frozen=True)
class QLearning:
    """The result of a run of Q-learning.

    - `Q` (S, A): the table.
    - `visits` (S, A) int64: how often each pair was updated.
    - `rewards` (steps,): the reward of each step.
    - `ended` (steps,) bool: whether the step ended its episode.
    """

    Q: Array
    visits: Array
    rewards: Array
    ended: Array
    __repr__ = one_line


def _polynomial(n: Array) -> Array:
    """A step size that decreases as the theory asks, and forgets the first targets faster than 1/(1 + n)."""
    return (1 + n) ** -0.8


def q_learning(
    mdp: DecisionProcess,
    neighbourhood: Neighbourhood,
    eta: float,
    divergence: Divergence,
    *,
    steps: int,
    rng: Rng,
    epsilon: float | Callable[[Array], Array] = 0.1,
    step_size: Callable[[Array], Array] = _polynomial,
    start: Array | None = None,
    Q0: Array | None = None,
    maximum: Maximum = Maximum.OUTSIDE,
    neighbours: Neighbours = EXACT,
) -> QLearning:
    """Learn the fixed point of the robust Bellman operator from one simulated path, by `q_update`.

    Arguments:
    - `mdp`, `neighbourhood`, `eta`, `divergence`, `maximum`: as in `bellman`.
    - `steps`: the number of simulated transitions. An episode ends at a terminal state, and the next begins.
    - `rng`: from `phiball.backends.rng`.
    - `epsilon`: the probability of a random action in place of the first best one: a number, or a function
      of the numbers of the steps, (steps,) -> (steps,), with values in [0, 1].
    - `step_size`: alpha, a function of the number n of earlier visits of the pair (s, a), an array, with
      values in (0, 1]; (1 + n)^-0.8 by default.
    - `start` (S,): the distribution of the first state of an episode; by default uniform on nonterminal ones.
    - `Q0` (S, A): where to begin; zero by default. It is set to zero at terminal states.
    - `neighbours`: as in `q_update`.

    Returns `Q` and `visits` (S, A), `rewards` and `ended` (steps,). If every pair is visited for ever and the
    step sizes satisfy the usual conditions, Q converges to the fixed point of `value_iteration` with exact
    neighbours (claim J2), and with sampled ones to the fixed point of their mean. On the numba backend the
    entropic run with exact neighbours is compiled.

    Reference: Section 6.2.

    >>> import numpy as np
    >>> from phiball.backends import rng
    >>> from phiball.refimpl import ENTROPIC
    >>> from phiball.qlearning import DecisionProcess, Neighbourhood
    >>> loop = DecisionProcess(np.ones((1, 1, 1)), np.array([[1.0]]), 0.5)
    >>> alone = Neighbourhood(np.array([[0]]), np.array([[1.0]]))
    >>> run = q_learning(loop, alone, 1.0, ENTROPIC, steps=60, rng=rng(0), step_size=lambda n: 0 * n + 1)
    >>> run.Q.tolist(), run.visits.tolist()
    ([[2.0]], [[60]])
    """
    valid_problem(mdp, neighbourhood)
    valid_divergence(divergence)
    valid_maximum(maximum)
    valid_count("steps", steps)
    reward, xp = mdp.reward, array_namespace(mdp.reward)
    valid_eta(eta, reward)
    check_same_array_type("neighbourhood.weight", neighbourhood.weight, reward, other="reward")
    Q0 = xp.zeros_like(reward) if Q0 is None else Q0
    valid_table(Q0, neighbourhood)
    check_same_array_type("Q0", Q0, reward, other="reward", dtype=True)
    if Q0.shape != reward.shape:
        raise ValueError(f"Q0 has shape {tuple(Q0.shape)}; expected (S, A) = {tuple(reward.shape)}")
    if not callable(neighbours):
        raise TypeError(f"neighbours is {neighbours!r}; expected ExactNeighbours() or one of its kind")
    start = _valid_start(start, mdp)
    number = xp.arange(steps, dtype=reward.dtype, device=device(reward))
    alphas = _schedule("step_size", step_size, number)
    if not xp.all(alphas > 0):
        raise ValueError("step_size gives a number that is not positive; expected numbers in (0, 1]")
    epsilons = _schedule("epsilon", epsilon, number)
    uniforms = valid_rng(rng).uniform((steps, 4), like=reward)
    Q = xp.where(mdp.terminal[:, None], xp.zeros_like(Q0), Q0)
    distributions = xp.cumulative_sum(mdp.transition, axis=-1), xp.cumulative_sum(start, axis=0)
    out = q_run(
        Q,
        mdp,
        distributions,
        uniforms,
        (alphas, epsilons),
        neighbourhood,
        float(eta),
        divergence,
        maximum,
        neighbours,
        rng,
    )
    return QLearning(*out)


@kernel
def q_run(
    Q: Array,
    mdp: DecisionProcess,
    distributions: tuple[Array, Array],
    uniforms: Array,
    schedules: tuple[Array, Array],
    neighbourhood: Neighbourhood,
    eta: float,
    divergence: Divergence,
    maximum: Maximum,
    neighbours: Neighbours,
    rng: Rng,
) -> tuple[Array, Array, Array, Array]:
    """The loop of `q_learning` on random numbers drawn beforehand: (Q, visits, rewards, ended).

    `distributions` are the cumulative distributions of the next state (S, A, S) and of the first one (S,); `uniforms`
    (steps, 4) decide, in this order, whether to explore, the action explored, the next state and the first
    state of an episode; `schedules` are alpha by visits and epsilon by steps.
    """
    xp = array_namespace(Q)
    at = {"device": device(Q)}
    cumulative, first = (to_numpy(distribution).tolist() for distribution in distributions)
    alphas, epsilons = (to_numpy(schedule).tolist() for schedule in schedules)
    terminal, reward = to_numpy(mdp.terminal).tolist(), to_numpy(mdp.reward).tolist()
    states, actions = Q.shape
    rows = [_row(neighbourhood, i) for i in range(states)]
    visits = [[0] * actions for _ in range(states)]
    rewards, ended = [], []
    s = -1
    for t, (explore, which, where, begin) in enumerate(to_numpy(uniforms).tolist()):
        if s < 0:
            s = _inverse(first, begin)
        a = min(int(which * actions), actions - 1) if explore < epsilons[t] else int(xp.argmax(Q[s, :]))
        r, s_next = reward[s][a], _inverse(cumulative[s][a], where)
        target = r
        if not terminal[s_next]:
            target += mdp.discount * float(neighbours(Q, rows[s_next], eta, divergence, maximum, rng)[0])
        Q = _moved(Q, s, a, alphas[visits[s][a]], target)
        visits[s][a] += 1
        rewards.append(r)
        ended.append(terminal[s_next])
        s = -1 if terminal[s_next] else s_next
    return (
        Q,
        xp.asarray(visits, dtype=xp.int64, **at),
        xp.asarray(rewards, dtype=Q.dtype, **at),
        xp.asarray(ended, dtype=xp.bool, **at),
    )


def _inverse(cumulative: list[float], u: float) -> int:
    """The state whose share of the total mass holds the part u of it."""
    total = cumulative[-1]
    # Where rounding takes u to the total, the last state that has weight.
    return min(bisect_right(cumulative, u * total), bisect_left(cumulative, total))


def _schedule(name: str, rule: float | Callable[[Array], Array], number: Array) -> Array:
    xp = array_namespace(number)
    if isinstance(rule, (int, float)) and not isinstance(rule, bool):
        values = xp.full_like(number, float(rule))
    elif callable(rule):
        values = rule(number)
        valid_array(f"the result of {name}", values)
        check_same_array_type(f"the result of {name}", values, number, other="reward", dtype=True)
        if values.shape != number.shape:
            raise ValueError(f"{name} gives shape {tuple(values.shape)}; expected {tuple(number.shape)}")
    else:
        raise TypeError(f"{name} is {rule!r}; expected a number or a function of an array")
    if not xp.all((values >= 0) & (values <= 1)):
        raise ValueError(f"{name} gives numbers outside [0, 1]; expected numbers inside")
    return values


def _valid_start(start: Array | None, mdp: DecisionProcess) -> Array:
    xp, reward = array_namespace(mdp.reward), mdp.reward
    live = xp.astype(~mdp.terminal, reward.dtype)
    if not xp.any(live > 0):
        raise ValueError("terminal marks every state; expected one at least to begin in")
    if start is None:
        return live / xp.sum(live)
    valid_array("start", start)
    check_same_array_type("start", start, reward, other="reward", dtype=True)
    if tuple(start.shape) != (reward.shape[0],):
        raise ValueError(f"start has shape {tuple(start.shape)}; expected ({reward.shape[0]},)")
    if xp.any((start > 0) & mdp.terminal):
        raise ValueError("start gives weight to a terminal state; expected an episode to begin elsewhere")
    return valid_distribution("start", start)

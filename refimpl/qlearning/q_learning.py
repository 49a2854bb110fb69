"""Robust tabular Q-learning (Section 6.2): one update, and learning from a simulated path."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from math import isfinite

from phiball.backends import Array, Rng, array_namespace, as_rng, device, kernel, to_numpy
from phiball.refimpl.printing import one_line
from phiball.refimpl.qlearning.bellman import MDP, check_problem, valid_discount
from phiball.refimpl.qlearning.grid import Neighbourhood
from phiball.refimpl.qlearning.robust_value import (
    StatePerturbation,
    check_estimator,
    check_perturbation,
    check_table,
    unchecked_robust_value,
)
from phiball.refimpl.types import Estimator
from phiball.refimpl.validation import check_array, check_same_array_type, valid_count, valid_eta


@dataclass(frozen=True)
class Transition:
    """One observed step of a process.

    - `s`, `a`: the state and the action taken there.
    - `reward`: the reward.
    - `s_next`: the row of the neighbourhood that belongs to the next state. This is the number of the state
      if the neighbourhood has a row per state, and 0 if the neighbourhood is `Grid.neighbourhood_at` of the
      next state alone.
    - `done`: whether the step ended the episode, so that V(s') = 0.

    >>> Transition(s=2, a=0, reward=-1.0, s_next=3)
    Transition(s=2, a=0, reward=-1.0, s_next=3, done=False)
    """

    s: int
    a: int
    reward: float
    s_next: int
    done: bool = False


def q_update(
    Q: Array,
    transition: Transition,
    perturbation: StatePerturbation,
    *,
    discount: float,
    step_size: float,
    estimator: Estimator | None = None,
    rng: int | Rng | None = None,
) -> Array:
    r"""Update one entry of the table: $Q(s, a) \leftarrow (1 - \alpha) Q(s, a) + \alpha (r + \beta V(s'))$.

    Arguments:
    - `Q` (S, A): the table, which is not modified.
    - `transition`: a `Transition`: action a in state s led to state s' with reward r.
    - `perturbation`: a `StatePerturbation`; V is its `robust_value`.
    - `discount`: $\beta$, in [0, 1).
    - `step_size`: $\alpha$, in (0, 1].
    - `estimator`, `rng`: as in `robust_value`.

    Returns a new table (S, A).

    Reference: Eq. (Q:learning) of Section 6.2.

    >>> import numpy as np
    >>> from phiball.qlearning import Grid
    >>> near = StatePerturbation(Grid((0.0,), (2.0,), (2,)).neighbourhood_at(np.array([[1.0]]), 0.5), 1.0)
    >>> Q, step = np.array([[0.0], [1.0]]), Transition(s=0, a=0, reward=1.0, s_next=0)
    >>> np.round(q_update(Q, step, near, discount=0.9, step_size=0.5), 4).tolist()
    [[0.6709], [1.0]]
    """
    check_perturbation(perturbation)
    neighbourhood = perturbation.neighbourhood
    check_table(Q, neighbourhood)
    if Q.ndim != 2:
        raise ValueError(f"Q has shape {tuple(Q.shape)}; expected (S, A)")
    _check_transition(transition, Q, neighbourhood)
    if not (isinstance(step_size, (int, float)) and 0 < step_size <= 1):
        raise ValueError(f"step_size is {step_size!r}; expected a number in (0, 1]")
    valid_discount(discount)
    check_estimator(estimator)
    target = float(transition.reward)
    if not transition.done:
        row = _row(neighbourhood, transition.s_next)
        rng = None if estimator is None else as_rng(rng)
        target += discount * float(unchecked_robust_value(Q, row, perturbation, estimator, rng)[0])
    return _update_entry(Q, transition.s, transition.a, step_size, target)


def _check_transition(transition: Transition, Q: Array, neighbourhood: Neighbourhood) -> None:
    if not isinstance(transition, Transition):
        raise TypeError(f"transition is {transition!r}; expected a Transition")
    for name, n in (("s", Q.shape[0]), ("a", Q.shape[1]), ("s_next", neighbourhood.index.shape[0])):
        i = getattr(transition, name)
        if isinstance(i, bool) or not isinstance(i, int) or not 0 <= i < n:
            raise ValueError(f"{name} is {i!r}; expected a whole number from 0 to {n - 1}")
    if not (isinstance(transition.reward, (int, float)) and isfinite(transition.reward)):
        raise ValueError(f"reward is {transition.reward!r}; expected a finite number")


def _row(neighbourhood: Neighbourhood, i: int) -> Neighbourhood:
    """Row i of the neighbourhood, as a neighbourhood with one row."""
    return Neighbourhood(neighbourhood.index[i : i + 1, :], neighbourhood.weight[i : i + 1, :])


def _update_entry(Q: Array, s: int, a: int, step_size: float, target: float) -> Array:
    """Q with the entry (s, a) moved towards `target`."""
    xp = array_namespace(Q)
    place = xp.reshape(xp.arange(Q.shape[0] * Q.shape[1], device=device(Q)), Q.shape) == s * Q.shape[1] + a
    return xp.where(place, (1 - step_size) * Q + step_size * target, Q)


@dataclass(frozen=True)
class QLearningResult:
    """The table that `q_learning` learned, and the path.

    - `Q` (S, A): the table.
    - `visits` (S, A) int64: how often each pair (s, a) was updated.
    - `rewards` (n_steps,): the reward of each step.
    - `ended` (n_steps,) bool: whether the step ended its episode.
    """

    Q: Array
    visits: Array
    rewards: Array
    ended: Array
    __repr__ = one_line


def _default_step_size(n: Array) -> Array:
    """(1 + n)^-0.8, which satisfies the conditions in `q_learning`, and decreases slower than 1/(1 + n)."""
    return (1 + n) ** -0.8


def q_learning(
    mdp: MDP,
    perturbation: StatePerturbation,
    *,
    n_steps: int,
    epsilon: float | Callable[[Array], Array] = 0.1,
    step_size: Callable[[Array], Array] = _default_step_size,
    Q0: Array | None = None,
    estimator: Estimator | None = None,
    rng: int | Rng | None = None,
) -> QLearningResult:
    """Learn the fixed point of the robust Bellman operator from one simulated path.

    Arguments:
    - `mdp`, `perturbation`: as in `bellman`.
    - `n_steps`: the number of simulated transitions. An episode ends at a terminal state, and the next one
      starts from `mdp.initial`.
    - `epsilon`: the probability of a random action instead of the greedy one: a number, or a function of the
      array (n_steps,) of step numbers 0, 1, ... that returns probabilities (n_steps,).
    - `step_size`: a function that returns the step sizes alpha in (0, 1] for an array of visit counts n;
      n is the number of earlier updates of the pair (s, a). The default is (1 + n)^-0.8.
    - `Q0` (S, A): the initial table; zero by default. It is set to zero at terminal states.
    - `estimator`, `rng`: as in `robust_value`.

    Returns a `QLearningResult`. Let every pair be visited infinitely often, with step sizes alpha_n such that
    sum_n alpha_n is infinite and sum_n alpha_n^2 finite. Then Q converges to the fixed point of
    `value_iteration` (claim J2), or with an estimator to the fixed point for the estimator's expectation. The
    numba backend compiles entropic runs without an estimator.

    Reference: Section 6.2.

    >>> import numpy as np
    >>> from phiball.qlearning import MDP, Neighbourhood
    >>> loop = MDP(np.ones((1, 1, 1)), np.array([[1.0]]), 0.5)
    >>> alone = StatePerturbation(Neighbourhood(np.array([[0]]), np.array([[1.0]])), 1.0)
    >>> run = q_learning(loop, alone, n_steps=60, rng=0, step_size=lambda n: 0 * n + 1)
    >>> run.Q.tolist(), run.visits.tolist()
    ([[2.0]], [[60]])
    """
    check_problem(mdp, perturbation)
    check_estimator(estimator)
    valid_count("n_steps", n_steps)
    reward, xp = mdp.reward, array_namespace(mdp.reward)
    neighbourhood = perturbation.neighbourhood
    valid_eta(perturbation.eta, reward)
    check_same_array_type("neighbourhood.weight", neighbourhood.weight, reward, other="reward")
    Q0 = xp.zeros_like(reward) if Q0 is None else Q0
    check_table(Q0, neighbourhood)
    check_same_array_type("Q0", Q0, reward, other="reward", dtype=True)
    if Q0.shape != reward.shape:
        raise ValueError(f"Q0 has shape {tuple(Q0.shape)}; expected (S, A) = {tuple(reward.shape)}")
    initial = _initial_distribution(mdp)
    number = xp.arange(n_steps, dtype=reward.dtype, device=device(reward))
    step_sizes = _valid_schedule("step_size", step_size, number)
    if not xp.all(step_sizes > 0):
        raise ValueError("step_size has a value that is not positive; expected numbers in (0, 1]")
    epsilons = _valid_schedule("epsilon", epsilon, number)
    rng = as_rng(rng)
    uniforms = rng.uniform((n_steps, 4), like=reward)
    Q = xp.where(mdp.terminal[:, None], xp.zeros_like(Q0), Q0)
    distributions = xp.cumulative_sum(mdp.transition, axis=-1), xp.cumulative_sum(initial, axis=0)
    schedules = (step_sizes, epsilons)
    return QLearningResult(*q_run(Q, mdp, distributions, uniforms, schedules, perturbation, estimator, rng))


@kernel
def q_run(
    Q: Array,
    mdp: MDP,
    distributions: tuple[Array, Array],
    uniforms: Array,
    schedules: tuple[Array, Array],
    perturbation: StatePerturbation,
    estimator: Estimator | None,
    rng: Rng,
) -> tuple[Array, Array, Array, Array]:
    """The loop of `q_learning` with given random numbers: (Q, visits, rewards, ended).

    - `distributions`: the cumulative distributions of the next state (S, A, S) and of the first state (S,).
    - `uniforms` (n_steps, 4): random numbers that decide, in this order, whether the action is random, the
      random action, the next state, and the first state of an episode.
    - `schedules`: the step size by visits (n_steps,), and epsilon by steps (n_steps,).
    """
    xp = array_namespace(Q)
    at = {"device": device(Q)}
    cumulative, first = (to_numpy(distribution).tolist() for distribution in distributions)
    step_sizes, epsilons = (to_numpy(schedule).tolist() for schedule in schedules)
    terminal, reward = to_numpy(mdp.terminal).tolist(), to_numpy(mdp.reward).tolist()
    states, actions = Q.shape
    rows = [_row(perturbation.neighbourhood, i) for i in range(states)]
    visits = [[0] * actions for _ in range(states)]
    rewards, ended = [], []
    s = -1
    for t, (explore, which, where, begin) in enumerate(to_numpy(uniforms).tolist()):
        if s < 0:
            s = _draw_state(first, begin)
        a = min(int(which * actions), actions - 1) if explore < epsilons[t] else int(xp.argmax(Q[s, :]))
        r, s_next = reward[s][a], _draw_state(cumulative[s][a], where)
        target = r
        if not terminal[s_next]:
            target += mdp.discount * float(
                unchecked_robust_value(Q, rows[s_next], perturbation, estimator, rng)[0]
            )
        Q = _update_entry(Q, s, a, step_sizes[visits[s][a]], target)
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


def _draw_state(cumulative: list[float], u: float) -> int:
    """The state that the uniform number u selects."""
    total = cumulative[-1]
    # If u rounds up to the total, take the last state with a positive probability.
    return min(bisect_right(cumulative, u * total), bisect_left(cumulative, total))


def _valid_schedule(name: str, rule: float | Callable[[Array], Array], number: Array) -> Array:
    """The values in [0, 1] of a constant or a function `rule` at `number` = 0, 1, ..., n_steps - 1."""
    xp = array_namespace(number)
    if isinstance(rule, (int, float)) and not isinstance(rule, bool):
        values = xp.full_like(number, float(rule))
    elif callable(rule):
        values = rule(number)
        check_array(f"the result of {name}", values)
        check_same_array_type(f"the result of {name}", values, number, other="reward", dtype=True)
        if values.shape != number.shape:
            raise ValueError(f"{name} returns shape {tuple(values.shape)}; expected {tuple(number.shape)}")
    else:
        raise TypeError(f"{name} is {rule!r}; expected a number or a function of an array")
    if not xp.all((values >= 0) & (values <= 1)):
        raise ValueError(f"{name} has values outside [0, 1]")
    return values


def _initial_distribution(mdp: MDP) -> Array:
    xp = array_namespace(mdp.reward)
    if xp.all(mdp.terminal):
        raise ValueError("terminal marks every state; expected at least one nonterminal state")
    if mdp.initial is not None:
        return mdp.initial
    live = xp.astype(~mdp.terminal, mdp.reward.dtype)
    return live / xp.sum(live)

"""Robust Q-learning: whole runs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from phiball.backends import rng, use
from phiball.backends.numba import qlearning as numba_qlearning
from phiball.refimpl import (
    ENTROPIC,
    QUADRATIC,
    DecisionProcess,
    ExactNeighbours,
    Maximum,
    Neighbourhood,
    SampledNeighbours,
    TelescopedNeighbours,
    q_learning,
    q_update,
    robust_value,
    value_iteration,
)
from phiball.refimpl.qlearning.run import q_run
from tests.support.arrays import NUMPY, Arrays
from tests.support.qlearning_problems import Z_SCORE, places, problem


def replayed(mdp: Any, law: Any, numbers: Any, eta: float, maximum: Maximum, arrays: Arrays) -> Any:
    """The run again in plain NumPy, from the same uniform numbers."""
    P, r, terminal = (arrays.numpy(x) for x in (mdp.transition, mdp.reward, mdp.terminal))
    index, weight = arrays.numpy(law.index), arrays.numpy(law.weight)
    S, A = r.shape
    Q, visits, rewards, ended = np.zeros((S, A)), np.zeros((S, A), int), [], []
    live = np.flatnonzero(~terminal)
    s = None
    for explore, which, where, begin in numbers:
        if s is None:
            s = live[int(begin * len(live))]
        a = int(which * A) if explore < 0.3 else int(np.argmax(Q[s]))
        nxt = int(np.searchsorted(np.cumsum(P[s, a]), where, side="right"))
        near = Q[index[nxt]]
        near = near.max(axis=1, keepdims=True) if maximum is Maximum.INSIDE else near
        V = 0.0 if terminal[nxt] else np.max(-eta * np.log(weight[nxt] @ np.exp(-near / eta)))
        alpha = (1 + visits[s, a]) ** -0.8
        Q[s, a] += alpha * (r[s, a] + mdp.discount * V - Q[s, a])
        visits[s, a] += 1
        rewards.append(r[s, a])
        ended.append(bool(terminal[nxt]))
        s = None if terminal[nxt] else nxt
    return Q, visits, rewards, ended


@places
def test_run_matches_a_replay(maximum: Maximum, doubles: Arrays) -> None:
    mdp, law = problem(0, doubles)
    steps = 120
    run = q_learning(mdp, law, 0.5, ENTROPIC, steps=steps, rng=rng(3), epsilon=0.3, maximum=maximum)
    numbers = doubles.numpy(rng(3).uniform((steps, 4), like=mdp.reward))
    Q, visits, rewards, ended = replayed(mdp, law, numbers, 0.5, maximum, doubles)
    np.testing.assert_array_equal(doubles.numpy(run.visits), visits)
    np.testing.assert_array_equal(doubles.numpy(run.ended), ended)
    np.testing.assert_allclose(doubles.numpy(run.rewards), rewards, rtol=1e-15)
    np.testing.assert_allclose(doubles.numpy(run.Q), Q, atol=1e-12)
    assert sum(ended) > 5
    assert visits.sum() == steps
    assert np.all(visits[-1] == 0)
    assert np.all(doubles.numpy(run.Q)[-1] == 0)


@pytest.mark.parametrize(
    "neighbours",
    [ExactNeighbours(), SampledNeighbours(2), TelescopedNeighbours(2)],
    ids=lambda n: type(n).__name__,
)
def test_seed_determines_the_run(neighbours: Any, doubles: Arrays) -> None:
    mdp, law = problem(1, doubles)
    first, second = (
        q_learning(mdp, law, 0.5, QUADRATIC, steps=25, rng=rng(7), epsilon=0.5, neighbours=neighbours)
        for _ in range(2)
    )
    for name in ("Q", "visits", "rewards", "ended"):
        np.testing.assert_array_equal(
            doubles.numpy(getattr(first, name)), doubles.numpy(getattr(second, name))
        )
    assert first.Q.dtype == doubles.dtype == first.rewards.dtype
    assert first.visits.dtype == doubles.xp.int64
    other = q_learning(mdp, law, 0.5, QUADRATIC, steps=25, rng=rng(8), epsilon=0.5, neighbours=neighbours)
    assert not np.array_equal(doubles.numpy(other.Q), doubles.numpy(first.Q))


@places
def test_deterministic_process_reaches_the_fixed_point(maximum: Maximum) -> None:
    """Deterministic transitions and alpha = 1: asynchronous value iteration, exact to its certificate."""
    with use("numba"):
        mdp, law = problem(2, NUMPY, deterministic=True)
        run = q_learning(
            mdp,
            law,
            0.3,
            ENTROPIC,
            steps=20_000,
            rng=rng(0),
            epsilon=1.0,
            step_size=lambda n: 0 * n + 1,
            maximum=maximum,
            start=np.array([0.2, 0.2, 0.2, 0.2, 0.2, 0.0]),
        )
        solution = value_iteration(mdp, law, 0.3, ENTROPIC, tol=1e-10, maximum=maximum)
    assert np.min(run.visits[:-1]) > 500
    np.testing.assert_allclose(run.Q, solution.Q, atol=2e-10)


def test_random_process_approaches_the_fixed_point() -> None:
    """After n visits the error is about sqrt(alpha_n/2) times the spread of a target over 1 - discount."""
    with use("numba"):
        mdp, law = problem(3, NUMPY)
        run = q_learning(mdp, law, 0.2, ENTROPIC, steps=1_000_000, rng=rng(1), epsilon=1.0)
        early = q_learning(mdp, law, 0.2, ENTROPIC, steps=2_000, rng=rng(1), epsilon=1.0)
        robust = value_iteration(mdp, law, 0.2, ENTROPIC, tol=1e-10).Q
        alone = Neighbourhood(np.arange(6)[:, None], np.ones((6, 1)))
        plain = value_iteration(mdp, alone, 0.2, ENTROPIC, tol=1e-10).Q
        V = np.where(mdp.terminal, 0, robust_value(robust, law, 0.2, ENTROPIC))
    spread = mdp.discount * np.ptp(V) / 2
    alpha = (1.0 + np.min(run.visits[:-1])) ** -0.8
    bound = Z_SCORE * np.sqrt(alpha / 2) * spread / (1 - mdp.discount)
    error = np.max(np.abs(run.Q - robust))
    assert error <= bound < 0.05
    assert error < np.max(np.abs(early.Q - robust)) / 4
    assert np.max(np.abs(plain - robust)) > 5 * bound  # what forgets the neighbours is seen


def test_epsilon_start_and_first_table() -> None:
    mdp, law = problem(4, NUMPY)

    def learn(steps: int, **how: Any) -> Any:
        return q_learning(mdp, law, 0.5, ENTROPIC, steps=steps, rng=rng(0), **how)

    run = learn(1, epsilon=0.0, start=np.eye(6)[2], Q0=np.tile([0.0, 1.0], (6, 1)))
    assert run.visits[2].tolist() == [0, 1]
    # Epsilon as a function of the step: greedy after the first ten.
    how: dict[str, Any] = {"epsilon": lambda t: (t < 10).astype(float), "step_size": lambda n: 0 * n + 1e-9}
    run = learn(60, Q0=np.tile([0.0, 1e6], (6, 1)), **how)
    assert 0 < run.visits[:, 0].sum() <= 10
    # The table is zero where episodes end.
    run = learn(3, Q0=np.ones((6, 2)))
    assert run.Q[-1].tolist() == [0.0, 0.0]
    assert np.count_nonzero(run.Q[:-1] == 1.0) >= 7


def test_uniform_number_that_rounds_to_one() -> None:
    """It leads to the last state with weight, in the reference and compiled."""
    P = np.zeros((3, 1, 3))
    P[:, :, :2] = 0.5
    mdp = DecisionProcess(P, np.zeros((3, 1)), 0.5)
    law = Neighbourhood(np.arange(3)[:, None], np.ones((3, 1)))
    given: list[Any] = [
        np.zeros((3, 1)),
        mdp,
        (np.cumsum(P, axis=-1), np.array([1.0, 1.0, 1.0])),
        np.ones((5, 4)),
    ]
    given += [(np.ones(5), np.ones(5)), law, 1.0, ENTROPIC, Maximum.OUTSIDE, ExactNeighbours(), rng(0)]
    for out in (q_run.reference(*given), numba_qlearning.q_run(*given)):  # type: ignore[attr-defined]
        assert out[1].tolist() == [[1], [4], [0]]


LAW = Neighbourhood(np.array([[0]]), np.ones((1, 1)))
PROCESS = DecisionProcess(np.ones((1, 2, 1)), np.ones((1, 2)), 0.5)
HALF_ENDED = DecisionProcess(np.full((2, 1, 2), 0.5), np.ones((2, 1)), 0.5, np.array([False, True]))
TWO = Neighbourhood(np.array([[0], [1]]), np.ones((2, 1)))
ENDED = DecisionProcess(np.ones((1, 2, 1)), np.ones((1, 2)), 0.5, np.array([True]))


def run(**changes: Any) -> Any:
    given = {"mdp": PROCESS, "law": LAW, "eta": 1.0, "d": ENTROPIC, "steps": 5, "rng": rng(0), **changes}
    first = [given.pop(name) for name in ("mdp", "law", "eta", "d")]
    return q_learning(*first, **given)


def update(**changes: Any) -> Any:
    options: dict[str, Any] = {
        "s": 0,
        "a": 0,
        "reward": 1.0,
        "s_next": 0,
        "done": False,
        "alpha": 0.5,
        "discount": 0.5,
        "neighbourhood": LAW,
        "eta": 1.0,
        "divergence": ENTROPIC,
    }
    options |= changes
    return q_update(options.pop("Q", np.zeros((1, 2))), **options)


@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        (lambda: run(mdp=None), TypeError, "mdp is None"),
        (lambda: run(law=None), TypeError, "neighbourhood is None"),
        (lambda: run(eta=0.0), ValueError, "eta is 0.0"),
        (lambda: run(d="kl"), TypeError, "divergence is 'kl'"),
        (lambda: run(steps=0), ValueError, "steps is 0"),
        (lambda: run(rng=None), TypeError, "rng is None"),
        (lambda: run(maximum="inside"), TypeError, "maximum is 'inside'"),
        (lambda: run(neighbours="exact"), TypeError, "neighbours is 'exact'"),
        (lambda: run(epsilon=1.5), ValueError, r"epsilon gives numbers outside \[0, 1\]"),
        (lambda: run(epsilon="small"), TypeError, "epsilon is 'small'"),
        (lambda: run(epsilon=lambda t: t[:2]), ValueError, r"epsilon gives shape \(2,\); expected \(5,\)"),
        (lambda: run(step_size=lambda n: 0 * n), ValueError, "step_size gives a number that is not positive"),
        (lambda: run(step_size=lambda n: 2 + n), ValueError, "step_size gives numbers outside"),
        (lambda: run(step_size=lambda n: 0.5), TypeError, "the result of step_size is 0.5"),
        (lambda: run(step_size=lambda n: n * np.nan), ValueError, "step_size gives numbers outside"),
        (lambda: run(start=np.ones(2) / 2), ValueError, r"start has shape \(2,\)"),
        (lambda: run(start=np.zeros(1)), ValueError, "start sums to"),
        (lambda: run(start=[1.0]), TypeError, r"start is \[1.0\]"),
        (
            lambda: run(mdp=HALF_ENDED, law=TWO, start=np.ones(2) / 2),
            ValueError,
            "weight to a terminal state",
        ),
        (lambda: run(mdp=ENDED), ValueError, "terminal marks every state"),
        (lambda: run(Q0=np.zeros((2, 2))), ValueError, r"Q0 has shape \(2, 2\)"),
        (lambda: run(Q0=np.zeros((1, 2), np.float32)), TypeError, "Q0 has dtype float32"),
        (lambda: update(Q=np.zeros((2, 1, 2))), ValueError, r"Q has shape \(2, 1, 2\)"),
        (lambda: update(s=1), ValueError, "s is 1; expected a whole number from 0 to 0"),
        (lambda: update(s=0.0), ValueError, "s is 0.0"),
        (lambda: update(a=-1), ValueError, "a is -1; expected a whole number from 0 to 1"),
        (lambda: update(s_next=3), ValueError, "s_next is 3"),
        (lambda: update(alpha=0.0), ValueError, "alpha is 0.0"),
        (lambda: update(reward=float("nan")), ValueError, "reward is nan"),
        (lambda: update(discount=1.0), ValueError, "discount is 1.0"),
        (lambda: update(eta=-1.0), ValueError, "eta is -1.0"),
        (lambda: SampledNeighbours(-1), ValueError, "level is -1"),
        (lambda: TelescopedNeighbours(1.5), ValueError, "level is 1.5"),  # type: ignore[arg-type]
    ],
    ids=range(33),
)
def test_bad_arguments(call: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        call()

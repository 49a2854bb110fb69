"""Robust Q-learning: `q_learning`, `q_update` and sampled estimates of `robust_value`."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest

from phiball.backends import Rng, array_namespace, rng
from phiball.backends.numba import qlearning as numba_qlearning
from phiball.refimpl import ENTROPIC, QUADRATIC, RTMLMC, SG, Divergence
from phiball.refimpl.qlearning import (
    MDP,
    Grid,
    Maximum,
    Neighbourhood,
    StatePerturbation,
    Transition,
    q_learning,
    q_update,
    robust_value,
)
from phiball.refimpl.qlearning.q_learning import q_run
from tests.support.arrays import NUMPY, Arrays
from tests.support.divergences import name_of
from tests.support.qlearning_problems import on_each_maximum, problem, table


def plain_q_learning(
    mdp: Any, distribution: Any, numbers: Any, eta: float, maximum: Maximum, arrays: Arrays
) -> Any:
    """Q-learning in plain NumPy, with given uniform random numbers."""
    P, r, terminal = (arrays.numpy(x) for x in (mdp.transition, mdp.reward, mdp.terminal))
    index, weight = arrays.numpy(distribution.index), arrays.numpy(distribution.weight)
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


@on_each_maximum
def test_run_agrees_with_plain_numpy(maximum: Maximum, doubles: Arrays) -> None:
    mdp, distribution = problem(0, doubles)
    steps = 120
    perturbation = StatePerturbation(distribution, 0.5, ENTROPIC, maximum)
    run = q_learning(mdp, perturbation, n_steps=steps, rng=3, epsilon=0.3)
    numbers = doubles.numpy(rng(3).uniform((steps, 4), like=mdp.reward))
    Q, visits, rewards, ended = plain_q_learning(mdp, distribution, numbers, 0.5, maximum, doubles)
    np.testing.assert_array_equal(doubles.numpy(run.visits), visits)
    np.testing.assert_array_equal(doubles.numpy(run.ended), ended)
    np.testing.assert_allclose(doubles.numpy(run.rewards), rewards, rtol=1e-15)
    np.testing.assert_allclose(doubles.numpy(run.Q), Q, atol=1e-12)
    assert sum(ended) > 5
    assert visits.sum() == steps
    assert np.all(visits[-1] == 0)
    assert np.all(doubles.numpy(run.Q)[-1] == 0)


def test_seed_determines_the_run(doubles: Arrays) -> None:
    mdp, distribution = problem(1, doubles)
    perturbation = StatePerturbation(distribution, 0.5, QUADRATIC)
    for estimator in (None, SG(2), RTMLMC(2)):
        options: dict[str, Any] = {"n_steps": 25, "epsilon": 0.5, "estimator": estimator}
        first, second, other = (q_learning(mdp, perturbation, rng=k, **options) for k in (7, rng(7), 8))
        for name in ("Q", "visits", "rewards", "ended"):
            a, b = (doubles.numpy(getattr(x, name)) for x in (first, second))
            np.testing.assert_array_equal(a, b)
        assert first.Q.dtype == doubles.dtype == first.rewards.dtype
        assert first.visits.dtype == doubles.xp.int64
        assert not np.array_equal(doubles.numpy(other.Q), doubles.numpy(first.Q))


def test_epsilon_initial_distribution_and_q0_are_respected() -> None:
    mdp, distribution = problem(4, NUMPY)

    def learn(n_steps: int, initial: Any = None, **options: Any) -> Any:
        from_initial = replace(mdp, initial=initial)
        return q_learning(
            from_initial, StatePerturbation(distribution, 0.5), n_steps=n_steps, rng=0, **options
        )

    run = learn(1, epsilon=0.0, initial=np.eye(6)[2], Q0=np.tile([0.0, 1.0], (6, 1)))
    assert run.visits[2].tolist() == [0, 1]
    # With this epsilon, the run is greedy after ten steps.
    options: dict[str, Any] = {
        "epsilon": lambda t: (t < 10).astype(float),
        "step_size": lambda n: 0 * n + 1e-9,
    }
    run = learn(60, Q0=np.tile([0.0, 1e6], (6, 1)), **options)
    assert 0 < run.visits[:, 0].sum() <= 10
    # Q is zero at terminal states.
    run = learn(3, Q0=np.ones((6, 2)))
    assert run.Q[-1].tolist() == [0.0, 0.0]
    assert np.count_nonzero(run.Q[:-1] == 1.0) >= 7


def test_uniform_number_one_selects_the_last_state_of_positive_probability() -> None:
    P = np.zeros((3, 1, 3))
    P[:, :, :2] = 0.5
    mdp = MDP(P, np.zeros((3, 1)), 0.5)
    distribution = Neighbourhood(np.arange(3)[:, None], np.ones((3, 1)))
    given: list[Any] = [np.zeros((3, 1)), mdp, (np.cumsum(P, axis=-1), np.ones(3)), np.ones((5, 4))]
    given += [(np.ones(5), np.ones(5)), StatePerturbation(distribution, 1.0), None, rng(0)]
    for out in (q_run.reference(*given), numba_qlearning.q_run(*given)):  # type: ignore[attr-defined]
        assert out[1].tolist() == [[1], [4], [0]]


class ScriptedRng(Rng):
    """A generator that returns given numbers in order."""

    def __init__(self, numbers: list[float]) -> None:
        super().__init__(0)
        self.numbers = numbers

    def uniform(self, shape: Any, *, like: Any, low: float = 0.0, high: float = 1.0) -> Any:
        n = int(np.prod(shape))
        taken, self.numbers = self.numbers[:n], self.numbers[n:]
        xp = array_namespace(like)
        return xp.reshape(xp.asarray(taken, dtype=like.dtype, device=like.device), shape)


def draws(weight: list[float], n: int) -> Iterator[tuple[list[float], float]]:
    """Yield uniform numbers that lead to each sequence of n draws, and its probability."""
    edges = np.concatenate([[0.0], np.cumsum(weight)])
    for where in product(range(len(weight)), repeat=n):
        yield [(edges[j] + edges[j + 1]) / 2 for j in where], float(np.prod([weight[j] for j in where]))


@on_each_maximum
@pytest.mark.parametrize("d", [ENTROPIC, QUADRATIC], ids=name_of)
@pytest.mark.parametrize(("weight", "level"), [([0.3, 0.7], 2), ([0.5, 0.2, 0.3], 1), ([0.4, 0.6], 0)])
def test_rtmlmc_has_the_expectation_of_sg(
    weight: list[float], level: int, d: Divergence, maximum: Maximum
) -> None:
    """The expectations are sums over all levels and draws."""
    Q = np.array([[0.0, 1.0], [1.5, -0.5], [0.3, 0.2]])
    near = table(NUMPY, [list(range(len(weight)))], [weight])
    perturbation = StatePerturbation(near, 0.4, d, maximum)

    def expectation(estimator: Any, first_numbers: list[float], n: int) -> float:
        return sum(
            p
            * float(
                robust_value(Q, perturbation, estimator=estimator, rng=ScriptedRng([*first_numbers, *u]))[0]
            )
            for u, p in draws(weight, n)
        )

    sampled = [expectation(SG(ell), [], 2**ell) for ell in range(level + 1)]
    scale = 2 - 2.0**-level
    level_probability = [2.0**-ell / scale for ell in range(level + 1)]
    assert sum(level_probability) == pytest.approx(1.0, abs=1e-15)
    level_number = np.cumsum([0.0, *level_probability])[:-1] + np.array(level_probability) / 2
    telescoped = sum(
        level_probability[ell] * expectation(RTMLMC(level), [level_number[ell]], 2**ell)
        for ell in range(level + 1)
    )
    assert telescoped == pytest.approx(sampled[-1], abs=1e-13)
    # The expectation decreases with the level, to the exact value.
    exact = float(robust_value(Q, perturbation)[0])
    assert all(a > b for a, b in zip(sampled, [*sampled[1:], exact], strict=True))


@on_each_maximum
def test_rtmlmc_agrees_with_a_value_computed_by_hand(maximum: Maximum, doubles: Arrays) -> None:
    """At level 1 with draws 0 and 1, the estimate is (V(0, 1) - (V(0) + V(1))/2) / P(1), P(1) = 1/3."""
    Q = np.array([[0.0, 1.0], [1.5, -0.5]])
    perturbation = StatePerturbation(table(doubles, [[0, 1]], [[0.3, 0.7]]), 0.4, ENTROPIC, maximum)
    near = Q.max(axis=1, keepdims=True) if maximum is Maximum.INSIDE else Q
    both = np.max(-0.4 * np.log(np.mean(np.exp(-near / 0.4), axis=0)))
    expected = 3 * (both - (1.0 + 1.5) / 2)
    script = ScriptedRng([0.8, 0.1, 0.9])
    found = robust_value(doubles.asarray(Q), perturbation, estimator=RTMLMC(1), rng=script)
    assert float(found[0]) == pytest.approx(expected, abs=1e-14)


def test_state_of_probability_zero_is_never_drawn(doubles: Arrays) -> None:
    """The uniform number 1 selects the last state of positive probability, and 0 the first."""
    Q = doubles.asarray([[-100.0], [1.0], [2.0]])
    for weight, u, value in (([0.5, 0.5, 0.0], 1.0, 1.0), ([0.0, 0.5, 0.5], 0.0, 1.0)):
        perturbation = StatePerturbation(table(doubles, [[2, 1, 0]], [weight]), 1.0)
        found = robust_value(Q, perturbation, estimator=SG(0), rng=ScriptedRng([u]))
        assert float(found[0]) == value


def update(Q: Any = None, distribution: Any = None, eta: float = 1.0, **changes: Any) -> Any:
    """Call `q_update` with default arguments, except for `changes`."""
    step: dict[str, Any] = {"s": 0, "a": 0, "reward": 1.0, "s_next": 0, "done": False}
    step |= {name: changes.pop(name) for name in list(changes) if name in step}
    maximum = changes.pop("maximum", Maximum.OUTSIDE)
    near = DISTRIBUTION if distribution is None else distribution
    return q_update(
        np.zeros((1, 2)) if Q is None else Q,
        Transition(**step),
        StatePerturbation(near, eta, ENTROPIC, maximum),
        **{"step_size": 0.5, "discount": 0.5, **changes},
    )


@on_each_maximum
def test_update_agrees_with_values_computed_by_hand(maximum: Maximum, arrays: Arrays) -> None:
    Q = np.array([[0.0, 2.0], [1.0, -1.0], [0.5, 0.25]])
    distribution = table(arrays, [[0, 1], [1, 2], [2, 0]], [[0.5, 0.5], [0.25, 0.75], [1.0, 0.0]])
    near, w = Q[[1, 2]], np.array([0.25, 0.75])
    if maximum is Maximum.INSIDE:
        near = near.max(axis=1, keepdims=True)
    V = np.max(-0.5 * np.log(w @ np.exp(-near / 0.5)))
    given = arrays.asarray(Q)
    options: dict[str, Any] = {"Q": given, "s": 2, "a": 1, "reward": 3.0, "s_next": 1, "maximum": maximum}
    options |= {"step_size": 0.25, "discount": 0.9, "eta": 0.5}
    for done, value in ((False, V), (True, 0.0)):
        found = arrays.numpy(update(done=done, distribution=distribution, **options))
        expected = Q.copy()
        expected[2, 1] = 0.75 * 0.25 + 0.25 * (3.0 + 0.9 * value)
        np.testing.assert_allclose(found, expected, atol=16 * arrays.eps)
        np.testing.assert_array_equal(arrays.numpy(given), Q)
        assert found.dtype == arrays.numpy(given).dtype
    # With neighbourhoods of one state, the update is that of ordinary Q-learning.
    alone = table(arrays, [[0], [1], [2]], [[1.0], [1.0], [1.0]])
    found = arrays.numpy(update(distribution=alone, **options))
    assert found[2, 1] == pytest.approx(0.75 * 0.25 + 0.25 * (3.0 + 0.9 * 1.0), abs=16 * arrays.eps)


def test_update_uses_the_neighbourhood_of_a_continuous_state() -> None:
    # Cells 0 and 1 have probabilities 3/4 and 1/4.
    near = Grid((0.0,), (3.0,), (3,)).neighbourhood_at(np.array([[0.9]]), 0.2)
    found = update(Q=np.array([[0.0], [1.0], [-5.0]]), s=2, step_size=1.0, eta=2.0, distribution=near)
    V = -2 * np.log(0.75 + 0.25 * np.exp(-0.5))
    assert float(found[2, 0]) == pytest.approx(1 + 0.5 * V, abs=1e-14)


def test_update_with_an_estimator_uses_the_sampled_value() -> None:
    Q, distribution = np.array([[0.0], [1.0]]), table(NUMPY, [[0, 1], [0, 1]], [[0.5, 0.5], [0.5, 0.5]])
    row = StatePerturbation(Neighbourhood(distribution.index[1:], distribution.weight[1:]), 1.0)
    for estimator in (SG(3), RTMLMC(3)):
        options = {"estimator": estimator, "rng": 4}
        found = update(Q, distribution, reward=0.0, s_next=1, step_size=1.0, **options)
        expected = 0.5 * float(robust_value(Q, row, **options)[0])
        assert float(found[0, 0]) == pytest.approx(expected, abs=1e-15)


DISTRIBUTION = Neighbourhood(np.array([[0]]), np.ones((1, 1)))
PROCESS = MDP(np.ones((1, 2, 1)), np.ones((1, 2)), 0.5)
ALONE = StatePerturbation(DISTRIBUTION, 1.0)
ENDED = MDP(np.ones((1, 2, 1)), np.ones((1, 2)), 0.5, np.array([True]))


def run(mdp: Any = PROCESS, distribution: Any = DISTRIBUTION, eta: float = 1.0, **changes: Any) -> Any:
    return q_learning(mdp, StatePerturbation(distribution, eta), **{"n_steps": 5, "rng": 0, **changes})


def test_invalid_arguments_of_runs_and_updates_raise() -> None:
    cases: list[tuple[Any, Any, str]] = [
        (lambda: run(mdp=None), TypeError, "mdp is None"),
        (lambda: run(distribution=None), TypeError, "neighbourhood is None"),
        (lambda: run(eta=0.0), ValueError, "eta is 0.0"),
        (lambda: run(n_steps=0), ValueError, "n_steps is 0"),
        (lambda: run(rng="seed"), TypeError, "rng is 'seed'"),
        (lambda: run(estimator="exact"), TypeError, "estimator is 'exact'"),
        (lambda: run(epsilon=1.5), ValueError, r"epsilon has values outside \[0, 1\]"),
        (lambda: run(epsilon="small"), TypeError, "epsilon is 'small'"),
        (lambda: run(epsilon=lambda t: t[:2]), ValueError, r"epsilon returns shape \(2,\); expected \(5,\)"),
        (lambda: run(step_size=lambda n: 0 * n), ValueError, "step_size has a value that is not positive"),
        (lambda: run(step_size=lambda n: 2 + n), ValueError, "step_size has values outside"),
        (lambda: run(step_size=lambda n: 0.5), TypeError, "the result of step_size is 0.5"),
        (lambda: run(mdp=ENDED), ValueError, "terminal marks every state"),
        (lambda: run(Q0=np.zeros((2, 2))), ValueError, r"Q0 has shape \(2, 2\)"),
        (lambda: run(Q0=np.zeros((1, 2), np.float32)), TypeError, "Q0 has dtype float32"),
        (lambda: update(Q=np.zeros((2, 1, 2))), ValueError, r"Q has shape \(2, 1, 2\)"),
        (lambda: update(s=1), ValueError, "s is 1; expected"),
        (lambda: update(a=-1), ValueError, "a is -1; expected"),
        (lambda: update(s_next=3), ValueError, "s_next is 3"),
        (lambda: update(step_size=0.0), ValueError, "step_size is 0.0"),
        (lambda: update(estimator="exact"), TypeError, "estimator is 'exact'"),
        (lambda: update(reward=float("nan")), ValueError, "reward is nan"),
        (lambda: update(discount=1.0), ValueError, "discount is 1.0"),
        (lambda: update(eta=-1.0), ValueError, "eta is -1.0"),
        (
            lambda: q_update(np.zeros((1, 2)), (0, 0, 1.0, 0), ALONE, step_size=0.5, discount=0.5),
            TypeError,
            r"transition is \(0, 0, 1.0, 0\); expected a Transition",
        ),
    ]
    for call, error, message in cases:
        with pytest.raises(error, match=message):
            call()

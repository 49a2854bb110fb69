"""One update of robust Q-learning, and the estimators of the value of a state by enumeration."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np
import pytest

from phiball.backends import Rng, array_namespace, rng
from phiball.refimpl import (
    ENTROPIC,
    QUADRATIC,
    Divergence,
    ExactNeighbours,
    Grid,
    Maximum,
    Neighbourhood,
    SampledNeighbours,
    TelescopedNeighbours,
    q_update,
)
from tests.support.arrays import NUMPY, Arrays
from tests.support.divergences import name_of
from tests.support.qlearning_problems import places, table


class Script(Rng):
    """A generator that returns given numbers in their order."""

    def __init__(self, numbers: list[float]) -> None:
        super().__init__(0)
        self.numbers = numbers

    def uniform(self, shape: Any, *, like: Any, low: float = 0.0, high: float = 1.0) -> Any:
        n = int(np.prod(shape))
        taken, self.numbers = self.numbers[:n], self.numbers[n:]
        xp = array_namespace(like)
        return xp.reshape(xp.asarray(taken, dtype=like.dtype, device=like.device), shape)


def draws(weight: list[float], n: int) -> Iterator[tuple[list[float], float]]:
    """(uniforms that lead to each sequence of n draws, its probability)."""
    edges = np.concatenate([[0.0], np.cumsum(weight)])
    for where in product(range(len(weight)), repeat=n):
        yield [(edges[j] + edges[j + 1]) / 2 for j in where], float(np.prod([weight[j] for j in where]))


@places
@pytest.mark.parametrize("d", [ENTROPIC, QUADRATIC], ids=name_of)
@pytest.mark.parametrize(("weight", "level"), [([0.3, 0.7], 2), ([0.5, 0.2, 0.3], 1), ([0.4, 0.6], 0)])
def test_telescoping_has_the_mean_of_sampling(
    weight: list[float], level: int, d: Divergence, maximum: Maximum
) -> None:
    """By enumeration of all levels and draws: E RT-MLMC = E SG at the same level."""
    Q = np.array([[0.0, 1.0], [1.5, -0.5], [0.3, 0.2]])
    law = table(NUMPY, [list(range(len(weight)))], [weight])

    def mean(neighbours: Any, before: list[float], n: int) -> float:
        return sum(
            p * float(neighbours(Q, law, 0.4, d, maximum, Script([*before, *u]))[0])
            for u, p in draws(weight, n)
        )

    sampled = [mean(SampledNeighbours(ell), [], 2**ell) for ell in range(level + 1)]
    scale = 2 - 2.0**-level
    chance = [2.0**-ell / scale for ell in range(level + 1)]
    assert sum(chance) == pytest.approx(1.0, abs=1e-15)
    middle = np.cumsum([0.0, *chance])[:-1] + np.array(chance) / 2
    telescoped = sum(
        chance[ell] * mean(TelescopedNeighbours(level), [middle[ell]], 2**ell) for ell in range(level + 1)
    )
    assert telescoped == pytest.approx(sampled[-1], abs=1e-13)
    # More points, lower: the value of the whole neighbourhood is below all of them.
    exact = float(ExactNeighbours()(Q, law, 0.4, d, maximum, None)[0])
    assert all(a > b for a, b in zip(sampled, [*sampled[1:], exact], strict=True))


@places
def test_telescoping_by_hand(maximum: Maximum, doubles: Arrays) -> None:
    """One draw of level 1, of the states 0 and then 1: V(0, 1) - (V(0) + V(1))/2, over P(1) = 1/3."""
    Q = np.array([[0.0, 1.0], [1.5, -0.5]])
    law = table(doubles, [[0, 1]], [[0.3, 0.7]])
    near = Q.max(axis=1, keepdims=True) if maximum is Maximum.INSIDE else Q
    both = np.max(-0.4 * np.log(np.mean(np.exp(-near / 0.4), axis=0)))
    expected = 3 * (both - (1.0 + 1.5) / 2)
    found = TelescopedNeighbours(1)(doubles.asarray(Q), law, 0.4, ENTROPIC, maximum, Script([0.8, 0.1, 0.9]))
    assert float(found[0]) == pytest.approx(expected, abs=1e-14)


def test_frequencies_of_the_draws(doubles: Arrays) -> None:
    """The value of one draw is Q of the state drawn: its frequencies, at one in a million each."""
    weight = [0.1, 0.0, 0.6, 0.3]
    n = 4000
    law = table(doubles, [[3, 0, 1, 2]] * n, [weight] * n)
    Q = doubles.asarray([[0.0], [1.0], [2.0], [3.0]])
    found = doubles.numpy(SampledNeighbours(0)(Q, law, 1.0, ENTROPIC, Maximum.OUTSIDE, rng(1)))
    for state, p in zip([3, 0, 1, 2], weight, strict=True):
        assert abs(np.mean(found == state) - p) <= 5.0 * np.sqrt(p * (1 - p) / n)


def test_state_without_weight_is_never_drawn(doubles: Arrays) -> None:
    """A number that rounds to the total mass leads to the last state with weight."""
    law = table(doubles, [[2, 1, 0]], [[0.5, 0.5, 0.0]])
    Q = doubles.asarray([[-100.0], [1.0], [2.0]])
    found = SampledNeighbours(0)(Q, law, 1.0, ENTROPIC, Maximum.OUTSIDE, Script([1.0]))
    assert float(found[0]) == 1.0


@places
def test_update_by_hand(maximum: Maximum, arrays: Arrays) -> None:
    Q = np.array([[0.0, 2.0], [1.0, -1.0], [0.5, 0.25]])
    law = table(arrays, [[0, 1], [1, 2], [2, 0]], [[0.5, 0.5], [0.25, 0.75], [1.0, 0.0]])
    near, w = Q[[1, 2]], np.array([0.25, 0.75])
    if maximum is Maximum.INSIDE:
        near = near.max(axis=1, keepdims=True)
    V = np.max(-0.5 * np.log(w @ np.exp(-near / 0.5)))
    given = arrays.asarray(Q)
    options: dict[str, Any] = {
        "alpha": 0.25,
        "discount": 0.9,
        "neighbourhood": law,
        "eta": 0.5,
        "divergence": ENTROPIC,
        "maximum": maximum,
    }
    for done, value in ((False, V), (True, 0.0)):
        found = arrays.numpy(q_update(given, 2, 1, 3.0, 1, done, **options))
        expected = Q.copy()
        expected[2, 1] = 0.75 * 0.25 + 0.25 * (3.0 + 0.9 * value)
        np.testing.assert_allclose(found, expected, atol=16 * arrays.eps)
        np.testing.assert_array_equal(arrays.numpy(given), Q)
        assert found.dtype == arrays.numpy(given).dtype
    # The nominal update is this one with every state alone.
    options["neighbourhood"] = table(arrays, [[0], [1], [2]], [[1.0], [1.0], [1.0]])
    found = arrays.numpy(q_update(given, 2, 1, 3.0, 1, False, **options))
    assert found[2, 1] == pytest.approx(0.75 * 0.25 + 0.25 * (3.0 + 0.9 * 1.0), abs=16 * arrays.eps)


def test_update_at_a_continuous_state() -> None:
    law = Grid((0.0,), (3.0,), (3,)).perturbed(np.array([[0.9]]), 0.2)  # cells 0 and 1, with 3/4 and 1/4
    how: dict[str, Any] = {"alpha": 1.0, "discount": 0.5, "eta": 2.0, "divergence": ENTROPIC}
    found = q_update(np.array([[0.0], [1.0], [-5.0]]), 2, 0, 1.0, 0, False, neighbourhood=law, **how)
    V = -2 * np.log(0.75 + 0.25 * np.exp(-0.5))
    assert float(found[2, 0]) == pytest.approx(1 + 0.5 * V, abs=1e-14)


def test_update_with_sampled_neighbours() -> None:
    Q, law = np.array([[0.0], [1.0]]), table(NUMPY, [[0, 1], [0, 1]], [[0.5, 0.5], [0.5, 0.5]])
    how: dict[str, Any] = {"alpha": 1.0, "discount": 0.5, "eta": 1.0, "divergence": ENTROPIC}
    for neighbours in (SampledNeighbours(3), TelescopedNeighbours(3)):
        how |= {"neighbourhood": law, "neighbours": neighbours}
        found = q_update(Q, 0, 0, 0.0, 1, False, rng=rng(4), **how)
        row = Neighbourhood(law.index[1:], law.weight[1:])
        expected = 0.5 * float(neighbours(Q, row, 1.0, ENTROPIC, Maximum.OUTSIDE, rng(4))[0])
        assert float(found[0, 0]) == pytest.approx(expected, abs=1e-15)
        with pytest.raises(TypeError, match="rng is None; expected what"):
            q_update(Q, 0, 0, 0.0, 1, False, **how)

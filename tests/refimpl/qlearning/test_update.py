"""Robust Q-learning: one update, and the estimators of the value of a landing by enumeration."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np
import pytest

from phiball.backends import Rng, rng, use
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
from tests.support.arrays import Arrays
from tests.support.divergences import name_of
from tests.support.qlearning_problems import places, row, table

# --- Estimators of the value of a landing ----------------------------------------------------------


class Script(Rng):
    """A source that gives the numbers it was told, in their order."""

    def __init__(self, numbers: list[float]) -> None:
        super().__init__(0)
        self.numbers = numbers

    def uniform(self, shape: Any, *, like: Any, low: float = 0.0, high: float = 1.0) -> Any:
        from phiball.backends import array_namespace

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
    weight: list[float], level: int, d: Divergence, maximum: Maximum, doubles: Arrays
) -> None:
    """By enumeration of every level and every draw: E RT-MLMC = E SG at the same level."""
    Q = doubles.asarray([[0.0, 1.0], [1.5, -0.5], [0.3, 0.2]])
    law = table(doubles, [list(range(len(weight)))], [weight])

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


def test_maximum_of_estimates_would_be_biased() -> None:
    """Why the maximum is telescoped too: per-action estimates, then the maximum, has another mean."""
    with use("numpy"):
        Q, weight = np.array([[0.0, 1.0], [1.5, -0.5]]), [0.3, 0.7]
        law = Neighbourhood(np.array([[0, 1]]), np.array([weight]))

        def mean(neighbours: Any, u: float, n: int, columns: list[Any]) -> float:
            total = 0.0
            for numbers, p in draws(weight, n):
                each = [
                    neighbours(c, law, 0.4, ENTROPIC, Maximum.OUTSIDE, Script([u, *numbers]))[0]
                    for c in columns
                ]
                total += p * max(each)
            return total

        each, whole = (
            2 / 3 * mean(TelescopedNeighbours(1), 0.3, 1, columns)
            + 1 / 3 * mean(TelescopedNeighbours(1), 0.8, 2, columns)
            for columns in ([Q[:, :1], Q[:, 1:]], [Q])
        )
        assert each > whole + 0.01


def test_draws_follow_the_law(arrays: Arrays) -> None:
    """The value of one draw is Q of the state drawn: its frequencies, at one in a million each."""
    weight = [0.1, 0.0, 0.6, 0.3]
    n = 4000
    law = table(arrays, [[3, 0, 1, 2]] * n, [weight] * n)
    Q = arrays.asarray([[0.0], [1.0], [2.0], [3.0]])
    found = arrays.numpy(SampledNeighbours(0)(Q, law, 1.0, ENTROPIC, Maximum.OUTSIDE, rng(1)))
    for state, p in zip([3, 0, 1, 2], weight, strict=True):
        assert abs(np.mean(found == state) - p) <= 5.0 * np.sqrt(p * (1 - p) / n)


def test_rounding_does_not_draw_what_has_no_weight(arrays: Arrays) -> None:
    """A number that rounds to the total mass leads to the last state with weight."""
    law = table(arrays, [[2, 1, 0]], [[0.5, 0.5, 0.0]])
    Q = arrays.asarray([[-100.0], [1.0], [2.0]])
    found = SampledNeighbours(0)(Q, law, 1.0, ENTROPIC, Maximum.OUTSIDE, Script([1.0]))
    assert float(found[0]) == 1.0


# --- One update -----------------------------------------------------------------------------------


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


def test_update_at_a_continuous_state(arrays: Arrays) -> None:
    grid = Grid((0.0,), (3.0,), (3,))
    law = grid.perturbed(arrays.asarray([[0.9]]), 0.2)  # cells 0 and 1, with 3/4 and 1/4
    found = q_update(
        arrays.asarray([[0.0], [1.0], [-5.0]]),
        2,
        0,
        1.0,
        0,
        False,
        alpha=1.0,
        discount=0.5,
        neighbourhood=law,
        eta=2.0,
        divergence=ENTROPIC,
    )
    V = -2 * np.log(0.75 + 0.25 * np.exp(-0.5))
    assert float(found[2, 0]) == pytest.approx(1 + 0.5 * V, abs=64 * arrays.eps)


def test_update_with_sampled_neighbours(doubles: Arrays) -> None:
    Q, law = doubles.asarray([[0.0], [1.0]]), table(doubles, [[0, 1], [0, 1]], [[0.5, 0.5], [0.5, 0.5]])
    options: dict[str, Any] = {
        "alpha": 1.0,
        "discount": 0.5,
        "neighbourhood": law,
        "eta": 1.0,
        "divergence": ENTROPIC,
    }
    for neighbours in (SampledNeighbours(3), TelescopedNeighbours(3)):
        a, b = (
            q_update(Q, 0, 0, 0.0, 1, False, neighbours=neighbours, rng=rng(seed), **options)
            for seed in (4, 4)
        )
        expected = 0.5 * float(neighbours(Q, row(law, 1, doubles), 1.0, ENTROPIC, Maximum.OUTSIDE, rng(4))[0])
        assert float(a[0, 0]) == float(b[0, 0]) == pytest.approx(expected, abs=1e-15)
        with pytest.raises(TypeError, match="rng is None; expected what"):
            q_update(Q, 0, 0, 0.0, 1, False, neighbours=neighbours, **options)

"""Problems that the tests of Q-learning share."""

from typing import Any

import numpy as np
import pytest

from phiball.refimpl.qlearning import MDP, Maximum, Neighbourhood
from tests.support.arrays import Arrays

on_each_maximum = pytest.mark.parametrize("maximum", list(Maximum), ids=lambda m: m.value)


def table(arrays: Arrays, index: Any, weight: Any) -> Neighbourhood:
    return Neighbourhood(arrays.asarray(index, dtype=arrays.xp.int64), arrays.asarray(weight))


def problem(seed: int, arrays: Arrays, discount: float = 0.6) -> tuple[MDP, Neighbourhood]:
    """A random process with six states and two actions, and a neighbourhood of three states for each state.

    The last state is terminal.
    """
    draw = np.random.default_rng(seed)
    S, A = 6, 2
    P = draw.dirichlet(np.ones(S), size=(S, A))
    terminal = arrays.asarray(np.arange(S) == S - 1, dtype=arrays.xp.bool)
    mdp = MDP(arrays.asarray(P), arrays.asarray(draw.normal(size=(S, A))), discount, terminal)
    near = (np.arange(S)[:, None] + np.arange(-1, 2)) % S
    return mdp, table(arrays, near, draw.dirichlet(np.ones(3), size=S))

"""The compiled loop of Q-learning equals the reference, and declines what it does not cover."""

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
    Divergence,
    ExactNeighbours,
    Maximum,
    Neighbourhood,
    SampledNeighbours,
    q_learning,
    robust_value,
)
from phiball.refimpl.qlearning.run import q_run
from tests.support.arrays import NUMPY, Arrays
from tests.support.qlearning_problems import places, problem


@places
@pytest.mark.parametrize("eta", [1e-3, 0.5, 1e6])
def test_kernel_equals_reference(maximum: Maximum, eta: float) -> None:
    mdp, law = problem(5, NUMPY)
    runs = []
    for backend in ("numpy", "numba"):
        with use(backend):
            runs.append(
                q_learning(mdp, law, eta, ENTROPIC, steps=400, rng=rng(2), epsilon=0.4, maximum=maximum)
            )
    slow, fast = runs
    np.testing.assert_array_equal(fast.visits, slow.visits)
    np.testing.assert_array_equal(fast.rewards, slow.rewards)
    np.testing.assert_array_equal(fast.ended, slow.ended)
    np.testing.assert_allclose(fast.Q, slow.Q, atol=1e-13)


@places
def test_compiled_value(maximum: Maximum) -> None:
    draw = np.random.default_rng(6)
    inside = maximum is Maximum.INSIDE
    for eta in (1e-8, 1e-2, 1.0, 1e3, 1e12):
        Q = draw.normal(size=(9, 3)) * 10 ** draw.uniform(-2, 2) + 1000 * draw.integers(0, 2)
        index, weight = draw.integers(0, 9, size=(4, 5)), draw.dirichlet(np.ones(5), size=4)
        index[0, :3], weight[0] = [0, 1, 2], [0, 1e-12, 1 - 1e-12, 0, 0]
        Q[1] = Q[2] - 1  # the smallest has next to no weight, and decides if eta is small
        law = Neighbourhood(index, weight)
        with use("numpy"):
            expected = robust_value(Q, law, eta, ENTROPIC, maximum=maximum)
        results = [
            numba_qlearning.landing_value(Q, i, w, eta, inside)
            for i, w in zip(index, law.weight, strict=True)
        ]
        np.testing.assert_allclose(results, expected, rtol=1e-14, atol=1e-14)


def arguments(d: Divergence = ENTROPIC, neighbours: Any = None, dtype: Any = np.float64) -> list[Any]:
    mdp, law = problem(5, NUMPY)
    mdp = DecisionProcess(mdp.transition.astype(dtype), mdp.reward.astype(dtype), 0.6, mdp.terminal)
    laws = np.cumsum(mdp.transition, axis=-1), np.cumsum(np.ones(6, dtype) / 6)
    numbers = np.random.default_rng(0).random((30, 4)).astype(dtype)
    schedules = np.full(30, 0.5, dtype), np.full(30, 0.5, dtype)
    neighbours = ExactNeighbours() if neighbours is None else neighbours
    Q = np.zeros((6, 2), dtype)
    return [Q, mdp, laws, numbers, schedules, law, 0.5, d, Maximum.OUTSIDE, neighbours, rng(0)]


def test_kernel_declines_what_it_does_not_cover() -> None:
    assert numba_qlearning.q_run(*arguments()) is not NotImplemented
    for other in (
        arguments(d=QUADRATIC),
        arguments(neighbours=SampledNeighbours(1)),
        arguments(dtype=np.float32),
    ):
        assert numba_qlearning.q_run(*other) is NotImplemented
        with use("numba"):
            assert q_run(*other)[1].sum() == 30


def test_kernel_leaves_its_arguments_unchanged() -> None:
    args = arguments()
    args[0] = args[0] + 1.0
    before = args[0].copy()
    with use("numba"):
        fast = q_run(*args)
    np.testing.assert_array_equal(args[0], before)
    np.testing.assert_allclose(fast[0], q_run.reference(*args)[0], atol=1e-14)  # type: ignore[attr-defined]
    assert np.any(fast[0] != before)


def test_kernel_takes_torch_tensors() -> None:
    torch = pytest.importorskip("torch")
    mdp, law = problem(5, Arrays("torch", torch, torch.float64, 2.2e-16))
    runs = []
    for backend in ("numba", "torch"):
        with use(backend):
            runs.append(q_learning(mdp, law, 0.5, ENTROPIC, steps=50, rng=rng(2)))
    for name in ("Q", "visits", "rewards", "ended"):
        fast, slow = (getattr(run, name) for run in runs)
        assert isinstance(fast, torch.Tensor)
        assert fast.dtype == slow.dtype
        np.testing.assert_allclose(fast.numpy(), slow.numpy(), atol=1e-14)

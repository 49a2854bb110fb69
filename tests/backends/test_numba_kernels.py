"""Compiled samplers, budget multipliers and Q-learning agree with their references."""

from collections.abc import Callable
from itertools import product
from math import inf
from typing import Any

import numpy as np
import pytest

from phiball.backends import array_namespace, backend, rng, to_numpy
from phiball.backends.numba import qlearning as numba_qlearning
from phiball.refimpl import ENTROPIC, QUADRATIC, SG, Divergence, cressie_read
from phiball.refimpl.distributions import moments, tilting, uniform
from phiball.refimpl.inner import worst_case
from phiball.refimpl.inner.divergences import centred
from phiball.refimpl.inner.multiplier import multiplier
from phiball.refimpl.qlearning import MDP, Maximum, Neighbourhood, StatePerturbation, q_learning, robust_value
from phiball.refimpl.qlearning.q_learning import q_run
from phiball.refimpl.validation import all_finite
from tests.support.arrays import NUMPY, Arrays, missing
from tests.support.divergences import name_of
from tests.support.qlearning_problems import on_each_maximum, problem


def run_on_both(work: Callable[[], Any], reference: str = "numpy") -> list[Any]:
    """The results of `work` with the numba backend and with the backend `reference`."""
    results = []
    for backend_name in ("numba", reference):
        with backend(backend_name):
            results.append(work())
    return results


def array_makers() -> list[Callable[[Any], Any]]:
    """Converters to float32 and float64 arrays of NumPy and, if installed, torch."""
    inputs: list[Callable[[Any], Any]] = [lambda x, d=d: x.astype(d) for d in (np.float32, np.float64)]
    if not missing("torch"):
        import torch

        inputs += [lambda x, d=d: torch.asarray(x, dtype=d) for d in (torch.float32, torch.float64)]
    return inputs


# --- Points of balls ------------------------------------------------------------------------------

SHAPES = [(1, 1, 1), (3, 5, 10), (2, 70, 3), (4, 1, 100), (2, 2, 3, 7), (0, 4, 3), (700, 8, 6)]


def sampler_inputs(make: Callable[[Any], Any], shape: tuple[int, ...]) -> dict[str, Any]:
    """Random numbers of `shape` (..., n, d), centres z and tilts s of many sizes; the first tilts are 0."""
    g = np.random.default_rng(sum(shape))
    s = g.normal(size=(*shape[:-2], shape[-1])) * 10.0 ** g.uniform(-8, 3, size=(*shape[:-2], 1))
    s[:1] = 0
    inputs = {"uniform": g.random(shape), "normal": g.normal(size=shape), "u": g.random(shape[:-1])}
    return {name: make(x) for name, x in {**inputs, "z": g.normal(size=s.shape), "s": s}.items()}


def ball_points(norm: float) -> Callable[[Any], Any]:
    """A function of the `sampler_inputs` that calls `uniform.ball_points` with this norm."""

    def draw(x: dict[str, Any]) -> Any:
        b = x["normal" if norm == 2 else "uniform"]
        return (uniform.ball_points(b, None if norm == inf else x["u"], x["z"], norm, 0.7),)

    return draw


def tilted_points_2(x: dict[str, Any]) -> Any:
    xp = array_namespace(x["z"])
    below = 2 * xp.astype(x["u"], xp.float64) ** 3
    whole = xp.sum(xp.astype(x["s"], xp.float64), axis=-1)
    return tilting.tilted_points_2(x["normal"], x["u"], below, whole, x["z"], x["s"], 0.7)


def first_accepted(x: dict[str, Any]) -> Any:
    xp = array_namespace(x["z"])
    u = xp.reshape(x["uniform"], (-1,))
    k = u.shape[0] // 6
    t = xp.astype(xp.reshape(x["normal"], (-1,))[:k], xp.float64) ** 8
    below, found = tilting.first_accepted(t, 5, xp.reshape(u[: 6 * k], (3, 2, k)))
    return xp.where(found, below, xp.zeros_like(below)), xp.astype(found, xp.float64)


SAMPLERS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "norm 1": ball_points(1.0),
    "norm 2": ball_points(2.0),
    "norm inf": ball_points(inf),
    "drawn inf": lambda x: (uniform.uniform_inf(x["z"], x["u"].shape[-1], 0.7, rng(5)),),
    "tilted inf": lambda x: tilting.tilted_points_inf(x["z"], x["s"], x["u"].shape[-1], 0.7, rng(5)),
    "tilted 2": tilted_points_2,
    "along the tilt": first_accepted,
}


@pytest.mark.parametrize("name", SAMPLERS)
def test_samplers_agree_with_reference(name: str) -> None:
    for make, shape in product(array_makers(), SHAPES):
        found, exact = run_on_both(
            lambda m=make, s=shape: [to_numpy(x) for x in SAMPLERS[name](sampler_inputs(m, s))]
        )
        s = to_numpy(sampler_inputs(make, shape)["s"])
        # The log-weight log(nu/q) is a difference of terms up to sum abs(s), and has their rounding errors.
        slack = 50 * np.finfo(s.dtype).eps * (1 + np.abs(s).sum(axis=-1).max(initial=0))
        for a, b in zip(found, exact, strict=True):
            assert (a.dtype, a.shape) == (b.dtype, b.shape)
            assert np.allclose(a, b, rtol=0, atol=slack)


@pytest.mark.parametrize("d", [1, 2, 10, 39, 40, 41, 784])
def test_tilt_norms_agree_with_reference(d: int) -> None:
    s = 10.0 ** np.linspace(-300, 300, 400)[:, None] * np.random.default_rng(d).normal(size=(400, d))
    s[0] = 0.0
    found, exact = run_on_both(lambda: tilting.tilt_norms(s, 0.7, *moments.debye_series(d / 2)))
    assert np.allclose(found, exact, rtol=1e-14, atol=0)


def test_all_finite_detects_nonfinite_numbers_at_every_position() -> None:
    """Finite numbers whose sum overflows count as finite."""
    for make, n, bad in product(array_makers(), (1, 7, 1003), (np.nan, np.inf, -np.inf)):
        largest = np.full(n, np.finfo(to_numpy(make(np.ones(1))).dtype).max)
        with backend("numba"):
            assert all_finite(make(largest))
            for place in (0, n // 2, n - 1):
                assert not all_finite(make(np.where(np.arange(n) == place, bad, largest)))


# --- The multiplier eta of a budget ---------------------------------------------------------------

ORDERS = [ENTROPIC, QUADRATIC, *(cressie_read(k) for k in (-3, 0, 0.5, 0.9, 1.5, 3, 6))]


@pytest.mark.parametrize("d", ORDERS, ids=name_of)
def test_budget_multiplier_agrees_with_reference(d: Divergence) -> None:
    """Rows include equal losses, tied maxima, zero and excessive budgets and points of probability zero."""
    g, rows, c = np.random.default_rng(0), 30, centred(d)
    for m, scale in product((1, 2, 5, 130), (1e-6, 1.0, 1e5)):
        f = scale * g.standard_exponential((rows, m))
        f[3] = f[3, 0]
        f[4, : m // 2] = f[4].max()
        p = np.where(g.random((rows, m)) < 0.3, 0, g.random((rows, m)))
        p[:, 0] += 1e-3
        p /= p.sum(-1, keepdims=True)
        budget = 10 ** g.uniform(-8, 2, rows)
        budget[0] = 0
        for distribution in (None, p):
            found, exact = run_on_both(
                lambda f=f, distribution=distribution, b=budget: multiplier(f, b, distribution, c)
            )
            np.testing.assert_allclose(found[0], exact[0], rtol=1e-11)
            np.testing.assert_allclose(found[1], exact[1], rtol=2e-14, atol=1e-15)


def test_budget_multiplier_supports_arrays_of_any_shape() -> None:
    f, budget = np.random.default_rng(1).random((2, 3, 7)), np.array([[0.1], [0.2]])
    expected = worst_case(f, budget=budget, divergence=QUADRATIC)
    for make in array_makers():
        found = worst_case(make(f), budget=make(budget), divergence=QUADRATIC)
        for name in ("value", "eta", "weights"):
            x = to_numpy(getattr(found, name))
            rtol = 1e-13 if x.dtype == np.float64 else 1e-5
            np.testing.assert_allclose(x, getattr(expected, name), rtol=rtol)


# --- Q-learning -----------------------------------------------------------------------------------


@on_each_maximum
@pytest.mark.parametrize("eta", [1e-3, 0.5, 1e6])
@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_q_learning_agrees_with_reference(maximum: Maximum, eta: float, library: str) -> None:
    xp = pytest.importorskip(library)
    mdp, distribution = problem(5, Arrays(library, xp, xp.float64, 2.2e-16))
    perturbation = StatePerturbation(distribution, eta, ENTROPIC, maximum)
    fast, slow = run_on_both(lambda: q_learning(mdp, perturbation, n_steps=400, epsilon=0.4, rng=2), library)
    for name in ("Q", "visits", "rewards", "ended"):
        a, b = getattr(fast, name), getattr(slow, name)
        assert (type(a), a.dtype) == (type(b), b.dtype)
        np.testing.assert_allclose(to_numpy(a), to_numpy(b), rtol=0, atol=1e-13 if name == "Q" else 0)


@on_each_maximum
def test_landing_value_agrees_with_robust_value(maximum: Maximum) -> None:
    draw = np.random.default_rng(6)
    inside = maximum is Maximum.INSIDE
    for eta in (1e-8, 1e-2, 1.0, 1e3, 1e12):
        Q = draw.normal(size=(9, 3)) * 10 ** draw.uniform(-2, 2) + 1000 * draw.integers(0, 2)
        index, weight = draw.integers(0, 9, size=(4, 5)), draw.dirichlet(np.ones(5), size=4)
        index[0, :3], weight[0] = [0, 1, 2], [0, 1e-12, 1 - 1e-12, 0, 0]
        Q[1] = Q[2] - 1  # the smallest value has a tiny probability, but dominates if eta is small
        distribution = Neighbourhood(index, weight)
        with backend("numpy"):
            expected = robust_value(Q, StatePerturbation(distribution, eta, ENTROPIC, maximum))
        results = [
            numba_qlearning.landing_value(Q, i, w, eta, inside)
            for i, w in zip(index, distribution.weight, strict=True)
        ]
        np.testing.assert_allclose(results, expected, rtol=1e-14, atol=1e-14)


def q_arguments(d: Divergence = ENTROPIC, estimator: Any = None, dtype: Any = np.float64) -> list[Any]:
    mdp, distribution = problem(5, NUMPY)
    mdp = MDP(mdp.transition.astype(dtype), mdp.reward.astype(dtype), 0.6, mdp.terminal)
    distributions = np.cumsum(mdp.transition, axis=-1), np.cumsum(np.ones(6, dtype) / 6)
    draws = np.random.default_rng(0).random((30, 4)).astype(dtype)
    schedules = np.full(30, 0.5, dtype), np.full(30, 0.5, dtype)
    Q = np.ones((6, 2), dtype)
    perturbation = StatePerturbation(distribution, 0.5, d)
    return [Q, mdp, distributions, draws, schedules, perturbation, estimator, rng(0)]


def test_q_learning_kernel_modifies_no_argument_and_returns_not_implemented_if_one_is_unsupported() -> None:
    args = q_arguments()
    fast = numba_qlearning.q_run(*args)
    assert fast is not NotImplemented
    assert np.all(args[0] == 1)
    assert np.any(fast[0] != 1)
    np.testing.assert_allclose(fast[0], q_run.reference(*args)[0], atol=1e-14)  # type: ignore[attr-defined]
    for other in (q_arguments(d=QUADRATIC), q_arguments(estimator=SG(1)), q_arguments(dtype=np.float32)):
        assert numba_qlearning.q_run(*other) is NotImplemented
        with backend("numba"):
            assert q_run(*other)[1].sum() == 30

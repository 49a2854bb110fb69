"""The robust Bellman operator agrees with exact solutions; value iteration bounds its error."""

from typing import Any

import numpy as np
import pytest

from phiball.backends import backend
from phiball.refimpl import ENTROPIC, QUADRATIC, SG, Divergence
from phiball.refimpl.qlearning import (
    MDP,
    Maximum,
    Neighbourhood,
    StatePerturbation,
    bellman,
    robust_value,
    value_iteration,
)
from phiball.verification.oracles import exact_solver as oracles
from tests.support.arrays import NUMPY, Arrays
from tests.support.divergences import on_each
from tests.support.qlearning_problems import on_each_maximum, table


def problem(seed: int, arrays: Arrays, S: int = 6, A: int = 3, k: int = 4, discount: float = 0.9) -> Any:
    draw = np.random.default_rng(seed)
    P, r = draw.dirichlet(np.ones(S), size=(S, A)), draw.normal(size=(S, A))
    index, weight = draw.integers(0, S, size=(S, k)), draw.dirichlet(np.ones(k), size=S)
    weight[0, :2] = [0.0, weight[0, :2].sum()]
    terminal = np.zeros(S, dtype=bool)
    terminal[S - 1] = True
    distribution, ends = table(arrays, index, weight), arrays.asarray(terminal, dtype=arrays.xp.bool)
    mdp = MDP(arrays.asarray(P), arrays.asarray(r), discount, ends)
    plain = {"P": P, "r": r, "index": index, "weight": weight, "terminal": terminal, "discount": discount}
    return mdp, distribution, plain


def exact_value(Q: Any, index: Any, weight: Any, eta: float, d: Divergence, maximum: Maximum) -> list[float]:
    """The robust value in fifty digits: the infimum over Q is minus the supremum over -Q."""
    rows = []
    for neighbours, p in zip(index, weight, strict=True):
        near = Q[neighbours]
        near = near.max(axis=1, keepdims=True) if maximum is Maximum.INSIDE else near
        solved = (oracles.solve_exactly(-f, eta, str(d.family), d.parameter, p) for f in near.T.copy())
        rows.append(float(max(-one.value for one in solved)))
    return rows


@on_each(core=True)
def test_robust_value_and_bellman_agree_with_exact_solutions(d: Divergence, arrays: Arrays) -> None:
    mdp, distribution, plain = problem(0, arrays)
    Q = arrays.numpy(arrays.asarray(np.random.default_rng(1).normal(size=(6, 3))))
    weight = arrays.numpy(distribution.weight).astype(float)
    for eta, maximum in ((0.2, Maximum.OUTSIDE), (2.0, Maximum.OUTSIDE), (0.2, Maximum.INSIDE)):
        perturbation = StatePerturbation(distribution, eta, d, maximum)
        V = exact_value(Q.astype(float), plain["index"], weight, eta, d, maximum)
        found = arrays.numpy(robust_value(arrays.asarray(Q), perturbation))
        np.testing.assert_allclose(found, V, atol=64 * arrays.eps)
        V = np.where(plain["terminal"], 0.0, V)
        expected = plain["r"] + 0.9 * plain["P"] @ V
        expected[plain["terminal"]] = 0.0
        given = arrays.asarray(Q)
        found = arrays.numpy(bellman(given, mdp, perturbation))
        np.testing.assert_allclose(found, expected, atol=64 * arrays.eps)
        np.testing.assert_array_equal(arrays.numpy(given), Q)


def test_bellman_applies_to_each_table_of_a_batch(doubles: Arrays) -> None:
    mdp, distribution, _ = problem(4, doubles)
    Q = np.random.default_rng(5).normal(size=(2, 3, 6, 3))
    perturbation = StatePerturbation(distribution, 0.5, QUADRATIC)
    batch = bellman(doubles.asarray(Q), mdp, perturbation)
    for i, j in np.ndindex(2, 3):
        one = bellman(doubles.asarray(Q[i, j]), mdp, perturbation)
        np.testing.assert_allclose(doubles.numpy(batch)[i, j], doubles.numpy(one), atol=16 * doubles.eps)


@on_each_maximum
def test_value_iteration_is_within_its_error_bound_of_the_fixed_point(maximum: Maximum) -> None:
    mdp, distribution, plain = problem(8, NUMPY, S=4, A=2, k=3, discount=0.7)
    exact, live = np.zeros((4, 2)), ~plain["terminal"]
    for _ in range(130):  # 0.7^130 = 1e-20
        near = exact[plain["index"]]
        near = near.max(axis=-1, keepdims=True) if maximum is Maximum.INSIDE else near
        soft = -0.5 * np.log(np.sum(distribution.weight[..., None] * np.exp(-near / 0.5), axis=1))
        exact = live[:, None] * (plain["r"] + 0.7 * mdp.transition @ (live * soft.max(axis=-1)))
    perturbation = StatePerturbation(distribution, 0.5, ENTROPIC, maximum)
    found = value_iteration(mdp, perturbation, tol=1e-10)
    assert np.max(np.abs(found.Q - exact)) <= found.error <= 1e-10
    assert found.residual > 0
    # A loose tolerance stops earlier, and its error bound holds too.
    loose = value_iteration(mdp, perturbation, tol=0.1)
    error = np.max(np.abs(loose.Q - exact))
    assert 1e4 * found.error < error <= loose.error <= 0.1
    assert loose.iterations < found.iterations
    assert loose.error == pytest.approx(loose.residual * 0.7 / 0.3, rel=1e-9)


def test_error_bound_holds_in_every_precision(arrays: Arrays) -> None:
    mdp, distribution, _ = problem(9, arrays)
    found = value_iteration(mdp, StatePerturbation(distribution, 0.5, "chi2"), tol=1e-3)
    assert found.Q.dtype == arrays.dtype
    with backend("numpy"):
        exact_mdp, exact_distribution, _ = problem(9, NUMPY)
        exact = value_iteration(exact_mdp, StatePerturbation(exact_distribution, 0.5, "chi2"), tol=1e-9)
    # Rounding the data to the dtype changes Q by a few eps max|Q|/(1 - discount).
    slack = 16 * arrays.eps * np.max(np.abs(exact.Q)) / 0.1
    assert np.max(np.abs(arrays.numpy(found.Q) - exact.Q)) <= found.error + exact.error + slack


P1, R1 = np.ones((1, 2, 1)), np.zeros((1, 2))
DISTRIBUTION = Neighbourhood(np.array([[0]]), np.ones((1, 1)))
LOOP = MDP(P1, R1 + 1.0, 0.5)
FAR = Neighbourhood(np.array([[3]]), np.ones((1, 1)))
TWO = Neighbourhood(np.zeros((2, 1), np.int64), np.ones((2, 1)))


def process(P: Any = P1, r: Any = R1, discount: Any = 0.5, terminal: Any = None, initial: Any = None) -> MDP:
    return MDP(P, r, discount, terminal, initial)


def value(
    Q: Any = R1, distribution: Any = DISTRIBUTION, eta: float = 1.0, d: Any = ENTROPIC, **how: Any
) -> Any:
    return robust_value(Q, StatePerturbation(distribution, eta, d), **how)


def backup(Q: Any = R1, mdp: Any = LOOP, distribution: Any = DISTRIBUTION) -> Any:
    return bellman(Q, mdp, StatePerturbation(distribution, 1.0))


def iterate(distribution: Any = DISTRIBUTION, **how: Any) -> Any:
    return value_iteration(LOOP, StatePerturbation(distribution, 1.0), **{"tol": 1.0, **how})


def test_invalid_processes_tables_and_tolerances_raise() -> None:
    cases: list[tuple[Any, Any, str]] = [
        (lambda: process([1.0]), TypeError, r"transition is \[1.0\]"),
        (lambda: process(r=[1.0]), TypeError, r"reward is \[1.0\]"),
        (lambda: process(r=np.zeros(2)), ValueError, r"reward has shape \(2,\)"),
        (lambda: process(np.ones((1, 1, 1))), ValueError, r"transition has shape \(1, 1, 1\)"),
        (lambda: process(P1 * 2), ValueError, "transition sums to"),
        (lambda: process(-P1), ValueError, "transition contains "),
        (lambda: process(r=R1 * np.nan), ValueError, "reward contains NaN"),
        (lambda: process(r=R1.astype(np.float32)), TypeError, "reward has dtype float32"),
        (lambda: process(discount=1.0), ValueError, "discount is 1.0"),
        (lambda: process(terminal=np.array([0])), ValueError, r"terminal is array\(\[0\]\)"),
        (lambda: process(initial=np.ones(2) / 2), ValueError, r"initial has shape \(2,\); expected \(1,\)"),
        (lambda: process(initial=np.zeros(1)), ValueError, "initial sums to"),
        (lambda: process(terminal=np.array([True]), initial=np.ones(1)), ValueError, "initial is positive"),
        (lambda: value([[0.0]]), TypeError, r"Q is \[\[0.0\]\]"),
        (lambda: value(distribution=FAR), ValueError, "neighbourhood.index contains 3; .*S = 1"),
        (lambda: value(R1 + np.inf), ValueError, "Q contains NaN or an infinity"),
        (lambda: value(distribution=(0, 1)), TypeError, r"neighbourhood is \(0, 1\)"),
        (lambda: value(eta=0.0), ValueError, "eta is 0.0"),
        (lambda: value(d="kll"), ValueError, "divergence is 'kll'"),
        (lambda: StatePerturbation(DISTRIBUTION, 1.0, "kl", "left"), ValueError, "maximum is 'left'"),
        (lambda: robust_value(R1, DISTRIBUTION), TypeError, "perturbation is Neighbourhood"),
        (lambda: value(estimator="exact"), TypeError, "estimator is 'exact'"),
        (lambda: value(np.zeros((2, 1, 2)), estimator=SG(1)), ValueError, r"Q has shape \(2, 1, 2\)"),
        (lambda: backup(np.zeros((2, 2))), ValueError, r"Q has shape \(2, 2\)"),
        (lambda: backup(R1.astype(np.float32)), TypeError, "Q has dtype float32"),
        (lambda: backup(mdp=R1), TypeError, "mdp is array"),
        (lambda: backup(distribution=TWO), ValueError, "neighbourhood has 2 rows; expected"),
        (lambda: iterate(None), TypeError, "neighbourhood is None"),
        (lambda: iterate(tol=0.0), ValueError, "tol is 0.0"),
        (lambda: iterate(tol=1e-17), ValueError, "tol is 1e-17; expected at least"),
        (lambda: iterate(max_iter=0), ValueError, "max_iter is 0"),
        (lambda: iterate(tol=1e-6, max_iter=5), RuntimeError, r"error of 0.06\d* in 5 iterations"),
    ]
    for call, error, message in cases:
        with pytest.raises(error, match=message):
            call()


def test_tol_below_the_rounding_error_raises() -> None:
    """Every step ends the episode, so that one iteration gives Q = r up to rounding."""
    end = MDP(np.tile([0.0, 1.0], (2, 1, 1)), np.ones((2, 1)), 0.9, np.array([False, True]))
    alone = Neighbourhood(np.array([[0], [1]]), np.ones((2, 1)))
    perturbation = StatePerturbation(alone, 1.0)
    found = value_iteration(end, perturbation, tol=1e-6)
    least = found.error
    assert found.Q.tolist() == [[1.0], [0.0]]
    assert value_iteration(end, perturbation, tol=1.01 * least).error == least
    with pytest.raises(ValueError, match=f"expected at least {least:.2g}"):
        value_iteration(end, perturbation, tol=0.99 * least)
    torch = pytest.importorskip("torch")
    with pytest.raises(TypeError, match=r"Q is a torch array and neighbourhood\.weight a numpy array"):
        robust_value(torch.zeros((2, 1)), perturbation)

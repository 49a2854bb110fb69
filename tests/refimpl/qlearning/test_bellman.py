"""The robust Bellman operator: against an oracle, its properties, and its fixed point's certificate."""

from __future__ import annotations

from math import exp, log
from typing import Any

import mpmath as mp
import numpy as np
import pytest

from phiball.backends import use
from phiball.refimpl import (
    ENTROPIC,
    QUADRATIC,
    DecisionProcess,
    Divergence,
    Maximum,
    Neighbourhood,
    bellman,
    robust_value,
    value_iteration,
)
from phiball.verification.oracles import inner as oracles
from tests.support.arrays import NUMPY, Arrays
from tests.support.divergences import on_each, select

every = on_each(core=True)
places = pytest.mark.parametrize("maximum", list(Maximum), ids=lambda m: m.value)


def problem(seed: int, arrays: Arrays, S: int = 6, A: int = 3, k: int = 4, discount: float = 0.9) -> Any:
    draw = np.random.default_rng(seed)
    P, r = draw.dirichlet(np.ones(S), size=(S, A)), draw.normal(size=(S, A))
    index, weight = draw.integers(0, S, size=(S, k)), draw.dirichlet(np.ones(k), size=S)
    weight[0, :2] = [0.0, weight[0, :2].sum()]
    terminal = np.zeros(S, dtype=bool)
    terminal[S - 1] = True
    law = Neighbourhood(arrays.asarray(index, dtype=arrays.xp.int64), arrays.asarray(weight))
    mdp = DecisionProcess(
        arrays.asarray(P), arrays.asarray(r), discount, arrays.asarray(terminal, dtype=arrays.xp.bool)
    )
    plain = {"P": P, "r": r, "index": index, "weight": weight, "terminal": terminal, "discount": discount}
    return mdp, law, plain


def oracle_value(Q: Any, index: Any, weight: Any, eta: float, d: Divergence, maximum: Maximum) -> list[float]:
    """V by the definition, in fifty digits: the infimum is minus the supremum of minus Q."""
    rows = []
    for where, p in zip(index, weight, strict=True):
        near = Q[where]
        near = near.max(axis=1, keepdims=True) if maximum is Maximum.INSIDE else near
        columns = [
            -oracles.solve_exactly(-column, eta, str(d.family), d.parameter, p).value
            for column in near.T.copy()
        ]
        rows.append(float(max(columns)))
    return rows


@every
@places
def test_backup_against_the_oracle(d: Divergence, maximum: Maximum, arrays: Arrays) -> None:
    mdp, law, plain = problem(0, arrays)
    Q = arrays.numpy(arrays.asarray(np.random.default_rng(1).normal(size=(6, 3))))
    weight = arrays.numpy(law.weight).astype(float)
    for eta in (0.2, 2.0):
        V = oracle_value(Q.astype(float), plain["index"], weight, eta, d, maximum)
        found = arrays.numpy(robust_value(arrays.asarray(Q), law, eta, d, maximum=maximum))
        np.testing.assert_allclose(found, V, atol=64 * arrays.eps)
        V = np.where(plain["terminal"], 0.0, V)
        expected = plain["r"] + 0.9 * plain["P"] @ V
        expected[plain["terminal"]] = 0.0
        given = arrays.asarray(Q)
        found = arrays.numpy(bellman(given, mdp, law, eta, d, maximum=maximum))
        np.testing.assert_allclose(found, expected, atol=64 * arrays.eps)
        np.testing.assert_array_equal(arrays.numpy(given), Q)


def test_the_papers_update_by_hand(arrays: Arrays) -> None:
    """J1: -min_a {eta log E exp(-Q/eta)}; J2: it is no lower bound of the plain backup."""
    law = Neighbourhood(
        arrays.asarray([[0, 1, 2]], dtype=arrays.xp.int64), arrays.asarray(np.ones((1, 3)) / 3)
    )
    Q = arrays.asarray([[1.0, 0.5], [0.0, 0.25], [1.0, 0.25]])
    one, two = -log((2 * exp(-1) + 1) / 3), -log((exp(-0.5) + 2 * exp(-0.25)) / 3)
    assert one == pytest.approx(0.547, abs=1e-3)
    assert one > 0.0  # Q(s, .) at the state in the middle
    tol = 16 * arrays.eps
    assert float(robust_value(Q, law, 1.0, ENTROPIC)[0]) == pytest.approx(max(one, two), abs=tol)
    inside = -log((2 * exp(-1) + exp(-0.25)) / 3)
    found = robust_value(Q, law, 1.0, ENTROPIC, maximum=Maximum.INSIDE)
    assert float(found[0]) == pytest.approx(inside, abs=tol)
    # J3: robust is an infimum: the value lies between the minimum and the mean, never above it.
    column = arrays.asarray([[1.0], [0.0], [1.0]])
    for eta in (1e-3, 0.1, 1.0, 1e3):
        value = float(robust_value(column, law, eta, ENTROPIC)[0])
        assert 0.0 <= value <= 2 / 3 + tol
    assert float(robust_value(column, law, 1e-3, ENTROPIC)[0]) == pytest.approx(1e-3 * log(3), abs=tol)


@every
def test_order_of_the_two_maxima(d: Divergence, doubles: Arrays) -> None:
    _, law, _ = problem(2, doubles)
    Q = doubles.asarray(np.random.default_rng(3).normal(size=(4, 6, 3)))
    outside, inside = (
        doubles.numpy(robust_value(Q, law, 0.3, d, maximum=maximum))
        for maximum in (Maximum.OUTSIDE, Maximum.INSIDE)
    )
    assert outside.shape == (4, 6)
    assert np.all(outside <= inside + 1e-12)
    assert np.max(inside - outside) > 0.01


def test_a_batch_is_its_tables(arrays: Arrays) -> None:
    mdp, law, _ = problem(4, arrays)
    Q = np.random.default_rng(5).normal(size=(2, 3, 6, 3))
    batch = arrays.numpy(bellman(arrays.asarray(Q), mdp, law, 0.5, QUADRATIC))
    for i in range(2):
        for j in range(3):
            one = arrays.numpy(bellman(arrays.asarray(Q[i, j]), mdp, law, 0.5, QUADRATIC))
            np.testing.assert_allclose(batch[i, j], one, atol=16 * arrays.eps)


@every
@places
def test_contraction_and_monotonicity(d: Divergence, maximum: Maximum) -> None:
    """J2: sup-norm contraction with factor `discount`, on random pairs of tables."""
    with use("numpy"):
        mdp, law, _ = problem(6, NUMPY, S=12, A=2)
        draw = np.random.default_rng(7)
        A = draw.normal(size=(50, 12, 2)) * 10 ** draw.uniform(-2, 1, size=(50, 1, 1))
        B = draw.normal(size=(50, 12, 2))
        for eta in (0.05, 1.0):
            TA, TB = (bellman(Q, mdp, law, eta, d, maximum=maximum) for Q in (A, B))
            ratio = np.max(np.abs(TA - TB), axis=(1, 2)) / np.max(np.abs(A - B), axis=(1, 2))
            assert np.max(ratio) <= 0.9 + 1e-12
            up = bellman(A + np.abs(B), mdp, law, eta, d, maximum=maximum)
            assert np.all(up >= TA - 1e-11)
            # The bound is tight: adding a constant moves what is not terminal by discount times it.
        moved = bellman(A + 1.0, mdp, law, 1.0, d, maximum=maximum) - TA
        live = ~mdp.terminal
        reach = mdp.transition[live][..., live].sum(axis=-1)
        np.testing.assert_allclose(
            moved[:, live], np.broadcast_to(0.9 * reach, moved[:, live].shape), atol=1e-10
        )


@places
def test_fixed_point_in_many_digits(maximum: Maximum, doubles: Arrays) -> None:
    """The certificate holds against the fixed point found by plain iteration in thirty digits."""
    mdp, law, plain = problem(8, doubles, S=4, A=2, k=3, discount=0.7)
    found = value_iteration(mdp, law, 0.5, ENTROPIC, tol=1e-10, maximum=maximum)
    with mp.workdps(30):
        Q = [[mp.mpf(0)] * 2 for _ in range(4)]
        P, r = doubles.numpy(mdp.transition).tolist(), plain["r"].tolist()
        weight = doubles.numpy(law.weight).tolist()
        for _ in range(130):  # 0.7^130 = 1e-20
            V = []
            for s in range(4):
                near = [Q[j] for j in plain["index"][s]]
                if maximum is Maximum.INSIDE:
                    near = [[max(row)] for row in near]
                soft = [
                    -mp.log(mp.fsum(w * mp.exp(-row[a] * 2) for w, row in zip(weight[s], near, strict=True)))
                    / 2
                    for a in range(len(near[0]))
                ]
                V.append(mp.mpf(0) if plain["terminal"][s] else max(soft))
            Q = [
                [
                    mp.mpf(0)
                    if plain["terminal"][s]
                    else r[s][a] + mp.mpf(0.7) * mp.fsum(p * v for p, v in zip(P[s][a], V, strict=True))
                    for a in range(2)
                ]
                for s in range(4)
            ]
        exact = np.array([[float(v) for v in row] for row in Q])
    error = np.max(np.abs(doubles.numpy(found.Q) - exact))
    assert error <= found.error <= 1e-10
    assert found.residual > 0
    # A loose certificate is honest too, of a table that is not the solution yet.
    loose = value_iteration(mdp, law, 0.5, ENTROPIC, tol=0.1, maximum=maximum)
    error = np.max(np.abs(doubles.numpy(loose.Q) - exact))
    assert 1e4 * found.error < error <= loose.error <= 0.1
    assert loose.iterations < found.iterations
    assert loose.error == pytest.approx(loose.residual * 0.7 / 0.3, rel=1e-9)


def test_single_precision_certificate(arrays: Arrays) -> None:
    mdp, law, _ = problem(9, arrays)
    found = value_iteration(mdp, law, 0.5, QUADRATIC, tol=1e-3)
    assert found.Q.dtype == arrays.dtype
    with use("numpy"):
        exact_mdp, exact_law, _ = problem(9, NUMPY)
        exact = value_iteration(exact_mdp, exact_law, 0.5, QUADRATIC, tol=1e-9)
    # The data were rounded to the dtype: each changes Q by eps max|Q|/(1 - discount) at most a few times.
    slack = 16 * arrays.eps * np.max(np.abs(exact.Q)) / 0.1
    assert np.max(np.abs(arrays.numpy(found.Q) - exact.Q)) <= found.error + exact.error + slack


def test_without_perturbation_it_is_the_plain_problem(arrays: Arrays) -> None:
    """Alone in its neighbourhood, a state has the plain value, whatever eta and phi are."""
    mdp, _, plain = problem(10, arrays)
    alone = Neighbourhood(
        arrays.asarray(np.arange(6)[:, None], dtype=arrays.xp.int64), arrays.asarray(np.ones((6, 1)))
    )
    Q = np.random.default_rng(11).normal(size=(6, 3))
    expected = plain["r"] + 0.9 * plain["P"] @ np.where(plain["terminal"], 0, Q.max(axis=1))
    expected[plain["terminal"]] = 0
    for d in select(core=True):
        found = arrays.numpy(bellman(arrays.asarray(Q), mdp, alone, 0.1, d))
        np.testing.assert_allclose(found, expected, atol=32 * arrays.eps)


# --- Errors ---------------------------------------------------------------------------------------

P1, R1 = np.ones((1, 2, 1)), np.zeros((1, 2))
LAW = Neighbourhood(np.array([[0]]), np.ones((1, 1)))
MDP = DecisionProcess(P1, R1 + 1.0, 0.5)
FAR = Neighbourhood(np.array([[3]]), np.ones((1, 1)))


@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        (lambda: DecisionProcess([1.0], R1, 0.5), TypeError, r"transition is \[1.0\]"),
        (lambda: DecisionProcess(P1, [1.0], 0.5), TypeError, r"reward is \[1.0\]"),
        (lambda: DecisionProcess(P1, np.zeros(2), 0.5), ValueError, r"reward has shape \(2,\)"),
        (
            lambda: DecisionProcess(np.ones((1, 1, 1)), R1, 0.5),
            ValueError,
            r"transition has shape \(1, 1, 1\)",
        ),
        (
            lambda: DecisionProcess(P1 * 2, R1, 0.5),
            ValueError,
            "transition sums to",
        ),
        (lambda: DecisionProcess(-P1, R1, 0.5), ValueError, "transition contains "),
        (lambda: DecisionProcess(P1, R1 * np.nan, 0.5), ValueError, "reward contains NaN"),
        (lambda: DecisionProcess(P1, R1.astype(np.float32), 0.5), TypeError, "reward has dtype float32"),
        (lambda: DecisionProcess(P1, R1, 1.0), ValueError, "discount is 1.0"),
        (lambda: DecisionProcess(P1, R1, -0.1), ValueError, "discount is -0.1"),
        (lambda: DecisionProcess(P1, R1, "much"), ValueError, "discount is 'much'"),  # type: ignore[arg-type]
        (lambda: DecisionProcess(P1, R1, 0.5, np.array([0])), ValueError, r"terminal is array\(\[0\]\)"),
        (lambda: DecisionProcess(P1, R1, 0.5, np.zeros(2, bool)), ValueError, "terminal is array"),
        (lambda: robust_value([[0.0]], LAW, 1.0, ENTROPIC), TypeError, r"Q is \[\[0.0\]\]"),
        (lambda: robust_value(np.zeros(2), LAW, 1.0, ENTROPIC), ValueError, r"Q has shape \(2,\)"),
        (lambda: robust_value(R1, FAR, 1.0, ENTROPIC), ValueError, "neighbourhood.index contains 3; .*S = 1"),
        (lambda: robust_value(R1 + np.inf, LAW, 1.0, ENTROPIC), ValueError, "Q contains NaN or an infinity"),
        (lambda: robust_value(R1, (0, 1), 1.0, ENTROPIC), TypeError, r"neighbourhood is \(0, 1\)"),  # type: ignore[arg-type]
        (lambda: robust_value(R1, LAW, 0.0, ENTROPIC), ValueError, "eta is 0.0"),
        (lambda: robust_value(R1, LAW, 1.0, "kl"), TypeError, "divergence is 'kl'"),  # type: ignore[arg-type]
        (lambda: robust_value(R1, LAW, 1.0, ENTROPIC, maximum="inside"), TypeError, "maximum is 'inside'"),  # type: ignore[arg-type]
        (lambda: bellman(np.zeros((2, 2)), MDP, LAW, 1.0, ENTROPIC), ValueError, r"Q has shape \(2, 2\)"),
        (lambda: bellman(R1.astype(np.float32), MDP, LAW, 1.0, ENTROPIC), TypeError, "Q has dtype float32"),
        (lambda: bellman(R1, R1, LAW, 1.0, ENTROPIC), TypeError, "mdp is array"),
        (
            lambda: bellman(
                R1, MDP, Neighbourhood(np.zeros((2, 1), np.int64), np.ones((2, 1))), 1.0, ENTROPIC
            ),
            ValueError,
            "neighbourhood has 2 rows; expected one a state, 1",
        ),
        (lambda: value_iteration(MDP, None, 1.0, ENTROPIC, tol=1.0), TypeError, "neighbourhood is None"),  # type: ignore[arg-type]
        (lambda: value_iteration(MDP, LAW, 1.0, ENTROPIC, tol=0.0), ValueError, "tol is 0.0"),
        (
            lambda: value_iteration(MDP, LAW, 1.0, ENTROPIC, tol=1e-17),
            ValueError,
            "tol is 1e-17; expected at least",
        ),
        (
            lambda: value_iteration(MDP, LAW, 1.0, ENTROPIC, tol=1.0, iterations=0),
            ValueError,
            "iterations is 0",
        ),
        (
            lambda: value_iteration(MDP, LAW, 1.0, ENTROPIC, tol=1e-6, iterations=5),
            RuntimeError,
            r"error of 0.06\d* in 5 iterations; expected 1e-06: allow more",
        ),
    ],
)
def test_bad_arguments(call: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        call()

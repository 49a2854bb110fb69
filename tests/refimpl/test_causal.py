"""The contextual problem: against programs over transport plans, and the loss that everything else takes."""

from __future__ import annotations

import ast
from math import log
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from phiball.refimpl import (
    ENTROPIC,
    QUADRATIC,
    Conditional,
    Divergence,
    causal_value,
    conditional_loss,
)
from phiball.verification.oracles import causal as causal_oracles
from phiball.verification.oracles.causal import causal_plan
from tests.support.arrays import Arrays
from tests.support.divergences import on_each

Z_SCORE = 4.75  # one in a million, one-sided
CONIC = 1e-6  # the accuracy of the conic solver


def instance(seed: int) -> dict[str, Any]:
    """L1, L2: 3 covariates, 4 parameters, 5 places, nothing uniform, some places out of reach."""
    draw = np.random.default_rng(seed)
    joint = draw.dirichlet(np.ones(12)).reshape(3, 4)
    reach = draw.random((3, 5)) < 0.8
    reach[:, 0] = True
    nu = np.where(reach, draw.exponential(size=(3, 5)), 0.0)
    a = draw.uniform(1, 2, size=6)  # away from 0, so that z matters
    places, z = draw.normal(size=5), draw.normal(size=4)
    return {
        "joint": joint,
        "nu": nu / nu.sum(axis=1, keepdims=True),
        "places": places,
        "z": z,
        "a": a,
        "table": np.sin(a[0] * (a[4] + a[5] * places)[:, None] + a[1] * z)
        + a[2] * z * places[:, None] * a[5],
    }


def problem(case: dict[str, Any], arrays: Arrays) -> tuple[Conditional, Any, Any]:
    """The same problem in the library's words, with a cost that is a function and not a table."""
    joint, xp, a = case["joint"], arrays.xp, case["a"].tolist()
    data = Conditional(
        arrays.asarray(np.arange(3.0)),
        arrays.asarray(np.tile(case["z"], (3, 1))),
        arrays.asarray(joint / joint.sum(axis=1, keepdims=True)),
        arrays.asarray(joint.sum(axis=1)),
    )

    def cost(w: Any, z: Any) -> Any:
        return xp.sin(a[0] * w + a[1] * z) + a[2] * z * (w - a[4])

    loss = conditional_loss(lambda x: a[4] + a[5] * x, cost, data)
    return data, loss, arrays.asarray(np.tile(case["places"], (3, 1)))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_strong_duality(seed: int, arrays: Arrays) -> None:
    """L1, L2: the library's duals are the values of the primal programs; the plain plans give more."""
    case = instance(seed)
    data, loss, places = problem(case, arrays)
    p = arrays.asarray(case["nu"])
    args = case["table"], case["joint"], case["nu"]
    tol = CONIC + 64 * arrays.eps
    for eta in (0.1, 1.0):
        for d, name in ((ENTROPIC, "entropic"), (QUADRATIC, "quadratic")):
            found = causal_value(loss, data, places, eta, d, p=p)
            oracle = solved(seed, eta, name, args)
            assert float(found.value) == pytest.approx(oracle.value, abs=tol)
            # The law of x' given x of the plan; the solver's plan is good to the root of its value.
            moved = oracle.plan.sum(axis=1) / case["joint"].sum(axis=1)[:, None]
            np.testing.assert_allclose(arrays.numpy(found.inner.weights), moved, atol=2e-3)
            free = solved(seed, eta, name, args, causal=False)
            assert free.value > oracle.value + 1e-3
    linear = solved(seed, 0.0, "none", args)
    assert float(found.supremum) == pytest.approx(linear.value, abs=tol)
    assert solved(seed, 0.0, "none", args, causal=False).value > linear.value + 1e-3
    # Consistency: a small eta comes near the supremum, by eta log(1/p) at most.
    near = causal_value(loss, data, places, 1e-3, ENTROPIC, p=p)
    slack = 1e-3 * log(1 / case["nu"][case["nu"] > 0].min())
    assert 0 <= float(near.supremum - near.value) + 64 * arrays.eps <= slack + 128 * arrays.eps


_solved: dict[Any, causal_oracles.Plan] = {}


def solved(seed: int, eta: float, name: str, args: Any, causal: bool = True) -> causal_oracles.Plan:
    key = seed, eta, name, causal
    if key not in _solved:  # the same on every backend
        _solved[key] = causal_plan(*args, eta=eta, penalty=name, causal=causal)
    return _solved[key]


def test_oracle_by_hand() -> None:
    """One covariate and two parameters: the plan that sees z always gets 1, the causal one only half."""
    cost, joint, nu = [[1.0, 0.0], [0.0, 1.0]], [[0.5, 0.5]], [[0.5, 0.5]]
    assert causal_plan(cost, joint, nu).value == pytest.approx(0.5, abs=CONIC)
    assert causal_plan(cost, joint, nu, causal=False).value == pytest.approx(1.0, abs=CONIC)
    # Losses (0, 1) for any z: the two-point values of the inner problem.
    cost = [[0.0, 0.0], [1.0, 1.0]]
    found = causal_plan(cost, joint, nu, eta=1.0, penalty="entropic")
    assert found.value == pytest.approx(0.620114506958, abs=CONIC)
    found = causal_plan(cost, joint, nu, eta=0.5, penalty="quadratic")
    assert found.value == pytest.approx(0.75, abs=CONIC)
    # A place out of reach is not used.
    assert causal_plan(cost, joint, [[1.0, 0.0]]).value == pytest.approx(0.0, abs=CONIC)
    with pytest.raises(ValueError, match="penalty is 'cubic'"):
        causal_plan(cost, joint, nu, penalty="cubic")


def test_oracle_shares_no_code_with_what_it_judges() -> None:
    imported = set()
    for node in ast.walk(ast.parse(Path(causal_oracles.__file__ or "").read_text())):
        if isinstance(node, ast.Import):
            imported |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            imported.add((node.module or "").partition(".")[0])
    assert imported == {"__future__", "typing", "numpy", "cvxpy"}


@on_each(core=True)
def test_values_lie_between_mean_and_supremum(d: Divergence, arrays: Arrays) -> None:
    case = instance(7)
    data, loss, places = problem(case, arrays)
    found = causal_value(loss, data, places, 0.3, d)
    expected = float(np.sum(case["joint"] * case["table"].mean(axis=0)))
    slack = 64 * arrays.eps
    assert expected - slack <= float(found.value) <= float(found.supremum) + slack
    assert arrays.numpy(found.losses).dtype == arrays.numpy(places).dtype


# --- Data -----------------------------------------------------------------------------------------


def test_grouping_against_a_dictionary(arrays: Arrays) -> None:
    draw = np.random.default_rng(0)
    x = draw.integers(0, 3, size=(60, 2, 1)).astype(float)
    x[x == 2] = 0.1
    z = draw.normal(size=(60, 3))
    w = draw.dirichlet(np.ones(60))
    w[0] = 0.0
    w /= w.sum()
    given = arrays.asarray(x), arrays.asarray(z), arrays.asarray(w)
    before = [arrays.numpy(g).copy() for g in given]
    data = Conditional.grouped(given[0], given[1], weight=given[2])
    for g, b in zip(given, before, strict=True):
        np.testing.assert_array_equal(arrays.numpy(g), b)
    found: dict[Any, list[Any]] = {}
    for k in range(60):
        found.setdefault(tuple(before[0][k].ravel().tolist()), []).append(k)
    assert len(found) == 9 == data.x.shape[0]
    assert [tuple(row.ravel().tolist()) for row in arrays.numpy(data.x)] == sorted(found)
    for k, key in enumerate(sorted(found)):
        mine = found[key]
        m = len(mine)
        np.testing.assert_array_equal(arrays.numpy(data.z)[k, :m], before[1][mine])
        tol = 16 * arrays.eps
        np.testing.assert_allclose(arrays.numpy(data.weight)[k], w[mine].sum(), rtol=tol)
        np.testing.assert_allclose(arrays.numpy(data.share)[k, :m], w[mine] / w[mine].sum(), rtol=4 * tol)
        assert np.all(arrays.numpy(data.share)[k, m:] == 0)


def test_grouping_minus_zero_and_plain_numbers(arrays: Arrays) -> None:
    data = Conditional.grouped(arrays.asarray([0.0, -0.0, 1.0]), arrays.asarray([1.0, 2.0, 3.0]))
    assert arrays.numpy(data.x).tolist() == [0.0, 1.0]
    assert arrays.numpy(data.share).tolist() == [[0.5, 0.5], [1.0, 0.0]]
    assert arrays.numpy(data.weight).tolist() == pytest.approx([2 / 3, 1 / 3], abs=4 * arrays.eps)


def test_grouped_and_stacked_agree(arrays: Arrays) -> None:
    draw = np.random.default_rng(1)
    x, z = np.sort(draw.normal(size=4))[:, None], draw.normal(size=(4, 6, 2))
    stacked = Conditional.stacked(arrays.asarray(x), arrays.asarray(z))
    pairs = Conditional.grouped(arrays.asarray(np.repeat(x, 6, axis=0)), arrays.asarray(z.reshape(24, 2)))
    for name in ("x", "z", "share", "weight"):
        a, b = arrays.numpy(getattr(stacked, name)), arrays.numpy(getattr(pairs, name))
        np.testing.assert_allclose(a, b, rtol=8 * arrays.eps)

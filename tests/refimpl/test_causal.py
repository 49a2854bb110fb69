"""The contextual problem agrees with optimal transport plans; `conditional_loss` and `Conditional`."""

from functools import cache, partial
from itertools import product
from math import inf
from typing import Any

import numpy as np
import pytest

from phiball.backends import rng
from phiball.refimpl import ENTROPIC, QUADRATIC, Ball, Divergence, robust_risk
from phiball.refimpl.causal import Conditional, causal_risk, causal_value, conditional_loss
from phiball.verification.oracles.transport_plans import TransportPlan, causal_plan
from tests.support.arrays import Arrays
from tests.support.divergences import select

CONIC_TOL = 1e-6  # the accuracy of the conic solver


def instance(seed: int) -> dict[str, Any]:
    """A random problem with 3 covariates, 4 parameters and 5 points, some of them of probability zero."""
    draw = np.random.default_rng(seed)
    joint = draw.dirichlet(np.ones(12)).reshape(3, 4)
    reachable = draw.random((3, 5)) < 0.8
    reachable[:, 0] = True
    nu = np.where(reachable, draw.exponential(size=(3, 5)), 0.0)
    a = draw.uniform(1, 2, size=6)  # away from 0, so that the loss depends on z
    points, z = draw.normal(size=5), draw.normal(size=4)
    return {
        "joint": joint,
        "nu": nu / nu.sum(axis=1, keepdims=True),
        "points": points,
        "z": z,
        "a": a,
        "table": np.sin(a[0] * (a[4] + a[5] * points)[:, None] + a[1] * z)
        + a[2] * z * points[:, None] * a[5],
    }


def problem(case: dict[str, Any], arrays: Arrays) -> tuple[Conditional, Any, Any]:
    """The same problem for the library, with a cost function instead of a table."""
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
    return data, loss, arrays.asarray(np.tile(case["points"], (3, 1)))


@cache
def optimal_plan(seed: int, eta: float, penalty: str, causal: bool = True) -> TransportPlan:
    case = instance(seed)
    return causal_plan(case["table"], case["joint"], case["nu"], eta=eta, penalty=penalty, causal=causal)


def test_dual_values_equal_the_values_of_optimal_plans(arrays: Arrays) -> None:
    """Claims L1 and L2; noncausal plans have larger values."""
    tol = CONIC_TOL + 64 * arrays.eps
    for seed in (0, 1):
        case = instance(seed)
        data, loss, points = problem(case, arrays)
        p = arrays.asarray(case["nu"])
        for eta, (d, name) in product((0.1, 1.0), ((ENTROPIC, "entropic"), (QUADRATIC, "quadratic"))):
            found = causal_value(loss, data, points, eta, d, p=p)
            oracle = optimal_plan(seed, eta, name)
            assert float(found.value) == pytest.approx(oracle.value, abs=tol)
            # The distribution of x' given x, accurate only to the square root of CONIC_TOL.
            moved = oracle.plan.sum(axis=1) / case["joint"].sum(axis=1)[:, None]
            np.testing.assert_allclose(arrays.numpy(found.inner.weights), moved, atol=2e-3)
        assert (
            optimal_plan(seed, 0.1, "entropic", causal=False).value
            > optimal_plan(seed, 0.1, "entropic").value + 1e-3
        )
        assert float(found.supremum) == pytest.approx(optimal_plan(seed, 0.0, "none").value, abs=tol)
        expected = float(np.sum(case["joint"] * case["table"].mean(axis=0)))
        for d in select(core=True):
            found = causal_value(loss, data, points, 0.3, d)
            assert expected - tol <= float(found.value) <= float(found.supremum) + tol, d.name
            assert found.losses.dtype == points.dtype


def test_grouped_agrees_with_grouping_by_a_dictionary(arrays: Arrays) -> None:
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
    # Covariates may be scalars, and 0 equals -0.
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


# --- The loss -------------------------------------------------------------------------------------


def pricing(w: Any, z: Any) -> Any:
    """The cost -w (z_0 w + z_1) of Section 6.3, affine in z."""
    return -w * (z[:, 0] * w + z[:, 1])


def data_with_groups_of_different_size(arrays: Arrays) -> tuple[Conditional, Any, Any]:
    draw = np.random.default_rng(2)
    x, z = draw.integers(0, 4, size=(30, 1)).astype(float), draw.normal(size=(30, 2))
    return Conditional.grouped(arrays.asarray(x), arrays.asarray(z)), x, z


def test_conditional_loss_is_the_conditional_mean_of_the_cost(arrays: Arrays) -> None:
    data, x, z = data_with_groups_of_different_size(arrays)
    i = np.array([0, 3, 1, 1, 2])
    moved = np.random.default_rng(3).normal(size=(5, 1))
    w = np.cos(moved[:, 0])
    keys = np.unique(x)
    for cost in (pricing, lambda w, z: (w - z[:, 0] * z[:, 1]) ** 2):
        expected = [np.mean(cost(w[n], z[x[:, 0] == keys[k]])) for n, k in enumerate(i)]
        for chunk in (None, 1, 3, 100):
            for linear in (False, True) if cost is pricing else (False,):
                loss = conditional_loss(
                    lambda x: arrays.xp.cos(x[:, 0]), cost, data, linear=linear, chunk=chunk
                )
                found = loss(arrays.asarray(moved), arrays.asarray(i, dtype=arrays.xp.int64))
                np.testing.assert_allclose(arrays.numpy(found), expected, atol=64 * arrays.eps)


def test_chunk_limits_the_number_of_parameters_per_call() -> None:
    seen: list[int] = []
    data = Conditional.stacked(np.zeros(2), np.ones((2, 7)))
    loss = conditional_loss(lambda x: x, lambda w, z: (seen.append(len(w)), w * z)[1], data, chunk=3)
    loss(np.zeros(5), np.zeros(5, dtype=np.int64))
    assert seen == [15, 15, 5]


def test_decisions_and_parameters_may_be_matrices(arrays: Arrays) -> None:
    xp = arrays.xp
    data = Conditional.stacked(arrays.asarray(np.zeros((2, 3))), arrays.asarray(np.ones((2, 4, 2, 2))))
    loss = conditional_loss(
        lambda x: x[:, :, None] + xp.zeros_like(x)[:, None, :],
        lambda w, z: xp.sum(w, axis=(1, 2)) * xp.sum(z, axis=(1, 2)),
        data,
    )
    x = arrays.asarray(np.array([[1.0, 2.0, 3.0]]))
    assert arrays.numpy(loss(x, arrays.asarray([1], dtype=xp.int64))).tolist() == [72.0]


def test_torch_gradients_flow_to_parameters_and_covariates() -> None:
    torch = pytest.importorskip("torch")
    draw = np.random.default_rng(4)
    data = Conditional.stacked(
        torch.asarray(draw.normal(size=(3, 2))), torch.asarray(draw.normal(size=(3, 5, 2)))
    )
    points = torch.asarray(draw.normal(size=(3, 4, 2)))

    def value(theta: Any, moved: Any, d: Divergence, linear: bool, chunk: int | None) -> Any:
        loss = conditional_loss(lambda x: torch.tanh(x @ theta), pricing, data, linear=linear, chunk=chunk)
        return causal_value(loss, data, moved, 0.3, d).value

    theta = torch.tensor([0.3, -0.7], dtype=torch.float64, requires_grad=True)
    for d, (linear, chunk) in product((ENTROPIC, QUADRATIC), ((False, None), (False, 2), (True, None))):
        function = partial(value, d=d, linear=linear, chunk=chunk)
        assert torch.autograd.gradcheck(function, (theta, points.clone().requires_grad_()))


def test_causal_risk_is_the_weighted_mean_of_robust_risks(arrays: Arrays) -> None:
    data, _, _ = data_with_groups_of_different_size(arrays)
    K = data.x.shape[0]
    ball, close = Ball(inf, 0.5), {"rtol": 256 * arrays.eps, "atol": 256 * arrays.eps}
    w = np.arange(1.0, K + 1) / (K * (K + 1) / 2)
    for weight in (None, arrays.asarray(w)):
        data = Conditional.stacked(data.x, data.z, weight=weight)
        loss = conditional_loss(lambda x: x[:, 0], pricing, data, linear=True)
        a = causal_risk(loss, data, ball, 0.7, QUADRATIC, n_samples=50, rng=6)
        b = robust_risk(loss, data.x, ball, 0.7, QUADRATIC, n_samples=50, rng=rng(6))
        values = arrays.numpy(b.values)
        np.testing.assert_allclose(arrays.numpy(a.values), values, **close)
        for name in ("value", "bias", "stderr", "lower_bound") if weight is None else ():
            np.testing.assert_allclose(float(getattr(a, name)), float(getattr(b, name)), **close)
    np.testing.assert_allclose(float(a.value), w @ values, **close)


X, ZS = np.zeros((2, 1)), np.ones((2, 3))


def test_causal_risk_reports_the_given_eta_at_every_covariate() -> None:
    data = Conditional.stacked(X, ZS, weight=np.array([0.25, 0.75]))
    risk = causal_risk(lambda x, i: x[:, 0], data, Ball(2, 1.0), 0.7, QUADRATIC, n_samples=8, rng=0)
    np.testing.assert_allclose(risk.eta, [0.7, 0.7], rtol=1e-15)


def test_invalid_data_losses_and_points_raise() -> None:
    stacked, grouped, half = Conditional.stacked, Conditional.grouped, np.ones(2) / 2
    data, points, ball = stacked(X, ZS), np.zeros((2, 4, 1)), Ball(2, 1.0)
    loss = conditional_loss(lambda x: x[:, 0], lambda w, z: w * z, data)
    wide = stacked(np.zeros((2, 1)), np.ones((2, 3, 1)))
    five = np.zeros((5, 1)), np.zeros(5, dtype=np.int64)

    def loss_of(decision: Any) -> Any:
        return lambda: conditional_loss(decision, lambda w, z: w * z[:, 0], wide)(*five)

    def value(points: Any = points, eta: Any = 1.0, d: Any = ENTROPIC, loss: Any = loss, **how: Any) -> Any:
        return lambda: causal_value(loss, data, points, eta, d, **how)

    def risk(data: Any, eta: float) -> Any:
        return lambda: causal_risk(loss, data, ball, eta, ENTROPIC, n_samples=4, rng=rng(0))

    value_errors: dict[str, Any] = {
        r"z \(3, 3\); expected \(K,\) \+ event": lambda: stacked(X, np.ones((3, 3))),
        r"z \(2, 0\); expected": lambda: stacked(X, np.ones((2, 0))),
        "x contains NaN": lambda: stacked(X * np.nan, ZS),
        "weight sums to": lambda: stacked(X, ZS, weight=np.ones(2)),
        "weight contains 0": lambda: stacked(X, ZS, weight=np.array([1.0, 0.0])),
        r"weight has shape \(3,\)": lambda: stacked(X, ZS, weight=np.ones(3) / 3),
        "share contains ": lambda: Conditional(X, ZS, -ZS, half),
        r"share has shape \(2, 2\)": lambda: Conditional(X, ZS, np.ones((2, 2)) / 2, half),
        r"z \(3, 1\); expected \(n,\)": lambda: grouped(X, np.ones((3, 1))),
        "n at least 1": lambda: grouped(np.zeros((0, 1)), np.zeros(0)),
        "x contains NaN or an inf": lambda: grouped(X + np.inf, ZS),
        r"weight has shape \(3,\).*": lambda: grouped(X, ZS, weight=np.ones(3) / 3),
        "weight is 0 for every pair": lambda: grouped(np.array([0.0, 1.0]), ZS, weight=np.array([1.0, 0.0])),
        r"decision\(x\) has shape \(1,\); expected \(5,\) \+ event": loss_of(lambda x: x[:1, 0]),
        r"decision\(x\) has .*; expected \(5,\)": loss_of(lambda x: x.mean()),
        "chunk is 0": lambda: conditional_loss(loss, loss, data, chunk=0),
        r"points has shape \(1, 4, 1\)": value(points[:1]),
        "expected at least one point": value(points[:, :0]),
        "eta is 0.0": value(eta=0.0),
        "p sums to 4": value(p=np.ones(4)),
        r"loss\(x, i\) has shape": value(loss=lambda x, i: x),
        "divergence is 'kll'": value(d="kll"),
        "eta is -1.0": risk(data, -1.0),
        r"cost\(w, z\) has shape \(6, 1\); expected \(6,\)": lambda: conditional_loss(
            lambda x: x, lambda w, z: w * z[:, None], data
        )(X, np.zeros(2, np.int64)),
    }
    wrong: Any = None
    type_errors: dict[str, Any] = {
        r"x is \[0.0\]": lambda: stacked([0.0], ZS),
        "z has dtype float32 and x float64": lambda: stacked(X, ZS.astype(np.float32)),
        "decision is None": lambda: conditional_loss(wrong, loss, data),
        "cost is None": lambda: conditional_loss(loss, wrong, data),
        "data is None; expected a Conditional": lambda: conditional_loss(loss, loss, wrong),
        "divergence is 0.5": value(d=0.5),
    }
    for error, calls in ((ValueError, value_errors), (TypeError, type_errors)):
        for message, call in calls.items():
            with pytest.raises(error, match=message):
                call()

"""The loss of the contextual problem, as everything else in the library takes it."""

from __future__ import annotations

from math import log, sinh
from typing import Any

import numpy as np
import pytest

from phiball.backends import rng, use
from phiball.refimpl import (
    ENTROPIC,
    QUADRATIC,
    Ball,
    Conditional,
    Divergence,
    causal_risk,
    causal_value,
    conditional_loss,
    fgm,
    robust_risk,
)
from tests.support.arrays import Arrays

Z_SCORE = 4.75  # one in a million, one-sided
CONIC = 1e-6  # the accuracy of the conic solver


# --- The loss -------------------------------------------------------------------------------------


def pricing(w: Any, z: Any) -> Any:
    """Psi(w, z) = -w z'(w, 1) of Section 6.3, affine in z."""
    return -w * (z[:, 0] * w + z[:, 1])


def ragged(arrays: Arrays) -> tuple[Conditional, Any, Any]:
    draw = np.random.default_rng(2)
    x, z = draw.integers(0, 4, size=(30, 1)).astype(float), draw.normal(size=(30, 2))
    return Conditional.grouped(arrays.asarray(x), arrays.asarray(z)), x, z


def test_loss_is_the_conditional_average(arrays: Arrays) -> None:
    data, x, z = ragged(arrays)
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


def test_linear_is_for_costs_that_are(doubles: Arrays) -> None:
    """Told wrongly, the mean of z gives another value: the flag is the caller's word."""
    data, _, _ = ragged(doubles)
    x, i = data.x, doubles.xp.arange(data.x.shape[0], dtype=doubles.xp.int64, **doubles.at)
    values = [
        conditional_loss(lambda x: x[:, 0], lambda w, z: z[:, 0] ** 2 + 0 * w, data, linear=linear)(x, i)
        for linear in (False, True)
    ]
    assert np.all(doubles.numpy(values[0]) > doubles.numpy(values[1]) + 1e-3)


def test_chunks_bound_the_pairs() -> None:
    seen = []

    def cost(w: Any, z: Any) -> Any:
        seen.append(w.shape[0])
        return w * z

    data = Conditional.stacked(np.zeros(2), np.ones((2, 7)))
    conditional_loss(lambda x: x, cost, data, chunk=3)(np.zeros(5), np.zeros(5, dtype=np.int64))
    assert seen == [15, 15, 5]


def test_decisions_of_any_shape(arrays: Arrays) -> None:
    xp = arrays.xp
    data = Conditional.stacked(arrays.asarray(np.zeros((2, 3))), arrays.asarray(np.ones((2, 4, 2, 2))))
    loss = conditional_loss(
        lambda x: x[:, :, None] + xp.zeros_like(x)[:, None, :],
        lambda w, z: xp.sum(w, axis=(1, 2)) * xp.sum(z, axis=(1, 2)),
        data,
    )
    x = arrays.asarray(np.array([[1.0, 2.0, 3.0]]))
    assert arrays.numpy(loss(x, arrays.asarray([1], dtype=xp.int64))).tolist() == [72.0]


def test_torch_gradients_reach_the_rule_and_the_covariates() -> None:
    torch = pytest.importorskip("torch")
    draw = np.random.default_rng(4)
    data = Conditional.stacked(
        torch.asarray(draw.normal(size=(3, 2))), torch.asarray(draw.normal(size=(3, 5, 2)))
    )
    places = torch.asarray(draw.normal(size=(3, 4, 2)))

    def value(theta: Any, d: Divergence, moved: Any, linear: bool, chunk: int | None) -> Any:
        loss = conditional_loss(lambda x: torch.tanh(x @ theta), pricing, data, linear=linear, chunk=chunk)
        return causal_value(loss, data, moved, 0.3, d).value

    for d in (ENTROPIC, QUADRATIC):
        for linear, chunk in ((False, None), (False, 2), (True, None)):
            theta = torch.tensor([0.3, -0.7], dtype=torch.float64, requires_grad=True)
            moved = places.clone().requires_grad_()
            value(theta, d, moved, linear, chunk).backward()  # type: ignore[no-untyped-call]
            h = 1e-6
            with torch.no_grad():
                for x, g in ((theta, theta.grad), (moved, moved.grad)):
                    flat, expected = x.view(-1), g.reshape(-1)
                    for j in range(0, flat.numel(), 3):
                        flat[j] += h
                        up = value(theta, d, moved, linear, chunk)
                        flat[j] -= 2 * h
                        down = value(theta, d, moved, linear, chunk)
                        flat[j] += h
                        # Central differences: h^2 of truncation and eps/h of rounding.
                        assert float((up - down) / (2 * h)) == pytest.approx(float(expected[j]), abs=1e-8)


# --- Sampling, and the rest of the library ---------------------------------------------------------


def test_causal_risk_against_the_closed_form(doubles: Arrays) -> None:
    """w z on [-1, 1]: eta log(sinh(a/eta) eta/a) with a the mean of z; covariates with unequal weights."""
    z, weight = np.array([[1.0, 3.0], [0.0, 2.0], [-5.0, -1.0]]), np.array([0.6, 0.1, 0.3])
    data = Conditional.stacked(
        doubles.asarray(np.zeros((3, 1))), doubles.asarray(z), weight=doubles.asarray(weight)
    )
    eta = 1.3
    each = [eta * log(sinh(abs(a) / eta) * eta / abs(a)) for a in z.mean(axis=1)]
    loss = conditional_loss(lambda x: x[:, 0], lambda w, z: w * z, data)
    risk = causal_risk(loss, data, Ball(2, 1.0), eta, ENTROPIC, samples=4096, rng=rng(5))
    exact = float(weight @ each)
    # The plug-in value is low by O(1/n), which `bias` estimates to well within a standard error.
    assert abs(float(risk.value + risk.bias) - exact) <= Z_SCORE * float(risk.stderr)
    assert float(risk.stderr) < 0.03 < abs(np.mean(each) - exact)  # equal weights would be seen
    assert float(doubles.xp.sum(data.weight * risk.values)) == pytest.approx(float(risk.value), abs=1e-12)
    np.testing.assert_allclose(doubles.numpy(risk.values), each, atol=0.15)


def test_equal_weights_are_the_robust_risk(arrays: Arrays) -> None:
    data, _, _ = ragged(arrays)
    data = Conditional.stacked(data.x, data.z)
    loss = conditional_loss(lambda x: x[:, 0], pricing, data, linear=True)
    options: dict[str, Any] = {"samples": 50}
    a = causal_risk(loss, data, Ball(float("inf"), 0.5), 0.7, QUADRATIC, rng=rng(6), **options)
    b = robust_risk(loss, data.x, Ball(float("inf"), 0.5), 0.7, QUADRATIC, rng=rng(6), **options)
    for name in ("value", "values", "bias", "stderr"):
        x, y = arrays.numpy(getattr(a, name)), arrays.numpy(getattr(b, name))
        np.testing.assert_allclose(x, y, rtol=256 * arrays.eps, atol=256 * arrays.eps)
    assert a.lower_bound == b.lower_bound


def test_an_attack_takes_the_loss() -> None:
    """FGM on a loss that is linear in x' finds the supremum of Eq. (casual:dual)."""
    with use("numpy"):
        data = Conditional.stacked(np.zeros((2, 2)), np.array([[1.0, 3.0], [-2.0, 0.0]]))
        loss = conditional_loss(lambda x: x[:, 0] - x[:, 1], lambda w, z: w * z, data, linear=True)
        slopes = np.array([2.0, -1.0])

        def gradient(x: Any, i: Any) -> Any:
            return slopes[i][:, None] * np.array([1.0, -1.0])

        moved = fgm(gradient, data.x, Ball(float("inf"), 0.5))
        assert loss(moved, np.arange(2)).tolist() == pytest.approx([2.0, 1.0], abs=1e-12)


# --- Errors ---------------------------------------------------------------------------------------

X, ZS = np.zeros((2, 1)), np.ones((2, 3))


@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        (lambda: Conditional.stacked([0.0], ZS), TypeError, r"x is \[0.0\]"),
        (lambda: Conditional.stacked(X, [0.0]), TypeError, r"z is \[0.0\]"),
        (
            lambda: Conditional.stacked(X, np.ones((3, 3))),
            ValueError,
            r"z \(3, 3\); expected \(K,\) \+ event",
        ),
        (lambda: Conditional.stacked(X, np.ones((2, 0))), ValueError, r"z \(2, 0\); expected"),
        (lambda: Conditional.stacked(X, np.ones(2)), ValueError, r"z \(2,\); expected"),
        (
            lambda: Conditional.stacked(X, ZS.astype(np.float32)),
            TypeError,
            "z has dtype float32 and x float64",
        ),
        (lambda: Conditional.stacked(X * np.nan, ZS), ValueError, "x contains NaN"),
        (lambda: Conditional.stacked(X, ZS, weight=np.ones(2)), ValueError, "weight sums to"),
        (lambda: Conditional.stacked(X, ZS, weight=np.array([1.0, 0.0])), ValueError, "weight contains 0"),
        (lambda: Conditional.stacked(X, ZS, weight=np.ones(3) / 3), ValueError, r"weight has shape \(3,\)"),
        (lambda: Conditional(X, ZS, -ZS, np.ones(2) / 2), ValueError, "share contains "),
        (
            lambda: Conditional(X, ZS, np.ones((2, 2)) / 2, np.ones(2) / 2),
            ValueError,
            r"share has shape \(2, 2\)",
        ),
        (lambda: Conditional.grouped(X, np.ones((3, 1))), ValueError, r"z \(3, 1\); expected \(n,\)"),
        (lambda: Conditional.grouped(np.zeros((0, 1)), np.zeros(0)), ValueError, "n at least 1"),
        (lambda: Conditional.grouped(X + np.inf, ZS), ValueError, "x contains NaN or an inf"),
        (lambda: Conditional.grouped(X, ZS, weight=np.ones(3) / 3), ValueError, r"weight has shape \(3,\)"),
        (
            lambda: Conditional.grouped(np.array([0.0, 1.0]), ZS, weight=np.array([1.0, 0.0])),
            ValueError,
            "weight is 0 for every pair of a covariate",
        ),
    ],
)
def test_bad_data(call: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        call()


@pytest.mark.parametrize("wrong", [lambda x: x[:1, 0], lambda x: x.mean(), lambda x: 1.0])
def test_a_decision_for_each_covariate(wrong: Any) -> None:
    data = Conditional.stacked(np.zeros((2, 1)), np.ones((2, 3, 1)))
    loss = conditional_loss(wrong, lambda w, z: w * z[:, 0], data)
    with pytest.raises(ValueError, match=r"decision\(x\) has .*; expected \(5,\) \+ event"):
        loss(np.zeros((5, 1)), np.zeros(5, dtype=np.int64))


def test_bad_arguments() -> None:
    data = Conditional.stacked(X, ZS)
    loss = conditional_loss(lambda x: x[:, 0], lambda w, z: w * z, data)
    places = np.zeros((2, 4, 1))
    calls: list[tuple[Any, type[Exception], str]] = [
        (lambda: conditional_loss(None, loss, data), TypeError, "decision is None"),  # type: ignore[arg-type]
        (lambda: conditional_loss(loss, None, data), TypeError, "cost is None"),  # type: ignore[arg-type]
        (lambda: conditional_loss(loss, loss, X), TypeError, "(?s)data is array.*expected a Conditional"),  # type: ignore[arg-type]
        (lambda: conditional_loss(loss, loss, data, chunk=0), ValueError, "chunk is 0"),
        (
            lambda: causal_value(loss, data, places[:1], 1.0, ENTROPIC),
            ValueError,
            r"places has shape \(1, 4, 1\)",
        ),
        (
            lambda: causal_value(loss, data, places[..., 0], 1.0, ENTROPIC),
            ValueError,
            r"places has shape \(2, 4\)",
        ),
        (lambda: causal_value(loss, data, places[:, :0], 1.0, ENTROPIC), ValueError, "one place at least"),
        (lambda: causal_value(loss, data, places, 0.0, ENTROPIC), ValueError, "eta is 0.0"),
        (lambda: causal_value(loss, data, places, 1.0, ENTROPIC, p=np.ones(4)), ValueError, "p sums to 4"),
        (lambda: causal_value(loss, data, places, 1.0, "kl"), TypeError, "divergence is 'kl'"),  # type: ignore[arg-type]
        (
            lambda: causal_value(lambda x, i: x, data, places, 1.0, ENTROPIC),
            ValueError,
            r"loss\(x, i\) has shape",
        ),
        (
            lambda: causal_risk(loss, data, Ball(2, 1.0), -1.0, ENTROPIC, samples=4, rng=rng(0)),
            ValueError,
            "eta is -1.0",
        ),
        (
            lambda: causal_risk(loss, X, Ball(2, 1.0), 1.0, ENTROPIC, samples=4, rng=rng(0)),  # type: ignore[arg-type]
            TypeError,
            "data is array",
        ),
        (
            lambda: conditional_loss(lambda x: x, lambda w, z: w * z[:, None], data)(
                X, np.zeros(2, np.int64)
            ),
            ValueError,
            r"cost\(w, z\) has shape \(6, 1\); expected \(6,\)",
        ),
    ]
    for call, kind, message in calls:
        with pytest.raises(kind, match=message):
            call()

"""Danskin's theorem: with torch losses, the gradient of the value is the weights; and who carries one."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from phiball.backends import use
from phiball.refimpl import (
    ENTROPIC,
    QUADRATIC,
    Divergence,
    bisection,
    dual_value,
    primal_value,
    worst_case,
)
from tests.support.divergences import anonymous, on_each

torch = pytest.importorskip("torch", reason="torch: not installed")

ROW = [0.11, -0.42, 0.9, 0.37, 0.63]


@pytest.fixture(params=["torch", "numba", "numpy"], autouse=True)
def backend(request: pytest.FixtureRequest) -> Iterator[None]:
    """Tensors carry gradients whichever backend is active."""
    with use(request.param):
        yield


def tensor(values: Any, dtype: Any = torch.float64) -> Any:
    return torch.tensor(values, dtype=dtype, requires_grad=True)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@on_each("d", anonymous(ENTROPIC), usual=True)
def test_the_gradient_is_the_weights(d: Divergence, dtype: Any) -> None:
    f = tensor([ROW, ROW[::-1], [1.0, 1.0, 0.0, 0.0, 0.5]], dtype)
    out = worst_case(f, torch.tensor([0.2, 1.0, 5.0], dtype=dtype), d)
    out.value.sum().backward()
    assert f.grad.dtype == dtype
    assert torch.equal(f.grad, out.weights)


@on_each("d", anonymous(ENTROPIC), usual=True)
@pytest.mark.parametrize("eta", [0.2, 2.0])
def test_against_finite_differences(d: Divergence, eta: float) -> None:
    f, p = tensor(ROW), torch.tensor([0.1, 0.2, 0.3, 0.25, 0.15], dtype=torch.float64)
    worst_case(f, eta, d, p=p).value.backward()
    h = 1e-5
    for i in range(5):
        step = torch.zeros(5, dtype=torch.float64)
        step[i] = h
        up, down = (float(worst_case(f.detach() + s, eta, d, p=p).value) for s in (step, -step))
        # Truncation h^2 R''' and rounding eps/h are both far below this.
        assert (up - down) / (2 * h) == pytest.approx(float(f.grad[i]), abs=1e-7)


def test_each_row_has_its_own_factor() -> None:
    f, factor = tensor([ROW, ROW]), torch.tensor([2.0, -3.0], dtype=torch.float64)
    out = worst_case(f, 0.5, QUADRATIC)
    (out.value * factor).sum().backward()
    np.testing.assert_allclose(f.grad, factor[:, None] * out.weights.detach(), rtol=1e-15)


def test_through_losses_that_are_computed() -> None:
    theta = tensor([0.3, -0.2])
    x = torch.tensor(np.random.default_rng(0).normal(size=(6, 2)))
    f = (x @ theta - 1) ** 2
    out = worst_case(f, 0.4, ENTROPIC)
    out.value.backward()
    expected = out.weights.detach() @ (2 * (x @ theta.detach() - 1)[:, None] * x)
    np.testing.assert_allclose(theta.grad, expected, rtol=1e-13)


@on_each(usual=True)
def test_all_but_the_gap_carry_a_gradient(d: Divergence) -> None:
    f, eta, p = tensor(ROW), tensor(0.5), tensor([0.2] * 5)
    out = worst_case(f, eta, d, p=p)
    assert all(x.requires_grad for x in (out.value, out.mu, out.weights))
    assert not out.gap.requires_grad
    (out.value + out.mu + out.weights[0]).backward()
    assert all(x.grad is not None and bool(torch.all(torch.isfinite(x.grad))) for x in (f, eta, p))


@on_each(usual=True)
def test_the_value_is_unchanged(d: Divergence) -> None:
    """To the last bit, and losses without a gradient give a value without one."""
    f = tensor([ROW, [1e8 + v for v in ROW]])
    with_gradient, without = worst_case(f, 0.3, d), worst_case(f.detach(), 0.3, d)
    assert torch.equal(with_gradient.value.detach(), without.value)
    assert not without.value.requires_grad


def test_eta_or_p_alone_may_require_a_gradient() -> None:
    f = tensor(ROW).detach()
    eta, p = tensor(0.5), tensor([0.2] * 5)
    assert worst_case(f, eta, ENTROPIC).value.requires_grad
    assert worst_case(f, 0.5, ENTROPIC, p=p).value.requires_grad


def test_under_no_grad() -> None:
    with torch.no_grad():
        assert not worst_case(tensor(ROW), 0.5, ENTROPIC).value.requires_grad


def test_the_reference_functions_refuse_a_gradient() -> None:
    f, eta, w = tensor(ROW), tensor(0.5), torch.full((5,), 0.2, dtype=torch.float64)
    with pytest.raises(ValueError, match="bisection requires a gradient"):
        bisection(f, 0.5, ENTROPIC, tol=1e-3)
    with pytest.raises(ValueError, match="dual_value requires a gradient"):
        dual_value(f.detach(), tensor(0.1), 0.5, ENTROPIC)
    with pytest.raises(ValueError, match="primal_value requires a gradient"):
        primal_value(f.detach(), w, eta, ENTROPIC)
    with torch.no_grad():
        assert not primal_value(f, w, eta, ENTROPIC).requires_grad


def test_descent_decreases_the_risk() -> None:
    theta = tensor([1.0, -1.0])
    x = torch.tensor(np.random.default_rng(1).normal(size=(8, 2)))
    risks = []
    for _ in range(30):
        risk = worst_case((x @ theta) ** 2, 0.5, QUADRATIC).value
        risks.append(float(risk.detach()))
        (gradient,) = torch.autograd.grad(risk, theta)
        theta = (theta - 0.02 * gradient).detach().requires_grad_()
    assert all(b < a for a, b in pairwise(risks))

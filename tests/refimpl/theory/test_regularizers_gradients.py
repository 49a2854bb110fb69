"""Gradients of the regularizers in torch agree with finite differences."""

from math import inf
from typing import Any

import pytest

from phiball.backends import rng
from phiball.refimpl import ENTROPIC, HINGE, QUADRATIC, Ball, Divergence, cressie_read
from phiball.refimpl.theory import r1, r2, r3, surrogate, surrogate_estimate
from tests.support.distributions import NORMS
from tests.support.divergences import on_each

torch = pytest.importorskip("torch", reason="torch: not installed")


def tensor(values: Any, dtype: Any = torch.float64) -> Any:
    return torch.tensor(values, dtype=dtype, requires_grad=True)


def assert_gradient_is_correct(function: Any, g: Any) -> None:
    """Assert that the gradient of the sum agrees with central differences."""
    (gradient,) = torch.autograd.grad(function(g).sum(), g)
    h = 1e-5
    for k in range(g.numel()):
        step = torch.zeros(g.numel(), dtype=g.dtype)
        step[k] = h
        up, down = (function(g.detach() + s.reshape(g.shape)).sum() for s in (step, -step))
        # The truncation error, h^2, and the rounding error, eps/h, are below 1e-9.
        assert float(up - down) / (2 * h) == pytest.approx(float(gradient.reshape(-1)[k]), abs=1e-7)


@on_each(usual=True)
def test_surrogate_gradient_agrees_with_finite_differences(d: Divergence) -> None:
    for eta in (0.15, 3.0):
        g = tensor([[[1.0, -0.5], [0.3, 2.0]]])
        assert_gradient_is_correct(lambda g, eta=eta: surrogate(g, Ball(2, 0.4), eta, d), g)
    g = tensor([[0.0, 0.0], [3.0, -4.0]])
    value, plain = (surrogate(x, Ball(2, 0.5), 1.0, d) for x in (g, g.detach()))
    assert torch.equal(value.detach(), plain)
    assert not plain.requires_grad
    (gradient,) = torch.autograd.grad(value.sum(), g)
    assert torch.all(gradient[0] == 0)  # the surrogate has its minimum at g = 0
    assert torch.all(torch.isfinite(gradient[1]))


@pytest.mark.slow
@pytest.mark.parametrize("norm", NORMS)
def test_gradients_of_r1_r2_r3_agree_with_finite_differences(norm: float) -> None:
    g, ball = tensor([[1.0, -0.5, 0.2], [0.1, 0.3, -0.2]]), Ball(norm, 0.4)
    assert_gradient_is_correct(lambda g: r1(g, ball, 2.0, ENTROPIC), g)
    assert_gradient_is_correct(lambda g: r1(g, ball, 0.5, QUADRATIC), g)
    assert_gradient_is_correct(lambda g: r2(g, ball), g)
    assert_gradient_is_correct(lambda g: r3(g, ball, 0.7, cressie_read(0)), g)


def test_gradients_of_estimates_and_scalar_points_agree_with_finite_differences() -> None:
    g = tensor([[1.0, -0.5], [0.3, 2.0]])
    for d in (QUADRATIC, HINGE):
        assert_gradient_is_correct(
            lambda g, d=d: surrogate_estimate(g, Ball(1, 0.4), 0.2, d, n_samples=50, rng=rng(0)), g
        )
    assert_gradient_is_correct(lambda g: surrogate(g, Ball(inf, 0.4), 0.1, QUADRATIC), tensor([1.0, -0.5]))

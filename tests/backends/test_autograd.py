"""`input_gradient`: the gradient of each loss with respect to its point, without side effects."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from phiball.backends import Array, input_gradient

torch = pytest.importorskip("torch", reason="torch: not installed")

INDEX = torch.arange(5)
A = torch.tensor([2.0, -1.0, 0.5, 3.0, 1.0], dtype=torch.float64)


def cubic(x: Array, i: Array) -> Array:
    """The loss a_i sum_j x_j^3, whose gradient is 3 a_i x_j^2."""
    return A.to(x.dtype)[i] * torch.sum(torch.flatten(x, 1) ** 3, -1)


def points(*shape: int, dtype: Any = torch.float64) -> Any:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=dtype)


def model() -> Any:
    torch.manual_seed(0)
    layers = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
    return layers.double()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("event", [(), (3,), (1, 4, 4)])
def test_gradient_agrees_with_closed_form(event: tuple[int, ...], dtype: Any) -> None:
    x = points(5, *event, dtype=dtype)
    for i in (INDEX, torch.flip(INDEX, (0,))):
        g = input_gradient(lambda x, i: cubic(x.reshape(5, -1), i), x, i)
        assert (g.dtype, g.shape) == (dtype, x.shape)
        a = A.to(dtype)[i].reshape((5,) + (1,) * len(event))
        # Each coordinate has three rounding errors.
        np.testing.assert_allclose(g.numpy(), (3 * a * x**2).numpy(), rtol=8 * torch.finfo(dtype).eps)


@pytest.mark.parametrize("create_graph", [False, True])
@pytest.mark.parametrize("mode", [True, False])
def test_points_parameters_and_training_mode_are_unchanged(create_graph: bool, mode: bool) -> None:
    net = torch.nn.Sequential(model(), torch.nn.Dropout(0.5)).train(mode)
    modes = []

    def loss(x: Array, i: Array) -> Array:
        modes.append([part.training for part in net.modules()])
        return net(x)[:, 0]

    for parameter in net.parameters():
        parameter.grad = torch.full_like(parameter, 7.0)
    for requires_grad in (False, True):
        x = points(5, 3).requires_grad_(requires_grad)
        assert input_gradient(loss, x, INDEX, create_graph=create_graph).requires_grad is create_graph
        assert torch.equal(x.detach(), points(5, 3))
        assert (x.requires_grad, x.grad) == (requires_grad, None)
    assert all(bool(torch.all(parameter.grad == 7.0)) for parameter in net.parameters())
    assert [*modes, [part.training for part in net.modules()]] == [[mode] * 6] * 3


@pytest.mark.parametrize("caller", [torch.no_grad, torch.inference_mode])
def test_gradient_is_the_same_for_frozen_models_and_without_grad_mode(caller: Callable[[], Any]) -> None:
    net, x = model(), points(5, 3)
    loss = lambda x, i: net(x)[:, 0]  # noqa: E731
    expected = input_gradient(loss, x, INDEX)
    net.requires_grad_(False)
    assert torch.equal(input_gradient(loss, x, INDEX), expected)
    with caller():
        inner = x + 0.0  # under inference_mode, autograd cannot save this tensor
        assert torch.equal(input_gradient(loss, inner, INDEX), expected)
        assert not torch.is_grad_enabled()
    assert torch.is_grad_enabled()


def test_create_graph_differentiates_in_parameters_and_in_the_inputs_of_x() -> None:
    """For x = w u, the entries of the gradient of theta sum_j x_j^3 sum to 3 theta w^2 sum_j u_j^2."""
    theta = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    w, u = torch.tensor(1.5, dtype=torch.float64, requires_grad=True), points(5, 3)
    g = input_gradient(lambda x, i: theta * torch.sum(x**3, -1), w * u, INDEX, create_graph=True)
    torch.sum(g).backward()
    total = float(torch.sum(u**2))
    np.testing.assert_allclose(float(theta.grad), 3 * 1.5**2 * total, rtol=1e-13)
    np.testing.assert_allclose(float(w.grad), 6 * 0.7 * 1.5 * total, rtol=1e-13)


def test_points_with_constant_loss_have_gradient_zero() -> None:
    """Only a loss that does not depend on any x is an error."""
    g = input_gradient(lambda x, i: torch.where(i < 2, 0.0, torch.sum(x**2, -1)), points(5, 3), INDEX)
    assert torch.all(g[:2] == 0)
    assert torch.all(g[2:] != 0)


THETA = torch.ones(5, dtype=torch.float64, requires_grad=True)
NO_X, SHAPE = r"loss\(x, i\) does not depend on x; expected", r"loss\(x, i\) has shape "
INVALID_LOSSES: list[tuple[Any, str]] = [
    (lambda x, i: torch.zeros(5), NO_X),
    (lambda x, i: THETA[i] ** 2, NO_X),
    (lambda x, i: torch.sum(x.detach() ** 2, -1), NO_X),
    (lambda x, i: torch.sum(x**2), SHAPE + r"\(\); expected .* \(5,\)"),
    (lambda x, i: x**2, SHAPE + r"\(5, 3\)"),
    (lambda x, i: torch.sum(x**2, -1, keepdim=True), SHAPE + r"\(5, 1\)"),
    (lambda x, i: 1.0, r"loss\(x, i\) has type float"),
]


@pytest.mark.parametrize("create_graph", [False, True])
def test_invalid_losses_are_rejected(create_graph: bool) -> None:
    for loss, message in INVALID_LOSSES:
        with pytest.raises(ValueError, match=message):
            input_gradient(loss, points(5, 3), INDEX, create_graph=create_graph)


def test_invalid_points_are_rejected() -> None:
    no_gradients = "x is a numpy array, without automatic differentiation"
    for x, error, message in (
        (np.ones((5, 3)), TypeError, no_gradients),
        ([1.0], TypeError, "x is of type list"),
        (INDEX, TypeError, r"x has dtype torch\.int64; expected floating-point"),
        (torch.tensor(1.0), ValueError, r"x has shape \(\); expected"),
    ):
        with pytest.raises(error, match=message):
            input_gradient(cubic, x, INDEX)

"""`input_gradient`: the gradient of each loss in its own point, and nothing else touched."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

from phiball.backends import Array, input_gradient
from tests.support.arrays import Arrays

torch = pytest.importorskip("torch", reason="torch: not installed")

I = torch.arange(5)  # noqa: E741
A = torch.tensor([2.0, -1.0, 0.5, 3.0, 1.0], dtype=torch.float64)


def cubic(x: Array, i: Array) -> Array:
    """a_i sum x^3, whose gradient is 3 a_i x^2."""
    return A.to(x.dtype)[i] * torch.sum(torch.flatten(x, 1) ** 3, -1)


def points(*shape: int, dtype: Any = torch.float64) -> Any:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=dtype)


def model() -> Any:
    torch.manual_seed(0)
    layers = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
    return layers.double()


def of_model(net: Any, x: Array, i: Array) -> Array:
    return net(x)[:, 0]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("event", [(), (3,), (1, 4, 4)])
def test_closed_form(event: tuple[int, ...], dtype: Any) -> None:
    x = points(5, *event, dtype=dtype)
    a = A.to(dtype).reshape((5,) + (1,) * len(event))

    def loss(x: Array, i: Array) -> Array:
        return cubic(x.reshape(5, -1), i)

    g = input_gradient(loss, x, I)
    assert g.dtype == dtype
    assert g.shape == x.shape
    # three roundings a coordinate
    np.testing.assert_allclose(g.numpy(), (3 * a * x**2).numpy(), rtol=8 * torch.finfo(dtype).eps)
    flipped = input_gradient(loss, x, torch.flip(I, (0,)))  # i is passed to the loss
    np.testing.assert_allclose((flipped / g).numpy(), (torch.flip(a, (0,)) / a + 0 * x).numpy(), rtol=1e-5)


def test_central_differences_of_a_model() -> None:
    net, x = model(), points(5, 3)
    g = input_gradient(partial(of_model, net), x, I)
    h = 1e-5  # the truncation h^2 and the rounding eps/h are both about 1e-10
    with torch.no_grad():
        for j in range(3):
            step = h * torch.nn.functional.one_hot(torch.tensor(j), 3)
            slope = (net(x + step) - net(x - step))[:, 0] / (2 * h)
            np.testing.assert_allclose(g[:, j].numpy(), slope.numpy(), atol=1e-9)


@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("create_graph", [False, True])
def test_x_is_not_touched(requires_grad: bool, create_graph: bool) -> None:
    x = points(5, 3).requires_grad_(requires_grad)
    before = x.detach().clone()
    input_gradient(cubic, x, I, create_graph=create_graph)
    assert torch.equal(x.detach(), before)
    assert x.requires_grad is requires_grad
    assert x.grad is None


def test_result_has_no_history_unless_asked_for_and_parameters_are_not_touched() -> None:
    net, x = model(), points(5, 3)
    loss = partial(of_model, net)
    for parameter in net.parameters():
        parameter.grad = torch.full_like(parameter, 7.0)
    assert not input_gradient(loss, x, I).requires_grad
    assert not input_gradient(loss, x.clone().requires_grad_(), I).requires_grad
    assert input_gradient(loss, x, I, create_graph=True).requires_grad
    assert all(bool(torch.all(parameter.grad == 7.0)) for parameter in net.parameters())


@pytest.mark.parametrize("training", [True, False])
def test_mode_is_not_touched(training: bool) -> None:
    net = torch.nn.Sequential(model(), torch.nn.Dropout(0.5)).train(training)
    seen = []

    def loss(x: Array, i: Array) -> Array:
        seen.append([part.training for part in net.modules()])
        return net(x)[:, 0]

    input_gradient(loss, points(5, 3), I)
    assert seen == [[training] * 6]
    assert [part.training for part in net.modules()] == [training] * 6


@pytest.mark.parametrize("caller", [torch.no_grad, torch.inference_mode])
def test_frozen_models_and_callers_that_switched_gradients_off(caller: Callable[[], Any]) -> None:
    net, x = model(), points(5, 3)
    loss = partial(of_model, net)
    expected = input_gradient(loss, x, I)
    assert torch.equal(input_gradient(partial(of_model, net.requires_grad_(False)), x, I), expected)
    with caller():
        made_here = x + 0.0  # under inference mode, a tensor that no graph may save
        assert torch.equal(input_gradient(loss, made_here, I), expected)
        assert not torch.is_grad_enabled()
    assert torch.is_grad_enabled()


def test_kept_graph_reaches_parameters_and_what_x_was_made_from() -> None:
    """x = w u: the gradient of theta sum x^3 sums to 3 theta w^2 sum u^2."""
    theta = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    w, u = torch.tensor(1.5, dtype=torch.float64, requires_grad=True), points(5, 3)
    g = input_gradient(lambda x, i: theta * torch.sum(x**3, -1), w * u, I, create_graph=True)
    torch.sum(g).backward()
    total = float(torch.sum(u**2))
    np.testing.assert_allclose(float(theta.grad), 3 * 1.5**2 * total, rtol=1e-13)
    np.testing.assert_allclose(float(w.grad), 6 * 0.7 * 1.5 * total, rtol=1e-13)


def test_points_without_influence_have_gradient_zero() -> None:
    """Only a loss that depends on no x at all is an error."""
    g = input_gradient(lambda x, i: torch.where(i < 2, 0.0, torch.sum(x**2, -1)), points(5, 3), I)
    assert torch.all(g[:2] == 0)
    assert torch.all(g[2:] != 0)


@pytest.mark.parametrize("create_graph", [False, True])
@pytest.mark.parametrize("graph", ["no graph", "of parameters alone", "detached"])
def test_loss_that_does_not_depend_on_x_is_rejected(graph: str, create_graph: bool) -> None:
    theta = torch.ones(5, dtype=torch.float64, requires_grad=True)
    losses = {
        "no graph": lambda x, i: torch.zeros(5),
        "of parameters alone": lambda x, i: theta[i] ** 2,
        "detached": lambda x, i: torch.sum(x.detach() ** 2, -1),
    }
    with pytest.raises(ValueError, match=r"loss\(x, i\) does not depend on x; expected"):
        input_gradient(losses[graph], points(5, 3), I, create_graph=create_graph)


@pytest.mark.parametrize(
    ("loss", "words"),
    [
        (lambda x, i: torch.sum(x**2), r"loss\(x, i\) has shape \(\); expected .* \(5,\)"),
        (lambda x, i: x**2, r"loss\(x, i\) has shape \(5, 3\)"),
        (lambda x, i: torch.sum(x**2, -1, keepdim=True), r"loss\(x, i\) has shape \(5, 1\)"),
        (lambda x, i: 1.0, r"loss\(x, i\) has type float"),
    ],
)
def test_losses_of_another_shape_are_rejected(loss: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        input_gradient(loss, points(5, 3), I)


def test_library_that_does_not_differentiate_is_rejected(doubles: Arrays) -> None:
    x = doubles.asarray(np.ones((5, 3)))
    if doubles.backend.startswith("torch"):
        pytest.skip("torch differentiates")
    with pytest.raises(TypeError, match=r"x is a (numpy|cupy|array_api_strict) array, .*gradient\(x, i\)"):
        input_gradient(lambda x, i: x[:, 0], x, doubles.asarray(np.arange(5)))


def test_bad_points_are_rejected() -> None:
    with pytest.raises(TypeError, match="x is of type list"):
        input_gradient(cubic, [1.0], I)
    with pytest.raises(TypeError, match=r"x has dtype torch\.int64; expected floating-point"):
        input_gradient(cubic, I, I)
    with pytest.raises(ValueError, match=r"x has shape \(\); expected at least one axis"):
        input_gradient(cubic, torch.tensor(1.0), I)

"""Training with tilted proposals in torch: the gradient of the estimate, and nothing else touched."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

from phiball.backends import rng
from phiball.refimpl import (
    ENTROPIC,
    QUADRATIC,
    RTMLMC,
    SG,
    Ball,
    RegularizedLoss,
    Tilted,
    robust_risk,
)
from tests.support.laws import ESTIMATORS, EVENTS, LAWS
from tests.support.training_models import Recorder, close, cross_entropy, data, gradients, network

torch = pytest.importorskip("torch", reason="torch: not installed")

pytestmark = pytest.mark.usefixtures("one_thread")

ETA = 0.3
SETTINGS = [Tilted(), Tilted(kappa=0.5), Tilted(retilt=2), Tilted(self_normalised=True)]


def objective(
    estimator: Any = None, law: Any = None, how: Any = None, divergence: Any = ENTROPIC
) -> RegularizedLoss:
    return RegularizedLoss(
        law or Ball(2, 0.5),
        ETA,
        divergence,
        estimator or RTMLMC(4),
        Tilted() if how is None else how,
        check_index=False,
    )


def expected(what: RegularizedLoss, model: Any, x: Any, y: Any, seed: int) -> tuple[Any, list[Any]]:
    """The value and sum_i w_i grad f(z'_i), from the points that are laid open."""
    signed = what.points(cross_entropy(model, y), x, rng=rng(seed))
    assert not signed.weights.requires_grad
    torch.sum(signed.weights * cross_entropy(model, y)(signed.points.detach(), signed.index)).backward()
    return signed.value, gradients(model)


@pytest.mark.parametrize("how", SETTINGS, ids=str)
@pytest.mark.parametrize("estimator", ESTIMATORS, ids=str)
def test_the_gradient_is_the_sum_over_the_points(estimator: Any, how: Tilted) -> None:
    model, (x, y) = network((5,)), data((5,))
    for law in LAWS[: 3 if how.kappa else 4]:
        what = objective(estimator, law, how)
        value = what(cross_entropy(model, y), x, rng=rng(1))
        assert all(p.grad is None for p in model.parameters())  # the input gradient leaves nothing behind
        value.backward()
        found = gradients(model)
        same, sums = expected(what, model, x, y, 1)
        assert close(found, sums)
        assert close([value.detach()], [same])


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=str)
def test_autograd_and_functions_agree(estimator: Any) -> None:
    """`gradient` with functions written out against the derivative that torch finds, draw for draw."""
    x = torch.randn((20, 2), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    theta = torch.tensor([0.7, -0.4], dtype=torch.float64)

    def loss(theta: Any, x: Any, i: Any) -> Any:
        return torch.sin(theta[0] * x[:, 0] + theta[1]) + theta[1] * x[:, 1] ** 2

    def slope(theta: Any, x: Any, i: Any) -> Any:
        return torch.stack([theta[0] * torch.cos(theta[0] * x[:, 0] + theta[1]), 2 * theta[1] * x[:, 1]], 1)

    def in_theta(theta: Any, x: Any, i: Any) -> Any:
        x, t = x.numpy(), theta.numpy()
        c = np.cos(t[0] * x[:, 0] + t[1])
        return torch.from_numpy(np.stack([x[:, 0] * c, c + x[:, 1] ** 2], axis=1))

    for law in LAWS:
        what = objective(estimator, law)
        moving = theta.clone().requires_grad_()
        what(lambda x, i, t=moving: loss(t, x, i), x, rng=rng(2)).backward()
        for given in (slope, None):
            found = what.gradient(theta, loss, in_theta, x, rng=rng(2), input_gradient=given)
            assert close([found], [moving.grad])


@pytest.mark.parametrize("how", [*SETTINGS[:3], Tilted(kappa=0.5, retilt=1)], ids=str)
@pytest.mark.parametrize("estimator", [SG(4), RTMLMC(5), RTMLMC(5, "stratified")], ids=str)
def test_chunks_give_the_gradient_of_the_plain_call(estimator: Any, how: Tilted) -> None:
    model, (x, y) = network((5,)), data((5,), n=13)
    what = objective(estimator, how=how)
    value = what(cross_entropy(model, y), x, rng=rng(5))
    value.backward()
    plain = gradients(model)
    for chunk in (1, 3, 8, 16, 17, 40, 10**6):
        loss = Recorder(cross_entropy(model, y))
        found = what.backward(loss, x, rng=rng(5), chunk=chunk)
        assert not found.requires_grad
        assert close(gradients(model), plain)
        assert close([found], [value.detach()])
        assert max(len(points) for points in loss.points) <= chunk
        # The points for the input gradients come first, all data points each time.
        first = torch.cat(loss.index)[: 13 * (1 + how.retilt)]
        assert torch.equal(first, torch.arange(13).repeat(1 + how.retilt))


@pytest.mark.parametrize("event", EVENTS)
def test_points_of_any_shape(event: tuple[int, ...]) -> None:
    model, (x, y) = network(event), data(event)
    for law in LAWS:
        what = objective(SG(2), law)
        what(cross_entropy(model, y), x, rng=rng(3)).backward()
        found = gradients(model)
        assert close(found, expected(what, model, x, y, 3)[1])


def test_a_linear_model_is_exact() -> None:
    """The slopes are those of autograd: value = mean of f + eta log E exp(g.b/eta), in closed form."""
    a = torch.tensor([[1.0, -2.0, 0.5], [0.0, 3.0, 0.0]], dtype=torch.float64)
    x = torch.ones((2, 3), dtype=torch.float64)
    value = objective(SG(0), Ball(float("inf"), 0.5))(lambda x, i: torch.sum(a[i] * x, -1), x, rng=rng(0))
    t = 0.5 * torch.abs(a[a != 0]) / ETA
    exact = (torch.sum(a) + ETA * torch.sum(torch.log(torch.sinh(t) / t))) / 2
    assert abs(float(value) - float(exact)) < 1e-13


@pytest.mark.parametrize("training", [True, False])
def test_modes_gradients_and_generators_are_left_alone(training: bool) -> None:
    nn = torch.nn
    model = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 3)).double()
    model.train(training)
    model[3].eval()
    modes = [module.training for module in model.modules()]
    before = [torch.full_like(p, k) for k, p in enumerate(model.parameters())]
    for p, g in zip(model.parameters(), before, strict=True):
        p.grad = g.clone()
    state = copy.deepcopy(model.state_dict())
    x, y = data((5,))
    kept = x.clone()
    torch.manual_seed(3)
    for how in SETTINGS:
        objective(how=how)(lambda x, i: torch.sum(x**2, -1), x, rng=rng(0))
    assert torch.equal(torch.rand(1), torch.rand(1, generator=torch.Generator().manual_seed(3)))
    objective()(cross_entropy(model, y), x, rng=rng(0))
    assert [module.training for module in model.modules()] == modes
    assert all(torch.equal(p.grad, g) for p, g in zip(model.parameters(), before, strict=True))
    changed = {name for name, value in model.state_dict().items() if not torch.equal(value, state[name])}
    assert changed == ({"1.running_mean", "1.running_var", "1.num_batches_tracked"} if training else set())
    assert torch.equal(x, kept)
    assert not x.requires_grad
    assert torch.is_grad_enabled()


@pytest.mark.parametrize("block", [torch.no_grad, torch.inference_mode])
def test_callers_without_gradients(block: Any) -> None:
    """An evaluation: the tilt is there, the value is that of training, and nothing is recorded."""
    model, (x, y) = network((5,)), data((5,))
    value = objective()(cross_entropy(model, y), x, rng=rng(4)).detach()
    z = x.clone()
    risk = robust_risk(
        cross_entropy(model, y), z, Ball(1, 0.5), ETA, ENTROPIC, samples=8, rng=rng(4), proposal=Tilted()
    )
    with block():
        found = objective()(cross_entropy(model, y), x, rng=rng(4))
        same = robust_risk(
            cross_entropy(model, y), z, Ball(1, 0.5), ETA, ENTROPIC, samples=8, rng=rng(4), proposal=Tilted()
        )
    assert not risk.value.requires_grad
    assert not found.requires_grad
    assert not same.value.requires_grad
    assert torch.equal(found.clone(), value)
    assert torch.equal(same.value.clone(), risk.value.detach())


def test_x_may_carry_a_graph() -> None:
    """An embedding that is trained: the gradient moves its points, and not by way of the tilt."""
    table = torch.nn.Embedding(9, 5, dtype=torch.float64)
    model, (_, y) = network((5,)), data((5,))
    for how in (Tilted(), Tilted(kappa=0.5, retilt=1)):
        what = objective(SG(2), how=how)
        x = table(torch.arange(9))
        signed = what.points(cross_entropy(model, y), x.detach(), rng=rng(0))
        what(cross_entropy(model, y), x, rng=rng(0)).backward()
        points = signed.points.clone().requires_grad_()
        torch.sum(signed.weights * cross_entropy(model, y)(points, signed.index)).backward()
        moved = torch.zeros((9, 5), dtype=torch.float64).index_add(0, signed.index, points.grad)
        assert close([table.weight.grad], [moved])
        table.zero_grad()
    with pytest.raises(ValueError, match="x requires a gradient"):
        objective().backward(cross_entropy(model, y), table(torch.arange(9)), rng=rng(0), chunk=8)


@pytest.mark.parametrize("name", ["cross entropy", "squared"])
def test_autocast(name: str) -> None:
    """Half-precision losses: tilts of half-precision slopes, weights and values in single precision."""
    model, (x, y) = network((5,), torch.float32), data((5,), n=32, dtype=torch.float32)
    losses = {"cross entropy": cross_entropy(model, y), "squared": lambda x, i: model(x)[:, 0] ** 2}
    value = objective(SG(3))(losses[name], x, rng=rng(0)).detach()
    with torch.autocast("cpu", torch.bfloat16):
        half = Recorder(losses[name])
        found = objective(SG(3))(half, x, rng=rng(0))
        signed = objective(SG(3)).points(losses[name], x, rng=rng(0))
        chunked = objective(SG(3)).backward(losses[name], x, rng=rng(0), chunk=64)
    in_chunks = gradients(model)
    found.backward()
    whole = gradients(model)
    assert half.losses[0].dtype == {"cross entropy": torch.float32, "squared": torch.bfloat16}[name]
    assert found.dtype == chunked.dtype == signed.log_weights.dtype == signed.points.dtype == torch.float32
    assert all(g.dtype == torch.float32 for g in whole)
    size = max(float(torch.max(torch.abs(g))) for g in whole)
    worst = max(float(torch.max(torch.abs(a - b))) for a, b in zip(whole, in_chunks, strict=True))
    # bfloat16 rounds by 2^-9, in three layers, forward and back; the tilt moves with the slopes.
    assert worst <= 16 * 2**-9 * size
    assert abs(float(found.detach()) - float(value)) <= 16 * 2**-9 * abs(float(value))
    assert abs(float(chunked) - float(value)) <= 16 * 2**-9 * abs(float(value))


def test_losses_that_do_not_depend_on_the_points() -> None:
    x, _ = data((5,))
    theta = torch.ones(9, dtype=torch.float64, requires_grad=True)
    with pytest.raises(ValueError, match="does not depend on x"):
        objective()(lambda x, i: theta[i], x, rng=rng(0))
    with pytest.raises(ValueError, match="reduction='none'"):
        objective()(lambda x, i: torch.mean(x), x, rng=rng(0))


def test_other_divergences_when_asked_for() -> None:
    model, (x, y) = network((5,)), data((5,))
    with pytest.raises(ValueError, match="expected ENTROPIC"):
        objective(divergence=QUADRATIC)
    what = objective(RTMLMC(4), how=Tilted(self_normalised=True), divergence=QUADRATIC)
    value = what(cross_entropy(model, y), x, rng=rng(6))
    value.backward()
    found = gradients(model)
    assert close(found, expected(what, model, x, y, 6)[1])
    what.backward(cross_entropy(model, y), x, rng=rng(6), chunk=5)
    assert close(gradients(model), found)

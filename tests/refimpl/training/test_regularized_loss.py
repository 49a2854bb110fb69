"""`RegularizedLoss` with torch: values, gradients, chunks and side effects."""

import copy
from math import inf, nan
from typing import Any

import pytest

from phiball import ENTROPIC, QUADRATIC, RTMLMC, SG, RegularizedLoss, Tilted, Uniform, indicator, worst_case
from phiball.backends import rng
from phiball.refimpl.distributions import Ball
from phiball.refimpl.risk import robust_risk
from tests.support.distributions import DISTRIBUTIONS, ESTIMATORS, EVENTS
from tests.support.training_models import (
    Recorder,
    close,
    cross_entropy,
    data,
    entropic_weights,
    gradients,
    network,
)

torch = pytest.importorskip("torch", reason="torch: not installed")

pytestmark = pytest.mark.usefixtures("one_thread")

ETA = 0.3
TILTED = [Tilted(), Tilted(kappa=0.5), Tilted(retilt=2), Tilted(self_normalised=True)]


def objective(
    estimator: Any = None, ball: Any = None, divergence: Any = ENTROPIC, proposal: Any = None
) -> RegularizedLoss:
    estimator, proposal = estimator or RTMLMC(4), proposal or Uniform()
    return RegularizedLoss(ball or Ball(2, 0.5), ETA, divergence, estimator, proposal)


def assert_agrees_with_points(regularized: RegularizedLoss, model: Any, y: Any, x: Any, seed: int) -> None:
    """Assert that the value and its gradient are sums over the signed points."""
    loss = cross_entropy(model, y)
    value = regularized(loss, x, rng=rng(seed))
    assert all(p.grad is None for p in model.parameters())  # input gradients do not accumulate
    value.backward()
    found = gradients(model)
    signed = regularized.points(loss, x, rng=rng(seed))
    assert gradients(model) == []  # `points` accumulates no gradient
    assert not signed.weights.requires_grad
    torch.sum(signed.weights * loss(signed.points.detach(), signed.index)).backward()
    assert close(found, gradients(model))
    assert close([value.detach()], [signed.value])


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=str)
@pytest.mark.parametrize("event", EVENTS, ids=str)
def test_value_and_gradient_for_data_points_of_any_shape(event: tuple[int, ...], estimator: Any) -> None:
    dtype = torch.float32 if event == (5,) else torch.float64
    model, (x, y) = network(event, dtype), data(event, dtype=dtype)
    loss = Recorder(cross_entropy(model, y))
    value = objective(estimator)(loss, x, rng=rng(1))
    value.backward()
    found = gradients(model)

    assert value.shape == ()
    assert value.dtype == dtype
    assert len(loss.points) == 1  # one forward pass over all levels
    points, index = loss.points[0], loss.index[0]
    assert points.shape == (len(index), *event)
    assert points.dtype == dtype
    assert index.dtype == torch.int64
    moved = (points - x[index]).reshape(len(index), -1)
    assert bool(torch.all(torch.linalg.vector_norm(moved, dim=1) <= 0.5 * (1 + 1e-5)))

    expected, weights = entropic_weights(
        loss.losses[0], index, len(x), ETA, estimator.level, multilevel=isinstance(estimator, RTMLMC)
    )
    torch.sum(weights * cross_entropy(model, y)(points, index)).backward()
    assert close(found, gradients(model))
    assert close([value.detach()], [expected])
    for distribution in DISTRIBUTIONS:
        assert_agrees_with_points(objective(SG(2), distribution, proposal=Tilted()), model, y, x, 3)


@pytest.mark.parametrize("proposal", [Uniform(), *TILTED], ids=str)
def test_gradient_is_the_sum_over_the_signed_points(proposal: Any) -> None:
    model, (x, y) = network((5,)), data((5,))
    for estimator in ESTIMATORS:
        for distribution in DISTRIBUTIONS[: 3 if getattr(proposal, "kappa", None) else 4]:
            assert_agrees_with_points(objective(estimator, distribution, proposal=proposal), model, y, x, 1)
        if isinstance(proposal, Uniform) or proposal.self_normalised:
            for d in (QUADRATIC, indicator(0.3)):
                assert_agrees_with_points(objective(estimator, None, d, proposal), model, y, x, 2)


@pytest.mark.parametrize("proposal", [Uniform(), *TILTED[:3]], ids=str)
@pytest.mark.parametrize("training", [True, False])
def test_modes_gradients_and_generators_do_not_change(training: bool, proposal: Any) -> None:
    nn = torch.nn
    model = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 3)).double()
    model.train(training)
    model[3].eval()  # modules may be in different modes
    modes = [module.training for module in model.modules()]
    before = [torch.full_like(p, k) for k, p in enumerate(model.parameters())]
    for p, g in zip(model.parameters(), before, strict=True):
        p.grad = g.clone()
    state = copy.deepcopy(model.state_dict())
    x, y = data((5,))
    kept = x.clone()
    regularized = objective(proposal=proposal)
    torch.manual_seed(3)
    regularized.points(lambda x, i: torch.sum(x**2, -1), x, rng=rng(0))
    regularized(lambda x, i: torch.sum(x**2, -1), x, rng=rng(0))
    assert torch.equal(torch.rand(1), torch.rand(1, generator=torch.Generator().manual_seed(3)))
    regularized(cross_entropy(model, y), x, rng=rng(0))
    assert [module.training for module in model.modules()] == modes
    assert all(torch.equal(p.grad, g) for p, g in zip(model.parameters(), before, strict=True))
    changed = {name for name, value in model.state_dict().items() if not torch.equal(value, state[name])}
    assert changed == ({"1.running_mean", "1.running_var", "1.num_batches_tracked"} if training else set())
    assert torch.equal(x, kept)
    assert not x.requires_grad
    assert torch.is_grad_enabled()


def test_frozen_backbone_gets_no_gradient() -> None:
    model, (x, y) = network((5,)), data((5,))
    objective()(cross_entropy(model, y), x, rng=rng(0)).backward()
    whole = gradients(model)
    model[0].requires_grad_(False)
    objective()(cross_entropy(model, y), x, rng=rng(0)).backward()
    assert model[0].weight.grad is None
    assert close(gradients(model), whole[2:])
    objective().backward(cross_entropy(model, y), x, rng=rng(0), chunk=20)
    assert model[0].weight.grad is None
    assert close(gradients(model), whole[2:])


def test_gradients_accumulate_over_batches() -> None:
    model, (x, y) = network((5,)), data((5,), n=12)
    batches = [slice(0, 4), slice(4, 8), slice(8, 12)]
    alone = []
    for k, b in enumerate(batches):
        objective()(cross_entropy(model, y[b]), x[b], rng=rng(k)).backward()
        alone.append(gradients(model))
    mean = [torch.mean(torch.stack(parts), 0) for parts in zip(*alone, strict=True)]
    for k, b in enumerate(batches):
        (objective()(cross_entropy(model, y[b]), x[b], rng=rng(k)) / 3).backward()
    assert close(gradients(model), mean)
    for scale in (1 / 3, torch.tensor(1 / 3, dtype=torch.float64)):
        for k, b in enumerate(batches):
            value = objective().backward(
                cross_entropy(model, y[b]), x[b], rng=rng(k), chunk=7, grad_scale=scale
            )
            plain = objective()(cross_entropy(model, y[b]), x[b], rng=rng(k))
            assert close([value], [plain.detach()])  # the value is not scaled
        assert close(gradients(model), mean)


@pytest.mark.parametrize("proposal", [Uniform(), Tilted(), Tilted(kappa=0.5, retilt=1)], ids=str)
def test_embeddings_get_gradients_through_the_points_but_not_the_tilt(proposal: Any) -> None:
    table = torch.nn.Embedding(9, 5, dtype=torch.float64)
    model, (_, y) = network((5,)), data((5,))
    regularized = objective(SG(2), proposal=proposal)
    x = table(torch.arange(9))
    signed = regularized.points(cross_entropy(model, y), x.detach(), rng=rng(0))
    regularized(cross_entropy(model, y), x, rng=rng(0)).backward()
    points = signed.points.clone().requires_grad_()
    torch.sum(signed.weights * cross_entropy(model, y)(points, signed.index)).backward()
    moved = torch.zeros((9, 5), dtype=torch.float64).index_add(0, signed.index, points.grad)
    assert close([table.weight.grad], [moved])
    with pytest.raises(ValueError, match="x requires a gradient"):
        regularized.backward(cross_entropy(model, y), table(torch.arange(9)), rng=rng(0), chunk=8)


@pytest.mark.parametrize("proposal", [Uniform(), Tilted()], ids=str)
@pytest.mark.parametrize("name", ["cross entropy", "squared"])
def test_autocast_gradients_agree_with_float32(name: str, proposal: Any) -> None:
    """Half-precision losses are solved in float32."""
    model, (x, y) = network((5,), torch.float32), data((5,), n=32, dtype=torch.float32)
    loss = {"cross entropy": cross_entropy(model, y), "squared": lambda x, i: model(x)[:, 0] ** 2}[name]
    regularized = objective(SG(3), proposal=proposal)
    value = regularized(loss, x, rng=rng(0))
    value.backward()
    expected = gradients(model)
    with torch.autocast("cpu", torch.bfloat16):
        half = Recorder(loss)
        found = regularized(half, x, rng=rng(0))
        signed = regularized.points(loss, x, rng=rng(0))
        chunked = regularized.backward(loss, x, rng=rng(0), chunk=64)
    in_chunks = gradients(model)
    found.backward()
    whole = gradients(model)
    assert half.losses[0].dtype == {"cross entropy": torch.float32, "squared": torch.bfloat16}[name]
    assert signed.log_weights.dtype == signed.points.dtype == torch.float32
    # bfloat16 rounds by 2^-9 in each layer, forward and backward; the tilt depends on gradients too.
    rounding = 2**-9 * (8 if isinstance(proposal, Uniform) else 16)
    reference = expected if isinstance(proposal, Uniform) else whole
    for value_of, grads in ((found.detach(), whole), (chunked, in_chunks)):
        assert value_of.dtype == torch.float32
        assert all(g.dtype == torch.float32 for g in grads)
        assert abs(float(value_of) - float(value.detach())) <= rounding * abs(float(value.detach()))
        size = max(float(torch.max(torch.abs(g))) for g in reference)
        worst = max(float(torch.max(torch.abs(a - b))) for a, b in zip(grads, reference, strict=True))
        assert worst <= 16 * 2**-9 * size


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch: no CUDA device")
def test_gradients_on_cuda_agree_with_softmax_weights() -> None:
    for chunk in (None, 20):
        model, (x, y) = network((5,)).cuda(), data((5,))
        x, y = x.cuda(), y.cuda()
        loss = Recorder(cross_entropy(model, y))
        if chunk is None:
            value = objective(SG(3))(loss, x, rng=rng(0))
            value.backward()
        else:
            value = objective(SG(3)).backward(loss, x, rng=rng(0), chunk=chunk)
        found = gradients(model)
        assert value.device == x.device
        points, index, losses = (torch.cat(parts) for parts in (loss.points, loss.index, loss.losses))
        _, weights = entropic_weights(losses, index, 9, ETA, 3, multilevel=False)
        torch.sum(weights * cross_entropy(model, y)(points, index)).backward()
        assert close(found, gradients(model))


@pytest.mark.parametrize("estimator", [SG(0), SG(2), RTMLMC(4)], ids=str)
def test_second_derivatives_treat_weights_as_constants(estimator: Any) -> None:
    """Only with one point per data point is this the exact second derivative."""
    theta, (x, _) = torch.tensor(0.7, dtype=torch.float64, requires_grad=True), data((5,))
    regularized = objective(estimator)

    def loss(a: Any, i: Any) -> Any:
        return theta**2 * torch.sum(a.double() ** 2, -1)

    def second(value: Any) -> Any:
        (slope,) = torch.autograd.grad(value, theta, create_graph=True)
        return torch.autograd.grad(slope, theta)[0]

    found = second(regularized(loss, x, rng=rng(3)))
    signed = regularized.points(loss, x, rng=rng(3))
    squares = torch.sum(signed.points.double() ** 2, -1)
    assert close([found], [torch.sum(signed.weights * 2 * squares)])
    if isinstance(estimator, SG):
        rows = loss(signed.points, signed.index).reshape(len(x), -1)
        whole = second(worst_case(rows, ETA, ENTROPIC).value.mean())
        assert close([found], [whole]) == (estimator.level == 0)


@pytest.mark.parametrize("block", [torch.no_grad, torch.inference_mode])
def test_value_is_the_same_without_gradients(block: Any) -> None:
    model, (x, y) = network((5,)), data((5,))
    loss = cross_entropy(model, y)

    def risk() -> Any:
        return robust_risk(
            loss, x, Ball(1, 0.5), ETA, ENTROPIC, n_samples=8, rng=rng(4), method=Tilted()
        ).value

    calls = [
        lambda: objective()(loss, x, rng=rng(4)),
        lambda: objective(proposal=Tilted())(loss, x, rng=rng(4)),
    ]
    for call in (*calls, risk):
        expected = call().detach()
        with block():
            found = call()
        assert not found.requires_grad
        assert torch.equal(found.clone(), expected)


@pytest.mark.parametrize("proposal", [Uniform(), *TILTED[:3]], ids=str)
@pytest.mark.parametrize("estimator", [SG(4), RTMLMC(5), RTMLMC(5, "stratified")], ids=str)
def test_backward_in_chunks_gives_the_same_gradient(estimator: Any, proposal: Any) -> None:
    model, (x, y) = network((5,)), data((5,), n=13)
    regularized, plain = objective(estimator, proposal=proposal), Recorder(cross_entropy(model, y))
    value = regularized(plain, x, rng=rng(5))
    value.backward()
    expected = gradients(model)
    for chunk in (1, 2, 3, 8, 15, 16, 17, 40, 100, 10**6):
        loss = Recorder(cross_entropy(model, y))
        found = regularized.backward(loss, x, rng=rng(5), chunk=chunk)
        assert not found.requires_grad
        assert close(gradients(model), expected)
        assert close([found], [value.detach()])
        assert max(len(points) for points in loss.points) <= chunk
        if chunk >= len(plain.points[-1]):
            assert len(loss.points) == len(plain.points)
        if chunk >= 32:  # every data point fits in a chunk, so each point is evaluated once
            assert torch.equal(torch.cat(loss.points), torch.cat(plain.points))
            assert torch.equal(torch.cat(loss.index), torch.cat(plain.index))
        if isinstance(proposal, Tilted):  # gradients in x come first, each time at all data points
            first = torch.cat(loss.index)[: 13 * (1 + proposal.retilt)]
            assert torch.equal(first, torch.arange(13).repeat(1 + proposal.retilt))


class SavedTensors:
    """Counts the elements of the tensors that autograd saves, now and at the peak."""

    def __init__(self) -> None:
        self.now = self.peak = 0

    def watch(self) -> Any:
        counter = self

        class Pack:
            def __init__(self, tensor: Any) -> None:
                self.tensor = tensor
                counter.now += tensor.numel()
                counter.peak = max(counter.peak, counter.now)

            def __del__(self) -> None:
                counter.now -= self.tensor.numel()

        return torch.autograd.graph.saved_tensors_hooks(Pack, lambda packed: packed.tensor)


@pytest.mark.parametrize("chunk", [64, 8])
def test_chunks_bound_the_memory_of_autograd(chunk: int) -> None:
    """A data point has 16 perturbed points, so a chunk of 8 is smaller than one data point."""
    model, (x, y) = network((2, 6, 6)), data((2, 6, 6), n=64)
    plain, parts = SavedTensors(), SavedTensors()
    with plain.watch():
        objective(SG(4))(cross_entropy(model, y), x, rng=rng(0)).backward()
    with parts.watch():
        objective(SG(4)).backward(cross_entropy(model, y), x, rng=rng(0), chunk=chunk)
    assert plain.now == parts.now == 0
    assert plain.peak > 64 * 16 * 72  # at least the points themselves
    parameters = sum(p.numel() for p in model.parameters())
    assert parts.peak <= plain.peak * chunk / (64 * 16) + parameters


MODEL, (X, Y) = network((5,)), data((5,))
LOSS = cross_entropy(MODEL, Y)
REGULARIZED = RegularizedLoss(Ball(2, 0.5), ETA, ENTROPIC, RTMLMC(4))
EVALUATIONS = {
    "call": lambda loss, x: REGULARIZED(loss, x, rng=rng(0)),
    "chunks": lambda loss, x: REGULARIZED.backward(loss, x, rng=rng(0), chunk=20),
    "small chunks": lambda loss, x: REGULARIZED.backward(loss, x, rng=rng(0), chunk=1),
    "points": lambda loss, x: REGULARIZED.points(loss, x, rng=rng(0)),
}


@pytest.mark.parametrize("evaluate", EVALUATIONS.values(), ids=EVALUATIONS)
def test_invalid_losses_and_batches_raise(evaluate: Any) -> None:
    for loss, x, kind, message in [
        (lambda x, i: torch.mean(LOSS(x, i)), X, ValueError, r"shape \(\); expected .*reduction='none'"),
        (lambda x, i: MODEL(x), X, ValueError, r"shape \(\d+, 3\); expected \(\d+,\), one loss for each x"),
        (lambda x, i: nan * LOSS(x, i), X, ValueError, "contains nan; expected finite numbers"),
        (lambda x, i: inf + LOSS(x, i), X, ValueError, "contains inf; expected finite numbers"),
        (lambda x, i: Y[i], X, TypeError, "dtype torch.int64; expected float32 or float64"),
        (lambda x, i: None, X, TypeError, r"loss\(x, i\) is None, of type NoneType"),
        (LOSS, torch.ones((9, 5), dtype=torch.int64), TypeError, "x has dtype torch.int64; expected float32"),
        (LOSS, X.to(torch.complex64), TypeError, "x has dtype torch.complex64; expected float32"),
        (LOSS, X[:0], ValueError, r"x has shape \(0, 5\); expected \(N,\) \+ event, with at least one"),
        (LOSS, torch.tensor(1.0), ValueError, r"x has shape \(\); expected \(N,\) \+ event"),
    ]:
        with pytest.raises(kind, match=message):
            evaluate(loss, x)
        assert all(p.grad is None for p in MODEL.parameters())  # no gradient was accumulated


def test_invalid_chunks_and_losses_without_a_gradient_raise() -> None:
    message = "do not depend on anything that requires a gradient; expected"
    for evaluate in (EVALUATIONS["chunks"], EVALUATIONS["small chunks"]):
        with pytest.raises(ValueError, match=message):
            evaluate(lambda x, i: LOSS(x, i).detach(), X)
        with torch.no_grad(), pytest.raises(ValueError, match=message):
            evaluate(LOSS, X)
    with pytest.raises(ValueError, match="chunk is 0; expected"):
        REGULARIZED.backward(LOSS, X, rng=rng(0), chunk=0)
    theta = torch.ones(9, dtype=torch.float64, requires_grad=True)
    with pytest.raises(ValueError, match="does not depend on x"):
        objective(proposal=Tilted())(lambda x, i: theta[i], X, rng=rng(0))


@pytest.mark.parametrize("estimator", [SG(0), SG(2), RTMLMC(3)])
def test_eta_outside_the_range_of_the_losses_dtype_raises(estimator: Any) -> None:
    x = data((4,))[0].float()
    for eta in (1e-60, 1e60):
        objective = RegularizedLoss(Ball(2, 1.0), eta, ENTROPIC, estimator)
        with pytest.raises(ValueError, match=r"eta is 1e.60; expected"):
            objective(lambda z, i: z.reshape(len(z), -1).sum(-1), x, rng=rng(0))

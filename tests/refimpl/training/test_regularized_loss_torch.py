"""RegularizedLoss is a plain function in anyone's torch loop: any model, any shape, one line changed."""

from __future__ import annotations

import copy
import warnings
from math import inf
from typing import Any

import pytest

from phiball.backends import Rng, rng
from phiball.refimpl import (
    ENTROPIC,
    QUADRATIC,
    RTMLMC,
    SG,
    Ball,
    RegularizedLoss,
    indicator,
    worst_case,
)
from tests.support.divergences import name_of
from tests.support.laws import ESTIMATORS, EVENTS
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

ETA = 0.3


pytestmark = pytest.mark.usefixtures("one_thread")


def objective(estimator: Any = None, ball: Any = None, divergence: Any = ENTROPIC) -> RegularizedLoss:
    return RegularizedLoss(ball or Ball(2, 0.5), ETA, divergence, estimator or RTMLMC(4), check_index=False)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("estimator", ESTIMATORS, ids=str)
@pytest.mark.parametrize("event", EVENTS, ids=str)
def test_any_shape(event: tuple[int, ...], estimator: Any, dtype: Any) -> None:
    """One pass over points of the shape of the data, and the gradient of the sum of signed weights."""
    model, (x, y) = network(event, dtype), data(event, dtype=dtype)
    loss = Recorder(cross_entropy(model, y))
    value = objective(estimator)(loss, x, rng=rng(1))
    value.backward()
    found = gradients(model)

    assert value.shape == ()
    assert value.dtype == dtype
    assert len(loss.points) == 1  # one forward pass, whatever the levels
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


@pytest.mark.parametrize("divergence", [ENTROPIC, QUADRATIC, indicator(0.3)], ids=name_of)
def test_the_gradient_is_the_sum_of_the_signed_points(divergence: Any) -> None:
    model, (x, y) = network((5,)), data((5,))
    what = objective(divergence=divergence)
    loss = cross_entropy(model, y)
    value = what(loss, x, rng=rng(2))
    value.backward()
    found = gradients(model)
    open_ = what.points(loss, x, rng=rng(2))
    assert gradients(model) == []  # `points` adds to no gradient
    torch.sum(open_.weights * loss(open_.points, open_.index)).backward()
    assert close(found, gradients(model))
    assert close([value.detach()], [open_.value])


class Remembering:
    """A law that keeps the points it drew."""

    def __init__(self, law: Any) -> None:
        self.law, self.drawn = law, []

    def sample(self, z: Any, n: int, rng: Rng, *, event_ndim: int = 1) -> Any:
        points = self.law.sample(z, n, rng, event_ndim=event_ndim)
        self.drawn.append(points)
        return points


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=str)
def test_the_loss_sees_exactly_what_was_drawn(estimator: Any) -> None:
    """Pixels on the border of [0, 1] leave it by half of the perturbations: nothing is clamped."""
    law = Remembering(Ball(inf, 0.4))
    model = network((2, 6, 6))
    x, y = torch.arange(9 * 72, dtype=torch.float64).reshape(9, 2, 6, 6) % 2, torch.arange(9) % 3
    before = x.clone()
    loss = Recorder(cross_entropy(model, y))
    objective(estimator, ball=law)(loss, x, rng=rng(0))
    drawn = torch.cat([points.reshape(-1, 2, 6, 6) for points in law.drawn])
    assert torch.equal(loss.points[0], drawn)
    assert torch.equal(x, before)
    outside = torch.mean(((drawn < 0) | (drawn > 1)).to(torch.float64))
    # A share of one half, of at least 9 x 72 numbers: 4.75 standard deviations, one in a million.
    assert abs(float(outside) - 0.5) < 4.75 * 0.5 / (9 * 72) ** 0.5


def test_regression_with_labels_through_the_index() -> None:
    """A linear model under squared loss, whose gradient is written down."""
    x, y = data((3,), n=20)[0], torch.linspace(-1, 1, 20, dtype=torch.float64)
    w = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64, requires_grad=True)
    loss = Recorder(lambda x, i: (x @ w - y[i]) ** 2)
    objective(SG(3))(loss, x, rng=rng(0)).backward()
    points, index, losses = loss.points[0], loss.index[0], loss.losses[0]
    _, weights = entropic_weights(losses, index, 20, ETA, 3, multilevel=False)
    expected = torch.sum((weights * 2 * (points @ w.detach() - y[index]))[:, None] * points, 0)
    assert close([w.grad], [expected])


def test_radius_zero_is_plain_training() -> None:
    """For SG exactly. For RT-MLMC in the mean: the upper levels cancel, and level 0 stands for all."""
    model, (x, y) = network((5,)), data((5,))
    objective(SG(3), ball=Ball(2, 0.0))(cross_entropy(model, y), x, rng=rng(0)).backward()
    found = gradients(model)
    torch.nn.functional.cross_entropy(model(x), y).backward()
    assert close(found, gradients(model))
    loss = Recorder(cross_entropy(model, y))
    objective(RTMLMC(4), ball=Ball(2, 0.0))(loss, x, rng=rng(0)).backward()
    found = gradients(model)
    lowest = torch.bincount(loss.index[0], minlength=9) == 1
    assert 0 < int(torch.sum(lowest)) < 9
    summed = torch.nn.functional.cross_entropy(model(x[lowest]), y[lowest], reduction="sum")
    (summed * (2 - 2.0**-4) / 9).backward()  # 1/P(0) = 2 - 2^-L
    assert close(found, gradients(model))


@pytest.mark.parametrize("training", [True, False])
def test_modes_parameters_and_generators_are_left_alone(training: bool) -> None:
    nn = torch.nn
    model = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 3)).double()
    model.train(training)
    model[3].eval()  # a mixture of modes is the user's business
    modes = [module.training for module in model.modules()]
    state = copy.deepcopy(model.state_dict())
    x, y = data((5,))
    torch.manual_seed(3)
    what = objective()
    what.points(lambda x, i: torch.sum(x, -1), x, rng=rng(0))
    what(lambda x, i: torch.sum(x, -1), x, rng=rng(0))
    assert torch.equal(torch.rand(1), torch.rand(1, generator=torch.Generator().manual_seed(3)))
    what(cross_entropy(model, y), x, rng=rng(0))
    assert [module.training for module in model.modules()] == modes
    changed = {name for name, value in model.state_dict().items() if not torch.equal(value, state[name])}
    assert changed == ({"1.running_mean", "1.running_var", "1.num_batches_tracked"} if training else set())
    assert all(p.grad is None and p.requires_grad for p in model.parameters())
    assert torch.is_grad_enabled()


def test_batch_norm_sees_the_points_once() -> None:
    norm = torch.nn.BatchNorm1d(5, dtype=torch.float64)
    twin = copy.deepcopy(norm)
    x, y = data((5,))
    loss = Recorder(lambda x, i: torch.nn.functional.cross_entropy(norm(x)[:, :3], y[i], reduction="none"))
    objective()(loss, x, rng=rng(0)).backward()
    twin(loss.points[0])
    assert int(norm.num_batches_tracked) == 1
    assert torch.equal(norm.running_mean, twin.running_mean)
    assert torch.equal(norm.running_var, twin.running_var)
    assert norm.weight.grad is not None


def test_dropout_has_one_mask_for_values_and_gradients() -> None:
    """Weights are solved from the very losses that are differentiated."""
    nn = torch.nn
    model = nn.Sequential(nn.Linear(5, 16), nn.Dropout(0.5), nn.Linear(16, 3)).double()
    x, y = data((5,))
    loss = Recorder(cross_entropy(model, y))
    torch.manual_seed(4)
    objective(SG(3))(loss, x, rng=rng(0)).backward()
    found = gradients(model)
    _, weights = entropic_weights(loss.losses[0], loss.index[0], 9, ETA, 3, multilevel=False)
    torch.manual_seed(4)  # the same masks
    torch.sum(weights * cross_entropy(model, y)(loss.points[0], loss.index[0])).backward()
    assert close(found, gradients(model))


def test_a_frozen_backbone_gets_no_gradient() -> None:
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
    for k, b in enumerate(batches):
        objective().backward(cross_entropy(model, y[b]), x[b], rng=rng(k), chunk=7, scale=1 / 3)
    assert close(gradients(model), mean)


def test_embeddings_that_are_trained_get_their_gradient() -> None:
    """Perturbations of an embedding, as in text: x carries a graph of its own."""
    tokens = torch.arange(9)
    table = torch.nn.Embedding(9, 5, dtype=torch.float64)
    model, (_, y) = network((5,)), data((5,))
    loss = Recorder(cross_entropy(model, y))
    objective()(loss, table(tokens), rng=rng(0)).backward()
    points, index = loss.points[0].requires_grad_(), loss.index[0]
    _, weights = entropic_weights(loss.losses[0], index, 9, ETA, 4, multilevel=True)
    torch.sum(weights * cross_entropy(model, y)(points, index)).backward()
    expected = torch.zeros((9, 5), dtype=torch.float64).index_add(0, index, points.grad)
    assert close([table.weight.grad], [expected])


@pytest.mark.parametrize("name", ["cross entropy", "squared"])
def test_autocast(name: str) -> None:
    """Half-precision losses are solved in single precision; gradients are those of single to its rounding."""
    model, (x, y) = network((5,), torch.float32), data((5,), n=32, dtype=torch.float32)
    losses = {"cross entropy": cross_entropy(model, y), "squared": lambda x, i: model(x)[:, 0] ** 2}
    loss = Recorder(losses[name])
    value = objective(SG(3))(loss, x, rng=rng(0))
    value.backward()
    expected = gradients(model)
    with torch.autocast("cpu", torch.bfloat16):
        half = Recorder(losses[name])
        found = objective(SG(3))(half, x, rng=rng(0))
        chunked = objective(SG(3)).backward(half, x, rng=rng(0), chunk=64)
    in_chunks = gradients(model)
    found.backward()
    assert half.losses[0].dtype == {"cross entropy": torch.float32, "squared": torch.bfloat16}[name]
    assert torch.equal(half.points[0], loss.points[0])  # perturbations are drawn in the precision of x
    # bfloat16 rounds by 2^-9; three layers, forward and back, and weights that move by their losses over eta.
    for value_of, grads in ((found.detach(), gradients(model)), (chunked, in_chunks)):
        assert value_of.dtype == torch.float32
        assert all(g.dtype == torch.float32 for g in grads)
        assert abs(float(value_of) - float(value.detach())) <= 8 * 2**-9 * abs(float(value.detach()))
        size = max(float(torch.max(torch.abs(g))) for g in expected)
        worst = max(float(torch.max(torch.abs(a - b))) for a, b in zip(grads, expected, strict=True))
        assert worst <= 16 * 2**-9 * size


@pytest.mark.slow
def test_a_compiled_model() -> None:
    """The number of perturbed points changes from call to call, which a compiled model must take."""
    model, (x, y) = network((5,)), data((5,))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's compiler deprecates parts of itself on import
        compiled = torch.compile(model, backend="aot_eager", dynamic=True)
        try:
            compiled(x)
        except Exception as error:  # it has errors of many kinds where it does not support a platform
            pytest.skip(f"torch.compile: does not work here ({type(error).__name__})")
        counts = set()
        for seed in range(3):
            loss = Recorder(cross_entropy(compiled, y))
            objective()(loss, x, rng=rng(seed)).backward()
            found = gradients(model)
            counts.add(len(loss.points[0]))
            objective()(cross_entropy(model, y), x, rng=rng(seed)).backward()
            assert close(found, gradients(model))
    assert len(counts) > 1


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch: no CUDA device")
def test_on_cuda() -> None:
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


def trained(seed: int, steps: int = 30, resume_at: int | None = None) -> tuple[list[Any], list[float]]:
    """The parameters after a short run on two classes, and its losses; interrupted once, if so asked."""
    model, (x, _) = network((5,)), data((5,), n=40)
    y = (x[:, 0] > 0).to(torch.int64)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    source, values = rng(seed), []
    for step in range(steps):
        if step == resume_at:
            source = Rng.restore(source.state())
        optimizer.zero_grad()
        value = objective(RTMLMC(4, "stratified"), Ball(2, 0.1))(cross_entropy(model, y), x, rng=source)
        value.backward()
        optimizer.step()
        values.append(float(value.detach()))
    return [p.detach() for p in model.parameters()], values


@pytest.mark.slow
def test_training_lowers_the_loss_and_repeats_itself() -> None:
    parameters, values = trained(0)
    assert sum(values[-5:]) < 0.5 * sum(values[:5])
    for again in (trained(0), trained(0, resume_at=11)):
        assert all(torch.equal(a, b) for a, b in zip(parameters, again[0], strict=True))
        assert again[1] == values
    assert trained(1)[1] != values


@pytest.mark.parametrize("estimator", [SG(0), SG(2), RTMLMC(4)], ids=str)
def test_second_derivatives_are_those_under_fixed_weights(estimator: Any) -> None:
    """Of the weighted losses; the whole has a term more, but for one point a data point."""
    theta, (x, _) = torch.tensor(0.7, dtype=torch.float64, requires_grad=True), data((5,))
    what = objective(estimator)

    def loss(a: Any, i: Any) -> Any:
        return theta**2 * torch.sum(a.double() ** 2, -1)

    def second(value: Any) -> Any:
        (slope,) = torch.autograd.grad(value, theta, create_graph=True)
        return torch.autograd.grad(slope, theta)[0]

    found = second(what(loss, x, rng=rng(3)))
    signed = what.points(loss, x, rng=rng(3))
    squares = torch.sum(signed.points.double() ** 2, -1)
    assert close([found], [torch.sum(signed.weights * 2 * squares)])
    if isinstance(estimator, SG):
        rows = loss(signed.points, signed.index).reshape(len(x), -1)
        whole = second(worst_case(rows, ETA, ENTROPIC).value.mean())
        assert close([found], [whole]) == (estimator.level == 0)

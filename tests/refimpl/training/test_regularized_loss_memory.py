"""Training in bounded memory: chunks give the gradient of the plain call, and keep what they must."""

from __future__ import annotations

from typing import Any

import pytest

from phiball.backends import rng
from phiball.refimpl import (
    ENTROPIC,
    RTMLMC,
    SG,
    Ball,
    RegularizedLoss,
)
from tests.support.training_models import (
    Recorder,
    close,
    cross_entropy,
    data,
    gradients,
    network,
)

torch = pytest.importorskip("torch", reason="torch: not installed")

ETA = 0.3


pytestmark = pytest.mark.usefixtures("one_thread")


def objective(estimator: Any = None, ball: Any = None, divergence: Any = ENTROPIC) -> RegularizedLoss:
    return RegularizedLoss(ball or Ball(2, 0.5), ETA, divergence, estimator or RTMLMC(4), check_index=False)


CHUNKS = [1, 2, 3, 5, 8, 15, 16, 17, 40, 100, 10**6]


@pytest.mark.parametrize("chunk", CHUNKS)
@pytest.mark.parametrize("estimator", [SG(4), RTMLMC(5), RTMLMC(5, "stratified")], ids=str)
def test_chunks_give_the_gradient_of_the_plain_call(estimator: Any, chunk: int) -> None:
    model, (x, y) = network((5,)), data((5,), n=13)
    plain = Recorder(cross_entropy(model, y))
    value = objective(estimator)(plain, x, rng=rng(5))
    value.backward()
    expected = gradients(model)
    loss = Recorder(cross_entropy(model, y))
    found = objective(estimator).backward(loss, x, rng=rng(5), chunk=chunk)
    assert not found.requires_grad
    assert close(gradients(model), expected)
    assert close([found], [value.detach()])
    assert max(len(points) for points in loss.points) <= chunk
    if chunk >= len(plain.points[0]):
        assert len(loss.points) == 1


@pytest.mark.parametrize("chunk", [16, 33, 64])
def test_chunks_that_hold_a_data_point_evaluate_every_point_once(chunk: int) -> None:
    model, (x, y) = network((5,)), data((5,), n=13)
    plain, parts = (Recorder(cross_entropy(model, y)) for _ in range(2))
    objective(RTMLMC(4))(plain, x, rng=rng(6))
    objective(RTMLMC(4)).backward(parts, x, rng=rng(6), chunk=chunk)
    assert torch.equal(torch.cat(parts.points), plain.points[0])
    assert torch.equal(torch.cat(parts.index), plain.index[0])


class Saved:
    """Counts the numbers that autograd keeps for its backward passes, and the most it kept at once."""

    def __init__(self) -> None:
        self.now = self.most = 0

    def watch(self) -> Any:
        counter = self

        class Kept:
            def __init__(self, tensor: Any) -> None:
                self.tensor = tensor
                counter.now += tensor.numel()
                counter.most = max(counter.most, counter.now)

            def __del__(self) -> None:
                counter.now -= self.tensor.numel()

        return torch.autograd.graph.saved_tensors_hooks(Kept, lambda kept: kept.tensor)


@pytest.mark.parametrize("chunk", [64, 8])
def test_chunks_bound_what_autograd_keeps(chunk: int) -> None:
    """Activations in proportion to the points of a chunk, and the parameters; 8 is half of a data point."""
    model, (x, y) = network((2, 6, 6)), data((2, 6, 6), n=64)
    plain, parts = Saved(), Saved()
    with plain.watch():
        objective(SG(4))(cross_entropy(model, y), x, rng=rng(0)).backward()
    with parts.watch():
        objective(SG(4)).backward(cross_entropy(model, y), x, rng=rng(0), chunk=chunk)
    assert plain.now == parts.now == 0
    assert plain.most > 64 * 16 * 72  # the points at least
    parameters = sum(p.numel() for p in model.parameters())
    assert parts.most <= plain.most * chunk / (64 * 16) + parameters


@pytest.mark.parametrize("kind", ["number", "tensor", "GradScaler"])
def test_a_scale_multiplies_the_gradient(kind: str) -> None:
    """By a power of two, so exactly, however the chunks are cut."""
    model, (x, y) = network((5,), torch.float32), data((5,), dtype=torch.float32)
    loss = cross_entropy(model, y)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    scaler.scale(torch.zeros(()))  # a scaler has no scale before its first use
    scale = {"number": 1024.0, "tensor": torch.tensor(1024.0), "GradScaler": scaler.get_scale()}[kind]
    value = objective()(loss, x, rng=rng(0))
    value.backward()
    expected = gradients(model)
    for chunk in (4, 16, 1000):
        assert close([objective().backward(loss, x, rng=rng(0), chunk=chunk, scale=scale)], [value.detach()])
        assert close([g / 1024 for g in gradients(model)], expected)


def test_a_step_with_a_gradient_scaler_is_the_plain_step() -> None:
    steps = []
    for scaled in (False, True):
        model, (x, y) = network((5,), torch.float32), data((5,), dtype=torch.float32)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, enabled=scaled)
        scaler.scale(objective()(cross_entropy(model, y), x, rng=rng(0))).backward()
        scaler.step(optimizer)
        steps.append([p.detach().clone() for p in model.parameters()])
    assert close(*steps)

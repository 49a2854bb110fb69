"""The check that a loss takes labels by the index: it finds mistakes and leaves no trace."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from phiball.backends import rng
from phiball.refimpl import ENTROPIC, RTMLMC, SG, Ball, RegularizedLoss, Tilted
from phiball.refimpl.training.index_check import check_index

torch = pytest.importorskip("torch", reason="torch: not installed")

BALL = Ball(2, 0.5)


def network(*more: Any) -> Any:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(5, 16), *more, torch.nn.ReLU(), torch.nn.Linear(16, 3))


def data() -> tuple[Any, Any]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(8, 5, generator=generator), torch.arange(8) % 3


def cross_entropy(model: Any, labels: Any) -> Any:
    return lambda z, i: torch.nn.functional.cross_entropy(model(z), labels(i), reduction="none")


def test_repeated_labels_raise() -> None:
    x, y = data()
    model = network(torch.nn.BatchNorm1d(16), torch.nn.Dropout(0.5))
    assert RegularizedLoss(BALL, 0.8) == RegularizedLoss(BALL, 0.8, ENTROPIC, SG(2), check_index=False)
    for estimator in (SG(2), RTMLMC(3, "stratified")):
        objective = RegularizedLoss(BALL, 0.8, estimator=estimator)
        size = len(objective.points(lambda z, i: z[:, 0], x, rng=rng(0)).points)
        wrong = cross_entropy(model, lambda i, size=size: y.repeat(size)[:size])
        with pytest.raises(ValueError, match=r"expected y\[i\]"):
            objective(wrong, x, rng=rng(0))
        if estimator == SG(2):
            with pytest.raises(ValueError, match=r"expected y\[i\]"):
                RegularizedLoss(BALL, 0.8).backward(wrong, x, rng=rng(0), chunk=64)
        RegularizedLoss(BALL, 0.8, estimator=estimator, check_index=False)(wrong, x, rng=rng(0))
    targets = np.arange(8.0)
    with pytest.raises(ValueError, match=r"expected y\[i\]"):
        RegularizedLoss(BALL, 0.8)(lambda z, i: (z[:, 0] - np.tile(targets, 4)) ** 2, x.numpy(), rng=rng(0))
    wrong = cross_entropy(model, lambda i: y[:2].repeat(len(i))[: len(i)])
    RegularizedLoss(BALL, 0.8)(wrong, x[:1], rng=rng(0))  # one data point cannot be checked
    with pytest.raises(ValueError, match=r"expected y\[i\]"):
        RegularizedLoss(BALL, 0.8)(wrong, x[:2], rng=rng(0))


def test_correct_losses_pass_and_leave_no_trace() -> None:
    """The gradients, random numbers, statistics and modes are those of a call without the check."""
    x, y = data()
    found = []
    for check in (True, False):
        model = network(torch.nn.BatchNorm1d(16), torch.nn.Dropout(0.5))
        model[2].eval()  # one that is frozen stays so
        model[2].p = 0.3
        torch.manual_seed(3)
        source = rng(2)
        passes: list[bool] = []
        model.register_forward_hook(lambda *_, passes=passes: passes.append(torch.is_grad_enabled()))
        objective = RegularizedLoss(BALL, 0.8, check_index=check)
        for _ in range(2):
            value = objective(cross_entropy(model, lambda i: y[i]), x, rng=source)
            value.backward()
        assert passes == [False, False, True, True] if check else [True, True]
        found.append(
            [value.detach(), torch.rand(3), source.uniform((3,), like=x)]
            + [p.grad for p in model.parameters()]
            + list(model.buffers())
        )
        assert [m.training for m in model] == [True, True, False, True, True]
    for a, b in zip(*found, strict=True):
        assert torch.equal(a, b)
    assert not torch.nn.modules.module._global_forward_pre_hooks


def test_losses_that_cannot_be_checked_pass() -> None:
    x, y = data()
    model = network()

    class TupleInTraining(torch.nn.Module):
        def forward(self, z: Any) -> Any:
            return (model(z),) if self.training else model(z)

    double = TupleInTraining()

    def tuples(z: Any, i: Any) -> Any:
        return torch.nn.functional.cross_entropy(double(z)[0], y[i], reduction="none")

    for loss in (tuples, lambda z, i: (z**2).sum(-1)):
        assert torch.isfinite(RegularizedLoss(BALL, 0.8)(loss, x, rng=rng(0)))
    one = RegularizedLoss(BALL, 0.8, estimator=SG(0), proposal=Tilted())
    one(cross_entropy(model, lambda i: y), x, rng=rng(0))  # one point for each, in order: y is y[i]
    for dtype in (torch.bfloat16, torch.float16):
        low = network().to(dtype)
        RegularizedLoss(BALL, 0.8)(cross_entropy(low, lambda i: y[i]), x.to(dtype), rng=rng(0)).backward()

    def broken(z: Any, i: Any) -> Any:
        raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):  # an error of the loss is its own
        RegularizedLoss(BALL, 0.8)(broken, x, rng=rng(0))


def test_check_of_zero_and_of_random_losses() -> None:
    x, _ = data()
    assert check_index(lambda z, i: 0 * z[:, 0], x, torch.arange(8))
    torch.manual_seed(5)
    plain = torch.rand(3)
    torch.manual_seed(5)
    assert not check_index(lambda z, i: torch.rand(len(z)), x, torch.arange(8))
    assert torch.equal(torch.rand(3), plain)  # as if nothing was drawn
    values = iter([1.0, float("nan"), 1.0])
    assert not check_index(lambda z, i: z[:, 0] * next(values), x, torch.arange(8))

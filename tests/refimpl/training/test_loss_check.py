"""`check_loss` detects losses that ignore the index i of their points."""

from typing import Any

import numpy as np
import pytest

from phiball import SG, Ball, RegularizedLoss, RobustLoss, Tilted, pointwise_loss
from phiball.training import check_loss
from tests.support.training_models import cross_entropy, data, network

torch = pytest.importorskip("torch", reason="torch: not installed")


def test_labels_that_ignore_the_index_raise() -> None:
    model, (x, y) = network((5,)), data((5,))
    check_loss(cross_entropy(model, y), x)
    check_loss(pointwise_loss(model, y), x)
    for n in (2, 3, 9):
        with pytest.raises(ValueError, match=r"order of its points; expected"):
            check_loss(
                lambda z, i: torch.nn.functional.cross_entropy(model(z), y[: len(z)], reduction="none"), x[:n]
            )
        with pytest.raises(ValueError, match="order of its points"):
            check_loss(lambda z, i: z[:, 0] * np.arange(len(z)), x.numpy()[:n])


def test_random_and_invalid_losses_raise() -> None:
    x, _ = data((5,))
    for loss, points, message in (
        (lambda z, i: torch.rand(len(z)), x, "switch the model to evaluation mode"),
        (lambda z, i: z[:, 0] * np.nan, x, "contains nan"),
        (lambda z, i: z, x, "reduction='none'"),
        (lambda z, i: z[:, 0], x[:1], "one data point; expected at least two"),
    ):
        with pytest.raises(ValueError, match=message):
            check_loss(loss, points)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_losses_pass(dtype: Any) -> None:
    model, (x, y) = network((5,), dtype), data((5,), 64, dtype)
    check_loss(cross_entropy(model, y), x)
    check_loss(lambda z, i: 0 * z[:, 0], x)


def test_training_losses_run_the_model_once_or_twice_if_tilted() -> None:
    model, (x, y) = network((5,)), data((5,))
    passes: list[bool] = []
    model.register_forward_hook(lambda *_: passes.append(torch.is_grad_enabled()))
    for objective, count in (
        (RegularizedLoss(Ball(2, 0.5), 0.8), 1),
        (RegularizedLoss(Ball(2, 0.5), 0.8, "kl", SG(2), Tilted()), 2),
        (RobustLoss(0.5), 2),
    ):
        for _ in range(2):
            objective(model, x, y)
            assert passes == [True] * count
            passes.clear()

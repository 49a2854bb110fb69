"""The ramp loss, the risk on a sample and the certificate of Section 5."""

from __future__ import annotations

from math import inf, log, nan, sqrt
from typing import Any

import numpy as np
import pytest

from phiball.backends import rng
from phiball.refimpl import (
    ENTROPIC,
    HINGE,
    Ball,
    covering_bound,
    generalization_bound,
    ramp_loss,
    regularized_adversarial_risk,
)
from tests.support.arrays import Arrays


def plain_ramp(t: Any, y: int, varrho: float) -> float:
    margin = t[y] - max(v for k, v in enumerate(t) if k != y)
    return 1.0 if margin <= 0 else 0.0 if margin >= varrho else 1 - margin / varrho


def test_ramp_loss(arrays: Arrays) -> None:
    draws = np.random.default_rng(0)
    logits, labels = draws.normal(size=(5, 40, 3)), draws.integers(3, size=(5, 40))
    logits[0, 0] = 1.0  # a tie
    logits = arrays.numpy(arrays.asarray(logits))
    for kind in (arrays.xp.int64, arrays.xp.int32):
        out = ramp_loss(arrays.asarray(logits), arrays.asarray(labels, kind), varrho=0.8)
        assert out.dtype == arrays.dtype
        expected = [
            [plain_ramp(t, y, 0.8) for t, y in zip(*row, strict=True)]
            for row in zip(logits.astype(float), labels, strict=True)
        ]
        np.testing.assert_allclose(arrays.numpy(out), expected, atol=8 * arrays.eps)
    assert 0.05 < np.mean((arrays.numpy(out) > 0) & (arrays.numpy(out) < 1)) < 0.95


def test_i4_the_ramp_loss_is_lipschitz() -> None:
    draws, varrho = np.random.default_rng(1), 0.7
    t = draws.normal(size=(200_000, 3))
    step = 0.01 * draws.choice([-1.0, 1.0], size=t.shape)
    y = draws.integers(3, size=200_000)
    ratio = np.abs(ramp_loss(t + step, y, varrho=varrho) - ramp_loss(t, y, varrho=varrho)) / 0.01
    assert 1.99 / varrho < np.max(ratio) <= 2 / varrho * (1 + 1e-12)


def test_the_gradient_of_the_ramp_loss() -> None:
    torch = pytest.importorskip("torch", reason="torch: not installed")
    logits = torch.tensor([[0.5, 0.2, -1.0], [0.0, 1.0, 0.0], [2.0, 0.0, 0.0]], requires_grad=True)
    ramp_loss(logits, torch.tensor([0, 0, 0]), varrho=0.5).sum().backward()
    assert logits.grad.tolist() == [[-2.0, 2.0, 0.0], [0.0] * 3, [0.0] * 3]


def test_only_x_is_perturbed(doubles: Arrays) -> None:
    """A ramp that is linear on the ball: 1/2 plus the entropic risk of a uniform number."""
    x, seen = doubles.asarray([[0.25], [0.25]]), []
    y = doubles.asarray([1, 0], doubles.xp.int64)

    def loss(x: Any, i: Any) -> Any:
        seen.append((doubles.numpy(x), doubles.numpy(i)))
        logits = doubles.xp.concat([-x, x], axis=-1)
        return ramp_loss(logits, doubles.xp.take(y, i), varrho=1.0)

    risk = regularized_adversarial_risk(loss, x, Ball(inf, 0.1), 0.2, ENTROPIC, samples=4000, rng=rng(0))
    # 1 - 2 x for the label 1, uniform on [0.3, 0.7]; 1 throughout for the label 0.
    expected = (0.5 + 0.2 * log(np.sinh(1.0)) + 1) / 2
    # 4000 draws of exp(f/eta), whose relative spread is below 0.6: 4.75 eta 0.6/sqrt(4000), halved.
    assert float(risk.value) == pytest.approx(expected, abs=0.5 * 4.75 * 0.2 * 0.6 / sqrt(4000) + 1e-4)
    for points, _ in seen:
        assert np.max(np.abs(points - 0.25)) <= 0.1 + 1e-15


@pytest.mark.parametrize("bad", [-0.1, 1.5, nan])
def test_losses_outside_the_unit_interval(bad: float, arrays: Arrays) -> None:
    x = arrays.asarray([[0.0]])
    with pytest.raises(ValueError, match=r"loss\(x, i\) ranges from .* expected values in \[0, 1\]"):
        regularized_adversarial_risk(
            lambda x, i: arrays.xp.full_like(x[:, 0], bad), x, Ball(2, 0.1), 1.0, HINGE, samples=4, rng=rng(0)
        )


def test_a_certificate(arrays: Arrays) -> None:
    bound = covering_bound(20_000, 0.1, lambda eps: log(33))
    certificate = generalization_bound(arrays.asarray(0.25), bound)
    assert (certificate.risk, certificate.bound) == (0.25, bound)
    assert certificate.value == 0.25 + bound.total
    assert not certificate.vacuous
    assert generalization_bound(0.7, bound).vacuous  # 0.7 + 0.354

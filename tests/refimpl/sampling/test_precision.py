"""Half-precision data are perturbed in float32; models get half-precision points."""

from functools import partial
from typing import Any

import numpy as np
import pytest

from phiball import ENTROPIC, SG, Ball, RegularizedLoss, Tilted, Uniform, fgm, pgm, white_noise
from phiball.backends import input_gradient, rng
from phiball.refimpl.risk import adversarial_risk, robust_risk

torch = pytest.importorskip("torch", reason="torch: not installed")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_losses_risks_and_attacks_in_half_precision_agree_with_float32(dtype: Any) -> None:
    """The reference is the same model in float32."""
    torch.manual_seed(0)
    x = torch.rand(6, 5).to(dtype)
    w = torch.randn(5).to(dtype)
    dtypes = []

    def loss(z: Any, i: Any) -> Any:
        dtypes.append(z.dtype)
        return torch.tanh(z @ w) + z[:, 0] * i

    def single(z: Any, i: Any) -> Any:  # rounds the points as for the half-precision model
        z = z.to(dtype).float()
        return torch.tanh(z @ w.float()) + z[:, 0] * i

    eps = float(torch.finfo(dtype).eps)
    ball = Ball(2, 0.5)
    for proposal in (Uniform(), Tilted()):
        objective = RegularizedLoss(ball, 0.3, ENTROPIC, SG(2), proposal)
        value = objective(loss, x, rng=rng(0))
        exact = objective(single, x.float(), rng=rng(0))
        assert value.dtype == torch.float32
        assert float(value) == pytest.approx(float(exact), abs=10 * eps)
        assert objective.points(loss, x, rng=rng(0)).points.dtype == dtype
    given = RegularizedLoss(ball, 0.3, ENTROPIC, SG(2), Tilted(gradient=partial(input_gradient, loss)))
    assert float(given(loss, x, rng=rng(0))) == pytest.approx(float(exact), abs=10 * eps)
    theta = torch.ones((), dtype=dtype, requires_grad=True)
    chunked = objective.backward(lambda z, i: theta * loss(z, i), x, rng=rng(0), chunk=8)
    assert float(chunked) == pytest.approx(float(exact), abs=10 * eps)
    assert theta.grad is not None
    for proposal in (Uniform(), Tilted()):
        risk = robust_risk(loss, x, ball, 0.3, ENTROPIC, n_samples=64, rng=rng(0), method=proposal)
        other = robust_risk(single, x.float(), ball, 0.3, ENTROPIC, n_samples=64, rng=rng(0), method=proposal)
        assert float(risk.value) == pytest.approx(float(other.value), abs=10 * eps)
    attacks = [
        fgm(loss, x, ball),
        fgm(loss, x, ball, rng=0),
        pgm(loss, x, ball, rng=0),
        white_noise(x, ball, rng=0),
        ball.sample(x, 1, rng=rng(0))[:, 0],
        ball.project(x + 1, x),
        ball.sample_tilted(x, x, 1, rng=rng(0))[0][:, 0],
    ]
    for points in attacks:
        assert points.dtype == dtype
        assert bool(torch.all(ball.contains(points, x)))
        assert not torch.equal(points, x)
    worst = adversarial_risk(loss, x, ball, n_samples=8, rng=rng(0), attack=fgm)
    assert worst.points.dtype == dtype
    assert float(worst.value) >= float(loss(x, torch.arange(6)).float().mean())
    assert set(dtypes) == {dtype}


def test_half_precision_points_carry_gradients() -> None:
    table = torch.ones(3, 4, dtype=torch.bfloat16, requires_grad=True)
    objective = RegularizedLoss(Ball(2, 0.5), 1.0, ENTROPIC, SG(1))
    objective(lambda z, i: z.sum(-1), 2 * table, rng=rng(0)).backward()
    assert torch.allclose(table.grad, torch.full_like(table, 2 / 3), atol=0.01)


def test_numpy_float16_gives_float16_samples_and_float32_values() -> None:
    x = np.linspace(0, 1, 12, dtype=np.float16).reshape(4, 3)
    points = Ball(np.inf, 0.25).sample(x, 7, rng=rng(0))
    assert points.dtype == np.float16
    assert np.all(Ball(np.inf, 0.25).contains(points, x[:, None]))
    objective = RegularizedLoss(Ball(2, 0.5), 1.0, ENTROPIC, SG(4))
    value = objective(lambda z, i: z[:, 0], x, rng=rng(0))
    assert value.dtype == np.float32
    assert value == objective(lambda z, i: z[:, 0].astype(np.float32), x, rng=rng(0))


def test_points_that_overflow_half_precision_raise() -> None:
    x = np.full((2, 1), 6e4, dtype=np.float16)
    with pytest.raises(ValueError, match=r"points reach .* overflows float16 .*: rescale the data"):
        RegularizedLoss(Ball(2, 1e6), 1.0, ENTROPIC, SG(3))(lambda z, i: z[:, 0], x, rng=rng(0))

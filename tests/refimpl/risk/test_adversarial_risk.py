"""`adversarial_risk` is the largest loss found by sampling and by an attack."""

from functools import partial
from math import inf

import numpy as np
import pytest

from phiball.backends import Array, array_namespace, rng
from phiball.refimpl import ENTROPIC, Ball, adversarial_risk, fgm, pgm, pointwise_loss, robust_risk
from tests.support.arrays import Arrays


def total(x: Array, i: Array) -> Array:
    return array_namespace(x).sum(x, axis=-1)


def test_adversarial_risk_is_the_limit_of_the_robust_risk_for_small_eta(arrays: Arrays) -> None:
    """With the same seed, both draw the same points."""
    z = arrays.asarray(np.arange(6.0).reshape(3, 2))
    for samples, chunk in ((5, 3), (5, 1000), (1500, 700)):
        out = adversarial_risk(total, z, Ball(2, 1.0), n_samples=samples, rng=rng(2), chunk=chunk)
        soft = robust_risk(total, z, Ball(2, 1.0), 1e-6, ENTROPIC, n_samples=samples, rng=rng(2))
        # The entropic risk is below the maximum by at most eta log n.
        assert arrays.numpy(out.values) == pytest.approx(arrays.numpy(soft.values), abs=1e-5)
        assert float(out.value) == pytest.approx(arrays.numpy(out.values).mean(), rel=4 * arrays.eps)
        assert arrays.numpy(total(out.points, None)).tolist() == arrays.numpy(out.values).tolist()
        assert arrays.numpy(out.attacked).tolist() == [-inf] * 3
        assert out.values.dtype == out.points.dtype == arrays.dtype


def test_larger_loss_of_sampling_and_attack_is_returned(doubles: Arrays) -> None:
    """The attack succeeds at one data point and fails at the other."""
    z = doubles.asarray([[0.0, 0.0], [1.0, 1.0]])
    attack_step = doubles.asarray([[0.5, 0.5], [-0.5, -0.5]])
    sizes: list[int] = []

    def loss(x: Array, i: Array) -> Array:
        sizes.append(x.shape[0])
        return total(x, i)

    out = adversarial_risk(
        loss,
        z,
        Ball(inf, 0.5),
        n_samples=20,
        rng=rng(0),
        attack=lambda loss, x, ball: x + attack_step,
        chunk=1,
    )
    assert max(sizes) == 1
    values, points = doubles.numpy(out.values), doubles.numpy(out.points)
    assert doubles.numpy(out.attacked).tolist() == [1.0, 1.0]
    assert values[0] == 1.0
    assert 2.0 < values[1] < 3.0
    assert points[0].tolist() == [0.5, 0.5]
    assert points[1].sum() == pytest.approx(values[1], rel=4 * doubles.eps)
    assert float(doubles.numpy(out.sampled)[1]) == values[1]


def test_fgm_and_pgm_find_the_maximum_for_a_linear_model_on_arrays_and_loaders() -> None:
    torch = pytest.importorskip("torch", reason="torch: not installed")
    w, x = torch.tensor([3.0, 4.0]), torch.randn((40, 2), generator=torch.Generator().manual_seed(0))
    y, ball = x @ w - 1, Ball("l2", 0.1)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=7)
    for attack in (fgm, pgm, partial(pgm, steps=5)):
        whole = adversarial_risk(pointwise_loss(lambda x: x @ w, y), x, ball, attack=attack, rng=0)
        assert torch.allclose(whole.values, torch.full((40,), 1.5**2), rtol=1e-4)
        parts = adversarial_risk(pointwise_loss(lambda x: x @ w), loader, ball, attack=attack, rng=0)
        assert torch.allclose(parts.values, whole.values, rtol=1e-4)

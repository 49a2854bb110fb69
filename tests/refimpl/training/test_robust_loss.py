"""`RobustLoss`: its objective, `explain`, checkpoints and seeds."""

import copy
import io
from math import inf
from typing import Any

import numpy as np
import pytest

from phiball.backends import as_rng, input_gradient, rng
from phiball.refimpl import ENTROPIC, SG, Ball, RegularizedLoss, RobustLoss, Tilted
from tests.support import training_models
from tests.support.training_models import cross_entropy

torch = pytest.importorskip("torch", reason="torch: not installed")


def data() -> tuple[Any, Any]:
    return training_models.data((5,), 12, torch.float32, seed=1)


def network() -> Any:
    return training_models.network((5,), torch.float32)


def test_robust_loss_is_a_regularized_loss_with_one_tilted_point() -> None:
    """The ball has the attack's radius for linf, and twice that radius for l1 and l2."""
    x, y = data()
    for norm, p in (("l2", 2.0), ("linf", inf), ("l1", 1.0), (2, 2.0), (inf, inf)):
        found = [network(), network()]
        robust = RobustLoss(0.3, norm, rng=4)
        value = robust(cross_entropy(found[0], y), x)
        value.backward()
        radius, kappa = (0.3, 10) if p == inf else (0.6, 1)
        objective = RegularizedLoss(Ball(p, radius), 1.0, ENTROPIC, SG(0), Tilted(kappa=kappa))
        same = objective(cross_entropy(found[1], y), x, rng=rng(4))
        same.backward()
        assert torch.equal(value, same)
        for a, b in zip(*(model.parameters() for model in found), strict=True):
            assert torch.equal(a.grad, b.grad)


def test_mask_feature_scale_and_clip_limit_the_perturbations() -> None:
    x, y = data()
    mask = torch.ones(12, 5)
    mask[::2, 3:] = 0
    moved = []

    def loss(z: Any, i: Any) -> Any:
        moved.append((z - x[i]).detach())
        return (z * (1 + y[i, None])).sum(-1)

    RobustLoss(0.3)(loss, x, mask=mask)
    assert torch.equal(moved[-1] != 0, mask > 0)
    RobustLoss(0.3, feature_scale=[0, 1, 2, 1, 0])(loss, x)
    assert torch.equal((moved[-1] != 0).any(0), torch.tensor([False, True, True, True, False]))
    RobustLoss(0.3, clip=(-9, 9))(loss, x)
    with pytest.raises(ValueError, match="box"):
        RobustLoss(0.3, clip=(0, 1))(loss, x)
    RobustLoss(0.0)(loss, x)
    assert not moved[-1].any()
    w = np.array([3.0, 4.0])
    slope = lambda z, i: np.broadcast_to(w, z.shape)  # noqa: E731
    assert RobustLoss(0.3)(lambda z, i: z @ w, np.zeros((2, 2)), gradient=slope) > 0


def test_explain_reports_settings_and_measured_gradients() -> None:
    x, y = data()
    robust = RobustLoss(0.3, "linf", feature_scale=[1, 1, 1, 1, 0], clip=(-9, 9))
    assert "measured at the first call" in robust.explain()
    model = network()
    robust(cross_entropy(model, y), x)
    g = input_gradient(cross_entropy(model, y), x, torch.arange(12))
    size = float(g[:, :4].abs().sum(-1).mean())
    for words in (
        "linf attacks of radius 0.3",
        "linf ball of radius 0.3. It is strongly tilted along the gradient of the loss",
        f"gradients of mean size {size:.3g}",
        "12 points of 5 coordinates, of which 4 move",  # the coordinate of scale 0 does not
        f"which give eta {0.3 * size / (10 * 4):.3g}.",
        "(-9.0, 9.0)",
    ):
        assert words in robust.explain()
    assert "is 2 times as wide as the attack" in RobustLoss(0.3).explain()
    assert "on the data themselves" in RobustLoss(0).explain()
    assert repr(robust) == "RobustLoss(radius=0.3, norm='linf'), called 1 times"


def test_state_dict_restores_the_random_numbers() -> None:
    x, y = data()
    loss = cross_entropy(network(), y)
    robust = RobustLoss(0.3, rng=5)
    assert robust.state_dict()["size"] == 0  # before the first call
    robust(loss, x)
    file = io.BytesIO()
    torch.save({"robust": robust.state_dict()}, file)
    after = [float(robust(loss, x).detach()) for _ in range(3)]
    file.seek(0)
    again = RobustLoss(0.3)
    again.load_state_dict(torch.load(file, weights_only=True)["robust"])
    assert again.explain().splitlines()[-1].startswith("- Measured at the last of 1 calls, on 12 points")
    assert [float(again(loss, x).detach()) for _ in range(3)] == after
    assert again.explain() == robust.explain()
    assert [float(RobustLoss(0.3, rng=6)(loss, x).detach()) for _ in range(3)] != after
    twin = copy.deepcopy(again)
    assert float(twin(loss, x).detach()) == float(again(loss, x).detach())
    with pytest.raises(ValueError, match=r"l2 attacks of radius 0\.3"):
        RobustLoss(0.4).load_state_dict(robust.state_dict())
    scaled = RobustLoss(0.3, clip=(0, 1), feature_scale=[1.0, 0.0])
    for name, other in (
        ("clip", RobustLoss(0.3, feature_scale=[1.0, 0.0])),
        ("feature_scale", RobustLoss(0.3, clip=(0, 1), feature_scale=[1.0, 0.5])),
    ):
        with pytest.raises(ValueError, match=f"state has {name} = "):
            other.load_state_dict(scaled.state_dict())
    RobustLoss(0.3, clip=(0, 1), feature_scale=[1.0, 0.0]).load_state_dict(scaled.state_dict())
    for bad in ({}, None, {**robust.state_dict(), "version": 9}):
        with pytest.raises(ValueError, match="state_dict"):
            robust.load_state_dict(bad)  # type: ignore[arg-type]


def test_rng_may_be_a_seed_or_a_generator() -> None:
    own = rng(3)
    assert as_rng(own) is own
    assert repr(as_rng(np.int64(3))) == "rng(3)"
    for make in (np.random.default_rng, torch.Generator().manual_seed):
        assert repr(as_rng(make(1))) == repr(as_rng(make(1))) != repr(as_rng(make(2)))


def test_invalid_rng_norm_and_radius_raise() -> None:
    for bad in (True, "0", 1.5):
        with pytest.raises(TypeError, match="rng is"):
            RobustLoss(0.3, rng=bad)
    with pytest.raises(ValueError, match="seed is -1"):
        RobustLoss(0.3, rng=-1)
    with pytest.raises(ValueError, match="norm is"):
        RobustLoss(0.3, "l3")
    with pytest.raises(ValueError, match="radius is"):
        RobustLoss(-0.3)

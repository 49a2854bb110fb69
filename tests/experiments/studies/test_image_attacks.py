"""Attacks find the known errors of linear classifiers."""

from math import inf
from typing import Any

import numpy as np
import pytest

from phiball.backends import rng
from phiball.experiments.studies.supervised.report import ATTACKS
from phiball.experiments.studies.supervised.study import errors_by_ratio
from phiball.experiments.training import image_attacks
from phiball.experiments.training.image_attacks import after_apgd
from phiball.refimpl import Ball

torch = pytest.importorskip("torch", reason="torch: not installed")
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("ball", [Ball(2, 0.8), Ball(inf, 0.3)], ids=str)
def test_apgd_finds_exactly_the_errors_of_a_linear_classifier(ball: Ball) -> None:
    """With weights w, an image x can be fooled if |x.w| divided by the dual norm of w is below the radius."""
    draws = np.random.default_rng(2)
    w = draws.normal(size=6)
    x = draws.normal(size=(60, 6))
    safe_radius = np.abs(x @ w) / np.linalg.norm(w, 1 if ball.norm == inf else 2)
    clear = np.abs(safe_radius - ball.radius) > 0.02 * ball.radius
    x, safe_radius = x[clear], safe_radius[clear]
    y = torch.tensor((x @ w < 0).astype(np.int64))
    model = linear_classifier(np.stack([w, -w, 0 * w]), [0.0, 0.0, -100.0])
    images = torch.tensor(x, dtype=torch.float32).reshape(-1, 1, 2, 3)
    robust = safe_radius > ball.radius
    ok = torch.ones(len(x), dtype=torch.bool)
    ok[int(np.argmax(robust))] = False  # already misclassified, so not attacked
    robust_after_attack = after_apgd(model, images, y, ok, ball, 20, rng(0))
    assert 5 < robust.sum() < len(robust) - 5
    assert np.array_equal(robust_after_attack.numpy(), robust & ok.numpy())


# --- Errors by ratio --------------------------------------------------------------------------------

RATIOS = (0.05, 0.1, 0.2, 0.3)
ALL = dict.fromkeys(ATTACKS, RATIOS)
# Number of images by the largest ratio that they withstand; negative for images misclassified without attack.
COUNT_BY_RATIO = {-0.02: 3, -0.2: 1, 0.045: 2, 0.055: 4, 0.09: 5, 0.11: 1, 0.18: 3, 0.22: 2, 0.27: 4, 0.33: 5}


def linear_classifier(weights: Any, bias: list[float]) -> Any:
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(weights.shape[1], len(bias)))
    model[1].weight.data = torch.tensor(weights, dtype=torch.float32)
    model[1].bias.data = torch.tensor(bias)
    return model


def test_pgm_finds_all_errors_of_a_linear_classifier(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_attacks, "CHUNK", 7)
    draws = np.random.default_rng(1)
    w = draws.normal(size=12)
    l1, l2 = np.abs(w).sum(), np.sqrt((w**2).sum())
    scale = {"l2": 3.0, "linf": 3.0 * l2 / l1}  # so that both norms have the same ratios
    safe_radius = draws.permutation(np.repeat(list(COUNT_BY_RATIO), list(COUNT_BY_RATIO.values())))
    y = draws.integers(0, 2, len(safe_radius))
    x = draws.normal(size=(len(safe_radius), 12))
    x += np.outer((2 * y - 1) * safe_radius * 3.0 * l2 - x @ w, w) / l2**2
    model = linear_classifier(np.stack([0 * w, w]), [0.0, 0.0])
    images = torch.tensor(x, dtype=torch.float32).reshape(-1, 1, 3, 4)
    found = errors_by_ratio(model, images, torch.tensor(y), scale, ALL, 15, rng(0))
    assert list(found) == ["clean", *(f"{attack} {ratio:g}" for attack in ATTACKS for ratio in RATIOS)]
    assert found["clean"] == pytest.approx(100 * 4 / 30)
    for norm in ("l2", "linf"):
        for ratio in RATIOS:
            fooled = sum(count for safe_radius, count in COUNT_BY_RATIO.items() if safe_radius < ratio)
            assert found[f"PGM {norm} {ratio:g}"] == pytest.approx(100 * fooled / 30), (norm, ratio)

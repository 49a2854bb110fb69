"""Errors under attack, of classifiers whose errors are known in closed form."""

from __future__ import annotations

from math import pi
from typing import Any

import numpy as np
import pytest

from phiball.backends import rng
from phiball.experiments.studies.supervised import attacks as supervised_attacks
from phiball.experiments.studies.supervised.attacks import ATTACKS, errors, mean_norms

torch = pytest.importorskip("torch", reason="torch: not installed")
pytestmark = pytest.mark.usefixtures("one_thread")

RATIOS = (0.05, 0.1, 0.2, 0.3)
ALL = dict.fromkeys(ATTACKS, RATIOS)


class ByScore(torch.nn.Module):  # type: ignore[misc]
    """Class 1 where a score of the image is positive, class 0 elsewhere."""

    def __init__(self, score: Any) -> None:
        super().__init__()
        self.score = score
        self.weight = torch.nn.Parameter(torch.ones(()))

    def forward(self, x: Any) -> Any:
        score = self.weight * self.score(x.flatten(1))
        return torch.stack([torch.zeros_like(score), score], dim=-1)


def along(first: Any) -> tuple[Any, Any]:
    """Images of three pixels, the first of them given, and the labels 1."""
    x = torch.zeros(len(first), 1, 1, 3)
    x[:, 0, 0, 0] = torch.as_tensor(first)
    return x, torch.ones(len(first), dtype=torch.int64)


def linear(counts: dict[float, int]) -> tuple[Any, Any, Any, dict[str, float]]:
    """A linear classifier, and images that it holds up to given ratios of a scale, in both norms."""
    draws = np.random.default_rng(1)
    w = draws.normal(size=12)
    l1, l2 = np.abs(w).sum(), np.sqrt((w**2).sum())
    scale = {"l2": 3.0, "linf": 3.0 * l2 / l1}  # the margin over the dual norm is the same ratio of both
    holds = np.repeat(list(counts), list(counts.values()))
    y = draws.integers(0, 2, len(holds))
    x = draws.normal(size=(len(holds), 12))
    x += np.outer((2 * y - 1) * holds * 3.0 * l2 - x @ w, w) / l2**2
    order = draws.permutation(len(holds))
    x, y = torch.tensor(x[order], dtype=torch.float32), torch.tensor(y[order])
    return ByScore(lambda flat: flat @ torch.tensor(w, dtype=torch.float32)), x.reshape(-1, 1, 3, 4), y, scale


# What each image holds up to lies a tenth below or above a ratio; the first are wrong from the beginning.
HOLDS = {-0.02: 3, -0.2: 1, 0.045: 2, 0.055: 4, 0.09: 5, 0.11: 1, 0.18: 3, 0.22: 2, 0.27: 4, 0.33: 5}


@pytest.mark.parametrize("chunk", [500, 7])
def test_pgm_finds_all_errors_of_a_linear_classifier(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervised_attacks, "CHUNK", chunk)
    model, x, y, scale = linear(HOLDS)
    found = errors(model, x, y, scale, ALL, 15, rng(0))
    assert list(found) == ["clean", *(f"{attack} {ratio:g}" for attack in ATTACKS for ratio in RATIOS)]
    assert found["clean"] == pytest.approx(100 * 4 / 30)
    for norm in ("l2", "linf"):
        for ratio in RATIOS:
            fooled = sum(count for holds, count in HOLDS.items() if holds < ratio)
            assert found[f"PGM {norm} {ratio:g}"] == pytest.approx(100 * fooled / 30), (norm, ratio)


@pytest.mark.parametrize("chunk", [20000, 3000])
def test_noise_has_the_errors_of_the_uniform_law(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first of three coordinates, uniform in a ball, is below -s r with P = (2 - 3s + s^3)/4."""
    monkeypatch.setattr(supervised_attacks, "CHUNK", chunk)
    x, y = along(np.full(12000, 0.3))
    scale = {"l2": 2.0, "linf": 0.5}
    ratios = {
        **ALL,
        "noise l2": (0.1, 0.2, 0.4),
        "noise linf": (0.5, 0.75, 2.0),
        "PGM l2": (),
        "PGM linf": (),
    }
    found = errors(ByScore(lambda flat: flat[:, 0]), x, y, scale, ratios, 15, rng(0))
    for ratio in ratios["noise l2"]:
        s = min(1.0, 0.3 / (2.0 * ratio))
        assert found[f"noise l2 {ratio:g}"] == pytest.approx(25 * (2 - 3 * s + s**3), abs=1.6)
    for ratio in ratios["noise linf"]:
        s = min(1.0, 0.3 / (0.5 * ratio))
        assert found[f"noise linf {ratio:g}"] == pytest.approx(50 * (1 - s), abs=1.6)
    assert found["noise l2 0.1"] == found["noise linf 0.5"] == found["clean"] == 0
    assert found["noise linf 2"] > 30


def test_who_is_fooled_at_one_ratio_is_fooled_at_all_larger_ones() -> None:
    """A score that waves: long steps jump over the trough that short ones find."""
    model = ByScore(lambda flat: torch.cos(2 * pi * flat[:, 0]))
    x, y = along(np.linspace(-0.1, 0.1, 60))
    scale = {"l2": 1.0, "linf": 1.0}

    def found(*ratios: float) -> list[float]:
        row = errors(model, x, y, scale, dict.fromkeys(ATTACKS, ratios), 15, rng(0))
        return [row[f"PGM linf {ratio:g}"] for ratio in ratios]

    both = found(0.2, 0.5, 9.0)
    assert both[0] < both[1]
    assert both[1] == both[2] == 100
    assert found(9.0)[0] < 90  # so the large one alone would have missed some


def test_an_image_that_is_wrong_itself_is_wrong_at_all_ratios() -> None:
    """Wrong at one point alone, to which no attack comes back."""
    model = ByScore(lambda flat: torch.where(flat[:, 0] == 0, -1.0, 1.0 + 0.01 * flat[:, 0]))
    x, y = along([0.0, 0.5, 0.0, 0.7, 0.9])
    found = errors(model, x, y, {"l2": 1.0, "linf": 1.0}, ALL, 15, rng(0))
    assert found["clean"] == 40
    for attack in ATTACKS:
        for ratio in RATIOS:
            assert found[f"{attack} {ratio:g}"] == (40 if attack.startswith("PGM") else 0)


def test_a_constant_classifier_has_one_error() -> None:
    x, y = along(np.linspace(-1, 1, 8))
    y[:3] = 0
    found = errors(ByScore(lambda flat: 1 + 0 * flat[:, 0]), x, y, mean_norms(x), ALL, 2, rng(0))
    assert set(found.values()) == {37.5}


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_none_and_all(share: float) -> None:
    x, y = along(np.full(5, 9.0))
    y[:] = round(1 - share)
    found = errors(ByScore(lambda flat: flat[:, 0]), x, y, {"l2": 1.0, "linf": 1.0}, ALL, 3, rng(0))
    assert set(found.values()) == {100 * share}


def test_radii_are_ratios_of_the_scale_of_their_norm() -> None:
    """Every attack comes as far as its radius, and no further."""
    seen: list[Any] = []

    def score(flat: Any) -> Any:
        seen.append(flat.detach())
        return 5.0 - 0.1 * flat.sum(-1)  # never fooled, and attacked along the diagonal

    x, y = along(np.zeros(400))
    far = {}
    for attack in ATTACKS:
        seen.clear()
        ratios = {**dict.fromkeys(ATTACKS, ()), attack: (0.1,)}
        errors(ByScore(score), x, y, {"l2": 50.0, "linf": 30.0}, ratios, 15, rng(0))
        last = seen[-1].numpy()
        far[attack] = np.sqrt((last**2).sum(-1)) if "l2" in attack else np.abs(last).max(-1)
    np.testing.assert_allclose(far["PGM l2"], 5, rtol=1e-5)  # of every image
    np.testing.assert_allclose(far["PGM linf"], 3, rtol=1e-5)
    assert 4.8 < far["noise l2"].max() <= 5 + 1e-5
    assert 2.9 < far["noise linf"].max() <= 3 + 1e-5


def test_pgm_takes_the_steps_that_it_is_given() -> None:
    calls: list[int] = []

    def score(flat: Any) -> Any:
        calls.append(len(flat))
        return 100.0 + flat[:, 0]

    x, y = along(np.zeros(9))
    ratios = {**dict.fromkeys(ATTACKS, ()), "PGM l2": (0.1, 0.2)}
    errors(ByScore(score), x, y, {"l2": 1.0, "linf": 1.0}, ratios, 6, rng(0))
    assert calls == [9] * (1 + 2 * (6 + 1))  # clean, and for each ratio six gradients and a look


def test_only_images_that_are_still_right_are_attacked() -> None:
    sizes: list[int] = []

    def score(flat: Any) -> Any:
        sizes.append(len(flat))
        return flat[:, 0]

    x, y = along([-1.0, 0.1, 0.2, 5.0, 5.0])
    ratios = {**dict.fromkeys(ATTACKS, ()), "PGM l2": (0.15, 0.3, 9.0, 10.0)}
    found = errors(ByScore(score), x, y, {"l2": 1.0, "linf": 1.0}, ratios, 2, rng(0))
    assert sizes == [5, 4, 4, 4, 3, 3, 3, 2, 2, 2]  # at the last nobody is left
    assert [found[f"PGM l2 {r:g}"] for r in ratios["PGM l2"]] == [40, 60, 100, 100]


def test_the_model_is_left_as_it_was() -> None:
    model, x, y, scale = linear(HOLDS)
    model.weight.grad = torch.full((), 7.0)
    before = x.clone(), y.clone()
    errors(model, x, y, scale, ALL, 3, rng(0))
    assert (model.weight.item(), model.weight.grad.item()) == (1.0, 7.0)
    assert torch.equal(x, before[0])
    assert torch.equal(y, before[1])


def test_the_seed_gives_the_numbers() -> None:
    x, y = along(np.linspace(0.05, 0.3, 200))
    model = ByScore(lambda flat: flat[:, 0])
    told: list[tuple[int, int]] = []

    def found(seed: int) -> dict[str, float]:
        return errors(
            model, x, y, {"l2": 2.0, "linf": 1.0}, ALL, 3, rng(seed), lambda *step: told.append(step)
        )

    assert found(1) == found(1)
    assert told == [(k, 16) for k in range(1, 17)] * 2
    assert found(1) != found(2)


def test_mean_norms() -> None:
    x = np.random.default_rng(0).normal(size=(7, 1, 3, 4))
    found = mean_norms(torch.tensor(x))
    assert found["l2"] == pytest.approx(np.mean([np.linalg.norm(one.ravel()) for one in x]))
    assert found["linf"] == pytest.approx(np.mean([np.abs(one).max() for one in x]))


def test_pgm_finds_its_way_where_the_network_is_sure() -> None:
    """Logits 15 (x_1, x_2) at (1, 0): fooled from a distance of 0.71, and at 0.9 near the diagonal alone.

    The loss is below exp(-15) where it starts; in float32 one minus that may be one, and a slope is lost.
    """
    x, y = torch.tensor([[[[1.0, 0.0]]]]).repeat(50, 1, 1, 1), torch.zeros(50, dtype=torch.int64)
    ratios = dict.fromkeys(ATTACKS, (0.7, 0.9))
    found = errors(lambda x: 15 * x.flatten(1), x, y, {"l2": 1.0, "linf": 1.0}, ratios, 1, rng(0))
    assert found["PGM l2 0.7"] == 0
    assert found["PGM l2 0.9"] == 100

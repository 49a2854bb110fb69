"""Errors under attack, of classifiers whose errors are known in closed form, and APGD image by image."""

from __future__ import annotations

from math import inf
from typing import Any

import numpy as np
import pytest

from phiball.backends import rng
from phiball.experiments.studies.supervised.report import ATTACKS
from phiball.experiments.studies.supervised.study import errors, mean_norms
from phiball.experiments.training import image_attacks
from phiball.experiments.training.image_attacks import after_apgd, apgd, checkpoints, image_losses
from phiball.refimpl import Ball, white_noise

torch = pytest.importorskip("torch", reason="torch: not installed")
pytestmark = pytest.mark.usefixtures("one_thread")
BALLS = (Ball(2, 0.8), Ball(inf, 0.3))
every_ball = pytest.mark.parametrize("ball", BALLS, ids=str)
every_loss = pytest.mark.parametrize("kind", ["ce", "dlr"])


def test_checkpoints_are_those_of_the_authors() -> None:
    assert checkpoints(100) == [22, 41, 57, 70, 80, 87, 93, 99]
    assert checkpoints(10) == [3, 5, 6, 7, 8, 9, 10]
    assert checkpoints(1) == [1]


def test_losses_of_logits() -> None:
    z = torch.tensor(
        [[3.0, 1.0, 0.0, -1.0], [0.5, 2.0, 1.0, -3.0], [0.0, 1.0, 4.0, 2.0]], dtype=torch.float64
    )
    y = torch.tensor([0, 2, 2])
    by_hand = [-(3 - 1) / (3 - 0), -(1 - 2) / (2 - 0.5), -(4 - 2) / (4 - 1)]
    assert image_losses(z, y, "dlr").tolist() == pytest.approx(by_hand)
    ce = [np.log(np.exp(row).sum()) - row[k] for row, k in zip(z.numpy(), y.tolist(), strict=True)]
    assert image_losses(z, y, "ce").tolist() == pytest.approx(ce)


def network() -> tuple[Any, Any, Any]:
    """A curved classifier of four classes, images of 2 x 3 pixels, and its own classes as labels."""
    draws = torch.Generator().manual_seed(4)
    nn = torch.nn
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        model = nn.Sequential(nn.Flatten(), nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 4)).double()
    for weights in model.parameters():
        weights.data *= 3
    x = torch.randn((24, 1, 2, 3), generator=draws, dtype=torch.float64)
    return model, x, model(x).argmax(-1).detach()


def alone(model: Any, x: Any, label: Any, start: Any, ball: Ball, steps: int, kind: str) -> tuple[Any, bool]:
    """The algorithm for one image, line by line as it is printed: its best point, and if one was fooled."""

    def value(at: Any) -> tuple[float, Any]:
        at = at.clone().requires_grad_()
        loss = image_losses(model(at[None]), label[None], kind)[0]
        loss.backward()
        return float(loss.detach()), at.grad

    def project(at: Any) -> Any:
        off = at - x
        if ball.norm == inf:
            return x + off.clamp(-ball.radius, ball.radius)
        return x + off * min(1.0, ball.radius / float(off.norm() or 1))

    def direction(g: Any) -> Any:
        return g.sign() if ball.norm == inf else g / g.norm()

    fooled = [bool(model(start[None]).argmax() != label)]
    points, (f, g) = [start], value(start)
    values, best, top, top_slope = [f], start, f, g
    eta, places = 2 * ball.radius, checkpoints(steps)
    used: list[float] = []  # the step of each iteration
    last, last_top, rose = 0, top, 0
    for k in range(steps):
        z = project(points[-1] + eta * direction(g))
        share = 1.0 if k == 0 else 0.75
        back = points[-2] if k else points[-1]
        moved = project(points[-1] + share * (z - points[-1]) + (1 - share) * (points[-1] - back))
        used.append(eta)
        points.append(moved)
        f, g = value(moved)
        rose += f > values[-1]
        values.append(f)
        fooled.append(bool(model(moved[None]).argmax() != label))
        if f > top:
            best, top, top_slope = moved, f, g
        if k + 1 in places:
            kept = last == 0 or used[last - 1] == used[-1]  # not reduced at the last checkpoint
            if rose < 0.75 * (k + 1 - last) or (kept and top == last_top):
                eta /= 2
                points[-1], values[-1], g = best, top, top_slope
            last, last_top, rose = k + 1, top, 0
    return best, any(fooled)


@every_loss
@every_ball
def test_apgd_is_the_printed_algorithm_for_each_image(ball: Ball, kind: str) -> None:
    model, x, y = network()
    found, fooled = apgd(model, x, y, ball, steps=25, source=rng(3), kind=kind)
    starts = white_noise(x, ball, rng(3))
    assert 0 < int(fooled.sum()) < len(x)
    for k in range(len(x)):
        best, was = alone(model, x[k], y[k], starts[k], ball, 25, kind)
        assert torch.allclose(found[k], best, atol=1e-9)
        assert bool(fooled[k]) == was


@every_ball
def test_apgd_finds_exactly_the_errors_of_a_linear_classifier(ball: Ball) -> None:
    """Of two classes along a line (a third is far below): an image holds up to margin / dual norm."""
    draws = np.random.default_rng(2)
    w = draws.normal(size=6)
    x = draws.normal(size=(60, 6))
    holds = np.abs(x @ w) / np.linalg.norm(w, 1 if ball.norm == inf else 2)
    clear = np.abs(holds - ball.radius) > 0.02 * ball.radius
    x, holds = x[clear], holds[clear]
    y = torch.tensor((x @ w < 0).astype(np.int64))
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(6, 3))
    model[1].weight.data = torch.tensor(np.stack([w, -w, 0 * w]), dtype=torch.float32)
    model[1].bias.data = torch.tensor([0.0, 0.0, -100.0])
    images = torch.tensor(x, dtype=torch.float32).reshape(-1, 1, 2, 3)
    want = holds > ball.radius
    ok = torch.ones(len(x), dtype=torch.bool)
    ok[int(np.argmax(want))] = False  # wrong before, and so not attacked
    still = after_apgd(model, images, y, ok, ball, 20, rng(0))
    assert 5 < want.sum() < len(want) - 5
    assert np.array_equal(still.numpy(), want & ok.numpy())


# --- Errors by ratio --------------------------------------------------------------------------------

RATIOS = (0.05, 0.1, 0.2, 0.3)
ALL = dict.fromkeys(ATTACKS, RATIOS)
# The ratio up to which images are classified correctly, with their number; negative: wrong without attack.
HOLDS = {-0.02: 3, -0.2: 1, 0.045: 2, 0.055: 4, 0.09: 5, 0.11: 1, 0.18: 3, 0.22: 2, 0.27: 4, 0.33: 5}


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


@pytest.mark.parametrize("chunk", [500, 7])
def test_pgm_finds_all_errors_of_a_linear_classifier(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_attacks, "CHUNK", chunk)
    draws = np.random.default_rng(1)
    w = draws.normal(size=12)
    l1, l2 = np.abs(w).sum(), np.sqrt((w**2).sum())
    scale = {"l2": 3.0, "linf": 3.0 * l2 / l1}  # the margin over the dual norm is the same ratio of both
    holds = draws.permutation(np.repeat(list(HOLDS), list(HOLDS.values())))
    y = draws.integers(0, 2, len(holds))
    x = draws.normal(size=(len(holds), 12))
    x += np.outer((2 * y - 1) * holds * 3.0 * l2 - x @ w, w) / l2**2
    model = ByScore(lambda flat: flat @ torch.tensor(w, dtype=torch.float32))
    images = torch.tensor(x, dtype=torch.float32).reshape(-1, 1, 3, 4)
    found = errors(model, images, torch.tensor(y), scale, ALL, 15, rng(0))
    assert list(found) == ["clean", *(f"{attack} {ratio:g}" for attack in ATTACKS for ratio in RATIOS)]
    assert found["clean"] == pytest.approx(100 * 4 / 30)
    for norm in ("l2", "linf"):
        for ratio in RATIOS:
            fooled = sum(count for holds, count in HOLDS.items() if holds < ratio)
            assert found[f"PGM {norm} {ratio:g}"] == pytest.approx(100 * fooled / 30), (norm, ratio)


def test_noise_has_the_errors_of_the_uniform_distribution() -> None:
    """The first of three coordinates, uniform in a ball, is below -s r with P = (2 - 3s + s^3)/4."""
    x, y = along(np.full(12000, 0.3))
    ratios = {"noise l2": (0.1, 0.2, 0.4), "noise linf": (0.5, 0.75, 2.0), "PGM l2": (), "PGM linf": ()}
    scale = {"l2": 2.0, "linf": 0.5}
    found = errors(ByScore(lambda flat: flat[:, 0]), x, y, scale, ratios, 15, rng(0))
    for ratio in ratios["noise l2"]:
        s = min(1.0, 0.3 / (2.0 * ratio))
        assert found[f"noise l2 {ratio:g}"] == pytest.approx(25 * (2 - 3 * s + s**3), abs=1.6)
    for ratio in ratios["noise linf"]:
        s = min(1.0, 0.3 / (0.5 * ratio))
        assert found[f"noise linf {ratio:g}"] == pytest.approx(50 * (1 - s), abs=1.6)
    assert found["noise linf 2"] > 30


def test_an_image_fooled_at_one_ratio_counts_at_all_larger_ones() -> None:
    """A score that waves: long steps jump over the trough that short ones find."""
    model = ByScore(lambda flat: torch.cos(2 * np.pi * flat[:, 0]))
    x, y = along(np.linspace(-0.1, 0.1, 60))

    def found(*ratios: float) -> list[float]:
        row = errors(model, x, y, {"l2": 1.0, "linf": 1.0}, dict.fromkeys(ATTACKS, ratios), 15, rng(0))
        return [row[f"PGM linf {ratio:g}"] for ratio in ratios]

    both = found(0.2, 0.5, 9.0)
    assert both[0] < both[1] == both[2] == 100
    assert found(9.0)[0] < 90  # so the large one alone would have missed some


def test_attack_gradients_do_not_vanish_where_the_network_is_certain() -> None:
    """Logits 15 (x_1, x_2) at (1, 0): fooled from a distance of 0.71, and at 0.9 near the diagonal alone."""
    x, y = torch.tensor([[[[1.0, 0.0]]]]).repeat(50, 1, 1, 1), torch.zeros(50, dtype=torch.int64)
    ratios = dict.fromkeys(ATTACKS, (0.7, 0.9))
    found = errors(lambda x: 15 * x.flatten(1), x, y, {"l2": 1.0, "linf": 1.0}, ratios, 1, rng(0))
    assert (found["PGM l2 0.7"], found["PGM l2 0.9"]) == (0, 100)


def test_mean_norms() -> None:
    x = np.random.default_rng(0).normal(size=(7, 1, 3, 4))
    found = mean_norms(torch.tensor(x))
    assert found["l2"] == pytest.approx(np.mean([np.linalg.norm(one.ravel()) for one in x]))
    assert found["linf"] == pytest.approx(np.mean([np.abs(one).max() for one in x]))

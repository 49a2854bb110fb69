"""APGD, by the authors' own numbers, classifiers with known errors, and an account of one image at a time."""

from __future__ import annotations

from math import inf
from typing import Any

import numpy as np
import pytest

from phiball.backends import rng
from phiball.experiments.studies.supervised.apgd import after_apgd, apgd, checkpoints, image_losses
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
def test_it_is_the_printed_algorithm_for_each_image(ball: Ball, kind: str) -> None:
    model, x, y = network()
    found, fooled = apgd(model, x, y, ball, steps=25, source=rng(3), kind=kind)
    starts = white_noise(x, ball, rng(3))
    assert 0 < int(fooled.sum()) < len(x)
    for k in range(len(x)):
        best, was = alone(model, x[k], y[k], starts[k], ball, 25, kind)
        assert torch.allclose(found[k], best, atol=1e-9)
        assert bool(fooled[k]) == was


@every_ball
def test_every_error_of_a_linear_classifier_is_found_and_no_other(ball: Ball) -> None:
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
    still = after_apgd(model, images, y, ok, ball, 20, rng(0), None)
    assert 5 < want.sum() < len(want) - 5
    assert np.array_equal(still.numpy(), want & ok.numpy())


@every_ball
def test_points_lie_in_the_ball(ball: Ball) -> None:
    model, x, y = network()
    found, _ = apgd(model, x, y, ball, steps=7, source=rng(0))
    assert bool(ball.contains(found, x, event_ndim=3).all())
    with pytest.raises(ValueError, match="kind is 'margin'; expected one of ce, dlr"):
        apgd(model, x, y, ball, steps=7, source=rng(0), kind="margin")


def test_images_that_are_left_meet_the_second_loss() -> None:
    model, x, y = network()
    ball, source = Ball(2, 0.25), rng(1)
    ok = torch.ones(len(x), dtype=torch.bool)
    _, first = apgd(model, x, y, ball, steps=9, source=source, kind="ce")
    _, second = apgd(model, x[~first], y[~first], ball, steps=9, source=source, kind="dlr")
    assert first.any()
    assert second.any()
    want = ~first
    want[~first] = ~second
    assert torch.equal(after_apgd(model, x, y, ok, ball, 9, rng(1), None), want)

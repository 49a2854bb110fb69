"""APGD (Croce and Hein, "Reliable evaluation of adversarial robustness"): an attack that sets its own step.

Steps have momentum and begin with twice the radius. At a few checkpoints the step of an image is halved, and
its path goes on from the best point so far, if the loss has grown too seldom since the checkpoint before, or
if neither the step nor the best loss has changed since then. As in PGM here, nothing is clipped to the range
of the pixels; torchattacks clips.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from math import ceil
from typing import Any

from phiball.backends import Array, Rng
from phiball.refimpl import Ball, white_noise

MOMENTUM = 0.75  # the share of the new step
SELDOM = 0.75  # of the steps between two checkpoints, that must raise the loss
LOSSES = ("ce", "dlr")


def checkpoints(steps: int) -> list[int]:
    """Return after which steps the step size is judged, those of the authors."""
    shares = [0.0, 0.22]
    while shares[-1] < 1:
        shares.append(shares[-1] + max(shares[-1] - shares[-2] - 0.03, 0.06))
    # Without the rounding of sums, which would move a checkpoint that is a whole number.
    return sorted({ceil(round(share * steps, 9)) for share in shares[1:] if round(share, 9) < 1})


def image_losses(logits: Array, y: Array, kind: str) -> Array:
    """Return the loss of each image: "ce" is the cross-entropy, "dlr" the difference of logits ratio.

    dlr is -(z_y - max of the others) / (z_1 - z_3), with z_1 >= z_2 >= z_3 the largest logits.
    """
    torch = import_module("torch")
    if kind == "ce":
        return torch.nn.functional.cross_entropy(logits, y, reduction="none")
    ordered, places = logits.sort(dim=-1, descending=True)
    own = logits.gather(-1, y[:, None])[:, 0]
    other = torch.where(places[:, 0] == y, ordered[:, 1], ordered[:, 0])
    return (other - own) / (ordered[:, 0] - ordered[:, 2] + 1e-12)


def apgd(
    model: Any, x: Array, y: Array, ball: Ball, *, steps: int, source: Rng, kind: str = "ce"
) -> tuple[Array, Array]:
    """Return the points of the largest loss found for images x, and which images were fooled on the way.

    It starts from a uniform point of the ball and takes steps + 1 gradients.
    """
    if kind not in LOSSES:
        raise ValueError(f"kind is {kind!r}; expected one of {', '.join(LOSSES)}")
    torch = import_module("torch")
    event = x.ndim - 1
    unit = Ball(ball.norm, 1.0)

    def wide(values: Array) -> Array:
        return values.reshape(-1, *[1] * event)

    def at(points: Array) -> tuple[Array, Array, Array]:
        points = points.detach().requires_grad_()
        logits = model(points).double()  # in float32 a slope vanishes where the network is sure
        values = image_losses(logits, y, kind)
        (slope,) = torch.autograd.grad(values.sum(), points)
        return values.detach(), slope, logits.detach().argmax(-1) != y

    def ahead(points: Array, slope: Array, step: Array) -> Array:
        return ball.project(points + wide(step) * unit.steepest(slope, event_ndim=event), x, event_ndim=event)

    now = white_noise(x, ball, source)
    value, slope, fooled = at(now)
    best, top, best_slope = now, value, slope
    before = now
    step = torch.full_like(x[(slice(None), *[0] * event)], 2 * ball.radius)
    judge = _Judge(checkpoints(steps), top)
    for done in range(1, steps + 1):
        aim = ahead(now, slope, step)
        share = 1.0 if done == 1 else MOMENTUM
        moved = now + share * (aim - now) + (1 - share) * (now - before)
        before, now = now, ball.project(moved, x, event_ndim=event)
        fresh, slope, wrong = at(now)
        fooled = fooled | wrong
        judge.rose += fresh > value
        value, better = fresh, fresh > top
        best, top = torch.where(wide(better), now, best), torch.where(better, fresh, top)
        best_slope = torch.where(wide(better), slope, best_slope)
        halve = judge.stuck(done, top)
        if halve is not None:
            step = torch.where(halve, step / 2, step)
            now, slope = torch.where(wide(halve), best, now), torch.where(wide(halve), best_slope, slope)
            value = torch.where(halve, top, value)
    return best, fooled


class _Judge:
    """Which images are to halve their step, asked after each step."""

    def __init__(self, places: list[int], top: Array) -> None:
        self.places, self.last = places, 0
        self.top = top  # the best losses at the last checkpoint
        self.rose = import_module("torch").zeros_like(top)
        self.halved = self.rose > 0

    def stuck(self, done: int, top: Array) -> Array | None:
        if done not in self.places:
            return None
        seldom = self.rose < SELDOM * (done - self.last)
        same = ~self.halved & (top == self.top)
        halve = seldom | same
        self.last, self.top, self.halved = done, top, halve
        self.rose = import_module("torch").zeros_like(top)
        return halve


def after_apgd(
    model: Any, x: Array, y: Array, ok: Array, ball: Ball, steps: int, source: Rng, right: Callable[..., Any]
) -> Array:
    """Which images of `ok` no point of APGD has fooled: by cross-entropy, then dlr against those left."""
    still = ok.clone()
    for kind in LOSSES:
        if still.any():
            _, fooled = apgd(model, x[still], y[still], ball, steps=steps, source=source, kind=kind)
            still[still.clone()] = ~fooled
    return still

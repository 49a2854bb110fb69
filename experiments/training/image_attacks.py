"""Errors of a trained network under attacks on images: white noise, PGM and APGD.

Attacked images are not clipped to the range of the pixels.

APGD (Croce and Hein, "Reliable evaluation of adversarial robustness") adapts its step size. Steps have
momentum, and the first size is twice the radius. At each checkpoint the step size of an image is halved, and
the attack restarts from its best point, if too few steps have increased the loss since the last checkpoint,
or if neither the step size nor the best loss has changed.
"""

from __future__ import annotations

from importlib import import_module
from math import ceil
from typing import Any

from phiball.backends import Array, Rng
from phiball.experiments.training.loop import cross_entropy_loss
from phiball.refimpl import Ball, pgm, white_noise

ATTACK_NORMS = ("l2", "linf")
CHUNK = 500  # images attacked at a time
MOMENTUM = 0.75  # the weight of the new step in APGD
RISES = 0.75  # the fraction of steps between checkpoints that must increase the loss
LOSSES = ("ce", "dlr")


def chunks(x: Array, y: Array) -> list[tuple[Array, Array]]:
    """Split images and labels into chunks."""
    return list(zip(x.split(CHUNK), y.split(CHUNK), strict=True))


def is_correct(model: Any, x: Array, y: Array) -> Array:
    """Return the mask of images that are classified correctly."""
    with import_module("torch").no_grad():
        return model(x).argmax(-1) == y


def error_percentage(correct: list[Array]) -> float:
    """Return the percentage of misclassified images, from masks of the correct ones."""
    count = sum(len(part) for part in correct)
    return 100.0 * (count - sum(int(part.sum()) for part in correct)) / count


def after_pgm(model: Any, x: Array, y: Array, ok: Array, ball: Ball, steps: int, rng: Rng) -> Array:
    """Return the images of the mask `ok` that PGM from a random point does not fool."""
    still = ok.clone()
    if ok.any():
        # In float32, gradients vanish for confident predictions.
        loss = cross_entropy_loss(lambda x: model(x).double(), y[ok])
        attacked = pgm(loss, x[ok], ball, steps=steps, rng=rng, keep_best=False)
        still[ok] = is_correct(model, attacked, y[ok])
    return still


def after_apgd(model: Any, x: Array, y: Array, ok: Array, ball: Ball, steps: int, rng: Rng) -> Array:
    """Return the images of the mask `ok` that APGD fools neither by cross-entropy nor by dlr."""
    still = ok.clone()
    for kind in LOSSES:
        if still.any():
            _, fooled = apgd(model, x[still], y[still], ball, steps=steps, rng=rng, kind=kind)
            still[still.clone()] = ~fooled
    return still


# --- APGD -------------------------------------------------------------------------------------------


def checkpoints(steps: int) -> list[int]:
    """Return the steps after which the step size is updated, as in the article."""
    shares = [0.0, 0.22]
    while shares[-1] < 1:
        shares.append(shares[-1] + max(shares[-1] - shares[-2] - 0.03, 0.06))
    # Rounded, since a rounding error of the sum could move a checkpoint to the next integer.
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
    model: Any, x: Array, y: Array, ball: Ball, *, steps: int, rng: Rng, kind: str = "ce"
) -> tuple[Array, Array]:
    """Return the points with the largest loss found, and the mask of images that were fooled.

    Starts from a uniform point of the ball and computes steps + 1 gradients.
    """
    torch = import_module("torch")
    event = x.ndim - 1
    unit = Ball(ball.norm, 1.0)

    def wide(values: Array) -> Array:
        return values.reshape(-1, *[1] * event)

    def at(points: Array) -> tuple[Array, Array, Array]:
        points = points.detach().requires_grad_()
        logits = model(points).double()  # in float32, gradients vanish for confident predictions
        values = image_losses(logits, y, kind)
        (slope,) = torch.autograd.grad(values.sum(), points)
        return values.detach(), slope, logits.detach().argmax(-1) != y

    now = white_noise(x, ball, rng=rng)
    value, slope, fooled = at(now)
    best, top, best_slope = now, value, slope
    before = now
    step = torch.full_like(x[(slice(None), *[0] * event)], 2 * ball.radius)
    last, last_top = 0, top  # step and best loss of the last checkpoint
    rises = torch.zeros_like(top)  # steps since then that increased the loss
    halved = rises > 0
    for done in range(1, steps + 1):
        aim = ball.project(now + wide(step) * unit.steepest(slope, event_ndim=event), x, event_ndim=event)
        share = 1.0 if done == 1 else MOMENTUM
        moved = now + share * (aim - now) + (1 - share) * (now - before)
        before, now = now, ball.project(moved, x, event_ndim=event)
        fresh, slope, wrong = at(now)
        fooled = fooled | wrong
        rises = rises + (fresh > value)
        value, better = fresh, fresh > top
        best, top = torch.where(wide(better), now, best), torch.where(better, fresh, top)
        best_slope = torch.where(wide(better), slope, best_slope)
        if done in checkpoints(steps):
            halved = (rises < RISES * (done - last)) | (~halved & (top == last_top))
            last, last_top, rises = done, top, torch.zeros_like(top)
            step = torch.where(halved, step / 2, step)
            now, slope = torch.where(wide(halved), best, now), torch.where(wide(halved), best_slope, slope)
            value = torch.where(halved, top, value)
    return best, fooled

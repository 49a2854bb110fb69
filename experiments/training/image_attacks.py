"""Errors of a trained network under attacks on images: white noise, PGM and APGD.

Attacked images are not clipped to the range of the pixels.

APGD (Croce and Hein, "Reliable evaluation of adversarial robustness") takes steps with momentum, and adapts
the step size of each image, which is twice the radius at first. At each checkpoint it is halved, and the
attack restarts from its best point, if too few steps have increased the loss since the last checkpoint, or if
neither the step size nor the best loss has changed since then.
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
MIN_RISES = 0.75  # the fraction of steps between checkpoints that must increase the loss
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


def after_pgm(model: Any, x: Array, y: Array, correct: Array, ball: Ball, steps: int, rng: Rng) -> Array:
    """Return the mask of the `correct` images that PGM from a random point does not fool."""
    withstood = correct.clone()
    if correct.any():
        # In float32, gradients vanish for confident predictions.
        loss = cross_entropy_loss(lambda x: model(x).double(), y[correct])
        attacked = pgm(loss, x[correct], ball, steps=steps, rng=rng, keep_best=False)
        withstood[correct] = is_correct(model, attacked, y[correct])
    return withstood


def after_apgd(model: Any, x: Array, y: Array, correct: Array, ball: Ball, steps: int, rng: Rng) -> Array:
    """Return the mask of the `correct` images that APGD fools with none of its LOSSES."""
    withstood = correct.clone()
    for kind in LOSSES:
        if withstood.any():
            _, fooled = apgd(model, x[withstood], y[withstood], ball, steps=steps, rng=rng, kind=kind)
            withstood[withstood.clone()] = ~fooled
    return withstood


# --- APGD -------------------------------------------------------------------------------------------


def checkpoints(steps: int) -> list[int]:
    """Return the steps after which step sizes are updated, as in the article."""
    fractions = [0.0, 0.22]
    while fractions[-1] < 1:
        fractions.append(fractions[-1] + max(fractions[-1] - fractions[-2] - 0.03, 0.06))
    # Without `round`, a rounding error could move a checkpoint to the next integer.
    return sorted({ceil(round(f * steps, 9)) for f in fractions[1:] if round(f, 9) < 1})


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

    The attack starts from a uniform point of the ball and computes steps + 1 gradients.
    """
    torch = import_module("torch")
    event = x.ndim - 1
    unit = Ball(ball.norm, 1.0)

    def per_image(values: Array) -> Array:  # to be broadcast with x
        return values.reshape(-1, *[1] * event)

    def evaluate(points: Array) -> tuple[Array, Array, Array]:  # losses, gradients, misclassified
        points = points.detach().requires_grad_()
        logits = model(points).double()  # in float32, gradients vanish for confident predictions
        values = image_losses(logits, y, kind)
        (gradient,) = torch.autograd.grad(values.sum(), points)
        return values.detach(), gradient, logits.detach().argmax(-1) != y

    now = white_noise(x, ball, rng=rng)
    value, gradient, fooled = evaluate(now)
    best, best_value, best_gradient = now, value, gradient
    before = now
    size = torch.full_like(x[(slice(None), *[0] * event)], 2 * ball.radius)
    last, last_best = 0, best_value  # number of steps and best loss at the last checkpoint
    rises = torch.zeros_like(value)  # steps since the last checkpoint that increased the loss
    halved = rises > 0
    for done in range(1, steps + 1):
        stepped = now + per_image(size) * unit.steepest(gradient, event_ndim=event)
        target = ball.project(stepped, x, event_ndim=event)
        weight = 1.0 if done == 1 else MOMENTUM
        moved = now + weight * (target - now) + (1 - weight) * (now - before)
        before, now = now, ball.project(moved, x, event_ndim=event)
        new_value, gradient, wrong = evaluate(now)
        fooled = fooled | wrong
        rises = rises + (new_value > value)
        value, better = new_value, new_value > best_value
        best, best_value = torch.where(per_image(better), now, best), torch.where(better, value, best_value)
        best_gradient = torch.where(per_image(better), gradient, best_gradient)
        if done in checkpoints(steps):
            halved = (rises < MIN_RISES * (done - last)) | (~halved & (best_value == last_best))
            last, last_best, rises = done, best_value, torch.zeros_like(value)
            size = torch.where(halved, size / 2, size)
            now = torch.where(per_image(halved), best, now)
            gradient = torch.where(per_image(halved), best_gradient, gradient)
            value = torch.where(halved, best_value, value)
    return best, fooled

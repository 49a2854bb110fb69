"""Errors of a trained network under attacks on images: white noise, PGM and APGD.

Attacked images are not clipped to the range of the pixels.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from phiball.backends import Array, Rng
from phiball.experiments.training.loop import cross_entropy_loss
from phiball.refimpl import Ball, apgd, pgm, pointwise_loss

ATTACK_NORMS = ("l2", "linf")
CHUNK = 500  # images attacked at a time


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
    """Return the mask of the `correct` images that APGD does not fool, with cross-entropy and margin."""
    withstood = correct.clone()
    if correct.any():
        attacked = apgd(pointwise_loss(model, y[correct]), x[correct], ball, steps=steps, rng=rng)
        withstood[correct] = is_correct(model, attacked, y[correct])
    return withstood

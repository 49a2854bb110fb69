"""Errors of a trained network under perturbations of its test images: Section 6.1.

A perturbation of ratio r has the radius r C, with C the mean norm of the training images. Nothing is clipped
to the range of the pixels.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from math import inf
from typing import Any

from phiball.backends import Array, Rng, input_gradient
from phiball.experiments.training.loop import losses
from phiball.refimpl import Ball, pgm, white_noise

NORMS = {"l2": 2.0, "linf": inf}
ATTACKS = ("noise l2", "noise linf", "PGM l2", "PGM linf")
CHUNK = 500  # images that are attacked at a time


def mean_norms(x: Array) -> dict[str, float]:
    """The mean l2 and linf norm of the images x (n, ...)."""
    flat = x.reshape(len(x), -1)
    return {"l2": float(flat.square().sum(-1).sqrt().mean()), "linf": float(flat.abs().amax(-1).mean())}


def errors(
    model: Any,
    x: Array,
    y: Array,
    scale: dict[str, float],
    ratios: dict[str, tuple[float, ...]],
    steps: int,
    source: Rng,
    on_attack: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, float]:
    """The error in % on clean images ("clean") and for each attack and ratio ("PGM l2 0.1").

    White noise is one uniform point of the ball around each image. PGM takes `steps` steps that grow with
    the radius, from a random point. A point that fools the network at one ratio lies in the larger balls
    too, and so does the image itself: PGM goes on with the images that are still classified rightly.
    """
    torch = import_module("torch")
    parts = list(zip(x.split(CHUNK), y.split(CHUNK), strict=True))
    total = sum(len(ratios[attack]) for attack in ATTACKS)
    done = 0

    def right(x: Array, y: Array) -> Array:
        with torch.no_grad():
            return model(x).argmax(-1) == y

    plain = [right(*part) for part in parts]
    percentages = {"clean": percent(plain)}
    for attack, attack_rng in zip(ATTACKS, source.spawn(len(ATTACKS)), strict=True):
        kind, norm = attack.split()
        still = plain
        for ratio in ratios[attack]:
            ball = Ball(NORMS[norm], ratio * scale[norm])
            if kind == "noise":
                still = [right(white_noise(x, ball, attack_rng), y) for x, y in parts]
            else:
                still = [
                    after_pgm(model, x, y, ok, ball, steps, attack_rng, right)
                    for (x, y), ok in zip(parts, still, strict=True)
                ]
            percentages[f"{attack} {ratio:g}"] = percent(still)
            done += 1
            on_attack(done, total)
    return percentages


def after_pgm(
    model: Any, x: Array, y: Array, ok: Array, ball: Ball, steps: int, source: Rng, right: Any
) -> Array:
    """Which images of `ok` are still classified rightly after PGM."""
    still = ok.clone()
    if ok.any():
        # In float32 a slope vanishes where the network is sure, and the attack would lose its way.
        loss = losses(lambda x: model(x).double(), y[ok])
        attacked = pgm(partial(input_gradient, loss), x[ok], ball, steps=steps, rng=source)
        still[ok] = right(attacked, y[ok])
    return still


def percent(right: list[Array]) -> float:
    """Return the share in % of the images that are not classified rightly, of masks over all of them."""
    count = sum(len(part) for part in right)
    return 100.0 * (count - sum(int(part.sum()) for part in right)) / count

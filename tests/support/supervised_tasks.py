"""A study of supervised learning that takes a second, and images for it."""

from __future__ import annotations

from typing import Any

import numpy as np

from phiball.experiments.datasets.images import Images
from phiball.experiments.studies.supervised.study import Config

TINY = Config(
    data=("digits",),
    methods=("ERM", "FGM", "SG"),
    chosen=("random-start FGM", "tilted"),
    norms=("linf",),
    seeds=3,
    others=2,
    train=60,
    held_out=20,
    judged=15,
    attacked=30,
    width=1,
    epochs=2,
    batch=16,
    rate=0.02,
    steps=2,
    noise_ratios=(0.5,),
    pgm_ratios=(0.1, 0.2),
)
ATTACKED = ("noise l2 0.5", "noise linf 0.5", "PGM l2 0.1", "PGM l2 0.2", "PGM linf 0.1", "PGM linf 0.2")


def digits(seed: int = 0, test: int = 1) -> Images:
    """Bright blocks in one of ten places, and noise: 100 images to train with and 50 to test."""
    parts = []
    for count, draws in ((100, np.random.default_rng(seed)), (50, np.random.default_rng(test))):
        y = draws.integers(0, 10, count)
        x = draws.integers(0, 9, (count, 8, 8))
        for image, label in zip(x, y, strict=True):
            image[label % 5 + 1, 2 + 3 * (label // 5)] += 8
        parts += [x.astype(np.uint8), y.astype(np.uint8)]
    return Images("digits", *parts, top=16)


def task(stage: str = "report", setting: str = "ERM", seed: int = 5) -> dict[str, Any]:
    return {
        "stage": stage,
        "data": "digits",
        "method": setting,
        "setting": setting,
        "trial": 0,
        "seed": seed,
    }

"""Synthetic images for the image studies, small enough to train on in a second."""

from typing import Any

import numpy as np
import pytest

from phiball.experiments.datasets.images import Images
from phiball.experiments.training import image_study

torch = pytest.importorskip("torch", reason="torch: not installed")


def digits(seed: int = 0, test: int = 1) -> Images:
    """Noisy images with a bright pixel in one of ten places: 100 for training, 50 for testing."""
    parts = []
    for count, draws in ((100, np.random.default_rng(seed)), (50, np.random.default_rng(test))):
        y = draws.integers(0, 10, count)
        x = draws.integers(0, 9, (count, 8, 8))
        for image, label in zip(x, y, strict=True):
            image[label % 5 + 1, 2 + 3 * (label // 5)] += 8
        parts += [x.astype(np.uint8), y.astype(np.uint8)]
    return Images("digits", *parts, top=16)


class LinearLoss:
    """The loss g.x of six images, which records the points where it is evaluated."""

    def __init__(self) -> None:
        draws = torch.Generator().manual_seed(0)
        self.x = torch.rand((6, 1, 4, 4), generator=draws)
        self.g = torch.randn((6, 1, 4, 4), generator=draws)
        self.at: list[Any] = []

    def __call__(self, x: Any, i: Any) -> Any:
        self.at.append(x.detach().clone())
        return (x * self.g[i]).flatten(1).sum(-1)


def use_images(patch: pytest.MonkeyPatch, images: Images) -> None:
    """Make the studies load these images for every data set."""
    patch.setattr(image_study, "load", lambda name, folder: images)

"""The network of Section 6.1, for images of 28 x 28 pixels."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from phiball.refimpl.validation import valid_count


def cnn(width: int = 64, *, seed: int = 0) -> Any:
    """Classify images (N, 1, 28, 28) into ten classes: the convolutional network of Section 6.1.

    Filters of 8 x 8 (stride 2, padding 3), 6 x 6 (stride 2) and 5 x 5, an ELU after each, and a linear layer.
    The paper gives the sizes of the filters alone; their numbers (64, 128, 128 at the default `width`) and
    strides are those of Sinha, Namkoong and Duchi, whose setup it follows. A `width` of 16 trains about ten
    times as fast. `seed` gives the initial weights, and no other generator moves.

    >>> import torch
    >>> from phiball.experiments.networks import cnn
    >>> tuple(cnn(16)(torch.zeros(2, 1, 28, 28)).shape)
    (2, 10)
    """
    width = valid_count("width", width)
    torch = import_module("torch")
    nn = torch.nn
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(valid_count("seed", seed, 0))
        return nn.Sequential(
            nn.Conv2d(1, width, 8, stride=2, padding=3), nn.ELU(),
            nn.Conv2d(width, 2 * width, 6, stride=2), nn.ELU(),
            nn.Conv2d(2 * width, 2 * width, 5), nn.ELU(),
            nn.Flatten(), nn.Linear(2 * width, 10),
        )  # fmt: skip

"""The networks of Section 6.1: convolutional for images of 28 x 28 pixels, dense for smaller ones."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from phiball.refimpl.validation import valid_count

CNN_SIZE = 28  # pixels per row and column


@contextmanager
def torch_seed(seed: int) -> Iterator[Any]:
    """Seed torch's global generator in the block, and restore it afterwards; yields `torch`."""
    torch = import_module("torch")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(valid_count("seed", seed, 0))
        yield torch


def cnn(width: int = 64, *, seed: int = 0) -> Any:
    """Return the convolutional network of Section 6.1: images (N, 1, 28, 28) to ten classes.

    Filters of 8 x 8 (stride 2, padding 3), 6 x 6 (stride 2) and 5 x 5, an ELU after each, and a linear layer.
    The paper gives only the sizes of the filters. Their numbers (64, 128, 128 at the default `width`) and
    strides are from Sinha, Namkoong and Duchi, whose set-up the paper follows. A `width` of 16 trains about
    ten times faster. `seed` sets the initial weights; torch's global generator is not changed.

    >>> import torch
    >>> from phiball.experiments.training.image_networks import cnn
    >>> tuple(cnn(16)(torch.zeros(2, 1, 28, 28)).shape)
    (2, 10)
    """
    width = valid_count("width", width)
    with torch_seed(seed) as torch:
        nn = torch.nn
        return nn.Sequential(
            nn.Conv2d(1, width, 8, stride=2, padding=3), nn.ELU(),
            nn.Conv2d(width, 2 * width, 6, stride=2), nn.ELU(),
            nn.Conv2d(2 * width, 2 * width, 5), nn.ELU(),
            nn.Flatten(), nn.Linear(2 * width, 10),
        )  # fmt: skip


def dense(shape: tuple[int, int], width: int = 16, *, seed: int = 0) -> Any:
    """Return a network with one hidden layer of 8 * width ELU units: images (N, 1, *shape) to ten classes."""
    width = valid_count("width", width)
    with torch_seed(seed) as torch:
        nn = torch.nn
        return nn.Sequential(
            nn.Flatten(), nn.Linear(shape[0] * shape[1], 8 * width), nn.ELU(), nn.Linear(8 * width, 10)
        )


def network(shape: tuple[int, int], width: int = 64, *, seed: int = 0) -> Any:
    """Return the network for images (N, 1, *shape): `cnn` for 28 x 28, `dense` for smaller images."""
    return cnn(width, seed=seed) if min(shape) == CNN_SIZE else dense(shape, width, seed=seed)

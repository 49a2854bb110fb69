"""The networks of Section 6.1: convolutional for images of 28 x 28 pixels, dense for smaller ones."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from phiball.refimpl.validation import valid_count

SIDE = 28


def cnn(width: int = 64, *, seed: int = 0) -> Any:
    """Classify images (N, 1, 28, 28) into ten classes: the convolutional network of Section 6.1.

    Filters of 8 x 8 (stride 2, padding 3), 6 x 6 (stride 2) and 5 x 5, an ELU after each, and a linear layer.
    The paper gives the sizes of the filters alone; their numbers (64, 128, 128 at the default `width`) and
    strides are those of Sinha, Namkoong and Duchi, whose setup it follows. A `width` of 16 trains about ten
    times as fast. `seed` gives the initial weights, and no other generator moves.

    >>> import torch
    >>> from phiball.experiments.training.networks import cnn
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


def fast_cnn(width: int = 64, *, seed: int = 0) -> Any:
    """The network of `cnn` in a form that trains faster: the same weights, and the same values to rounding.

    The parameters have the names, shapes and order of those of `cnn`, so a state_dict fits both. Images are
    (N, 1, 28, 28) in any layout; derivatives of any order exist, as they do there.

    >>> import torch
    >>> from phiball.experiments.training.networks import cnn, fast_cnn
    >>> x = torch.rand(2, 1, 28, 28)
    >>> torch.allclose(fast_cnn(16)(x), cnn(16)(x), atol=1e-6)
    True
    """
    width = valid_count("width", width)
    torch = import_module("torch")
    nn = torch.nn
    layers = import_module("phiball.experiments.training.fast_layers")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(valid_count("seed", seed, 0))
        return nn.Sequential(  # in place: no layer needs what goes into its ELU again
            layers.Strided(width), nn.ELU(inplace=True),
            nn.Conv2d(width, 2 * width, 6, stride=2), nn.ELU(inplace=True),
            layers.Whole(2 * width, 2 * width, 5), nn.ELU(inplace=True),
            nn.Flatten(), nn.Linear(2 * width, 10),
        )  # fmt: skip


def dense(shape: tuple[int, int], width: int = 16, *, seed: int = 0) -> Any:
    """Classify images (N, 1, *shape) into ten classes: one hidden layer of 8 `width` units, and an ELU.

    >>> import torch
    >>> from phiball.experiments.training.networks import dense
    >>> tuple(dense((8, 8))(torch.zeros(2, 1, 8, 8)).shape)
    (2, 10)
    """
    height, breadth = _sides(shape)
    width = valid_count("width", width)
    torch = import_module("torch")
    nn = torch.nn
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(valid_count("seed", seed, 0))
        return nn.Sequential(
            nn.Flatten(), nn.Linear(height * breadth, 8 * width), nn.ELU(), nn.Linear(8 * width, 10)
        )


def network(shape: tuple[int, int], width: int = 64, *, seed: int = 0, fast: bool = True) -> Any:
    """Classify images (N, 1, *shape) into ten classes: `fast_cnn` (or `cnn`) at 28 x 28, `dense` below."""
    height, breadth = _sides(shape)
    if max(height, breadth) > SIDE:
        raise ValueError(f"shape is {shape!r}; expected images of at most {SIDE} x {SIDE} pixels")
    if min(height, breadth) < SIDE:
        return dense((height, breadth), width, seed=seed)
    return (fast_cnn if fast else cnn)(width, seed=seed)


def _sides(shape: tuple[int, int]) -> tuple[int, int]:
    try:
        height, breadth = shape
        return valid_count("height", height), valid_count("breadth", breadth)
    except (TypeError, ValueError):
        raise ValueError(
            f"shape is {shape!r}; expected (height, width) of an image, both at least 1"
        ) from None

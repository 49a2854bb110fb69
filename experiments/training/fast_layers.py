"""Two convolutions of the network of Section 6.1 in a form that costs less: the same parameters and values.

Activations have their channels last in memory, at every width and size of a batch: the first layer makes them
so, and the others follow. Parameters in that layout gain little more at best: they stay as Conv2d has them.
The convolution between the two is left alone: written in either of these ways it costs more.
"""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.nn.functional import conv2d, linear, pad

from phiball.experiments.training.networks import SIDE


class Strided(nn.Conv2d):  # type: ignore[misc]
    """A convolution (stride 2, padding 3, filters of 8 x 8) of images (N, 1, 28, 28).

    The pixels of each 2 x 2 square become four channels, and filters of 4 x 4 with stride 1 do the rest.
    """

    def __init__(self, filters: int) -> None:
        super().__init__(1, filters, 8, stride=2, padding=3)

    def forward(self, x: Any) -> Any:
        """The values (N, filters, 14, 14)."""
        if tuple(x.shape[1:]) != (1, SIDE, SIDE):
            raise ValueError(f"x has shape {tuple(x.shape)}; expected (N, 1, {SIDE}, {SIDE})")
        half = SIDE // 2 + 3
        squares = pad(x, (3, 3, 3, 3)).reshape(len(x), half, 2, half, 2).permute(0, 1, 3, 2, 4)
        filters = self.weight.reshape(-1, 4, 2, 4, 2).permute(0, 2, 4, 1, 3)
        return conv2d(
            squares.reshape(len(x), half, half, 4).permute(0, 3, 1, 2),
            filters.reshape(-1, 4, 4, 4),
            self.bias,
        )


class Whole(nn.Conv2d):  # type: ignore[misc]
    """A convolution whose filters are as large as its input: a matrix product."""

    def forward(self, x: Any) -> Any:
        """The values (N, filters, 1, 1)."""
        flat = x.permute(0, 2, 3, 1).flatten(1)
        return linear(flat, self.weight.permute(0, 2, 3, 1).flatten(1), self.bias)[:, :, None, None]

"""Two convolutions of the network of Section 6.1 in a cheaper form: the same parameters and the same values.

Activations have their channels last in memory, at every width and batch size: the first layer produces this
layout, and the others follow. Parameters in that layout would gain little more, so they stay as Conv2d has
them. The convolution between the two is left alone: in either of these forms it costs more.

This module imports torch, which `networks` does not: benchmarks that need no torch import that one.
"""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.nn.functional import conv2d, linear, pad


class SpaceToDepthConv(nn.Conv2d):  # type: ignore[misc]
    """A convolution (stride 2, padding 3, filters of 8 x 8) of images (N, 1, side, side), `side` even.

    The pixels of each 2 x 2 square become four channels, and filters of 4 x 4 with stride 1 do the rest.
    """

    def __init__(self, filters: int, side: int) -> None:
        super().__init__(1, filters, 8, stride=2, padding=3)
        self.side = side

    def forward(self, x: Any) -> Any:
        """Return the values (N, filters, side / 2, side / 2)."""
        if tuple(x.shape[1:]) != (1, self.side, self.side):
            raise ValueError(f"x has shape {tuple(x.shape)}; expected (N, 1, {self.side}, {self.side})")
        half = self.side // 2 + 3
        squares = pad(x, (3, 3, 3, 3)).reshape(len(x), half, 2, half, 2).permute(0, 1, 3, 2, 4)
        filters = self.weight.reshape(-1, 4, 2, 4, 2).permute(0, 2, 4, 1, 3)
        channels = squares.reshape(len(x), half, half, 4).permute(0, 3, 1, 2)
        return conv2d(channels, filters.reshape(-1, 4, 4, 4), self.bias)


class FullKernelConv(nn.Conv2d):  # type: ignore[misc]
    """A convolution whose filters are as large as its input: a matrix product."""

    def forward(self, x: Any) -> Any:
        """Return the values (N, filters, 1, 1)."""
        flat = x.permute(0, 2, 3, 1).flatten(1)
        return linear(flat, self.weight.permute(0, 2, 3, 1).flatten(1), self.bias)[:, :, None, None]

"""Small image and label files in the IDX format."""

import struct
from typing import Any

import numpy as np

from phiball.experiments.datasets.images import FILES

COUNTS = dict(zip(FILES, (9, 9, 4, 4), strict=True))


def to_idx(values: Any) -> bytes:
    """An array of unsigned bytes in the IDX format."""
    head = struct.pack(f">HBB{values.ndim}I", 0, 8, values.ndim, *values.shape)
    body: bytes = values.astype(np.uint8).tobytes()
    return head + body


def contents(seed: int = 0) -> dict[str, Any]:
    """Random contents of the four files."""
    draw = np.random.default_rng(seed)
    return {
        file: draw.integers(0, 256, (n, 28, 28)) if "images" in file else draw.integers(0, 10, n)
        for file, n in COUNTS.items()
    }

"""Images as PNG in a data address, for pages that need no other file."""

from __future__ import annotations

import base64
from io import BytesIO
from typing import Any

import numpy as np

from phiball.experiments.framework.requirements import require


def picture_of(image: Any) -> str:
    """A data address of an image (height, width), (1 or 3, height, width) or (height, width, 1 or 3).

    Its values are stretched to black and white; a change that has both signs keeps 0 in the middle.
    """
    a = np.asarray(image, dtype=np.float64)
    if a.ndim == 3 and a.shape[0] in (1, 3):
        a = np.moveaxis(a, 0, -1)
    a = a[..., 0] if a.ndim == 3 and a.shape[-1] == 1 else a
    if a.ndim not in (2, 3) or (a.ndim == 3 and a.shape[-1] != 3):
        return ""
    low, high = float(a.min()), float(a.max())
    if low < 0 < high:
        low, high = -max(-low, high), max(-low, high)
    grey = np.uint8(np.round(255 * (a - low) / (high - low))) if high > low else np.zeros(a.shape, np.uint8)
    stream = BytesIO()
    require("PIL.Image", user="a report on images", extra="experiments", package="pillow").fromarray(
        grey
    ).save(stream, format="png", optimize=True)
    return "data:image/png;base64," + base64.b64encode(stream.getvalue()).decode()

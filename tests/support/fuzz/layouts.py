"""The same numbers at other places in memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np


def _strided(x: Any) -> Any:
    wide = np.ones((*x.shape[:-1], 3 * x.shape[-1]), dtype=x.dtype)
    wide[..., 1::3] = x
    return wide[..., 1::3]


def _reversed(x: Any) -> Any:
    return np.ascontiguousarray(x[..., ::-1])[..., ::-1]


def _read_only(x: Any) -> Any:
    copy = np.array(x)
    copy.flags.writeable = False
    return copy


def _zero_strides(x: Any) -> Any:
    """All rows equal to the first."""
    return np.broadcast_to(x.reshape(-1, x.shape[-1])[0], x.shape)


LAYOUTS: dict[str, Callable[[Any], Any]] = {
    "C": np.ascontiguousarray,
    "Fortran": np.asfortranarray,
    "strided": _strided,
    "reversed": _reversed,
    "read-only": _read_only,
    "zero strides": _zero_strides,
}

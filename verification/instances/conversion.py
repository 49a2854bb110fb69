"""Conversion between numbers and arrays of the active backend."""

from __future__ import annotations

from typing import Any

import numpy as np

from phiball.backends import Array, active, to_numpy


def array(values: Any) -> Array:
    """Convert nested numbers to a float64 array of the active backend."""
    xp = active().namespace
    return xp.asarray(np.array(values, dtype=float), dtype=xp.float64)


def to_floats(x: Array) -> list[float]:
    """Convert the entries of an array to a list of Python floats."""
    entries: list[float] = np.ravel(to_numpy(x)).tolist()
    return entries


def mean(values: Array) -> float:
    """The mean of the entries of an array, as a Python float."""
    return float(np.mean(to_numpy(values)))

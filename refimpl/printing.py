"""`one_line`, the repr of results: rounded numbers, and the shapes of arrays."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import fields
from typing import Any

from phiball.backends import detach, is_array_api_obj


def one_line(result: Any) -> str:
    """The repr of a dataclass in one line: numbers with four digits, and the shapes of arrays.

    To use it, put `__repr__ = one_line` into the body of the dataclass.

    >>> import numpy as np
    >>> from dataclasses import dataclass
    >>> @dataclass
    ... class Mean:
    ...     value: np.ndarray
    ...     values: np.ndarray
    ...     __repr__ = one_line
    >>> Mean(np.asarray(1 / 3), np.ones((2, 5)))
    Mean(value=0.3333, values of shape (2, 5))
    """
    texts = (_field_text(field.name, getattr(result, field.name)) for field in fields(result) if field.repr)
    return f"{type(result).__name__}({', '.join(texts)})"


def _field_text(name: str, value: Any) -> str:
    if isinstance(value, float):
        return f"{name}={value:.4g}"
    if not is_array_api_obj(value):
        return f"{name}={value!r}"
    if tuple(value.shape) == ():
        with suppress(RuntimeError, TypeError, ValueError):  # tensors under torch.func have no value
            return f"{name}={float(detach(value)):.4g}"
    return f"{name} of shape {tuple(value.shape)}"

"""`@kernel` marks a reference function, for which a backend may have a faster one of the same name."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from importlib import import_module
from typing import Any, ParamSpec, TypeVar, cast

import numpy as np

from phiball.backends.arrays import Array, is_torch
from phiball.backends.selection import active

P = ParamSpec("P")
R = TypeVar("R")


def kernel(reference: Callable[P, R]) -> Callable[P, R]:
    """Mark a reference function, so that the active backend's kernel of the same name runs in its place.

    A kernel takes the same arguments and returns the same result. It may decline by returning
    `NotImplemented`: then the reference runs. The reference itself stays available as the attribute
    `reference` of the decorated function.

    >>> @kernel
    ... def total(x):
    ...     return sum(x)
    >>> total([1, 2]), total.reference([1, 2])  # no backend has a kernel of this name
    (3, 3)
    """
    name = reference.__name__

    @wraps(reference)
    def dispatch(*args: P.args, **kwargs: P.kwargs) -> R:
        fast = active().kernel(name)
        if fast is not None:
            result = fast(*args, **kwargs)
            if result is not NotImplemented:
                return cast(R, result)
        return reference(*args, **kwargs)

    cast(Any, dispatch).reference = reference
    return dispatch


def kernel_memory(*arrays: Array | float | None) -> tuple[tuple[Any, ...], Callable[[Array], Array]]:
    """The arrays as the kernels of the active backend read them, and what turns a result into one of theirs.

    Kernels of the Numba backend read torch tensors in main memory as NumPy arrays on the same memory. A call
    costs NumPy less than torch, so that whoever makes several is better off with these. All other arrays, and
    what is not an array, stay as they are.

    >>> import torch
    >>> (x, eta), back = kernel_memory(torch.ones(2), 0.5)
    >>> type(back(x)).__name__, eta
    ('Tensor', 0.5)
    """
    tensors: list[Array] = [x for x in arrays if is_torch(x)]
    others = [x for x in arrays if not is_torch(x) and hasattr(x, "shape")]
    if not tensors or others or not active().kernels or not all(_in_main_memory(x) for x in tensors):
        return arrays, lambda x: x
    views = tuple(cast(Any, x).detach().numpy() if is_torch(x) else x for x in arrays)
    torch = import_module("torch")
    return views, lambda x: torch.from_numpy(np.asarray(x))  # an array, where NumPy makes a number of it


def _in_main_memory(x: Array) -> bool:
    return bool(x.device.type == "cpu" and x.layout == import_module("torch").strided)

"""`@kernel`: marks a reference function, for which a backend may have a faster one of the same name."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar, cast

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

"""Searches that one seed repeats, on every install and after every edit of the source."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from hypothesis.internal.conjecture import providers
from hypothesis.internal.constants_ast import Constants


@contextmanager
def repeatable() -> Iterator[None]:
    """Keep Hypothesis from trying the numbers that it reads in the source files imported so far.

    Otherwise an edit elsewhere, or whether the package is installed from a checkout, changes the examples.
    """
    if not hasattr(providers, "_get_local_constants"):  # a version that does not read them
        yield
        return
    none, cache = Constants(), type(providers.CONSTANTS_CACHE)(1024)
    with (
        patch.object(providers, "_get_local_constants", lambda: none),
        patch.object(providers, "CONSTANTS_CACHE", cache),  # what others have drawn is kept in it
    ):
        yield

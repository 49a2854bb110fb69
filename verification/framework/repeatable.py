"""Searches that depend on the seed alone, on every install and after every edit of the source."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from hypothesis.internal.conjecture import providers
from hypothesis.internal.constants_ast import Constants


@contextmanager
def repeatable() -> Iterator[None]:
    """Keep Hypothesis from trying the numbers that it reads in the source files imported so far.

    Otherwise an edit elsewhere, or an install from a checkout, would change the examples. No setting turns
    this off. The interface for other backends, which is experimental, makes the search worse: Hypothesis then
    tries no small and no mutated examples, and repeats those that it has seen.
    """
    nothing, cache = Constants(), type(providers.CONSTANTS_CACHE)(1024)
    with (
        patch.object(providers, "_get_local_constants", lambda: nothing),
        patch.object(providers, "CONSTANTS_CACHE", cache),  # it holds what other tests have drawn
    ):
        yield

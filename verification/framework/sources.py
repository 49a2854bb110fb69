"""Where the code of a claim stands, and that of the oracles which judge it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any

_PACKAGE = "phiball"
_OURS = f"{_PACKAGE}.verification."
_ORACLES = f"{_OURS}oracles"


def place(function: Callable[..., Any]) -> str:
    """The file of a function in the repository with its line; empty for one of another package.

    >>> from phiball.verification.oracles.inner import solve_exactly
    >>> place(solve_exactly).rpartition(":")[0]
    'verification/oracles/inner.py'
    """
    module, code = function.__module__, getattr(function, "__code__", None)
    if not module.startswith(f"{_PACKAGE}.") or code is None:
        return ""
    return f"{module.removeprefix(f'{_PACKAGE}.').replace('.', '/')}.py:{code.co_firstlineno}"


def oracles_of(statement: Callable[..., Any]) -> tuple[str, ...]:
    """The oracles that a statement calls, by itself or through helpers of the suite, each with its place."""
    seen: set[Any] = set()
    found: dict[str, None] = {}

    def visit(function: FunctionType) -> None:
        if function in seen:
            return
        seen.add(function)
        if function.__module__.startswith(_ORACLES):
            found[f"{function.__name__} {place(function)}"] = None  # what an oracle calls is its own affair
            return
        for used in _used(function):
            visit(used)

    if isinstance(statement, FunctionType):
        visit(statement)
    return tuple(found)


def _used(function: FunctionType) -> Iterator[FunctionType]:
    """The functions of the suite that the code of a function names, in modules that it names too."""
    names = list(_names(function.__code__))
    values = [function.__globals__[name] for name in names if name in function.__globals__]
    values += [cell.cell_contents for cell in function.__closure__ or ()]
    for value in values:
        if isinstance(value, ModuleType) and value.__name__.startswith(_ORACLES):
            values += [getattr(value, name) for name in names if hasattr(value, name)]
    for value in values:
        function = getattr(value, "__wrapped__", value)
        if isinstance(function, FunctionType) and function.__module__.startswith(_OURS):
            yield function


def _names(code: CodeType) -> Iterator[str]:
    """The names in a code object and in those inside it: comprehensions and inner functions."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)

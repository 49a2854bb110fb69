"""Where the code of a claim stands, and that of the oracles which judge it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any

_PACKAGE = "phiball"
_OURS = f"{_PACKAGE}.verification."
_ENUMERATION = (f"{_OURS}instances.enumeration", f"{_OURS}instances.all_draws")


def place(function: Callable[..., Any]) -> str:
    """The file of a function in the repository, or in a folder of claims, with its line; else empty.

    >>> from phiball.verification.oracles.inner import solve_exactly
    >>> place(solve_exactly).rpartition(":")[0]
    'verification/oracles/inner.py'
    """
    module, code = function.__module__, getattr(function, "__code__", None)
    ours = module.startswith(f"{_PACKAGE}.") or ("." not in module and module != "__main__")
    if code is None or not ours:
        return ""
    return f"{module.removeprefix(f'{_PACKAGE}.').replace('.', '/')}.py:{code.co_firstlineno}"


def oracles_of(statement: Callable[..., Any]) -> tuple[str, ...]:
    """The oracles that a statement calls, by itself or through helpers of the suite, each with its place."""
    called = [function for function in _called(statement) if _is_oracle(function.__module__)]
    return tuple(dict.fromkeys(f"{function.__name__} {place(function)}" for function in called))


def enumerates(statement: Callable[..., Any]) -> bool:
    """Whether a statement sums over all draws of an estimator."""
    used = [value for function in _called(statement) for value in _values(function)]
    return any(getattr(value, "__module__", None) in _ENUMERATION for value in used)


def _is_oracle(module: str) -> bool:
    """Of the package of oracles, or of a file oracles.py in a folder of claims."""
    return module.startswith(f"{_OURS}oracles") or module == "oracles"


def _called(statement: Callable[..., Any]) -> list[FunctionType]:
    """The statement and the functions of the suite that it calls, by itself or through others."""
    seen: dict[FunctionType, None] = {}

    def visit(function: FunctionType) -> None:
        if function in seen:
            return
        seen[function] = None
        if not _is_oracle(function.__module__):  # what an oracle calls is its own affair
            for used in _used(function):
                visit(used)

    if isinstance(statement, FunctionType):
        visit(statement)
    return list(seen)


def _used(function: FunctionType) -> Iterator[FunctionType]:
    """The functions of the suite that the code of a function names, in modules that it names too."""
    names, values = list(_names(function.__code__)), _values(function)
    for value in values:
        if isinstance(value, ModuleType) and _is_oracle(value.__name__):
            values += [getattr(value, name) for name in names if hasattr(value, name)]
    for value in values:
        used = getattr(value, "__wrapped__", value)
        if isinstance(used, FunctionType) and (
            used.__module__.startswith(_OURS) or used.__module__ in ("oracles", function.__module__)
        ):
            yield used


def _values(function: FunctionType) -> list[Any]:
    """What the names in the code of a function stand for."""
    found = [function.__globals__[n] for n in _names(function.__code__) if n in function.__globals__]
    return found + [cell.cell_contents for cell in function.__closure__ or ()]


def _names(code: CodeType) -> Iterator[str]:
    """The names in a code object and in those inside it: comprehensions and inner functions."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)

"""Source locations of claims, and of the oracles that they call."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any

_OURS = "phiball.verification."
_ENUMERATION = f"{_OURS}instances.enumeration"


def source_location(function: Callable[..., Any]) -> str:
    """Return the file and line of a function of phiball or of a folder of claims; "" for other functions.

    >>> from phiball.verification.oracles.exact_solver import solve_exactly
    >>> source_location(solve_exactly).rpartition(":")[0]
    'verification/oracles/exact_solver.py'
    """
    module, code = function.__module__, getattr(function, "__code__", None)
    ours = module.startswith("phiball.") or ("." not in module and module != "__main__")
    if code is None or not ours:
        return ""
    return f"{module.removeprefix('phiball.').replace('.', '/')}.py:{code.co_firstlineno}"


def oracles_of(statement: Callable[..., Any]) -> tuple[str, ...]:
    """Return the oracles that a statement calls, directly or through helpers, each with its location."""
    reached = [value for value in _reached(statement) if isinstance(value, FunctionType)]
    called = [function for function in reached if _is_oracle(function.__module__)]
    return tuple(dict.fromkeys(f"{function.__name__} {source_location(function)}" for function in called))


def enumerates(statement: Callable[..., Any]) -> bool:
    """Return whether a statement sums over all draws of an estimator."""
    return any(getattr(value, "__module__", None) == _ENUMERATION for value in _reached(statement))


def _is_oracle(module: str) -> bool:
    """Return whether a module is in `verification/oracles`, or is `oracles.py` in a folder of claims."""
    return module.startswith(f"{_OURS}oracles") or module == "oracles"


def _reached(statement: Callable[..., Any]) -> list[Any]:
    """Return the statement and all objects that it refers to, directly or through functions of the suite."""
    found: list[Any] = [statement]
    for value in found:  # the loop appends to the list
        function = getattr(value, "__wrapped__", value)
        if not isinstance(function, FunctionType) or _is_oracle(function.__module__):
            continue
        if not (function.__module__.startswith(_OURS) or function.__module__ == statement.__module__):
            continue
        names = list(dict.fromkeys(_names(function.__code__)))
        values = [function.__globals__[name] for name in names if name in function.__globals__]
        values += [cell.cell_contents for cell in function.__closure__ or ()]
        for module in [v for v in values if isinstance(v, ModuleType) and _is_oracle(v.__name__)]:
            values += [getattr(module, name) for name in names if hasattr(module, name)]
        seen = set(map(id, found))
        found += [v for v in values if id(v) not in seen]
    return found


def _names(code: CodeType) -> Iterator[str]:
    """Yield the names in a code object and in the comprehensions and functions inside it."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)

"""A call is right, or refused in one line; all else is a fault, told with Python that repeats it."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import HealthCheck, Phase, given, seed, settings

from phiball.backends import use
from tests.support.fuzz.watch import watched


class FaultError(AssertionError):
    """What is wrong with a call, as a message and Python that repeats it."""


def search(check: Callable[..., None], cases: Any, count: int, start: int) -> str | None:
    """Check `count` cases from a seed; the fault of the smallest that has one."""

    @seed(start)
    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=(Phase.generate, Phase.shrink),
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )
    @given(cases)
    def each(case: tuple[Any, ...]) -> None:
        with watched(120.0, lambda: f"{case}"):
            check(*case)

    try:
        each()
    except FaultError as fault:
        return str(fault)
    return None


def fault(what: str, check: Callable[..., None], *case: Any) -> FaultError:
    """The error, with Python that makes the same check again."""
    made = "from tests.support.fuzz.arguments import Argument\n"
    made += f"from {check.__module__} import {check.__name__}\n"
    return FaultError(f"{what}\n{made}{check.__name__}({', '.join(map(repr, case))})")


def guarded(
    work: Callable[[], Any], backend: str, arguments: tuple[Any, ...], say: Callable[[str], FaultError]
) -> Any:
    """What `work` returns, None if it refuses its arguments; `say` makes the error of what it must not do."""
    before = [_bytes(a) for a in arguments]
    with use(backend), warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            out = work()
        except (ValueError, TypeError) as error:
            if not str(error) or "\n" in str(error).strip():
                raise say(f"an error that is not one line: {type(error).__name__}: {error}") from None
            out = None
        except Exception as error:  # what is not documented, whatever it is
            raise say(f"{type(error).__name__}: {error}") from error
    ours = [w for w in said if issubclass(w.category, RuntimeWarning)]
    if ours:
        raise say(f"a warning: {ours[0].message}")
    if before != [_bytes(a) for a in arguments]:
        raise say("an argument was modified")
    return out


def _bytes(x: Any) -> Any:
    if type(x).__module__.partition(".")[0] == "torch":
        return None if x.is_meta or x.is_sparse else x.detach().reshape(-1).tolist().__repr__()
    return np.asarray(x).tobytes() if hasattr(x, "shape") and np.asarray(x).dtype != object else repr(x)

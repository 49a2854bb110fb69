"""Two judges of a fault: the tests, and `phiball verify`. Each can say which lines a check runs."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any

from tests.support.mutants.forks import Copy

MEASURED = ("refimpl", "backends")
# Tests of others, for processes and for what is written down of a run.
ALSO = ("tests/verification/test_parallel.py", "tests/experiments/framework/test_runner.py")
# Tests of the compiled twins, in which no fault is planted: the slowest of all.
COMPILED = ("test_numba", "test_compilation", "test_threads")
PLACED = ("arrays", "doubles")  # the fixtures that run a test on every backend
# Of a test that runs on many backends, dtypes and values: each value once, or so many, on any backend.
FEWEST_CASES, MOST_CASES = 3, 10
FIRST = 30  # tests that are run before the files of others are collected
_STOPPED, _NONE = 2, 5  # what pytest ends with when it is told to stop, and without a test
REST = 60.0  # seconds for the other cases of these tests, before a fault is said to survive
FEW = 0.1  # of the examples of a claim
Trace = dict[str, Any]
"""`checks`: seconds by name, of those that pass; `lines`: module -> line -> which of the checks run it."""


class _Tests:
    """A pytest plugin: runs the tests it is given in that order, or else some cases of each.

    With `rest` it runs the cases of these tests that it was not given, for that many seconds.
    It tells `coverage` which one runs.
    """

    def __init__(
        self, expected: dict[str, float] | None = None, cover: Any = None, rest: float | None = None
    ) -> None:
        self.expected = expected
        self.cover = cover
        self.rest = rest
        self.seconds: dict[str, float] = {}
        self.failed: list[str] = []

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        if self.expected is not None and self.rest is not None:
            rank = {name.partition("[")[0]: number for number, name in enumerate(self.expected)}
            others = [
                i for i in items if i.nodeid not in self.expected and _test(i) in rank and not _on_gpu(i)
            ]
            items[:] = sorted(others, key=lambda item: rank[_test(item)])
            return
        if self.expected is not None:
            rank = {name: number for number, name in enumerate(self.expected)}
            items[:] = sorted((i for i in items if i.nodeid in rank), key=lambda item: rank[item.nodeid])
            return
        cases: dict[str, list[Any]] = {}
        for item in items:
            if not _on_gpu(item):
                cases.setdefault(_test(item), []).append(item)
        chosen = {item for test, of in cases.items() for item in some_cases(test, of)}
        items[:] = [item for item in items if item in chosen]

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.seconds[nodeid] = -_processor_seconds()
        if self.cover:
            self.cover.switch_context(nodeid)
        if self.expected is not None:
            end_after(self.expected.get(nodeid, 10.0))

    def pytest_runtest_protocol(self, item: Any) -> None:
        if self.rest is not None and sum(self.seconds.values()) > self.rest:
            item.session.shouldstop = "enough time was spent on this fault"

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self.seconds[nodeid] += _processor_seconds()

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            self.failed.append(report.nodeid)


def _test(item: Any) -> str:
    """The name of a test without its case."""
    return str(item.nodeid).partition("[")[0]


def _on_gpu(item: Any) -> bool:
    return "cupy" in item.name or "cuda" in item.name


def _processor_seconds() -> float:
    """What this process and those it started have used: other work on the machine does not slow it."""
    return sum(os.times()[:4])


def end_after(expected: float) -> None:
    """End this process if it uses far more of the processor than is expected: the fault may loop for ever."""
    signal.setitimer(signal.ITIMER_PROF, 10 + 5 * expected)


def some_cases(test: str, items: list[Any]) -> list[Any]:
    """Some of the cases of a test: at random, those first whose values are new, whatever their backend."""
    shuffled = random.Random(test).sample(items, len(items))
    new: dict[str, Any] = {}
    for item in shuffled:
        values = getattr(item, "callspec", None)
        place = next((str(values.params[f]) for f in PLACED if f in values.params), "") if values else ""
        new.setdefault(item.name.replace(place, ""), item)
    rest = [item for item in shuffled if item not in new.values()]
    return [*list(new.values())[:MOST_CASES], *rest[: max(0, FEWEST_CASES - len(new))]]


def _pytest(files: list[str], plugin: _Tests, *options: str) -> int:
    import pytest

    quiet = ["-q", "--no-header", "--tb=line", "-p", "no:cacheprovider", "-p", "no:xdist"]
    quiet += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # Hypothesis is imported before the fork
    return int(pytest.main([*quiet, *options, *files], plugins=[plugin]))


def run_tests(copy: Copy, expected: dict[str, float]) -> dict[str, str]:
    """The first of these tests that fails, as `by`; empty if none does. `expected` has their seconds.

    Most faults are noticed by the first tests, so that the files of the others are collected only after them.
    At last come cases that were not traced: other values, dtypes and backends.
    """
    names = list(expected)
    for part, rest in ((names[:FIRST], None), (names[FIRST:], None), (names, REST)):
        if not part:
            continue
        plugin = _Tests({name: expected[name] for name in part}, rest=rest)
        files = list(dict.fromkeys(name.partition("::")[0] for name in part))
        end_after(2.0 * len(files))  # to collect them
        code = _pytest(files, plugin, "-x")
        if plugin.failed or code not in ((0,) if rest is None else (0, _STOPPED, _NONE)):
            return {"by": (plugin.failed or [f"pytest ends with {code}"])[0]}
    return {"by": ""}


def trace_tests(copy: Copy, file: str) -> Trace:
    """Which lines each test of a file runs."""
    with _covered(copy) as cover:
        plugin = _Tests(cover=cover)
        _pytest([file], plugin)
    return _trace(copy, cover, {n: s for n, s in plugin.seconds.items() if n not in plugin.failed})


def run_claims(copy: Copy, expected: dict[str, float]) -> dict[str, str]:
    """The first of these claims that does not reach its verdict, as `by`; empty if all do.

    A few examples show most faults, so that all claims are tried on few before one is on many. Only what is
    missed with all examples counts.
    """
    claims: dict[str, Any] = {}
    for effort in (FEW, 1.0):
        for name, seconds in expected.items():
            end_after(seconds)
            if name not in claims:
                claims |= _claims(name.partition("::")[0])
            claim = claims[name]
            if effort < 1 or claim.strategies:
                noticed = not claim.run(effort=effort, shrink=False).as_recorded
                if noticed and effort < 1 and claim.strategies:
                    noticed = not claim.run(shrink=False).as_recorded
                if noticed:
                    return {"by": name}
    return {"by": ""}


def trace_claims(copy: Copy, file: str) -> Trace:
    """Which lines each claim of a file runs, as a few examples show, and about how long it takes."""
    claims = _claims(file)
    with _covered(copy) as cover:
        for name, claim in claims.items():
            cover.switch_context(name)
            claim.run(effort=FEW, shrink=False)
    seconds = {}
    for name, claim in claims.items():  # again, since the first run loads and compiles
        began = time.process_time()
        claim.run(effort=FEW, shrink=False)
        seconds[name] = (time.process_time() - began) / (FEW if claim.strategies else 1)
    return _trace(copy, cover, seconds)


def _claims(file: str) -> dict[str, Any]:
    """The claims of a file, by file and id."""
    os.environ["PHIBALL_BACKEND"] = "numpy"
    from phiball.verification import Claim

    module = import_module("phiball." + file.removesuffix(".py").replace("/", "."))
    return {f"{file}::{claim.id}": claim for claim in vars(module).values() if isinstance(claim, Claim)}


@contextmanager
def _covered(copy: Copy) -> Iterator[Any]:
    import coverage

    folders = [f"{copy.tree}/{name}/*" for name in MEASURED]
    cover = coverage.Coverage(data_file=None, include=folders, config_file=False, messages=False)
    cover.start()
    try:
        yield cover
    finally:
        with suppress(Exception):
            cover.stop()


def _trace(copy: Copy, cover: Any, seconds: dict[str, float]) -> Trace:
    number = {name: index for index, name in enumerate(seconds)}
    data, lines = cover.get_data(), {}
    for file in data.measured_files():
        table = {
            line: [number[name] for name in names if name in number]
            for line, names in data.contexts_by_lineno(file).items()
        }
        lines[str(Path(file).relative_to(copy.tree))] = {k: v for k, v in table.items() if v}
    return {"checks": seconds, "lines": lines}

"""Fixtures, settings and options of all tests."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.support.arrays import CASES, FAST_CASES, arrays, doubles, one_thread

__all__ = ["arrays", "doubles", "one_thread"]

# A failure must come back on the next run, and a slow machine must not cause one.
settings.register_profile(
    "phiball",
    derandomize=True,
    deadline=None,
    max_examples=25,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
settings.load_profile("phiball")


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--fast`, for `make test-fast`."""
    parser.addoption(
        "--fast",
        action="store_true",
        help="run the first case of each test, on the Numba backend in double precision, and leave out "
        "the tests marked slow: some seconds in every package after an edit, not a proof",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker of what `--fast` leaves out."""
    config.addinivalue_line("markers", "slow: takes more than about half a second")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test on every backend and dtype of the table, or with `--fast` on one."""
    cases = FAST_CASES if metafunc.config.getoption("fast") else CASES
    for fixture in CASES.keys() & set(metafunc.fixturenames):
        metafunc.parametrize(fixture, cases[fixture], indirect=True)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With `--fast`, keep the first case of each test that is not slow."""
    if not config.getoption("fast"):
        return
    first = {item.nodeid.partition("[")[0]: item for item in reversed(items)}
    kept = [
        item
        for item in items
        if first[item.nodeid.partition("[")[0]] is item and not item.get_closest_marker("slow")
    ]
    config.hook.pytest_deselected(items=[item for item in items if item not in set(kept)])
    items[:] = kept


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """One line per reason for the tests that were skipped, instead of one per test."""
    reasons = Counter(report.longrepr[2] for report in terminalreporter.stats.get("skipped", []))
    for reason, count in reasons.items():
        terminalreporter.write_line(f"{count} skipped: {reason.removeprefix('Skipped: ')}")

"""Fixtures, settings and options of all tests."""

from __future__ import annotations

from collections import Counter
from typing import Any

from hypothesis import HealthCheck, settings

from tests.support.arrays import arrays, doubles, one_thread

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


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """One line per reason for the tests that were skipped, instead of one per test."""
    reasons = Counter(report.longrepr[2] for report in terminalreporter.stats.get("skipped", []))
    for reason, count in reasons.items():
        terminalreporter.write_line(f"{count} skipped: {reason.removeprefix('Skipped: ')}")

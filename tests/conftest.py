"""Fixtures, settings and options of all tests."""

from collections import Counter
from typing import Any
from zlib import crc32

import pytest
from hypothesis import HealthCheck, settings

from tests.support.arrays import DEVICES, DTYPES, FAST_PLACES, PLACES, arrays, doubles, missing, one_thread

__all__ = ["arrays", "doubles", "one_thread"]

# Failures are reproducible, and a slow machine does not cause failures.
settings.register_profile(
    "phiball",
    derandomize=True,
    deadline=None,
    max_examples=25,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
settings.register_profile("fuzz", settings.get_profile("phiball"), derandomize=False, max_examples=20_000)
settings.load_profile("phiball")

NOT_RUN = pytest.StashKey[Counter[str]]()
"""The number of tests that were not run, by the backend or device that is missing and the reason."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--fast`, for `make test-fast`, `--gpu`, for machines with a GPU, and `--jax`."""
    parser.addoption(
        "--fast",
        action="store_true",
        help="run the first case of each test that is not slow, with the Numba backend in double precision",
    )
    parser.addoption("--gpu", action="store_true", help="run only the tests that need a GPU")
    parser.addoption("--jax", action="store_true", help="run all array tests on JAX, instead of one in eight")


def pytest_configure(config: pytest.Config) -> None:
    """Register the markers; `--gpu` without a GPU is an error."""
    config.addinivalue_line("markers", "slow: takes more than about half a second")
    config.addinivalue_line("markers", "gpu: needs a CUDA device")
    config.stash[NOT_RUN] = Counter()
    if config.getoption("gpu") and all(map(missing, DEVICES)):
        raise pytest.UsageError("--gpu: " + ", ".join(f"{place}: {missing(place)}" for place in DEVICES))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test on every available backend and dtype; with `--fast`, on one of each."""
    fast, gpu = (metafunc.config.getoption(name) for name in ("fast", "gpu"))
    for fixture in DTYPES.keys() & set(metafunc.fixturenames):
        places = FAST_PLACES if fast else DEVICES if gpu else PLACES
        dtypes = {} if fast else DTYPES[fixture]
        available = [place for place in places if not missing(place)]
        cases = [f"{place}-{dtype}" for place in available for dtype in dtypes.get(place, ("float64",))]
        metafunc.parametrize(fixture, cases, indirect=True)
        absent = (f"{place}: {missing(place)}" for place in places if place not in available)
        metafunc.config.stash[NOT_RUN].update(absent)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the first case of each quick test with `--fast`, and the tests that need a GPU with `--gpu`.

    XLA compiles every operation for every shape, so that without `--jax` only some tests run on JAX.
    """
    kept = items
    if not config.getoption("jax"):
        kept = [item for item in items if "[jax-" not in item.nodeid or crc32(item.nodeid.encode()) % 8 == 0]
    if config.getoption("fast"):
        first = {item.nodeid.partition("[")[0]: item for item in reversed(kept)}
        kept = [
            item
            for item in kept
            if first[item.nodeid.partition("[")[0]] is item and not item.get_closest_marker("slow")
        ]
    if config.getoption("gpu"):
        kept = [
            item
            for item in kept
            if item.get_closest_marker("gpu") or DTYPES.keys() & set(getattr(item, "fixturenames", ()))
        ]
    config.hook.pytest_deselected(items=[item for item in items if item not in set(kept)])
    items[:] = kept


def pytest_sessionfinish(session: pytest.Session) -> None:
    """In a worker of pytest-xdist, send NOT_RUN to the main process."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["not run"] = dict(session.config.stash[NOT_RUN])


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Receive NOT_RUN from a worker; it is the same for all workers, which collect the same tests."""
    node.config.stash[NOT_RUN] |= Counter(getattr(node, "workeroutput", {}).get("not run", {}))


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Print one line per reason for the tests that were skipped or not run on a backend."""
    reasons = Counter(report.longrepr[2] for report in terminalreporter.stats.get("skipped", []))
    for reason, count in reasons.items():
        terminalreporter.write_line(f"{count} skipped: {reason.removeprefix('Skipped: ')}")
    for absent, count in config.stash[NOT_RUN].items():
        terminalreporter.write_line(f"{count} tests not run on {absent}")

"""The benchmark of the inner solver: every solver is right, the bars, the threads, and what is written."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from phiball.experiments.cli.app import app

pytest.importorskip("mpmath", reason="mpmath: not installed")

from phiball.experiments.benchmarks import inner_solver as bench
from phiball.experiments.benchmarks import timing
from phiball.experiments.benchmarks.inner import bars, problems, threads
from phiball.experiments.benchmarks.timing import Ratio
from tests.support.paths import ROOT
from tests.support.progress import Watched


@pytest.mark.slow
def test_the_whole_bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shapes = ((3, 8), (2, 64), (2, 200))
    monkeypatch.setattr(bench, "BAR_SHAPES", shapes)
    monkeypatch.setattr(bench, "ratio", lambda work, *others: (work(), 2.0)[1])
    watched = Watched(monkeypatch)
    monkeypatch.setattr(
        bars,
        "ratio_of_rounds",
        lambda work, unit, *effort: (work(), unit(), Ratio(1.5, 1.4, 1.6))[2],
    )
    monkeypatch.setenv("PHIBALL_THREADS", "3")
    result = CliRunner().invoke(app, ["bench", "inner", "--quick", "--out", str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert os.environ["PHIBALL_THREADS"] == "3"
    assert "worst m·error of gamma" in result.output
    watched.check()
    record = json.loads((tmp_path / "inner.json").read_text())
    rows = record["rows"]
    assert {row["problem"] for row in rows} == set(problems.DIVERGENCES)
    assert len({(row["problem"], row["solver"]) for row in rows}) == len(rows) / len(shapes)
    assert {f"phiball, {law}" for law in problems.LAWS} <= {row["solver"] for row in rows}
    for row in rows:
        assert row["ratio"] == 2.0
        judged = row["shape"][1] <= 64 or (row["problem"] == "entropic" and row["solver"].endswith("uniform"))
        assert (row["error"] is not None) or bench.VALUE_ONLY in row["solver"] or not judged
        # Bisection stops at a tolerance; a weight moves by as much over eta, times m.
        assert (row["error"] or 0.0) < (1e-4 if "bisection" in row["solver"] else 1e-8), row
    words = {(v["work"], v["unit"]): (v["bar"], v["verdict"]) for v in record["bars"]}
    assert words["hinge", "quadratic"] == (1.0, "ABOVE")
    assert words["quadratic, p per row", "quadratic, uniform"] == (1.6, "within")
    assert words["Cressie-Read -1", "Cressie-Read 1.5"] == (4.0, "within")
    page = (tmp_path / "inner.md").read_text(encoding="utf-8")
    assert "| hinge | quadratic | (2, 64) | 1.50 (1.40-1.60) | 1 | ABOVE |" in page


def test_a_wrong_solver_shows_in_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "ratio", lambda work, *others: 2.0)
    monkeypatch.setattr(bench, "DIVERGENCES", {"quadratic": problems.QUADRATIC})
    right = problems.ours("quadratic", problems.SHARED, (2, 16))

    def wrong(f: Any) -> Any:
        weights = right(f)
        weights[1, 3] += 1e-3
        return weights

    solvers = {"right": (problems.SHARED, right), "wrong": (problems.SHARED, wrong)}
    monkeypatch.setattr(bench, "solvers", lambda problem, shape, slow: solvers)
    errors = {row.solver: row.error for row in bench.rows(seconds=0.0, shapes=((2, 16),))}
    assert errors["right"] == pytest.approx(0.0, abs=1e-12)
    assert errors["wrong"] == pytest.approx(16e-3, rel=1e-6)


def test_a_law_has_points_without_mass() -> None:
    p = problems.law_of(problems.OWN, (3, 32))
    assert p.shape == (3, 32)
    assert np.all(p[:, 1::16] == 0)
    np.testing.assert_allclose(p.sum(axis=-1), 1, rtol=1e-14)
    assert problems.law_of(problems.SHARED, (3, 32)).shape == (32,)


# --- Times ----------------------------------------------------------------------------------------


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Callable[[], None]]:
    """A clock that only `spending(costs)` moves: the costs in turn, then the last again and again."""
    now = [0.0]
    monkeypatch.setattr(timing.time, "perf_counter", lambda: now[0])

    def spending(*costs: float) -> Callable[[], None]:
        left = list(costs)

        def work() -> None:
            now[0] += left.pop(0) if len(left) > 1 else left[0]

        return work

    return spending


def test_a_ratio_of_known_times(clock: Any) -> None:
    """Lower quartiles: rare slow runs do not count, unless totals are asked for."""
    now = timing.time.perf_counter
    assert timing.ratio(clock(3.0, 3.0, 300.0, 3.0, 3.0, 300.0, 3.0), clock(1.5), 10.0, now) == 2.0
    rounds = timing.ratio_of_rounds(clock(3.0), clock(1.5), 100.0, clock=now)
    assert timing.mean_time(clock(*[1.0, 3.0] * 5, 1e9), 10.0, now) == 2.0
    assert rounds == Ratio(2.0, 2.0, 2.0)
    totals = timing.ratio_of_totals(clock(3.0, 3.0, 3.0, 60.0, 3.0), clock(1.5), 100.0)
    assert totals.low == 2.0
    assert totals.high > 3.0
    assert 2.0 < totals.middle < totals.high


def test_slow_work_is_not_repeated_for_long(clock: Any) -> None:
    calls: list[int] = []
    slow = clock(50.0)
    timing.lower_quartile(lambda: (calls.append(1), slow()), 1.0, timing.time.perf_counter)
    assert len(calls) == 3  # one to see how long it takes


def test_short_work_is_timed_in_blocks(clock: Any) -> None:
    calls: list[int] = []
    short = clock(1e-5)
    now = timing.time.perf_counter
    assert timing.lower_quartile(lambda: (calls.append(1), short()), 1e-3, now) == pytest.approx(1e-5)
    assert len(calls) == 1 + 20 * 5


# --- Threads --------------------------------------------------------------------------------------


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def gone(pids: list[int], seconds: float = 10.0) -> bool:
    end = time.monotonic() + seconds
    while any(map(alive, pids)) and time.monotonic() < end:
        time.sleep(0.02)
    return not any(map(alive, pids))


linux = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="no /proc on this system")


@linux
def test_busy_processes_end_with_the_block() -> None:
    pids: list[int] = []

    def interrupted() -> None:
        with threads.busy_cores(2) as started:
            pids.extend(started)
            assert all(map(alive, pids))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert len(pids) == 2
    assert gone(pids, 0.0)


@linux
@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_busy_processes_end_when_the_benchmark_is_killed(number: int) -> None:
    code = (
        "import time; from phiball.experiments.benchmarks.inner.threads import busy_cores\n"
        "with busy_cores(2) as pids: print(*pids, flush=True); time.sleep(60)"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert parent.stdout is not None
    pids = list(map(int, parent.stdout.readline().split()))
    assert len(pids) == 2
    parent.send_signal(number)
    parent.wait(timeout=30)
    parent.stdout.close()
    assert gone(pids)


@pytest.mark.slow
def test_threads_on_a_busy_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watched, seen = Watched(monkeypatch), []

    def totals(work: Any, unit: Any, seconds: float) -> Ratio:
        for solve in (work, unit):
            solve()
            seen.append(os.environ.get("PHIBALL_THREADS"))
        return Ratio(0.5, 0.4, 0.6) if seen[-2] else Ratio(1.2, 1.0, 1.3)

    monkeypatch.setattr(threads, "ratio_of_totals", totals)
    monkeypatch.setattr(threads, "SHAPES", ((4, 8), (8, 16)))
    monkeypatch.setattr(threads, "cores", lambda: 2)
    monkeypatch.setenv("PHIBALL_THREADS", "3")
    result = CliRunner().invoke(app, ["bench", "inner", "--busy", "--quick", "--out", str(tmp_path)])
    assert result.exit_code == 0, result.output
    watched.check(2)
    assert os.environ["PHIBALL_THREADS"] == "3"
    assert set(seen) == {None, "1", "2"}
    rows = json.loads((tmp_path / "inner-busy.json").read_text())["rows"]
    assert [(row["shape"], row["busy"], row["two"] is None) for row in rows] == [
        ([4, 8], False, False),
        ([8, 16], False, False),
        ([4, 8], True, True),
        ([8, 16], True, True),
    ]
    page = (tmp_path / "inner-busy.md").read_text(encoding="utf-8")
    assert "| quadratic | (8, 16) | every core busy |" in page
    assert "| 1.20 (1.00-1.30) |  | ABOVE |" in page


@pytest.mark.parametrize(
    ("shape", "busy", "used", "default", "two", "word"),
    [
        ((1024, 128), True, 2.0, 1.15, None, "within"),
        ((1024, 128), True, 0.0, 1.16, None, "ABOVE"),
        ((1024, 128), False, 0.0, 1.0, 1.0, ""),  # too small for two threads
        ((8192, 128), False, 0.1, 0.6, 0.6, "within"),
        ((8192, 128), False, None, 0.6, 0.7, "BELOW"),
        ((8192, 128), False, 1.0, 0.6, 0.7, "BELOW (not idle)"),
    ],
)
def test_verdicts_on_threads(
    shape: Any, busy: bool, used: float, default: float, two: float | None, word: str
) -> None:
    ratio = None if two is None else Ratio(two, two, two)
    row = threads.Row("quadratic", shape, busy, used, 0.0, Ratio(default, default, default), ratio)
    assert row.verdict == word


# --- Two versions ---------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_version_is_as_fast_as_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench.versions, "PROBLEMS", ("QUADRATIC",))
    monkeypatch.setattr(bench.versions, "SHAPES", ((64, 64),))
    monkeypatch.setattr(bench.versions, "BACKEND", "numpy")  # which compiles nothing
    watched = Watched(monkeypatch)
    arguments = ["bench", "inner", "--against", str(ROOT), "--quick", "--out", str(tmp_path)]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    watched.check(1)
    page = (tmp_path / "inner-against.md").read_text(encoding="utf-8")
    assert "| QUADRATIC | (64, 64) | " in page


def test_another_version_must_be_one(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["bench", "inner", "--against", str(tmp_path)])
    assert result.exit_code == 1
    assert f"against is {tmp_path}; expected the folder of a clone" in result.stderr
    assert CliRunner().invoke(app, ["bench", "inner", "--busy", "--against", "x"]).exit_code == 2


@pytest.mark.slow
def test_a_version_that_breaks_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench.versions, "BACKEND", "numpy")
    (tmp_path / "__init__.py").write_text("")
    result = CliRunner().invoke(app, ["bench", "inner", "--against", str(tmp_path)])
    assert result.exit_code == 1
    assert f"the phiball of {tmp_path} solves no inner problem" in result.stderr

"""Claims on several processes: the same results, in order; death and Ctrl-C end nothing but what they hit."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from multiprocessing import active_children
from pathlib import Path

import pytest

from phiball.backends import use
from phiball.backends.processes import Lost, cores, run_in_processes
from phiball.verification.framework import runner
from phiball.verification.framework.evidence import Verdict
from phiball.verification.framework.result import Result
from phiball.verification.framework.runner import find, run
from phiball.verification.report.json import to_json
from tests.support import worker_tasks
from tests.support.paths import ROOT

pytestmark = pytest.mark.slow

FEW = "pricing"  # a handful of quick claims
posix = pytest.mark.skipif(os.name != "posix", reason="process groups: not on this system")


@pytest.fixture(autouse=True)
def _numpy() -> Iterator[None]:
    with use("numpy"):
        yield


def timeless(results: list[Result]) -> str:
    return to_json([replace(result, seconds=0.0) for result in results], {})


def wait_until(condition: Callable[[], bool], complaint: str) -> None:
    for _ in range(600):
        if condition():
            return
        time.sleep(0.1)
    pytest.fail(complaint)


def group_is_gone(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return True
    return False


# --- Tasks ----------------------------------------------------------------------------------------


def test_worker_has_one_thread_and_leaves_ctrl_c_to_its_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    handler = signal.getsignal(signal.SIGINT)
    for threads in (1, 2):
        *_, (_, ended) = run_in_processes(worker_tasks.worker_state, [()], jobs=1, threads=threads)
        assert ended == {0: ({str(threads)}, True)}
    assert os.environ["OMP_NUM_THREADS"] == "3"
    assert signal.getsignal(signal.SIGINT) is handler
    assert cores() >= 1


def test_error_of_a_task_is_raised_and_ends_the_processes() -> None:
    with pytest.raises(ZeroDivisionError):
        list(run_in_processes(worker_tasks.divide, [(1.0, 1.0), (1.0, 0.0), (1.0, 2.0)], jobs=2))
    assert active_children() == []


def test_tasks_that_ran_beside_a_death_are_repeated_and_one_that_dies_alone_is_lost(tmp_path: Path) -> None:
    pair = [(tmp_path, "a", "b"), (tmp_path, "b", "a")]
    events = list(run_in_processes(worker_tasks.die_or_be_killed_once, pair, jobs=2))
    outcomes = {index: outcome for _, ended in events for index, outcome in ended.items()}
    assert outcomes == {0: "survived", 1: "survived"}
    *_, (_, ended) = run_in_processes(worker_tasks.die_or_be_killed_once, [(tmp_path, "c", "c")], jobs=1)
    assert ended == {0: Lost("the process died with EXIT(3)")}


def test_closing_the_iterator_ends_the_processes(tmp_path: Path) -> None:
    with closing(run_in_processes(worker_tasks.leave_pid_and_sleep, [(tmp_path,)] * 3, jobs=2)) as events:
        assert next(events) == ([0, 1], {})
        wait_until(lambda: len(list(tmp_path.iterdir())) == 2, "the workers do not start")
    assert active_children() == []


@posix
def test_workers_end_with_a_killed_parent(tmp_path: Path) -> None:
    code = f"""
from pathlib import Path
from phiball.backends.processes import run_in_processes
from tests.support.worker_tasks import leave_pid_and_sleep
list(run_in_processes(leave_pid_and_sleep, [(Path({str(tmp_path)!r}),)] * 2, jobs=2))
"""
    parent = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, start_new_session=True)
    try:
        wait_until(lambda: len(list(tmp_path.iterdir())) == 2, "the workers do not start")
        parent.kill()
        parent.wait()
        wait_until(lambda: group_is_gone(parent.pid), "a process is left over")
    finally:
        if not group_is_gone(parent.pid):
            os.killpg(parent.pid, signal.SIGKILL)


# --- Claims ---------------------------------------------------------------------------------------


def test_processes_give_the_same_results_in_the_same_order() -> None:
    order: list[str] = []
    counts: list[int] = []
    results = run(
        FEW,
        jobs=2,
        seed=3,
        backend="strict",  # which the new processes must learn
        on_result=lambda result: order.append(result.id),
        on_progress=lambda done, running: counts.append(done),
    )
    assert len(results) >= 3
    assert order == [result.id for result in results] == [claim.id for claim in find(FEW)]
    # Two that end together are told of at once.
    assert counts == sorted(set(counts))
    assert (counts[0], counts[-1]) == (0, len(results))
    for jobs in (1, None):
        assert timeless(results) == timeless(run(FEW, jobs=jobs, seed=3, backend="strict"))
    assert active_children() == []


def test_claim_whose_process_dies_is_lost_and_the_others_finish(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "all_claims", lambda: worker_tasks.CLAIMS)
    running: list[list[str]] = []
    results = run(jobs=2, on_progress=lambda done, claims: running.append([claim.name for claim in claims]))
    assert [result.name for result in results] == ["quick", "deadly", "slow", "last"]
    lost = results.pop(1)
    assert lost.error == "the process died with SIGKILL(-9)"
    assert lost.verdict is Verdict.UNDECIDED
    assert lost.title == "Kills its process."
    assert [result.verdict for result in results] == [Verdict.HOLDS] * 3
    assert ["deadly", "slow"] in running  # both were stopped; one of them was repeated with success
    assert active_children() == []


def test_error_of_the_caller_ends_the_processes() -> None:
    def fails(result: Result) -> None:
        raise RuntimeError("the disk is full")

    with pytest.raises(RuntimeError, match="the disk is full"):
        run(FEW, jobs=2, on_result=fails)
    assert active_children() == []


def test_number_of_jobs_is_checked() -> None:
    with pytest.raises(ValueError, match="jobs is 0; expected a whole number of at least 1"):
        run(FEW, jobs=0)


@posix
@pytest.mark.parametrize("lines", [1, 4], ids=["at the start", "after the first result"])
def test_ctrl_c_ends_all_processes_and_says_so(tmp_path: Path, lines: int) -> None:
    code = "from phiball.experiments.cli.main import main; main()"
    process = subprocess.Popen(
        [
            sys.executable,
            "-c",
            code,
            "verify",
            "--section",
            "2",
            "--jobs",
            "2",
            "--out",
            str(tmp_path / "out"),
        ],
        env={**os.environ, "PHIBALL_BACKEND": "numpy", "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    for _ in range(lines):  # the head of the table; a gap, the section, and the first claim
        process.stdout.readline()
    time.sleep(1.0)
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert errors == "phiball: stopped; no report is written\n"
    assert process.returncode == 130
    assert list((tmp_path / "out").iterdir()) == []
    wait_until(lambda: group_is_gone(process.pid), "a process is left over")

"""Claims on several processes: the same results, in order; death and Ctrl-C end nothing but what they hit."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from multiprocessing import active_children
from pathlib import Path

import pytest

from phiball.backends import use
from phiball.verification.framework import parallel as workers
from phiball.verification.framework.claim import Result
from phiball.verification.framework.evidence import Verdict
from phiball.verification.framework.runner import find, run

FEW = "pricing"  # a handful of quick claims


@pytest.fixture(autouse=True)
def _numpy() -> Iterator[None]:
    with use("numpy"):
        yield


def timeless(results: list[Result]) -> list[Result]:
    return [replace(result, seconds=0.0) for result in results]


def test_processes_give_the_same_results_in_the_same_order() -> None:
    told: list[str] = []
    counts: list[int] = []
    results = run(
        FEW,
        jobs=2,
        seed=3,
        backend="strict",  # which the new processes must be told
        on_result=lambda result: told.append(result.id),
        on_progress=lambda done, running: counts.append(done),
    )
    assert len(results) >= 3
    assert told == [result.id for result in results] == [one.id for one in find(FEW)]
    assert counts == list(range(len(results) + 1))
    assert timeless(results) == timeless(run(FEW, seed=3, backend="strict"))
    assert active_children() == []


def test_killed_process_is_an_error_of_its_claim_alone() -> None:
    killed: list[int] = []

    def kill(done: int, running: list[str]) -> None:
        if done == 1 and not killed:
            (victim, *_) = active_children()
            assert victim.pid is not None
            killed.append(victim.pid)
            os.kill(victim.pid, signal.SIGKILL)

    results = run(FEW, jobs=2, on_progress=kill)
    (lost,) = [result for result in results if result.error]
    assert lost.error == "the process was killed by signal 9"
    assert lost.verdict is Verdict.UNDECIDED
    assert lost.title
    assert all(result.as_recorded for result in results if result is not lost)
    assert active_children() == []


def test_error_in_what_is_told_ends_the_processes() -> None:
    def fails(result: Result) -> None:
        raise RuntimeError("the disk is full")

    with pytest.raises(RuntimeError, match="the disk is full"):
        run(FEW, jobs=2, on_result=fails)
    assert active_children() == []


def test_number_of_jobs_is_checked() -> None:
    with pytest.raises(ValueError, match="jobs is 0; expected a whole number of at least 1"):
        run(FEW, jobs=0)
    assert workers.cores() >= 1


def test_processes_start_with_one_thread_unless_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.delenv("PHIBALL_THREADS", raising=False)
    handler = signal.getsignal(signal.SIGINT)
    with workers._starting():
        assert os.environ["OMP_NUM_THREADS"] == "3"
        assert os.environ["PHIBALL_THREADS"] == "1"
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    assert os.environ["OMP_NUM_THREADS"] == "3"
    assert "PHIBALL_THREADS" not in os.environ
    assert signal.getsignal(signal.SIGINT) is handler


@pytest.mark.skipif(os.name != "posix", reason="process groups: not on this system")
def test_ctrl_c_ends_all_processes_and_says_so(tmp_path: Path) -> None:
    code = "from phiball.experiments.main import main; main()"
    run = subprocess.Popen(
        [sys.executable, "-c", code, "verify", "--jobs", "2", "--deep", "--out", str(tmp_path / "out")],
        env={**os.environ, "PHIBALL_BACKEND": "numpy", "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert run.stdout is not None
    run.stdout.readline()  # the head of the table: the processes are about to start
    time.sleep(1.0)
    os.killpg(run.pid, signal.SIGINT)
    _, errors = run.communicate(timeout=60)
    assert errors == "phiball: stopped; no report is written\n"
    assert run.returncode == 130
    assert list((tmp_path / "out").iterdir()) == []
    for _ in range(100):
        try:
            os.killpg(run.pid, 0)
        except ProcessLookupError:
            return
        time.sleep(0.1)
    pytest.fail("a process is left over")

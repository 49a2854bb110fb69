"""Batches on several threads: the same results, whatever happens to the threads or to the caller."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, Lock, Thread, current_thread
from types import FrameType
from typing import Any

import numpy as np
import pytest

from phiball.backends import threads, use
from phiball.backends.numba import compilation
from phiball.backends.numba import threads as module
from phiball.backends.numba.threads import over_rows
from phiball.refimpl import QUADRATIC, worst_case

BATCH = np.random.default_rng(4).exponential(size=(600, 200))
ENTRIES = 1 << 30  # enough for any number of threads


@pytest.fixture(autouse=True)
def _two_threads_for_small_batches(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(module, "_SPLIT_ABOVE", 1000)
    monkeypatch.setenv("PHIBALL_THREADS", "2")
    with use("numba"):
        yield


def _solve_batch(_: int = 0) -> Any:
    return worst_case(BATCH, 0.1, QUADRATIC).weights


def test_threads_give_the_same_result(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PHIBALL_THREADS", "1")
    alone = _solve_batch()
    for n in ("2", "3", "7"):
        monkeypatch.setenv("PHIBALL_THREADS", n)
        np.testing.assert_array_equal(_solve_batch(), alone)


@pytest.mark.parametrize("rows", [2, 7, 1001])
def test_parts_cover_each_row_once(rows: int) -> None:
    seen = np.zeros(rows, dtype=int)

    def work(start: int, stop: int) -> None:
        assert start < stop
        seen[start:stop] += 1

    over_rows(work, rows, ENTRIES)
    np.testing.assert_array_equal(seen, 1)


@pytest.mark.parametrize(("idle", "names"), [(0, 1), (1, 2)])
def test_by_default_only_idle_cores_are_used(monkeypatch: pytest.MonkeyPatch, idle: int, names: int) -> None:
    monkeypatch.setenv("PHIBALL_THREADS", "")
    monkeypatch.setattr(module, "threads", lambda: 4)
    monkeypatch.setattr(module, "_idle_cores", lambda: idle)
    seen = set()

    def work(start: int, stop: int) -> None:
        time.sleep(0.2)
        seen.add(current_thread().name)

    over_rows(work, 8, ENTRIES)
    assert len(seen) == names


def test_idle_cores_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.setattr(os, "read", lambda *_: b"0.20 0.18 0.12 3/129 11206\n")
    assert module._idle_cores() == 5
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    assert module._idle_cores() == 0
    monkeypatch.setattr(os, "read", lambda *_: b"")
    assert module._idle_cores() > 1000


@pytest.mark.parametrize("text", ["0", "-1", "two"])
def test_number_of_threads_is_checked(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("PHIBALL_THREADS", text)
    with pytest.raises(ValueError, match=f"PHIBALL_THREADS is '{text}'"):
        threads()


def test_concurrent_calls() -> None:
    expected = _solve_batch()
    with ThreadPoolExecutor(4) as pool:
        for weights in pool.map(_solve_batch, range(40)):
            np.testing.assert_array_equal(weights, expected)


def _child(queue: Any) -> None:
    queue.put(_solve_batch())


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("busy", [False, True])
def test_forked_child(busy: bool) -> None:
    """A child of a process whose pool is in use has no threads of its own yet; it makes them."""
    expected = _solve_batch()
    entered, leave = Barrier(3, timeout=60), Barrier(3, timeout=60)

    def work(start: int, stop: int) -> None:
        entered.wait()
        leave.wait()

    other = Thread(target=over_rows, args=(work, 2, ENTRIES))
    if busy:
        other.start()
        entered.wait()
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=_child, args=(queue,))
    child.start()
    try:
        np.testing.assert_array_equal(queue.get(timeout=60), expected)
    finally:
        if busy:
            leave.wait()
            other.join()
        child.join(timeout=60)
    assert child.exitcode == 0


@pytest.mark.parametrize("by_caller", [False, True])
def test_an_error_in_a_thread_reaches_the_caller(by_caller: bool) -> None:
    caller, both = current_thread(), Barrier(2, timeout=60)

    def work(start: int, stop: int) -> None:
        both.wait()
        if (current_thread() is caller) == by_caller:
            raise RuntimeError("from one of two")

    with pytest.raises(RuntimeError, match="from one of two"):
        over_rows(work, 2, ENTRIES)


def test_the_caller_works_alone_where_no_thread_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = _solve_batch()
    module._queues.clear()
    compilation._ready.clear()  # so that there is no thread to compile in either

    def fail(self: Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(Thread, "start", fail)
    np.testing.assert_array_equal(_solve_batch(), expected)


@pytest.mark.slow
def test_first_call_while_the_interpreter_shuts_down() -> None:
    code = (
        "import atexit, numpy as np\n"
        "from phiball.refimpl import QUADRATIC, worst_case\n"
        "f = np.random.default_rng(0).exponential(size=(1024, 1024))\n"
        "solve = lambda: worst_case(f, 0.1, QUADRATIC).value.sum()\n"
        "atexit.register(lambda: print(solve() == solve() > 1000))\n"
    )
    out = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    )
    assert (out.stdout, out.stderr) == ("True\n", "")


def _raise_at(line: int) -> Callable[[FrameType, str, Any], Any]:
    """A trace function that raises KeyboardInterrupt at the given line, counted as they are run."""
    count = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal count
        if frame.f_code.co_filename != module.__file__:
            return None
        if event == "line":
            count += 1
            if count == line:
                raise KeyboardInterrupt
        return trace

    return trace


def test_interrupt_at_every_line() -> None:
    """No part is running after an interrupt, wherever it comes, and the next call is right."""
    lock, running, seen = Lock(), 0, np.zeros(40, dtype=int)

    def work(start: int, stop: int) -> None:
        nonlocal running
        with lock:
            running += 1
        time.sleep(0.001)
        seen[start:stop] += 1
        with lock:
            running -= 1

    interrupts = 0
    while True:
        before = sys.gettrace()
        sys.settrace(_raise_at(interrupts + 1))
        try:
            over_rows(work, len(seen), ENTRIES)
        except KeyboardInterrupt:
            interrupts += 1
        else:
            break
        finally:
            sys.settrace(before)
        assert running == 0
        seen[:] = 0
        over_rows(work, len(seen), ENTRIES)
        np.testing.assert_array_equal(seen, 1)
        seen[:] = 0
    assert interrupts > 30
    assert sys.exc_info() == (None, None, None)

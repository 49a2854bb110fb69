"""Batches on several threads give the same results as on one, also after errors and interrupts."""

import multiprocessing
import os
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, Lock, Thread, current_thread
from types import FrameType
from typing import Any

import numpy as np
import pytest

from phiball.backends import backend, threads
from phiball.backends.numba import threads as module
from phiball.backends.numba.threads import over_rows
from phiball.refimpl import QUADRATIC, worst_case

BATCH = np.random.default_rng(4).exponential(size=(600, 200))
ENTRIES = 1 << 30  # enough for any number of threads


@pytest.fixture(autouse=True)
def _two_threads_for_small_batches(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(module, "_MIN_ENTRIES", 1000)
    monkeypatch.setenv("PHIBALL_THREADS", "2")
    with backend("numba"):
        yield


def _solve_batch(_: int = 0) -> Any:
    return worst_case(BATCH, 0.1, QUADRATIC).weights


def test_result_does_not_depend_on_the_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PHIBALL_THREADS", "1")
    alone = _solve_batch()
    for n in ("2", "3", "7"):
        monkeypatch.setenv("PHIBALL_THREADS", n)
        np.testing.assert_array_equal(_solve_batch(), alone)
        with ThreadPoolExecutor(4) as pool:  # concurrent calls
            for weights in pool.map(_solve_batch, range(12)):
                np.testing.assert_array_equal(weights, alone)
    for text in ("0", "-1", "two"):
        monkeypatch.setenv("PHIBALL_THREADS", text)
        with pytest.raises(ValueError, match=f"PHIBALL_THREADS is '{text}'"):
            threads()


def test_by_default_only_idle_cores_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PHIBALL_THREADS", "")
    monkeypatch.setattr(module, "threads", lambda: 4)
    monkeypatch.setattr(os, "read", lambda *_: b"0.20 0.18 0.12 3/129 11206\n")
    for cores, used in ((2, 1), (4, 2)):
        monkeypatch.setattr(os, "cpu_count", lambda cores=cores: cores)
        assert module._idle_cores() == used - 1
        seen = set()

        def work(start: int, stop: int, seen: set[str] = seen) -> None:
            time.sleep(0.2)
            seen.add(current_thread().name)

        over_rows(work, 8, ENTRIES)
        assert len(seen) == used
    monkeypatch.setattr(os, "read", lambda *_: b"")
    assert module._idle_cores() > 1000


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_child_forked_while_threads_are_busy_starts_its_own_threads() -> None:
    expected = _solve_batch()
    entered, leave = Barrier(3, timeout=60), Barrier(3, timeout=60)

    def work(start: int, stop: int) -> None:
        entered.wait()
        leave.wait()

    other = Thread(target=over_rows, args=(work, 2, ENTRIES))
    other.start()
    entered.wait()
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=lambda: queue.put(_solve_batch()))
    child.start()
    try:
        np.testing.assert_array_equal(queue.get(timeout=60), expected)
    finally:
        leave.wait()
        other.join()
        child.join(timeout=60)
    assert child.exitcode == 0


@pytest.mark.parametrize("by_caller", [False, True])
def test_error_in_a_thread_reaches_the_caller(by_caller: bool) -> None:
    caller, both = current_thread(), Barrier(2, timeout=60)

    def work(start: int, stop: int) -> None:
        both.wait()
        if (current_thread() is caller) == by_caller:
            raise RuntimeError("from one of two")

    with pytest.raises(RuntimeError, match="from one of two"):
        over_rows(work, 2, ENTRIES)


def test_caller_works_alone_if_no_thread_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = _solve_batch()
    module._queues.clear()
    module._compiled_kernels.clear()  # so that the kernel is compiled without a thread, too

    def fail(self: Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(Thread, "start", fail)
    np.testing.assert_array_equal(_solve_batch(), expected)


def _raise_at(line: int) -> Callable[[FrameType, str, Any], Any]:
    """A trace function that raises KeyboardInterrupt at the `line`-th line that is run in `threads.py`."""
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


def test_each_row_is_visited_once_after_an_interrupt_at_any_line() -> None:
    """After an interrupt, no thread is working, and the next call visits each row once."""
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
        rows = (2, 7, 40)[interrupts % 3]
        seen[:] = 0
        over_rows(work, rows, ENTRIES)
        np.testing.assert_array_equal(seen, np.arange(40) < rows)
        seen[:] = 0
    assert interrupts > 30
    assert sys.exc_info() == (None, None, None)

"""Interrupts, at every line and at random moments: later calls answer and are right, and nothing spins."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Event, Thread
from types import FrameType
from typing import Any

import numpy as np
import pytest

from phiball.backends import selection, use
from phiball.backends.interrupts import finish
from phiball.backends.numba import threads as module
from phiball.refimpl import QUADRATIC, worst_case
from tests.support.paths import ROOT

BATCH = np.random.default_rng(4).exponential(size=(64, 50))


class InterruptError(Exception):
    """What a signal handler raises."""


HANDLED: list[int] = []


def _raise(number: int, frame: FrameType | None) -> None:
    HANDLED.append(number)
    raise InterruptError


@pytest.fixture
def handlers() -> Iterator[None]:
    """Handlers that raise, for two signals."""
    before = {number: signal.signal(number, _raise) for number in (signal.SIGUSR1, signal.SIGUSR2)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("handlers")
def test_signals_wait_for_the_end() -> None:
    done = []

    def work() -> None:
        for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGUSR1):
            signal.raise_signal(number)
        time.sleep(0)  # a moment at which a handler would run
        done.append(True)

    HANDLED.clear()
    with pytest.raises(InterruptError):
        finish(work)
    assert done == [True]
    assert sorted(HANDLED) == [signal.SIGUSR1, signal.SIGUSR2]
    assert signal.getsignal(signal.SIGUSR1) is _raise
    assert finish(lambda: finish(lambda: 3)) == 3  # one inside another
    with pytest.raises(ZeroDivisionError):
        finish(lambda: 1 // 0)
    assert signal.getsignal(signal.SIGUSR1) is _raise


@pytest.mark.usefixtures("handlers")
def test_other_threads_may_finish_something_too() -> None:
    """No handler runs there, and none can be set."""
    results: list[int] = []
    thread = Thread(target=lambda: results.append(finish(lambda: 4)))
    thread.start()
    thread.join(60)
    assert results == [4]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_fork_waits_for_the_end() -> None:
    """So that a child inherits no lock of a thread that it does not have."""
    entered, leave, over = Event(), Event(), Event()

    def work() -> None:
        entered.set()
        leave.wait(60)
        over.set()

    thread = Thread(target=finish, args=(work,))
    thread.start()
    entered.wait(60)
    Thread(target=lambda: (time.sleep(0.1), leave.set())).start()
    child = os.fork()
    if child == 0:
        os._exit(finish(lambda: 7 if over.is_set() else 1))
    thread.join(60)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


def _end_threads() -> None:
    for count, tasks in module._queues.items():
        for _ in range(count):
            tasks.put(None)
    module._queues.clear()


def _interrupted_at(line: int) -> tuple[bool, str]:
    """Solve, interrupted at that line of phiball, counted as they are run: whether it came, and where."""
    count, place = 0, ""

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal count, place
        if not frame.f_code.co_filename.startswith((str(ROOT), str(Path(module.__file__).parents[2]))):
            return None
        if event == "line":
            count += 1
            if count == line:
                place = f"{frame.f_code.co_filename}:{frame.f_lineno}"
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        worst_case(BATCH, 0.1, QUADRATIC)
    except KeyboardInterrupt:
        return True, place
    finally:
        sys.settrace(before)
    return False, place


@pytest.mark.slow
@pytest.mark.parametrize("first", [False, True])
def test_a_solve_is_interrupted_at_every_line(first: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A later one, and (`first`) one that loads the kernel anew."""
    monkeypatch.setattr(module, "_SPLIT_ABOVE", 100)
    monkeypatch.setenv("PHIBALL_THREADS", "3")
    monkeypatch.setattr(signal, "valid_signals", lambda: {signal.SIGINT})  # fewer lines
    with use("numpy"):
        expected = worst_case(BATCH, 0.1, QUADRATIC).value
    places = []
    with use("numba"):
        worst_case(BATCH, 0.1, QUADRATIC)
        came = True
        while came:
            if first:
                selection._loaded.clear()
                selection._imported.clear()
                _end_threads()
            came, place = _interrupted_at(len(places) + 1)
            places.append(place)
            np.testing.assert_allclose(worst_case(BATCH, 0.1, QUADRATIC).value, expected, rtol=1e-12)
    assert len(places) > 150
    files = {Path(place.partition(":")[0]).name for place in places}
    assert files >= {"threads.py", "solve.py", "dispatch.py", "worst_case.py"}
    assert not first or files >= {"interrupts.py"}
    began = time.process_time()
    time.sleep(0.3)
    assert time.process_time() - began < 0.2, "a thread spins"


STORM = """
import os, signal, sys, threading, time
import numpy as np
from phiball.backends import use
from phiball.refimpl import QUADRATIC, worst_case

def handler(*_):
    if armed:
        raise KeyboardInterrupt

armed, interrupts = False, 0
signal.signal(signal.SIGINT, handler)
f = np.random.default_rng(4).exponential(size=(1500, 800))
print("ready", flush=True)
end = None
while end is None or time.monotonic() < end or not interrupts:
    try:
        armed = True
        worst_case(f, 0.1, QUADRATIC)
        armed = False
    except KeyboardInterrupt:
        armed = False
        interrupts += 1
    end = end or time.monotonic() + 2  # the first call is over
signal.signal(signal.SIGINT, signal.SIG_IGN)
value = worst_case(f, 0.1, QUADRATIC).value
with use("numpy"):
    np.testing.assert_allclose(value, worst_case(f, 0.1, QUADRATIC).value, rtol=1e-12)
began = time.process_time()
time.sleep(0.3)
assert time.process_time() - began < 0.2, "a thread spins"
print(interrupts, flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("rate", [5, 500])
def test_a_storm_of_interrupts(rate: int) -> None:
    """From the first call on, which imports Numba and loads or compiles the kernel."""
    process = subprocess.Popen(
        [sys.executable, "-c", STORM],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PHIBALL_THREADS": "3", "PHIBALL_BACKEND": "numba"},
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    moments, latest = random.Random(rate), time.monotonic() + 300
    while process.poll() is None:
        time.sleep(moments.expovariate(rate))
        process.send_signal(signal.SIGINT if time.monotonic() < latest else signal.SIGKILL)
    out, _ = process.communicate()
    assert process.returncode == 0
    assert int(out) > 0

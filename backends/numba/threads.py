"""Rows of a batch on a few threads, made on first use in each process.

A batch takes some hundred microseconds, and to wake a sleeping thread takes up to a hundred. So workers
look out for the next batch for a moment before they sleep, and the caller for their results; and
each is told to go on at a moment when the other does not hold the interpreter's lock, on which it
would go to sleep.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial
from threading import Lock, Semaphore, Thread
from typing import Any

import numpy as np

VARIABLE = "PHIBALL_THREADS"
_SPLIT_ABOVE = 1 << 15  # entries; below, handing work over costs more than it saves
_SPINS = 50_000  # about a millisecond of looking out

Work = Callable[[Any, Any], None]


def _bell() -> Any:
    return np.zeros(16, dtype=np.int64)  # one number, alone in its part of the memory


def _nothing() -> None:
    pass


class _Worker:
    """A thread that does its part of each batch, when the bell has rung for it."""

    def __init__(self, bell: Any) -> None:
        self._bell, self._done = bell, _bell()
        self._expected = 0
        self._asleep = False
        self._wake = Semaphore(0)
        self.part: Callable[[], None] | None = None
        self.error: BaseException | None = None
        Thread(target=self._run, args=(int(bell[0]) + 1,), name="phiball", daemon=True).start()

    def expect(self, part: Callable[[], None]) -> None:
        """Get ready to do `part` when the bell rings."""
        self.part, self.error = part, None
        self._expected += 1
        if self._asleep:
            self._wake.release()

    def wait(self) -> None:
        """Return when the part is done."""
        from phiball.backends.numba.primitives import wait_until

        while not wait_until(self._done, self._expected, _SPINS):
            time.sleep(5e-5)

    def _run(self, number: int) -> None:
        from phiball.backends.numba.primitives import ring_and_wait, wait_until

        rung = wait_until(self._bell, number, _SPINS)
        while True:
            if not rung:
                self._asleep = True
                if self.part is None:  # a part that came in between must not be slept over
                    self._wake.acquire()
                self._asleep = False
                rung = wait_until(self._bell, number, _SPINS)
                continue
            part, self.part = self.part, None
            try:
                if part is not None:
                    part()
            except BaseException as error:  # handed to the caller, who raises it
                self.error = error
            del part
            number += 1
            rung = ring_and_wait(self._done, self._bell, number, _SPINS)


class _Team:
    """The workers of this process, and the bell that the caller's kernel rings for all of them."""

    def __init__(self) -> None:
        self.busy = Lock()
        self.bell = _bell()
        self.workers: list[_Worker] = []


_team = _Team()


def _forget() -> None:
    global _team
    _team = _Team()  # the threads of a parent do not exist in a forked child


if hasattr(os, "register_at_fork"):  # not on Windows, which does not fork
    os.register_at_fork(after_in_child=_forget)


def threads() -> int:
    """How many threads the kernels use: PHIBALL_THREADS, else the cores given to this process."""
    text = os.environ.get(VARIABLE)
    if not text:
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(f"{VARIABLE} is {text!r}; expected a whole number of at least 1")
    return int(text)


def over_rows(work: Work, rows: int, entries: int) -> None:
    """Call `work(bell, queue)` on each of a few threads, if that pays, until the queue has no rows left.

    `work` must release the interpreter's lock, ring the bell, and do the rows that it takes from
    the queue (`ring` and `rows_of` in numba_parts). While one thread of the user's has the workers,
    the others work alone.
    """
    parts = min(threads(), rows, max(1, entries // _SPLIT_ABOVE))
    team = _team
    if parts == 1 or not team.busy.acquire(blocking=False):
        work(_bell(), np.array([0, rows + 64 - rows % 64]))
        return
    try:
        while len(team.workers) < parts - 1:
            team.workers.append(_Worker(team.bell))
        rung = int(team.bell[0])
        # Some pieces for each thread, as they do not run at one speed; a multiple of 64 suits short rows.
        queue = np.zeros(16, dtype=np.int64)
        queue[1] = -(-rows // (64 * 6 * parts)) * 64
        for i, worker in enumerate(team.workers):  # all of them hear the bell, if only to pass
            worker.expect(partial(work, _bell(), queue) if i < parts - 1 else _nothing)
        try:
            work(team.bell, queue)
        finally:
            if team.bell[0] == rung:  # it failed before it rang
                team.bell[0] += 1
            for worker in team.workers:  # nobody may still be writing when the arrays are given back
                worker.wait()
        for worker in team.workers:
            if worker.error is not None:
                raise worker.error
    finally:
        team.busy.release()

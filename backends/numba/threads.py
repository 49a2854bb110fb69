"""Rows of a batch on a few threads, which are started on first use in each process.

Not a ThreadPoolExecutor: an interrupt in its `submit` may leave a lock taken, and every later call waits.
What the caller does here are single steps of the interpreter: it puts into a queue and takes locks.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from threading import RLock, Thread
from typing import Any, TypeAlias

VARIABLE = "PHIBALL_THREADS"
_SPLIT_ABOVE = 1 << 18  # entries per thread; below, handing work over costs more than it saves
_PARTS = 4  # per thread, as threads do not run at one speed

Parts: TypeAlias = deque[partial[None] | None]
Tasks: TypeAlias = "SimpleQueue[Callable[[], None] | None]"  # None ends a thread


_queues: dict[int, Tasks] = {}
if hasattr(os, "register_at_fork"):  # not on Windows, which does not fork
    os.register_at_fork(after_in_child=_queues.clear)  # a child does not have its parent's threads


def _queue(workers: int) -> Tasks:
    """The queue that so many threads serve, or fewer; RuntimeError if not one can be started."""
    if workers not in _queues:
        tasks: Tasks = SimpleQueue()
        try:
            for n in range(workers):
                Thread(target=_serve, args=(tasks,), name=f"phiball-{n}", daemon=True).start()
        except RuntimeError:  # no more threads, or the interpreter is shutting down
            if n == 0:
                raise
        except BaseException:  # an interrupt: end the threads, which nobody would give tasks
            for _ in range(workers):
                tasks.put(None)
            raise
        _queues[workers] = tasks
    return _queues[workers]


def _serve(tasks: Tasks) -> None:
    for task in iter(tasks.get, None):
        task()


def threads() -> int:
    """The number of threads that kernels may use: PHIBALL_THREADS, else the cores given to this process.

    >>> threads() >= 1
    True
    """
    text = os.environ.get(VARIABLE)
    if not text:
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(f"{VARIABLE} is {text!r}; expected a whole number of at least 1")
    return int(text)


def _idle_cores() -> int:
    """How many cores of the machine have nothing to run at this moment; many where that is not known."""
    try:
        file = os.open("/proc/loadavg", os.O_RDONLY)  # half as long as open() takes
        try:
            running = os.read(file, 99).split()[3]  # b"3/129": three of 129 threads run or could run
        finally:
            os.close(file)
        return max(0, (os.cpu_count() or 1) - int(running.partition(b"/")[0]))
    except (OSError, ValueError, IndexError):
        return 1 << 30


_ready: set[Any] = set()


def _prepare(key: Any, call: Callable[[], None]) -> None:
    """Make the first call for a kernel and its types, which compiles it, in a thread of its own.

    There no interrupt can leave Numba or a lock of LLVM half way: Ctrl-C ends the wait, not the compilation.
    """
    errors: list[BaseException] = []

    def run() -> None:
        try:
            call()
        except BaseException as error:  # the caller raises it
            errors.append(error)

    thread = Thread(target=run, daemon=True)
    try:
        thread.start()
    except RuntimeError:  # no thread can be started
        call()
    else:
        thread.join()
    if errors:
        raise errors[0]
    _ready.add(key)


def over_rows(work: Callable[[int, int], None], rows: int, entries: int, kernel: Any = None) -> None:
    """Call `work(start, stop)` on ranges that cover all rows, on a few threads if there are enough entries.

    `kernel` identifies what the first call compiles, if anything.
    `work` must release the interpreter's lock for threads to help. The caller takes parts too, and does all
    of them where the workers are busy or cannot be had. No part is running when this returns or raises.
    """
    if kernel is not None and kernel not in _ready:
        _prepare(kernel, partial(work, 0, 0))
    most = threads()
    count = min(most, rows, entries // _SPLIT_ABOVE)
    if count > 1 and not os.environ.get(VARIABLE):
        # A thread that waits for a core holds up the batch for longer than it saves.
        count = min(count, 1 + _idle_cores())
    if count < 2:
        work(0, rows)
        return
    step = -(-rows // (count * _PARTS))
    parts: Parts = deque(partial(work, start, min(start + step, rows)) for start in range(0, rows, step))
    parts.extend([None] * count)  # one for each thread: the end
    locks = [RLock() for _ in range(count - 1)]
    errors: list[BaseException] = []

    def help_out(lock: RLock) -> None:
        if lock.acquire(blocking=False):  # unless the caller has it, who is then done
            try:
                _run_all(parts)
            except BaseException as error:  # the caller raises it
                errors.append(error)
            finally:
                lock.release()

    try:
        with suppress(RuntimeError):  # no thread can be started
            tasks = _queue(most - 1)
            for lock in locks:
                tasks.put(partial(help_out, lock))
        _run_all(parts)
        _finish(parts, locks)
    except BaseException:  # an interrupt may come at any moment, while it waits too
        _finish(parts, locks)
        raise
    if errors:
        raise errors[0]


def _run_all(parts: Parts) -> None:
    for part in iter(parts.popleft, None):
        part()


def _finish(parts: Parts, locks: list[RLock]) -> None:
    """Drop the parts that have not begun, and wait for those that are running; harmless to call again."""
    parts.extendleft([None] * (1 + len(locks)))
    for lock in locks:
        lock.acquire()
    parts.clear()  # so that a worker that has yet to start keeps no array alive

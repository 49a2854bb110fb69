"""Threads that share the rows of a batch, started on first use in each process.

A ThreadPoolExecutor would not do: Ctrl-C during its `submit` may leave a lock held, and every later call
would hang. Here the caller uses only operations that Ctrl-C cannot split: queue.put and lock.acquire.
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

THREADS_VARIABLE = "PHIBALL_THREADS"
_MIN_ENTRIES = 1 << 18  # entries per thread; with fewer, another thread costs more than it saves
_PARTS_PER_THREAD = 4  # several, because threads run at different speeds

Parts: TypeAlias = deque[partial[None] | None]
Tasks: TypeAlias = "SimpleQueue[Callable[[], None] | None]"  # None ends a thread


_queues: dict[int, Tasks] = {}  # by the number of threads that read the queue
if hasattr(os, "register_at_fork"):  # not on Windows, which does not fork
    os.register_at_fork(after_in_child=_queues.clear)  # a child process has no threads of its parent


def _queue(workers: int) -> Tasks:
    """The queue that `workers` threads (or fewer) read; raises RuntimeError if no thread can be started."""
    if workers not in _queues:
        tasks: Tasks = SimpleQueue()
        try:
            for n in range(workers):
                Thread(target=_run_tasks, args=(tasks,), name=f"phiball-{n}", daemon=True).start()
        except RuntimeError:  # no more threads, or the interpreter is shutting down
            if n == 0:
                raise
        except BaseException:  # Ctrl-C: end the threads, which would never get a task
            for _ in range(workers):
                tasks.put(None)
            raise
        _queues[workers] = tasks
    return _queues[workers]


def _run_tasks(tasks: Tasks) -> None:
    for task in iter(tasks.get, None):
        task()


def threads() -> int:
    """The number of threads that kernels may use: PHIBALL_THREADS, else the cores given to this process.

    >>> threads() >= 1
    True
    """
    text = os.environ.get(THREADS_VARIABLE)
    if not text:
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(f"{THREADS_VARIABLE} is {text!r}; expected a whole number of at least 1")
    return int(text)


def _idle_cores() -> int:
    """The number of idle cores of the machine at this moment; a large number if unknown."""
    try:
        file = os.open("/proc/loadavg", os.O_RDONLY)  # twice as fast as open()
        try:
            running = os.read(file, 99).split()[3]  # b"3/129": three of 129 threads are runnable
        finally:
            os.close(file)
        return max(0, (os.cpu_count() or 1) - int(running.partition(b"/")[0]))
    except (OSError, ValueError, IndexError):
        return 1 << 30


_compiled_kernels: set[Any] = set()  # the values of the argument `kernel` of `over_rows` so far


def _compile_in_thread(key: Any, call: Callable[[], None]) -> None:
    """Make the first call of a kernel, which compiles it, in a new thread.

    Ctrl-C then ends the wait, but not the compilation: interrupting it could leave locks of Numba held.
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
    _compiled_kernels.add(key)


def over_rows(work: Callable[[int, int], None], rows: int, entries: int, kernel: Any = None) -> None:
    """Call `work(start, stop)` on ranges that cover all rows, on several threads if there are enough entries.

    `work` must release the GIL. `entries` is a measure of the work, such as the number of losses. `kernel`
    identifies the compiled function that `work` calls and the types of its arguments, or is None. The calling
    thread takes part, and does all the work if the other threads are busy or cannot be started. When this
    function returns or raises, no thread is still working.
    """
    if kernel is not None and kernel not in _compiled_kernels:
        _compile_in_thread(kernel, partial(work, 0, 0))
    most = threads()
    count = min(most, rows, entries // _MIN_ENTRIES)
    if count > 1 and not os.environ.get(THREADS_VARIABLE):
        # A thread that has to wait for a core delays the batch more than it helps.
        count = min(count, 1 + _idle_cores())
    if count < 2:
        work(0, rows)
        return
    step = -(-rows // (count * _PARTS_PER_THREAD))
    parts: Parts = deque(partial(work, start, min(start + step, rows)) for start in range(0, rows, step))
    parts.extend([None] * count)  # one end marker per thread
    locks = [RLock() for _ in range(count - 1)]
    errors: list[BaseException] = []

    def run_parts(lock: RLock) -> None:
        if lock.acquire(blocking=False):  # if not, the caller has finished without this thread
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
                tasks.put(partial(run_parts, lock))
        _run_all(parts)
        _finish(parts, locks)
    except BaseException:  # Ctrl-C may come at any moment, also while waiting in _finish
        _finish(parts, locks)
        raise
    if errors:
        raise errors[0]


def _run_all(parts: Parts) -> None:
    for part in iter(parts.popleft, None):
        part()


def _finish(parts: Parts, locks: list[RLock]) -> None:
    """Drop the parts that have not started, and wait for the running ones. It may be called twice."""
    parts.extendleft([None] * (1 + len(locks)))
    for lock in locks:
        lock.acquire()
    parts.clear()  # the queue may still refer to `parts`, which must not keep arrays alive

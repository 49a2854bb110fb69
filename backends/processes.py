"""Tasks on several processes: results as they come, and a task whose process dies is reported as lost."""

from __future__ import annotations

import os
import re
import signal
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from threading import Thread, current_thread, main_thread
from time import sleep
from typing import Any, TypeVar

from joblib.externals.loky import ProcessPoolExecutor

T = TypeVar("T")
# Libraries read these when they are loaded.
THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "PHIBALL_THREADS",
)


@dataclass(frozen=True)
class Lost:
    """The outcome of a task whose process died."""

    reason: str


def cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def worker_initializer(parent: int) -> None:
    """Prepare a worker process: it leaves Ctrl-C to process `parent`, and ends when that has ended."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to all processes

    def watch() -> None:
        while os.getppid() == parent:
            sleep(0.5)
        os._exit(1)

    Thread(target=watch, daemon=True).start()


def run_in_processes(
    function: Callable[..., T],
    tasks: Iterable[tuple[Any, ...]],
    *,
    jobs: int,
    threads: int = 1,
    places: Sequence[Any] = (),
) -> Generator[tuple[list[int], dict[int, T | Lost]], None, None]:
    """Call `function(*task)` for every task, on `jobs` new processes of `threads` threads each.

    The function must be importable by name. An error that it raises is raised here. Tasks are taken from
    their iterator when there is room for them. When a process dies, all tasks that were running are repeated
    one at a time, so that only the one to blame is `Lost`. With `places`, such as devices, a task gets one as
    its last argument: that which the fewest running tasks have.

    Yields (indices of the tasks that are running, outcomes by index of those that have just ended): once at
    the start, and whenever a task ends. Closing the generator kills the processes.
    """
    coming, waiting, suspects = enumerate(tasks), deque[int](), deque[int]()
    held: dict[int, tuple[Any, ...]] = {}  # the tasks that have not ended
    running: dict[Future[T], int] = {}
    taken: dict[int, Any] = {}  # the places of tasks
    ended: dict[int, T | Lost] = {}
    pool = _pool(jobs, threads)
    try:
        while True:
            while len(held) < jobs and (fresh := next(coming, None)) is not None:
                waiting.append(fresh[0])
                held[fresh[0]] = fresh[1]
            queue, limit = (suspects, 1) if suspects else (waiting, jobs)
            with postpone_interrupts():  # processes inherit this; their initializer comes a second later
                while queue and len(running) < limit:
                    try:
                        used = [taken[index] for index in running.values()] if places else []
                        place = sorted(places, key=used.count)[:1]
                        future = pool.submit(function, *held[queue[0]], *place)
                        taken[queue[0]] = next(iter(place), None)
                        running[future] = queue.popleft()
                    except BrokenProcessPool:
                        if running:  # one of them is to blame; that is seen below
                            break
                        pool = _pool(jobs, threads)
            yield list(running.values()), ended
            if not running:
                return
            done = wait(running, return_when=FIRST_COMPLETED).done
            deaths = [error for future in done if isinstance(error := future.exception(), BrokenProcessPool)]
            if deaths:  # then all that were running have ended
                alone, done = len(running) == 1, wait(running).done
                pool.shutdown(kill_workers=True)
                pool = _pool(jobs, threads)
            ended = {}
            for future in done:
                index = running.pop(future)
                if not isinstance(future.exception(), BrokenProcessPool):
                    ended[index] = future.result()
                elif alone:
                    ended[index] = Lost(_reason(deaths[0]))
                else:
                    suspects.append(index)
                    continue
                del held[index]
    finally:
        # Until a task has been handed to a process, loky cannot be stopped cleanly.
        while not all(future.running() or future.done() for future in running):
            sleep(0.01)
        pool.shutdown(kill_workers=True)


def _pool(jobs: int, threads: int) -> ProcessPoolExecutor:
    limits = dict.fromkeys(THREAD_VARIABLES, str(threads))
    return ProcessPoolExecutor(jobs, initializer=worker_initializer, initargs=(os.getpid(),), env=limits)


def _reason(death: BaseException) -> str:
    codes = re.search(r"exit codes of the workers are \{(.*)\}", str(death))
    return f"the process died with {codes[1]}" if codes else "the process died"


@contextmanager
def postpone_interrupts() -> Iterator[None]:
    """Let Ctrl-C wait for the end of the block; processes that are started there do not get it."""
    if not hasattr(signal, "pthread_sigmask"):
        with ignore_interrupts():
            yield
        return
    # Python starts this process with the first of the others, and takes the block away when it does.
    import_module("multiprocessing.resource_tracker").ensure_running()
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


@contextmanager
def ignore_interrupts() -> Iterator[None]:
    """Ignore Ctrl-C inside the block, and in the processes that are started there from their first moment."""
    if current_thread() is not main_thread():  # only the main thread may set handlers
        yield
        return
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)

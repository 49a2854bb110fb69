"""Work in a process of its own, which surely ends with the one that started it."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import get_all_start_methods, get_context, parent_process
from threading import Thread
from typing import Any

AVAILABLE = "forkserver" in get_all_start_methods()  # not on Windows
_PRELOADED = ("numpy", "torch")  # imported once, for all processes


@contextmanager
def own_process(function: Callable[..., Any], *arguments: Any) -> Iterator[Callable[[], Any]]:
    """Start function(*arguments) in a new process; yield a function that waits for what it returns.

    What it raises is raised there too. The process is gone when the block is left, in whatever way, and when
    this process dies. The function must be importable by name.
    """
    context = get_context("forkserver")
    context.set_forkserver_preload([*_PRELOADED, function.__module__])
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_answer, args=(there, function, arguments), daemon=True)
    # A terminal interrupts all processes. The new ones inherit that it is blocked; this one gets it after.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    there.close()

    def wait() -> Any:
        try:
            error, result = here.recv()
        except EOFError:
            process.join()
            raise RuntimeError(f"the process of {function.__name__} ended with {process.exitcode}") from None
        if error is not None:
            raise error
        return result

    try:
        yield wait
    finally:
        process.kill()
        process.join()
        here.close()


def in_own_process(function: Callable[..., Any], *arguments: Any) -> Any:
    """Return function(*arguments), computed by a new process."""
    with own_process(function, *arguments) as wait:
        return wait()


def _answer(connection: Any, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    Thread(target=_end_with_parent, daemon=True).start()
    answer: tuple[Exception | None, Any]
    try:
        answer = (None, function(*arguments))
    except Exception as error:
        answer = (error, None)
    connection.send(answer)


def _end_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        parent.join()  # not the server of processes, which outlives it as long as one of them lives
    os._exit(1)

"""Work that an interrupt or a fork must not leave half done: imports of libraries, and compilations."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from threading import RLock, current_thread, main_thread
from types import FrameType
from typing import Any, TypeVar

T = TypeVar("T")

_unfinished = RLock()  # held while such work is done
if hasattr(os, "register_at_fork"):  # not on Windows, which does not fork
    # A child would inherit the locks of other threads' work, and no thread that ever releases them.
    os.register_at_fork(
        before=_unfinished.acquire, after_in_parent=_unfinished.release, after_in_child=_unfinished.release
    )


def finish(work: Callable[[], T]) -> T:
    """Return `work()`; signals, such as that of Ctrl-C, are handled after it, and a fork waits for its end.

    >>> finish(lambda: 2 + 2)
    4
    """
    with _unfinished, _signals_kept_back():
        return work()


@contextmanager
def _signals_kept_back() -> Iterator[None]:
    """Call no signal handler inside the block, as it may raise; what came meanwhile is handled at its end."""
    if current_thread() is not main_thread():  # handlers run in the main thread alone
        yield
        return
    came: list[int] = []
    busy = True

    def later(handler: Callable[[int, FrameType | None], Any]) -> Callable[[int, FrameType | None], Any]:
        return lambda number, frame: came.append(number) if busy else handler(number, frame)

    def handle() -> None:
        with ExitStack() as every:  # it calls all, whatever one of them raises
            for number in dict.fromkeys(came):
                every.callback(signal.raise_signal, number)

    with ExitStack() as after:
        after.callback(handle)
        for number in signal.valid_signals():
            handler = signal.getsignal(number)
            if callable(handler):
                after.callback(signal.signal, number, handler)
                signal.signal(number, later(handler))
        try:
            yield
        finally:
            busy = False

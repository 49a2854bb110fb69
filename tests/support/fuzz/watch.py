"""A watchdog: a call that does not come back is printed, and ends the process."""

from __future__ import annotations

import faulthandler
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def watched(seconds: float, describe: Callable[[], str]) -> Iterator[None]:
    """Print what runs and end the process, unless the block ends in time."""

    def bark() -> None:
        print(f"HANG: not back after {seconds:.0f} s\n{describe()}", flush=True)
        faulthandler.dump_traceback()
        os._exit(3)

    timer = threading.Timer(seconds, bark)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()

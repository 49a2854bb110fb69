"""Rows of a batch on a few threads: a small pool, made on first use in each process."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from threading import Lock

VARIABLE = "PHIBALL_THREADS"
_SPLIT_ABOVE = 1 << 15  # entries; below, handing work over costs more than it saves

_lock = Lock()
_pool: ThreadPoolExecutor | None = None
_pool_size = 0


def _forget() -> None:
    # The threads of a parent do not exist in a forked child, and its lock may be held by one.
    global _lock, _pool, _pool_size
    _lock, _pool, _pool_size = Lock(), None, 0


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


def _executor(size: int) -> ThreadPoolExecutor:
    global _pool, _pool_size
    with _lock:
        if _pool is None or _pool_size < size:
            _pool, _pool_size = ThreadPoolExecutor(size, thread_name_prefix="phiball"), size
        return _pool


def over_rows(work: Callable[[int, int], None], rows: int, entries: int) -> None:
    """Call `work(start, stop)` on consecutive parts of range(rows), side by side if it pays.

    `work` must release the interpreter's lock and write to its own rows only.
    """
    parts = min(threads(), rows, max(1, entries // _SPLIT_ABOVE))
    if parts == 1:
        work(0, rows)
        return
    cuts = [rows * part // parts for part in range(parts + 1)]
    pool = _executor(parts - 1)
    others = [pool.submit(work, cuts[i], cuts[i + 1]) for i in range(1, parts)]
    try:
        work(cuts[0], cuts[1])
    finally:
        wait(others)  # nobody may still be writing when the arrays are given back
    for other in others:
        other.result()

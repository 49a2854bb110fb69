"""Functions that tests call in worker processes, which find them by name."""

from __future__ import annotations

import os


def worker_state(host: int) -> tuple[bool, list[str | None]]:
    """Whether this is the process `host`, and the limits and the backend of its environment."""
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "PHIBALL_THREADS", "PHIBALL_BACKEND")
    return os.getpid() == host, [os.environ.get(name) for name in names]


def fail_on(k: int, bad: int) -> int:
    """k, unless it is bad."""
    if k == bad:
        raise ZeroDivisionError
    return k

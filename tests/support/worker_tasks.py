"""What the tests of processes run in worker processes, which find it by name."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from phiball.backends.processes import THREAD_VARIABLES
from phiball.verification.framework.claim import Claim, claim
from phiball.verification.framework.evidence import Evidence, Verdict


def worker_state() -> tuple[set[str | None], bool]:
    """The limits on threads that this process has, and whether it ignores Ctrl-C."""
    limits = {os.environ.get(name) for name in THREAD_VARIABLES}
    return limits, signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def divide(numerator: float, denominator: float) -> float:
    """Raises on a denominator of 0."""
    return numerator / denominator


def where(seconds: float, place: str) -> tuple[str, float, float]:
    """The place that this task was given, and from when to when it was there."""
    began = time.monotonic()
    time.sleep(seconds)
    return place, began, time.monotonic()


def leave_pid_and_sleep(folder: Path) -> None:
    """Write a file named by the process, and stay for long."""
    (folder / str(os.getpid())).touch()
    time.sleep(600.0)


def die_or_be_killed_once(folder: Path, name: str, other: str) -> str:
    """In the first call, die while the other call runs, or wait for ever if `name` comes after `other`."""
    try:
        (folder / name).touch(exist_ok=False)
    except FileExistsError:
        time.sleep(1.0)  # still running when the death of the other call is noticed
        return "survived"
    while not (folder / other).exists():
        time.sleep(0.05)
    if name <= other:
        os._exit(3)
    time.sleep(600.0)
    return "was not killed"


@claim("Lemma 1", id="X1", section=2, verdict=Verdict.HOLDS)
def quick() -> Evidence:
    """Holds at once."""
    return Evidence(0.0, 0.0)


@claim("Lemma 2", id="X2", section=2, verdict=Verdict.HOLDS)
def deadly() -> Evidence:
    """Kills its process."""
    time.sleep(0.5)  # another claim is running by then
    os.kill(os.getpid(), signal.SIGKILL)
    return Evidence(0.0, 0.0)


@claim("Lemma 3", id="X3", section=2, verdict=Verdict.HOLDS)
def slow() -> Evidence:
    """Holds after a while."""
    time.sleep(2.0)
    return Evidence(0.0, 0.0)


@claim("Lemma 4", id="X4", section=2, verdict=Verdict.HOLDS)
def last() -> Evidence:
    """Holds at once."""
    return Evidence(0.0, 0.0)


CLAIMS: list[Claim] = [quick, deadly, slow, last]

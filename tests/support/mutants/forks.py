"""Copies of the repository to plant faults in, and processes that are forked to run something there."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

# Imported once, before the forks. Nothing of phiball or its tests is.
_HEAVY = """
numpy scipy.optimize scipy.stats scipy.integrate mpmath numba torch array_api_strict array_api_compat.torch
hypothesis.strategies pytest doctest coverage cvxpy joblib rich.console
"""
_POLL = 0.02  # seconds between two looks at the processes
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


@dataclass(frozen=True)
class Copy:
    """A copy of the repository, importable as phiball."""

    folder: Path

    @property
    def tree(self) -> Path:
        """The root of the repository in it; its name is that of the package."""
        return self.folder / "phiball"

    def update(self, root: Path) -> None:
        """Make it equal to `root`: files that git knows, or would know."""
        command = ["git", "ls-files", "-co", "--exclude-standard"]
        listed = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
        files = {Path(name) for name in listed.stdout.splitlines() if (root / name).is_file()}
        for old in [p for p in self.tree.rglob("*.py") if p.relative_to(self.tree) not in files]:
            old.unlink()
        for file in files:
            target = self.tree / file
            if not target.is_file() or target.read_bytes() != (root / file).read_bytes():
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(root / file, target)

    def write(self, module: str, source: bytes) -> None:
        """Write a module with a time of its own, by which Python knows that a compiled one is stale."""
        (self.tree / module).write_bytes(source)
        os.utime(self.tree / module, ns=(time.time_ns(), time.time_ns() + 10**9 * (hash(source) % 10**8)))


@dataclass
class Job:
    """Something to run in a copy: `work` returns what goes into JSON, within `seconds` of processor time."""

    name: Any
    work: Callable[[Copy], Any]
    seconds: float
    before: Callable[[Copy], None] = lambda copy: None
    after: Callable[[Copy], None] = lambda copy: None


def preload() -> None:
    """Import the libraries that every fork needs."""
    for variable in THREADS:
        os.environ[variable] = "1"
    for name in _HEAVY.split():
        with suppress(ImportError):
            import_module(name)


def run_jobs(jobs: Iterable[Job], copies: list[Copy]) -> Iterator[tuple[Job, Any]]:
    """Run each job in a process of its own, one per copy at a time; what it returns, or None if it died."""
    waiting = iter(jobs)
    running: dict[int, tuple[Job, Copy]] = {}
    asleep: dict[int, float] = {}
    free = list(copies)
    try:
        while True:
            while free and (job := next(waiting, None)) is not None:
                copy = free.pop()
                job.before(copy)
                (copy.folder / "answer.json").unlink(missing_ok=True)
                sys.stdout.flush()
                running[_fork(job, copy)] = job, copy
            if not running:
                return
            for pid in _ended(running, asleep):
                job, copy = running.pop(pid)
                asleep.pop(pid, None)
                job.after(copy)
                answer = copy.folder / "answer.json"
                yield job, json.loads(answer.read_text()) if answer.is_file() else None
                free.append(copy)
    finally:  # when it is interrupted
        for pid in running:
            with suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)


def _ended(running: dict[int, tuple[Job, Copy]], asleep: dict[int, float]) -> list[int]:
    """Processes that have ended, or that sleep too long and are killed; waits for at least one.

    Those that wait for a busy processor are not asleep; what they use of it is limited by the system.
    """
    while True:
        for pid, (job, _) in running.items():
            asleep[pid] = asleep.get(pid, 0.0) + _POLL * (_state(pid) == "S")
            late = asleep[pid] > 2 * job.seconds + 60
            if late:
                with suppress(ProcessLookupError):
                    os.killpg(pid, signal.SIGKILL)
            if os.waitpid(pid, 0 if late else os.WNOHANG)[0]:
                with suppress(ProcessLookupError):  # what its tests may have left behind
                    os.killpg(pid, signal.SIGKILL)
                return [pid]
        time.sleep(_POLL)


def _state(pid: int) -> str:
    """R for a process that runs or could, S for one that sleeps, Z for one that has ended."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def _fork(job: Job, copy: Copy) -> int:
    pid = os.fork()
    if pid:
        return pid
    try:
        os.setpgid(0, 0)  # so that it can be killed with what it starts
        resource.setrlimit(resource.RLIMIT_CPU, (int(job.seconds) + 1, int(job.seconds) + 1))
        log = os.open(copy.folder / "log.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.chdir(copy.tree)
        os.environ["PYTHONPATH"] = str(copy.folder)
        sys.path[:] = [str(copy.folder), str(copy.tree), *(p for p in sys.path if p not in ("", os.getcwd()))]
        for name in [name for name in sys.modules if name.split(".")[0] in ("tests", "phiball")]:
            del sys.modules[name]
        answer = json.dumps(job.work(copy))
        sys.stdout.flush()
        part = copy.folder / "answer.part"
        part.write_text(answer)
        part.rename(copy.folder / "answer.json")
    except BaseException as error:
        os.write(2, f"{type(error).__name__}: {error}\n".encode())
        os._exit(1)
    os._exit(0)

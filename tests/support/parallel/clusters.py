"""Local clusters for tests: Dask and Ray, each with two worker processes."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.support.paths import ROOT

LIMIT = 240.0  # seconds to wait for a cluster; on free cores it starts in about ten
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "PHIBALL_THREADS")
ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": str(ROOT),
    "OMP_NUM_THREADS": "1",
    "PHIBALL_BACKEND": "numpy",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_worker_niceness": "0",  # otherwise workers are too slow on a busy machine
}


def worker_state(host: int) -> tuple[bool, list[str | None]]:
    """Whether this process has the id `host`, and the thread limits in its environment."""
    return os.getpid() == host, [os.environ.get(name) for name in THREADS]


def is_alive(pid: int) -> bool:
    """Whether a process is running, and not a zombie."""
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_until(condition: Callable[[], bool], complaint: str) -> None:
    """Wait for a condition, or fail after LIMIT seconds."""
    deadline = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < deadline, complaint
        time.sleep(0.05)


def start(folder: Path, name: str, *command: str) -> subprocess.Popen[bytes]:
    """Start a process in a new group, with its output in a file."""
    with (folder / f"{name}.log").open("wb") as log:
        return subprocess.Popen(
            command, cwd=ROOT, env=ENVIRONMENT, stdout=log, stderr=log, start_new_session=True
        )


def end(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and its group."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@contextmanager
def dask_cluster(folder: Path) -> Iterator[str]:
    """The address of a scheduler with two single-threaded worker processes."""
    file = folder / "scheduler.json"
    dask = (sys.executable, "-m", "dask")
    where = ("--host", "127.0.0.1", "--no-dashboard", "--scheduler-file", str(file))
    scheduler = start(folder, "scheduler", *dask, "scheduler", "--port", "0", *where)
    workers = []
    try:
        wait_until(file.exists, "the Dask scheduler did not start")
        worker = (*dask, "worker", "--nthreads", "1", *where)
        workers.extend(start(folder, f"worker{k}", *worker) for k in (1, 2))
        logs = [folder / f"worker{k}.log" for k in (1, 2)]
        wait_until(lambda: all("Registered to" in log.read_text() for log in logs), "no workers")
        yield str(json.loads(file.read_text())["address"])
    finally:
        for process in (*workers, scheduler):
            end(process)


@contextmanager
def ray_cluster(folder: Path) -> Iterator[str]:
    """The address of a Ray cluster of two cores. It runs in the foreground, to end with its process group."""
    port = str(20000 + os.getpid() % 20000)
    ray = (sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", "--num-cpus", "2")
    here = ("--node-ip-address", "127.0.0.1", "--port", port)
    head = start(folder, "ray", *ray, *here, "--include-dashboard=false", "--disable-usage-stats")
    try:
        wait_until(lambda: "Ray runtime started" in (folder / "ray.log").read_text(), "Ray did not start")
        yield f"127.0.0.1:{port}"
    finally:
        os.killpg(head.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            head.wait(5)
        end(head)

"""A task in a process of its own, for the workers of a cluster: `python -m phiball.backends.child`."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from phiball.backends.processes import THREAD_VARIABLES, Lost, worker_initializer
from phiball.backends.provenance import check_origin, provenance
from phiball.backends.scratch import scratch_folder
from phiball.backends.selection import use

T = TypeVar("T")
PAUSE = 0.2  # seconds between two looks at whether a task is still wanted


def call_in_child(
    function: Callable[..., T], task: tuple[Any, ...], threads: int, wanted: Callable[[], bool]
) -> T | Lost:
    """Return `function(*task)`, called in a new process that is killed as soon as it is not `wanted`.

    An error that it raises is raised here; if its process dies, the outcome is `Lost`. joblib's processes
    cannot do this: the workers of Dask are daemons, which may have no children of that kind.
    """
    limits = dict.fromkeys(THREAD_VARIABLES, str(threads))
    with scratch_folder() as folder:
        file = folder / "task"
        file.write_bytes(pickle.dumps((sys.path, pickle.dumps((function, task)))))
        child = subprocess.Popen(
            [sys.executable, "-m", "phiball.backends.child", str(file), str(os.getpid())],
            env={**os.environ, **limits, "TMPDIR": str(folder)},  # what it leaves goes with the folder
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
        try:
            while True:
                try:
                    child.wait(PAUSE)
                    break
                except subprocess.TimeoutExpired:
                    if not wanted():
                        return Lost("nobody waits for it any more")
        finally:
            child.kill()
            child.wait()
        result = file.with_name("result")
        if not result.exists():
            code = child.returncode
            how = signal.Signals(-code).name if code < 0 else f"EXIT({code})"
            return Lost(f"the process died with {how}")
        value, error = pickle.loads(result.read_bytes())
    if error is not None:
        raise error
    return value  # type: ignore[no-any-return]


def in_worker(record: dict[str, Any], function: Callable[..., T], task: tuple[Any, ...]) -> T:
    """Return `function(*task)`, on a worker of a cluster whose versions are those of `record`, or raise."""
    with use(record["backend"]):
        check_origin(record, provenance())
        return function(*task)


def main(file: Path, parent: int) -> None:
    """Call what `file` describes, and write what comes of it beside it; end when process `parent` does."""
    worker_initializer(parent)
    path, call = pickle.loads(file.read_bytes())
    sys.path[:] = path
    value = error = None
    try:
        function, task = pickle.loads(call)
        value = function(*task)
    except Exception as raised:
        error = raised
    part = file.with_name("part")
    part.write_bytes(pickle.dumps((value, error)))
    part.replace(file.with_name("result"))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))

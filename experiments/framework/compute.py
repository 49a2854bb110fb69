"""One task of a run, wherever it is computed: in this process, in another one, or on a cluster."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

from phiball.backends import Rng
from phiball.backends.files import atomic_write, lock, open_regular
from phiball.backends.provenance import provenance
from phiball.experiments.framework.study import Study
from phiball.experiments.framework.tasks import PROGRESS, Task, TaskDir, as_json

Files = dict[str, bytes]


def compute_row(
    study: Study[Any],
    config: Any,
    task: Task,
    rng: Rng,
    kept: TaskDir | Files,
    record: dict[str, Any],
    devices: Sequence[str] = (),
) -> tuple[dict[str, Any], Files]:
    """Return the content of the file of a task's row, and the files that the task leaves.

    - `kept`: the folder of the task, or, where a worker cannot see that, its files. The task then has a
      temporary folder, and what it leaves there is returned.
    - `record`: where the run comes from.
    - `devices`: those of the run, of which the task takes one that few others use.
    """
    if not isinstance(kept, TaskDir):
        with TemporaryDirectory() as folder:
            task_dir = TaskDir(Path(folder))
            write_files(task_dir, kept)
            here = {**provenance(), "seed": record["seed"]}
            content, _ = compute_row(study, config, task, rng, task_dir, here)
            return content, read_files(task_dir)
    began = perf_counter()
    limits = import_module("threadpoolctl").threadpool_limits(study.threads(config))
    with limits, _least_used(devices, kept) as device:
        row = study.compute_task(study.on_device(config, device) if device else config, task, rng, kept)
    return {"task": as_json(task), "row": as_json(row), "seconds": perf_counter() - began, **record}, {}


@contextmanager
def _least_used(devices: Sequence[str], task_dir: TaskDir) -> Iterator[str]:
    """The first of the devices, in turn, that no task of the run holds by a lock on a file; "" if none."""
    if not devices or task_dir.path is None:
        yield ""
        return
    task_dir.path.parent.mkdir(parents=True, exist_ok=True)
    for k in count():
        with task_dir.path.with_name(f".device-{k}").open("w", encoding="utf-8") as stream:
            try:
                lock(stream)
            except BlockingIOError:
                continue
            yield devices[k % len(devices)]
            return


def read_files(task_dir: TaskDir) -> Files:
    """Return the files of a task's folder by name, except its progress."""
    if task_dir.path is None or not task_dir.path.exists():
        return {}
    found: Files = {}
    for file in sorted(task_dir.path.iterdir()):
        if file.name != PROGRESS and not file.name.startswith("."):  # a killed writer leaves these
            with open_regular(file) as stream:
                found[file.name] = stream.read()
    return found


def write_files(task_dir: TaskDir, files: Files) -> None:
    """Put files into a task's folder."""
    if task_dir.path is None or not files:
        return
    task_dir.path.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        with atomic_write(task_dir.path / name) as stream:
            stream.write(content)

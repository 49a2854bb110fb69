"""Compute one task of a run, in this process or a worker."""

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
from phiball.backends.files import atomic_write, lock
from phiball.backends.provenance import provenance
from phiball.experiments.framework.study import Study
from phiball.experiments.framework.tasks import Task, TaskDir, as_json

Files = dict[str, bytes]


def compute_row(
    study: Study[Any],
    config: Any,
    task: Task,
    rng: Rng,
    task_files: Path | Files,
    record: dict[str, Any],
    devices: Sequence[str] = (),
) -> tuple[dict[str, Any], Files]:
    """Return the content of a task's row file, and files of the task that the caller must write.

    - `task_files`: the folder of the task, which writes its files there; none are returned. A worker without
      access to the folder gets the contents of the folder's files by name instead. The task then runs in a
      temporary folder, whose files are returned.
    - `record`: the seed and the provenance of the run.
    - `devices`: the devices of the run; the task uses the device with the fewest running tasks.
    """
    if not isinstance(task_files, Path):
        with TemporaryDirectory() as temporary:
            folder = Path(temporary)
            write_files(folder, task_files)
            worker_record = {**provenance(), "seed": record["seed"]}
            content, _ = compute_row(study, config, task, rng, folder, worker_record)
            return content, read_files(folder)
    start = perf_counter()
    limits = import_module("threadpoolctl").threadpool_limits(study.threads(config))
    with limits, _least_used(devices, task_files) as device:
        settings = study.on_device(config, device) if device else config
        row = study.compute_task(settings, task, rng, TaskDir(task_files))
    return {"task": as_json(task), "row": as_json(row), "seconds": perf_counter() - start, **record}, {}


@contextmanager
def _least_used(devices: Sequence[str], folder: Path) -> Iterator[str]:
    """Yield the device with the fewest running tasks, or "" without devices.

    Every running task locks the first free file .device-k, beside its `folder`; k selects its device.
    """
    if not devices:
        yield ""
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    for k in count():
        with folder.with_name(f".device-{k}").open("w", encoding="utf-8") as stream:
            try:
                lock(stream)
            except BlockingIOError:
                continue
            yield devices[k % len(devices)]
            return


def read_files(folder: Path) -> Files:
    """The contents of the files in a task's folder by name, except temporary files of a killed process."""
    files = sorted(folder.iterdir()) if folder.exists() else []
    return {f.name: f.read_bytes() for f in files if not f.name.startswith(".")}


def write_files(folder: Path, files: Files) -> None:
    """Write files to a task's folder, which is created if there are any files."""
    for name, content in files.items():
        folder.mkdir(parents=True, exist_ok=True)
        with atomic_write(folder / name) as stream:
            stream.write(content)

"""Compute one task of a run, in this process, in another one, or on a cluster."""

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
    kept: Path | Files,
    record: dict[str, Any],
    devices: Sequence[str] = (),
) -> tuple[dict[str, Any], Files]:
    """Return the content of a task's row file, and the files that the task writes.

    - `kept`: the folder of the task; or its files, for a worker without access to the folder. The task then
      runs in a temporary folder, and its files are returned.
    - `record`: the provenance of the run.
    - `devices`: the devices of the run; the task uses the one with the fewest tasks.
    """
    if not isinstance(kept, Path):
        with TemporaryDirectory() as temporary:
            folder = Path(temporary)
            write_files(folder, kept)
            here = {**provenance(), "seed": record["seed"]}
            content, _ = compute_row(study, config, task, rng, folder, here)
            return content, read_files(folder)
    began = perf_counter()
    limits = import_module("threadpoolctl").threadpool_limits(study.threads(config))
    with limits, _least_used(devices, kept) as device:
        settings = study.on_device(config, device) if device else config
        row = study.compute_task(settings, task, rng, TaskDir(kept))
    return {"task": as_json(task), "row": as_json(row), "seconds": perf_counter() - began, **record}, {}


@contextmanager
def _least_used(devices: Sequence[str], folder: Path) -> Iterator[str]:
    """The device with the fewest tasks of the run, which hold file locks; "" without devices."""
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
    """The contents of the files of a task's folder by name."""
    files = sorted(folder.iterdir()) if folder.exists() else []
    return {
        f.name: f.read_bytes() for f in files if not f.name.startswith(".")
    }  # not leftovers of a killed writer


def write_files(folder: Path, files: Files) -> None:
    """Write files to a task's folder, and create it if there are any."""
    for name, content in files.items():
        folder.mkdir(parents=True, exist_ok=True)
        with atomic_write(folder / name) as stream:
            stream.write(content)

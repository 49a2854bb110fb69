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
    """Return the content of the file of a task's row, and the files that the task leaves.

    - `kept`: the folder of the task, or, where a worker cannot see that, its files. The task then has a
      temporary folder, and what it leaves there is returned.
    - `record`: where the run comes from.
    - `devices`: those of the run, of which the task takes one that few others use.
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
    """The first of the devices, in turn, that no task of the run holds by a lock on a file; "" if none."""
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
    """Return the files of a task's folder by name."""
    files = sorted(folder.iterdir()) if folder.exists() else []
    return {f.name: f.read_bytes() for f in files if not f.name.startswith(".")}  # left by a killed writer


def write_files(folder: Path, files: Files) -> None:
    """Put files into a task's folder, which is made for the first of them."""
    for name, content in files.items():
        folder.mkdir(parents=True, exist_ok=True)
        with atomic_write(folder / name) as stream:
            stream.write(content)

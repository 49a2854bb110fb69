"""One task of a run, wherever it is computed: in this process, in another one, or on a cluster."""

from __future__ import annotations

from importlib import import_module
from time import perf_counter
from typing import Any

from phiball.backends import Rng, use
from phiball.backends.files import atomic_write, open_regular
from phiball.backends.provenance import provenance
from phiball.backends.scratch import scratch_folder
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
    device: str | None = None,
) -> tuple[dict[str, Any], Files]:
    """Return what goes into the file of a task's row, and the files that the task leaves.

    - `kept`: the folder of the task; or, where that cannot be seen, its files. Then the task has a folder for
      the moment, and what it leaves there is returned.
    - `record`: where the run comes from.
    - `device`: that of this task, where the run has several.
    """
    if isinstance(kept, TaskDir):
        return _computed(study, config, task, rng, kept, record, device), {}
    with scratch_folder() as folder, use(record["backend"]):
        task_dir = TaskDir(folder / "task")
        write_files(task_dir, kept)
        content = _computed(
            study, config, task, rng, task_dir, {**provenance(), "seed": record["seed"]}, device
        )
        return content, read_files(task_dir)


def _computed(
    study: Study[Any],
    config: Any,
    task: Task,
    rng: Rng,
    task_dir: TaskDir,
    record: dict[str, Any],
    device: str | None,
) -> dict[str, Any]:
    began = perf_counter()
    if device is not None:
        config = study.on_device(config, device)
    with use(record["backend"]), import_module("threadpoolctl").threadpool_limits(study.threads(config)):
        row = study.compute_task(config, task, rng, task_dir)
    return {"task": as_json(task), "row": as_json(row), "seconds": perf_counter() - began, **record}


def read_files(task_dir: TaskDir) -> Files:
    """Return the files of a task's folder by name, but for its progress."""
    if task_dir.path is None or not task_dir.path.exists():
        return {}
    found: Files = {}
    for file in sorted(task_dir.path.iterdir()):
        if file.name != PROGRESS and not file.name.startswith("."):  # a writer that was killed leaves these
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

"""Runs of a study: tasks run in parallel, and their rows are written one by one: a killed run resumes.

The folder of a run holds

- run.json: the study, its configuration, the seed, versions, machine and revision;
- rows/: a file per finished task, with the same and its row, each written in one step;
- tasks/: a folder per long task, with its checkpoint and its progress;
- in the end table.csv, report.md and the figures.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from time import perf_counter
from typing import Any

from phiball.backends import Rng, rng, use
from phiball.backends.files import write_whole
from phiball.backends.processes import Lost, run_in_processes
from phiball.experiments.framework.config import result_settings
from phiball.experiments.framework.outputs import write_figures, write_report, write_table
from phiball.experiments.framework.progress import RunStatus, TaskStatus
from phiball.experiments.framework.provenance import provenance
from phiball.experiments.framework.requirements import require
from phiball.experiments.framework.study import Study
from phiball.experiments.framework.tasks import Row, Table, Task, TaskDir
from phiball.refimpl.validation import valid_count

PACKAGES = ("joblib", "matplotlib", "threadpoolctl")


def run(
    study: Study[Any],
    config: Any,
    out: Path,
    *,
    seed: int = 0,
    jobs: int = 1,
    on_start: Callable[[RunStatus], None] = lambda status: None,
) -> tuple[Table, list[Path]]:
    """Compute what is missing of a study in the folder `out`, and write its table, report and figures.

    - `jobs`: the number of tasks that are computed at a time.
    - `on_start`: called with the tasks of a stage before they are computed.
    """
    valid_count("jobs", jobs)
    for name in PACKAGES:
        require(name, user="a study", extra="experiments")
    folder = RunFolder(out, seed, jobs, on_start)
    folder.open(study, config)
    with _locked(out):
        table = study.compute(config, rng(seed), folder.map_tasks)
    figures = write_figures(study, table, out)
    return table, [write_table(table, out), *figures, write_report(study, table, figures, out)]


@dataclass(frozen=True)
class RunFolder:
    """The folder of a run, which keeps the row of each task and finds those that it has already."""

    path: Path
    seed: int = 0
    jobs: int = 1
    on_start: Callable[[RunStatus], None] = lambda status: None

    def open(self, study: Study[Any], config: Any) -> None:
        """Make the folder, or check that it holds the same run; raise ValueError if it holds another."""
        asked = {"study": study.name, "config": _as_json(result_settings(config)), "seed": self.seed}
        file = self.path / "run.json"
        if file.exists():
            different = _differences(_read(file, asked, "take another folder (--out)"), asked)
            if different:
                raise ValueError(
                    f"{self.path} holds another run: {different}; expected the same configuration, or "
                    "another folder (--out)"
                )
        else:
            self.path.mkdir(parents=True, exist_ok=True)
            # A run that was killed at once leaves a part of its run.json.
            if any(not entry.name.startswith(".run.json.") for entry in self.path.iterdir()):
                raise ValueError(
                    f"{self.path} is not empty and holds no run; expected another folder (--out)"
                )
            write_whole(file, json.dumps({**asked, **provenance()}, indent=1) + "\n")
        (self.path / "rows").mkdir(exist_ok=True)

    def map_tasks(self, study: Study[Any], config: Any, tasks: list[Task], rng: Rng) -> list[Row]:
        """Return the rows of all tasks: those in the folder are read, the others computed and written."""
        sources = rng.spawn(len(tasks))
        files = [self.path / "rows" / f"{k:04d}-{_slug(task)}.json" for k, task in enumerate(tasks)]
        for task, file in zip(tasks, files, strict=True):
            if file.exists() and _read_row(file)["task"] != _as_json(task):
                raise ValueError(f"{file} is of another task; expected {task}")
        folders = [TaskDir(self.path / "tasks" / file.stem) for file in files]
        statuses = (
            TaskStatus(study.label(task), file, folder, float(study.work(config, task)))
            for task, file, folder in zip(tasks, files, folders, strict=True)
        )
        self.on_start(RunStatus(tuple(statuses), str(tasks[0].get("stage", "")) if tasks else ""))
        record = {"seed": self.seed, **provenance()}
        missing = [k for k, file in enumerate(files) if not file.exists()]
        calls = [(study, config, tasks[k], sources[k], files[k], folders[k], record) for k in missing]
        self._compute(calls, study.threads(config))
        return [{**task, **_read_row(file)["row"]} for task, file in zip(tasks, files, strict=True)]

    def _compute(self, calls: list[tuple[Any, ...]], threads: int) -> None:
        """Compute the rows of some tasks; each is written by the process that computes it."""
        if self.jobs == 1 or len(calls) < 2:
            for call in calls:
                _compute_and_write(*call)
            return
        lost: dict[int, Lost] = {}
        for _, ended in run_in_processes(_compute_and_write, calls, jobs=self.jobs, threads=threads):
            lost |= {k: outcome for k, outcome in ended.items() if isinstance(outcome, Lost)}
        for k, outcome in lost.items():
            raise ChildProcessError(
                f"{len(lost)} of {len(calls)} tasks failed: the first, {calls[k][2]}, as {outcome.reason}; "
                "the others are kept, and the same command computes the rest"
            )


def _compute_and_write(
    study: Study[Any],
    config: Any,
    task: Task,
    rng: Rng,
    file: Path,
    task_dir: TaskDir,
    record: dict[str, Any],
) -> None:
    began = perf_counter()
    with use(record["backend"]), import_module("threadpoolctl").threadpool_limits(study.threads(config)):
        row = study.compute_task(config, task, rng, task_dir)
    content = {"task": _as_json(task), "row": _as_json(row), "seconds": perf_counter() - began, **record}
    write_whole(file, json.dumps(content, allow_nan=True) + "\n")


def _read(file: Path, names: Iterable[str], remedy: str) -> dict[str, Any]:
    """Read a JSON object; raise ValueError unless it is complete and has these names."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:  # no JSON, or no text
        raise ValueError(f"{file} is damaged ({error}); {remedy}") from None
    if not isinstance(content, dict) or not content.keys() >= set(names):
        raise ValueError(f"{file} is damaged (expected {', '.join(names)} in it); {remedy}")
    return content


def _read_row(file: Path) -> dict[str, Any]:
    return _read(file, ("task", "row"), "delete it, and it is computed again")


def _as_json(value: Any) -> Any:
    """Return `value` as JSON gives it back: tuples are lists, NumPy's numbers are Python's."""
    return json.loads(json.dumps(value, default=lambda array: array.tolist()))


def _slug(task: Task) -> str:
    words = "-".join(f"{name}-{value}" for name, value in task.items())
    return re.sub(r"[^A-Za-z0-9.+-]+", "_", words)[:80]


def _differences(kept: dict[str, Any], asked: dict[str, Any]) -> str:
    """Say in which settings a run that was kept differs from the one that is asked for."""
    before, after = ({**run["config"], "study": run["study"], "seed": run["seed"]} for run in (kept, asked))
    return "; ".join(
        f"{name} is {before.get(name)!r}, not {after.get(name)!r}"
        for name in sorted({*before, *after})
        if before.get(name) != after.get(name)
    )


@contextmanager
def _locked(out: Path) -> Iterator[None]:
    """Keep other runs out of a folder: two would write the same files."""
    try:
        fcntl = import_module("fcntl")
    except ImportError:  # Windows
        yield
        return
    with (out / ".lock").open("w", encoding="utf-8") as lock:
        try:
            fcntl.flock(
                lock, fcntl.LOCK_EX | fcntl.LOCK_NB
            )  # released when the process ends, however it ends
        except BlockingIOError:
            raise ValueError(
                f"another run is at work in {out}; expected to be alone, or another folder (--out)"
            ) from None
        yield

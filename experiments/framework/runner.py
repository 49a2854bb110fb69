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
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from time import perf_counter
from typing import Any

from phiball.backends import Rng, rng, use
from phiball.backends.files import read_json, write_whole
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
RESUME = ("same", "any", "none")
NEW_FOLDER = "take another folder (--out), or begin anew (--resume none)"


def run(
    study: Study[Any],
    config: Any,
    out: Path,
    *,
    seed: int = 0,
    jobs: int = 1,
    resume: str = "same",
    on_start: Callable[[RunStatus], None] = lambda status: None,
) -> tuple[Table, list[Path]]:
    """Compute what is missing of a study in the folder `out`, and write its table, report and figures.

    - `jobs`: the number of tasks that are computed at a time.
    - `resume`: what to go on with. "same" is a run of the same settings, versions, revision and backend;
      "any" has the same settings; "none" drops what is there and begins anew.
    - `on_start`: called with the tasks of a stage before they are computed.
    """
    valid_count("jobs", jobs)
    for name in PACKAGES:
        require(name, user="a study", extra="experiments")
    if resume not in RESUME:
        raise ValueError(f"resume is {resume!r}; expected one of {', '.join(RESUME)}")
    folder = RunFolder(out, seed, jobs, on_start)
    folder.make()
    with _locked(out):
        folder.open(study, config, resume)
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

    def make(self) -> None:
        """Make the folder; raise ValueError if there is one that holds something else."""
        self.path.mkdir(parents=True, exist_ok=True)
        if (self.path / "run.json").exists():
            return
        # A run that was killed at once leaves its lock, and a part of its run.json.
        if any(not entry.name.startswith((".lock", ".run.json.")) for entry in self.path.iterdir()):
            raise ValueError(f"{self.path} is not empty and holds no run; expected another folder (--out)")

    def open(self, study: Study[Any], config: Any, resume: str = "same") -> None:
        """Begin a run in the folder, or go on with the one that it holds; ValueError if that is another."""
        asked = {"study": study.name, "config": _as_json(result_settings(config)), "seed": self.seed}
        file, now = self.path / "run.json", provenance()
        if resume == "none":
            for folder in ("rows", "tasks"):
                shutil.rmtree(self.path / folder, ignore_errors=True)
        if resume == "none" or not file.exists():
            write_whole(file, json.dumps({**asked, **now}, indent=1) + "\n")
        else:
            self._check(file, asked, now, resume)
        (self.path / "rows").mkdir(exist_ok=True)

    def _check(self, file: Path, asked: dict[str, Any], now: dict[str, Any], resume: str) -> None:
        """Compare the run that is kept with the one that is asked for, and with what computes it now."""
        kinds = {"study": str, "config": dict, "seed": int, "versions": dict, "backend": str, "machine": str}
        kept = _read(file, kinds)
        different = _differences(_settings(kept), _settings(asked))
        if different:
            raise ValueError(
                f"{self.path} holds another run: {different}; expected the same configuration, or "
                "another folder (--out)"
            )
        later = kept.get("continued_with", [])
        try:
            origins = [_origin(record) for record in [kept, *later]]
        except (TypeError, KeyError):
            raise ValueError(f"{file} is damaged (in continued_with); {NEW_FOLDER}") from None
        if _origin(now) in origins:
            return
        if resume == "same":
            raise ValueError(
                f"{self.path} holds results of other origin: {_differences(origins[-1], _origin(now))}; "
                "expected the same, or --resume any to go on all the same, or --resume none to begin anew"
            )
        write_whole(file, json.dumps({**kept, "continued_with": [*later, now]}, indent=1) + "\n")

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


def _read(file: Path, kinds: dict[str, type], remedy: str = NEW_FOLDER) -> dict[str, Any]:
    """Read a JSON object; raise ValueError unless it is complete and has these names, of these kinds."""
    try:
        content = read_json(file)
    except ValueError as error:
        raise ValueError(f"{error}; {remedy}") from None
    if not isinstance(content, dict) or not all(isinstance(content.get(n), k) for n, k in kinds.items()):
        raise ValueError(f"{file} is damaged (expected {', '.join(kinds)} in it); {remedy}")
    return content


def _read_row(file: Path) -> dict[str, Any]:
    remedy = "delete it, and it is computed again"
    content = _read(file, {"task": dict, "row": dict}, remedy)
    if not content["row"]:
        raise ValueError(f"{file} is damaged (its row is empty); {remedy}")
    return content


def _as_json(value: Any) -> Any:
    """Return `value` as JSON gives it back: tuples are lists, NumPy's numbers are Python's."""
    return json.loads(json.dumps(value, default=lambda array: array.tolist()))


def _slug(task: Task) -> str:
    words = "-".join(f"{name}-{value}" for name, value in task.items())
    return re.sub(r"[^A-Za-z0-9.+-]+", "_", words)[:80]


def _settings(record: dict[str, Any]) -> dict[str, Any]:
    return {**record["config"], "study": record["study"], "seed": record["seed"]}


def _origin(record: dict[str, Any]) -> dict[str, Any]:
    return {**record["versions"], "backend": record["backend"], "revision": record.get("revision")}


def _differences(before: dict[str, Any], after: dict[str, Any]) -> str:
    """Say in which entries a run that was kept differs from the one that is asked for."""
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

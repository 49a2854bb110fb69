"""Runs of a study: tasks run in parallel, and rows are written one by one, so that a killed run resumes.

The folder of a run holds

- run.json: the study, its configuration, the seed, versions, machine and revision;
- rows/: a file per finished task, with the same and its row, each written in one step;
- tasks/: a folder per long task, with its checkpoint and its progress;
- in the end table.csv, report.md and the figures.

Rows are written by this process, wherever they are computed. Tasks on a cluster need not see the folder.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from phiball.backends import Rng, rng
from phiball.backends.distributed import from_first, process_group
from phiball.backends.files import lock, read_json, write_whole
from phiball.backends.parallel import on_cluster, run_tasks
from phiball.backends.provenance import differences, origin, provenance
from phiball.experiments.framework.compute import compute_row, read_files, write_files
from phiball.experiments.framework.config import result_settings
from phiball.experiments.framework.outputs import write_figures, write_report, write_table
from phiball.experiments.framework.progress import RunStatus, TaskStatus
from phiball.experiments.framework.requirements import require
from phiball.experiments.framework.shards import Shard, join
from phiball.experiments.framework.study import Study
from phiball.experiments.framework.tasks import Row, Table, Task, TaskDir, as_json, task_source

PACKAGES = ("joblib", "matplotlib", "threadpoolctl")
RESUME = ("same", "any", "none")
NEW_FOLDER = "take another folder (--out), or begin anew (--resume none)"


class ShardDoneError(Exception):
    """A shard has computed its tasks, and those of others are missing: there is no table yet."""


def run(
    study: Study[Any],
    config: Any,
    out: Path,
    *,
    seed: int = 0,
    jobs: int = 1,
    shard: Shard | None = None,
    merge: Sequence[Path] = (),
    resume: str = "same",
    on_start: Callable[[RunStatus], None] = lambda status: None,
) -> tuple[Table, list[Path]]:
    """Compute what is missing of a study in the folder `out`, and write its table, report and figures.

    - `jobs`: the number of tasks that are computed at a time, with joblib's meaning, on the backend that
      `joblib.parallel_config` has selected; 1 computes in this process.
    - `shard`: compute only the tasks of this part, and raise ShardDoneError if those of others are missing.
    - `merge`: folders of the same run, whose rows are taken over. Without `shard` nothing is computed, and
      ValueError raised if a task is in none of them.
    - `resume`: what to go on with. "same" is a run of the same settings, versions, revision and backend;
      "any" has the same settings; "none" drops what is there and begins anew.
    - `on_start`: called with the tasks of a stage before they are computed.
    """
    if jobs == 0:
        raise ValueError("jobs is 0; expected a number of processes, or -1 for one per core")
    for name in PACKAGES:
        require(name, user="a study", extra="experiments")
    if resume not in RESUME:
        raise ValueError(f"resume is {resume!r}; expected one of {', '.join(RESUME)}")
    with process_group() as (rank, ranks):
        if ranks > 1 and on_cluster():
            raise ValueError("a cluster is selected; expected processes under torchrun")
        folder = RunFolder(out, seed, jobs, on_start, shard, bool(merge) and shard is None, rank, ranks)
        if rank > 0:
            from_first(None)  # the first process has opened the folder
            return study.compute(config, rng(seed), folder.map_tasks), []
        with folder.locked():
            folder.open(study, config, resume)
            for other in merge:
                folder.join(other, resume)
            from_first(None)
            table = study.compute(config, rng(seed), folder.map_tasks)
            figures = write_figures(study, table, out)
            return table, [write_table(table, out), *figures, write_report(study, table, figures, out)]


@dataclass(frozen=True)
class RunFolder:
    """The folder of a run, which keeps the row of each task and finds those that it has already.

    Under torchrun all `ranks` compute every task together, and the first, of `rank` 0, writes the rows.
    """

    path: Path
    seed: int = 0
    jobs: int = 1
    on_start: Callable[[RunStatus], None] = lambda status: None
    shard: Shard | None = None
    only_join: bool = False
    rank: int = 0
    ranks: int = 1

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Make the folder, and keep other runs out of it for the block: two would write the same files."""
        self.path.mkdir(parents=True, exist_ok=True)
        # A run that was killed at once leaves its lock, and a part of its run.json.
        foreign = [e for e in self.path.iterdir() if not e.name.startswith((".lock", ".run.json."))]
        if foreign and not (self.path / "run.json").exists():
            raise ValueError(f"{self.path} is not empty and holds no run; expected another folder (--out)")
        with (self.path / ".lock").open("w", encoding="utf-8") as stream:
            try:
                lock(stream)
            except BlockingIOError:
                raise ValueError(f"another run is using {self.path}; choose another folder (--out)") from None
            yield

    def open(self, study: Study[Any], config: Any, resume: str = "same") -> None:
        """Begin a run in the folder, or go on with the one that it holds; ValueError if that is another."""
        ranks = {"ranks": self.ranks} if self.ranks > 1 else {}  # their number decides what is drawn
        settings = {**as_json(result_settings(config)), **ranks}
        asked = {"study": study.name, "config": settings, "seed": self.seed, **provenance()}
        file = self.path / "run.json"
        if resume == "none":
            for old in [*self.path.glob("rows/*.json"), *self.path.glob("tasks/*/*")]:
                old.unlink()
        if resume == "none" or not file.exists():
            write_whole(file, json.dumps(asked, indent=1) + "\n")
        else:
            kept = _read_record(file)
            remedy = "expected the same configuration, or another folder (--out)"
            _check_settings(self.path, kept, asked, remedy)
            self._check_origins(self.path, kept, [asked], resume)
        (self.path / "rows").mkdir(exist_ok=True)

    def join(self, other: Path, resume: str = "same") -> None:
        """Take over the rows of another folder; ValueError if it holds another run."""
        if other.resolve() == self.path.resolve():
            raise ValueError(f"merge has {other}, the folder of the run itself (--out); expected others")
        if not (other / "run.json").is_file():
            raise ValueError(f"merge has {other}, which holds no run; expected folders of runs")
        ours, theirs = _read_record(self.path / "run.json"), _read_record(other / "run.json")
        _check_settings(other, theirs, ours, "expected a merge with the options of its shards")
        self._check_origins(other, ours, _origins(theirs), resume)
        join(other, self.path)

    def _check_origins(self, path: Path, kept: dict[str, Any], come: list[Any], resume: str) -> None:
        """Note in run.json by which other versions results are computed; unless allowed, ValueError."""
        known = [origin(record) for record in _origins(kept)]
        new = [record for record in come if origin(record) not in known]
        if new and resume == "same":
            pair = [known[-1], origin(new[0])]
            different = differences(*(pair if path == self.path else reversed(pair)))
            raise ValueError(
                f"{path} holds results of other origin: {different}; expected the same, or --resume any to "
                "go on all the same, or --resume none to begin anew"
            )
        if new:
            record = {**kept, "continued_with": [*_origins(kept)[1:], *new]}
            write_whole(self.path / "run.json", json.dumps(record, indent=1) + "\n")

    def map_tasks(self, study: Study[Any], config: Any, tasks: list[Task], rng: Rng) -> list[Row]:
        """Return the rows of all tasks: those in the folder are read, the others computed and written."""
        files = [self.path / "rows" / f"{k:04d}-{_slug(task)}.json" for k, task in enumerate(tasks)]
        for task, file in zip(tasks, files, strict=True):
            if file.exists() and _read_row(file)["task"] != as_json(task):
                raise ValueError(f"{file} is of another task; expected {task}")
        folders = [TaskDir(self.path / "tasks" / file.stem) for file in files]
        works = [float(study.work(config, task)) for task in tasks]
        mine = list(range(len(tasks))) if self.shard is None else self.shard.choose(works)
        stage = str(tasks[0].get("stage", "")) if tasks else ""
        statuses = (TaskStatus(study.label(tasks[k]), files[k], folders[k], works[k]) for k in mine)
        self.on_start(RunStatus(tuple(statuses), stage))
        if not self.only_join:
            missing = from_first([k for k in mine if not files[k].exists()])
            sources = {k: task_source(rng, tasks[k]) for k in missing}
            self._compute(study, config, [(tasks[k], sources[k], files[k], folders[k]) for k in missing])
            from_first(None)  # all rows are written
        absent = [study.label(task) for task, file in zip(tasks, files, strict=True) if not file.exists()]
        if absent and self.shard is not None:
            raise ShardDoneError(
                f"shard {self.shard.k} of {self.shard.n} has computed its {len(mine)} of {len(tasks)} tasks "
                f"{f'of the stage {stage} ' if stage else ''}in {self.path}; continue by --merge with the "
                "folders of all shards"
            )
        if absent:
            raise ValueError(
                f"{len(absent)} of {len(tasks)} tasks are in none of the folders, the first of which is "
                f"{absent[0]}; expected the folders of all shards, of all stages"
            )
        return [{**task, **_read_row(file)["row"]} for task, file in zip(tasks, files, strict=True)]

    def _compute(self, study: Study[Any], config: Any, todo: list[tuple[Task, Rng, Path, TaskDir]]) -> None:
        """Compute some rows, each of which is written as soon as it is there."""
        record = {"seed": self.seed, **provenance()}
        remote, devices = on_cluster(), study.devices(config)
        if remote and len(devices) > 1:
            raise ValueError(
                f"devices are {devices}; expected one for a cluster, whose workers have their own"
            )
        chosen = devices if self.ranks == 1 else devices[:1]  # all processes work on one task
        calls = (
            (study, config, task, source, read_files(folder) if remote else folder, record, chosen)
            for task, source, _, folder in todo
        )
        jobs = 1 if self.ranks > 1 or (len(todo) < 2 and not remote) else self.jobs
        outcomes = run_tasks(compute_row, calls, n_jobs=jobs, n_threads=study.threads(config))
        with closing(outcomes):
            for k, (content, left) in outcomes:
                _, _, file, folder = todo[k]
                if self.rank == 0:
                    write_files(folder, left)
                    write_whole(file, json.dumps(content, allow_nan=True) + "\n")


def _slug(task: Task) -> str:
    """The part of a file's name that tells a reader which task it is of."""
    words = "-".join(f"{name}-{value}" for name, value in task.items())
    return re.sub(r"[^A-Za-z0-9.+-]+", "_", words)[:80]


def _origins(record: dict[str, Any]) -> list[dict[str, Any]]:
    """The record itself, and those of other versions that the run was continued with."""
    return [record, *record.get("continued_with", [])]


def _settings(record: dict[str, Any]) -> dict[str, Any]:
    return {"ranks": 1, **record["config"], "study": record["study"], "seed": record["seed"]}


def _read_record(file: Path) -> dict[str, Any]:
    """The content of a run.json; ValueError unless it is complete."""
    try:
        record: dict[str, Any] = read_json(file)
        _ = _settings(record), [origin(one) for one in _origins(record)], record["machine"]
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"{file} cannot be read ({error}); {NEW_FOLDER}") from None
    return record


def _read_row(file: Path) -> dict[str, Any]:
    """The content of the file of a row; ValueError unless it holds a task and its row."""
    remedy = "delete it, and it is computed again"
    try:
        content: dict[str, Any] = read_json(file)
    except ValueError as error:
        raise ValueError(f"{error}; {remedy}") from None
    if not isinstance(content, dict) or not all(isinstance(content.get(n), dict) for n in ("task", "row")):
        raise ValueError(f"{file} is damaged (it has no task and row); {remedy}")
    return content


def _check_settings(path: Path, kept: dict[str, Any], asked: dict[str, Any], remedy: str) -> None:
    """Raise ValueError unless the run that the folder `path` holds has the settings that are asked for."""
    different = differences(_settings(kept), _settings(asked))
    if kept["study"] != asked["study"]:  # then all others differ too
        different = f"study is {kept['study']!r}, not {asked['study']!r}"
    if different:
        raise ValueError(f"{path} holds another run: {different}; {remedy}")

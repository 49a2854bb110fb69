"""Resumable runs of a study: tasks run in parallel, and each row is written when its task ends.

The folder of a run contains

- run.json: the study, its configuration, the seed, versions, machine and revision;
- rows/: a file per finished task, with its row of results and their provenance, written atomically;
- tasks/: a folder per long task, with its checkpoint;
- at the end table.csv, report.md and the figures.

This process writes all rows; workers of a cluster need no access to the folder.
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
from phiball.backends.files import lock, read_json, write_text_atomic
from phiball.backends.process_group import broadcast_object, process_group
from phiball.backends.progress import Update, silent
from phiball.backends.provenance import differences, origin, provenance
from phiball.backends.workers import on_cluster, run_tasks
from phiball.experiments.framework.compute import compute_row, read_files, write_files
from phiball.experiments.framework.config import result_settings
from phiball.experiments.framework.outputs import write_figures, write_run_report, write_table
from phiball.experiments.framework.requirements import require
from phiball.experiments.framework.shards import Shard, copy_rows
from phiball.experiments.framework.study import Study
from phiball.experiments.framework.tasks import Row, Table, Task, as_json, task_rng

PACKAGES = ("joblib", "matplotlib", "threadpoolctl")


class ShardDoneError(Exception):
    """A shard has computed its tasks, but the table needs the tasks of other shards."""


def run_study(
    study: Study[Any],
    config: Any,
    out: Path,
    *,
    seed: int = 0,
    n_jobs: int | None = None,
    shard: Shard | None = None,
    merge: Sequence[Path] = (),
    resume: bool = True,
    update: Update = silent,
) -> tuple[Table, list[Path]]:
    """Compute the missing tasks of a study in the folder `out`, and write table, report and figures.

    - `n_jobs`: the number of tasks at a time, with joblib's meaning, on the backend that
      `joblib.parallel_config` selects; None and 1 compute in this process.
    - `shard`: compute only this shard's tasks; raise ShardDoneError if rows of other shards are missing.
    - `merge`: folders of the same run, whose rows are copied. If `merge` is given without `shard`, nothing is
      computed, and missing tasks raise ValueError.
    - `resume`: resume a run of the same settings, versions, revision and backend; False deletes its rows.
    - `update`: called at the start of each stage and after each row, with the fraction of the stage's work
      that is done, and a text for the progress bar.
    """
    for name in PACKAGES:
        require(name, user="a study", extra="experiments")
    if n_jobs == 0:
        raise ValueError("n_jobs is 0; expected a number of processes, or -1 for all cores")
    with process_group() as (rank, ranks):
        if ranks > 1 and on_cluster():
            raise ValueError("a cluster is selected under torchrun; expected one or the other")
        folder = RunFolder(out, seed, n_jobs, update, shard, bool(merge) and shard is None, rank, ranks)
        if rank > 0:
            broadcast_object(None)  # wait until the first process has opened the folder
            return study.compute(config, rng(seed), folder.map_tasks), []
        with folder.locked():
            folder.open(study, config, resume)
            for other in merge:
                folder.add_rows(other)
            broadcast_object(None)
            table = study.compute(config, rng(seed), folder.map_tasks)
            figures = write_figures(study, table, out)
            return table, [write_table(table, out), *figures, write_run_report(study, table, figures, out)]


@dataclass(frozen=True)
class RunFolder:
    """The folder of a run, with the rows of its finished tasks.

    Under torchrun all `ranks` processes compute every task together, and `rank` 0 writes the rows.
    """

    path: Path
    seed: int = 0
    n_jobs: int | None = None
    update: Update = silent
    shard: Shard | None = None
    only_merge: bool = False
    rank: int = 0
    ranks: int = 1

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Create the folder, and lock it against other runs inside the block."""
        self.path.mkdir(parents=True, exist_ok=True)
        foreign = [entry for entry in self.path.iterdir() if not entry.name.startswith(".")]
        if foreign and not (self.path / "run.json").exists():
            raise ValueError(f"{self.path} is not empty and contains no run; expected another folder (--out)")
        with (self.path / ".lock").open("w", encoding="utf-8") as stream:
            try:
                lock(stream)
            except BlockingIOError:
                message = f"another run is using {self.path}; expected another folder (--out)"
                raise ValueError(message) from None
            yield

    def open(self, study: Study[Any], config: Any, resume: bool = True) -> None:
        """Start or resume a run in the folder; raise ValueError if the folder contains another run."""
        ranks = {"ranks": self.ranks} if self.ranks > 1 else {}  # perturbations depend on the number of ranks
        settings = {**as_json(result_settings(config)), **ranks}
        run = {"study": study.name, "config": settings, "seed": self.seed, **provenance()}
        file = self.path / "run.json"
        if resume and file.exists():
            _check_same_run(file, run)
        else:
            self._delete_rows()
            write_text_atomic(file, json.dumps(run, indent=1) + "\n")
        (self.path / "rows").mkdir(exist_ok=True)

    def _delete_rows(self) -> None:
        """Delete the rows and the files of tasks, or raise ValueError; files behind links are not touched."""
        for folder in [self.path / "rows", self.path / "tasks", *self.path.glob("tasks/*")]:
            if folder.is_symlink():
                raise ValueError(
                    f"{folder} is a symbolic link; expected a folder of this run: remove the link"
                )
        for old in [*self.path.glob("rows/*.json"), *self.path.glob("tasks/*/*")]:
            try:
                old.unlink()
            except OSError as error:
                raise ValueError(f"{old} cannot be deleted ({error.strerror}); remove it first") from None

    def add_rows(self, other: Path) -> None:
        """Copy the rows of another folder; raise ValueError if it contains another run."""
        if not (other / "run.json").is_file():
            raise ValueError(f"merge contains {other}, which contains no run; expected folders of runs")
        _check_same_run(other / "run.json", read_json(self.path / "run.json"))
        copy_rows(other, self.path)

    def map_tasks(self, study: Study[Any], config: Any, tasks: list[Task], rng: Rng) -> list[Row]:
        """The rows of all tasks, read from the folder, or computed and written to it."""
        files = [self.path / "rows" / f"{k:04d}-{_slug(task)}.json" for k, task in enumerate(tasks)]
        folders = [self.path / "tasks" / file.stem for file in files]
        works = [float(study.work(config, task)) for task in tasks]
        chosen = list(range(len(tasks))) if self.shard is None else self.shard.choose(works)
        stage = str(tasks[0].get("stage", "")) if tasks else ""
        if not self.only_merge:
            missing = broadcast_object([k for k in chosen if not files[k].exists()])

            def report() -> None:
                left = [k for k in missing if not files[k].exists()]
                share = 1 - sum(works[k] for k in left) / (sum(works[k] for k in missing) or 1.0)
                self.update(share, f"{stage} {len(chosen) - len(left)} of {len(chosen)} tasks".strip())

            todo = [(tasks[k], task_rng(rng, tasks[k]), files[k], folders[k]) for k in missing]
            self._compute(study, config, todo, report)
            broadcast_object(None)  # wait until all rows are written
        absent = [study.label(task) for task, file in zip(tasks, files, strict=True) if not file.exists()]
        if absent and self.shard is not None:
            raise ShardDoneError(
                f"shard {self.shard.k} of {self.shard.n} has computed {len(chosen)} of {len(tasks)} tasks "
                f"{f'of the stage {stage} ' if stage else ''}in {self.path}; merge the folders of all "
                "shards with --merge"
            )
        if absent:
            raise ValueError(
                f"{len(absent)} of {len(tasks)} tasks are missing, the first is {absent[0]}; expected the "
                "folders of all shards and stages"
            )
        rows = [read_json(file) for file in files]
        for task, row, file in zip(tasks, rows, files, strict=True):
            if row["task"] != as_json(task):
                raise ValueError(f"{file} belongs to another task; expected {task}")
        return [{**task, **row["row"]} for task, row in zip(tasks, rows, strict=True)]

    def _compute(
        self,
        study: Study[Any],
        config: Any,
        todo: list[tuple[Task, Rng, Path, Path]],
        report: Callable[[], None],
    ) -> None:
        """Compute rows, and write and report each when it is finished.

        `todo` lists for each task its generator, the file of its row, and its folder for other files.
        """
        report()
        record = {"seed": self.seed, **provenance()}
        remote, devices = on_cluster(), study.devices(config)
        if remote and devices:
            raise ValueError(f"devices are {devices}; expected one device, which each cluster worker uses")
        devices = devices if self.ranks == 1 else devices[:1]  # under torchrun, tasks run one at a time
        calls = (
            (study, config, task, source, read_files(folder) if remote else folder, record, devices)
            for task, source, _, folder in todo
        )
        n_jobs = 1 if self.ranks > 1 or (len(todo) < 2 and not remote) else self.n_jobs
        outcomes = run_tasks(compute_row, calls, n_jobs=n_jobs, n_threads=study.threads(config))
        with closing(outcomes):
            for k, (content, task_files) in outcomes:
                _, _, file, folder = todo[k]
                if self.rank == 0:
                    write_files(folder, task_files)
                    write_text_atomic(file, json.dumps(content, allow_nan=True) + "\n")
                report()


def _slug(task: Task) -> str:
    """A readable file name for a task."""
    text = "-".join(f"{name}-{value}" for name, value in task.items())
    return re.sub(r"[^A-Za-z0-9.+-]+", "_", text)[:80]


def _check_same_run(file: Path, run: dict[str, Any]) -> None:
    """Raise ValueError unless a run.json has the settings, versions, revision and backend of `run`."""
    old, new = (
        {"study": one["study"], "seed": one["seed"], "ranks": 1, **one["config"], **origin(one)}
        for one in (read_json(file), run)
    )
    if old != new:
        raise ValueError(
            f"{file.parent} contains another run: {differences(old, new)}; expected the same run, another "
            "folder (--out), or --resume none to start again"
        )

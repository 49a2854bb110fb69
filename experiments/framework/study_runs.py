"""Runs of a study: tasks run in parallel, and rows are written one by one, so that a killed run resumes.

The folder of a run holds

- run.json: the study, its configuration, the seed, versions, machine and revision;
- rows/: a file per finished task, with the same and its row, each written in one step;
- tasks/: a folder per long task, with its checkpoint;
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
from phiball.backends.progress import Update, silent
from phiball.backends.provenance import differences, origin, provenance
from phiball.experiments.framework.compute import compute_row, read_files, write_files
from phiball.experiments.framework.config import result_settings
from phiball.experiments.framework.outputs import write_figures, write_run_report, write_table
from phiball.experiments.framework.requirements import require
from phiball.experiments.framework.shards import Shard, join
from phiball.experiments.framework.study import Study
from phiball.experiments.framework.tasks import Row, Table, Task, as_json, task_source

PACKAGES = ("joblib", "matplotlib", "threadpoolctl")


class ShardDoneError(Exception):
    """A shard has computed its tasks, and those of others are missing: there is no table yet."""


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
    """Compute what is missing of a study in the folder `out`, and write its table, report and figures.

    - `n_jobs`: the number of tasks at a time, with joblib's meaning, on the backend that
      `joblib.parallel_config` selects; None and 1 compute in this process.
    - `shard`: compute only the tasks of this part, and raise ShardDoneError if those of others are missing.
    - `merge`: folders of the same run, whose rows are taken over. Without `shard` nothing is computed, and
      ValueError raised if a task is in none of them.
    - `resume`: continue a run of the same settings, versions, revision and backend; False deletes its rows.
    - `update`: called at the start of each stage and after each row, with the share of the stage's missing
      work that is done, and the number of finished tasks in words.
    """
    for name in PACKAGES:
        require(name, user="a study", extra="experiments")
    with process_group() as (rank, ranks):
        if ranks > 1 and on_cluster():
            raise ValueError("a cluster is selected; expected processes under torchrun")
        folder = RunFolder(out, seed, n_jobs, update, shard, bool(merge) and shard is None, rank, ranks)
        if rank > 0:
            from_first(None)  # the first process has opened the folder
            return study.compute(config, rng(seed), folder.map_tasks), []
        with folder.locked():
            folder.open(study, config, resume)
            for other in merge:
                folder.join(other)
            from_first(None)
            table = study.compute(config, rng(seed), folder.map_tasks)
            figures = write_figures(study, table, out)
            return table, [write_table(table, out), *figures, write_run_report(study, table, figures, out)]


@dataclass(frozen=True)
class RunFolder:
    """The folder of a run, which keeps the row of each task and finds those that it has already.

    Under torchrun all `ranks` compute every task together, and the first, of `rank` 0, writes the rows.
    """

    path: Path
    seed: int = 0
    n_jobs: int | None = None
    update: Update = silent
    shard: Shard | None = None
    only_join: bool = False
    rank: int = 0
    ranks: int = 1

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Make the folder, and keep other runs out of it for the block: two would write the same files."""
        self.path.mkdir(parents=True, exist_ok=True)
        foreign = [entry for entry in self.path.iterdir() if not entry.name.startswith(".")]
        if foreign and not (self.path / "run.json").exists():
            raise ValueError(f"{self.path} is not empty and holds no run; expected another folder (--out)")
        with (self.path / ".lock").open("w", encoding="utf-8") as stream:
            try:
                lock(stream)
            except BlockingIOError:
                raise ValueError(f"another run is using {self.path}; choose another folder (--out)") from None
            yield

    def open(self, study: Study[Any], config: Any, resume: bool = True) -> None:
        """Begin a run in the folder, or resume the one that it holds; ValueError if that is another."""
        ranks = {"ranks": self.ranks} if self.ranks > 1 else {}  # their number decides what is drawn
        settings = {**as_json(result_settings(config)), **ranks}
        asked = {"study": study.name, "config": settings, "seed": self.seed, **provenance()}
        file = self.path / "run.json"
        if resume and file.exists():
            _check_same_run(file, asked)
        else:
            for old in [*self.path.glob("rows/*.json"), *self.path.glob("tasks/*/*")]:
                old.unlink()
            write_whole(file, json.dumps(asked, indent=1) + "\n")
        (self.path / "rows").mkdir(exist_ok=True)

    def join(self, other: Path) -> None:
        """Take over the rows of another folder; ValueError if it holds another run."""
        if not (other / "run.json").is_file():
            raise ValueError(f"merge has {other}, which holds no run; expected folders of runs")
        _check_same_run(other / "run.json", read_json(self.path / "run.json"))
        join(other, self.path)

    def map_tasks(self, study: Study[Any], config: Any, tasks: list[Task], rng: Rng) -> list[Row]:
        """Return the rows of all tasks: those in the folder are read, the others computed and written."""
        files = [self.path / "rows" / f"{k:04d}-{_slug(task)}.json" for k, task in enumerate(tasks)]
        folders = [self.path / "tasks" / file.stem for file in files]
        works = [float(study.work(config, task)) for task in tasks]
        mine = list(range(len(tasks))) if self.shard is None else self.shard.choose(works)
        stage = str(tasks[0].get("stage", "")) if tasks else ""
        if not self.only_join:
            missing = from_first([k for k in mine if not files[k].exists()])

            def report() -> None:
                left = [k for k in missing if not files[k].exists()]
                share = 1 - sum(works[k] for k in left) / (sum(works[k] for k in missing) or 1.0)
                self.update(share, f"{stage} {len(mine) - len(left)} of {len(mine)} tasks".strip())

            todo = [(tasks[k], task_source(rng, tasks[k]), files[k], folders[k]) for k in missing]
            self._compute(study, config, todo, report)
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
        rows = [read_json(file) for file in files]
        for task, row, file in zip(tasks, rows, files, strict=True):
            if row["task"] != as_json(task):
                raise ValueError(f"{file} is of another task; expected {task}")
        return [{**task, **row["row"]} for task, row in zip(tasks, rows, strict=True)]

    def _compute(
        self,
        study: Study[Any],
        config: Any,
        todo: list[tuple[Task, Rng, Path, Path]],
        report: Callable[[], None],
    ) -> None:
        """Compute some rows, each of which is written and reported as soon as it is there."""
        report()
        record = {"seed": self.seed, **provenance()}
        remote, devices = on_cluster(), study.devices(config)
        if remote and devices:
            raise ValueError(f"devices are {devices}; expected one, as each worker of a cluster has its own")
        chosen = devices if self.ranks == 1 else devices[:1]  # all processes work on one task
        calls = (
            (study, config, task, source, read_files(folder) if remote else folder, record, chosen)
            for task, source, _, folder in todo
        )
        n_jobs = 1 if self.ranks > 1 or (len(todo) < 2 and not remote) else self.n_jobs
        outcomes = run_tasks(compute_row, calls, n_jobs=n_jobs, n_threads=study.threads(config))
        with closing(outcomes):
            for k, (content, left) in outcomes:
                _, _, file, folder = todo[k]
                if self.rank == 0:
                    write_files(folder, left)
                    write_whole(file, json.dumps(content, allow_nan=True) + "\n")
                report()


def _slug(task: Task) -> str:
    """The part of a file's name that tells a reader which task it is of."""
    words = "-".join(f"{name}-{value}" for name, value in task.items())
    return re.sub(r"[^A-Za-z0-9.+-]+", "_", words)[:80]


def _check_same_run(file: Path, asked: dict[str, Any]) -> None:
    """Raise ValueError unless a run.json has the settings, versions, revision and backend asked for."""
    kept, new = (
        {"study": run["study"], "seed": run["seed"], "ranks": 1, **run["config"], **origin(run)}
        for run in (read_json(file), asked)
    )
    if kept != new:
        raise ValueError(
            f"{file.parent} holds another run: {differences(kept, new)}; expected the same, or another "
            "folder (--out), or --resume none to begin anew"
        )

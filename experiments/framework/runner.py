"""Runs of a study: tasks run in parallel, and their rows are written one by one: a killed run resumes.

The folder of a run holds

- run.json: the study, its configuration, the seed, versions, machine and revision;
- rows/: a file per finished task, with the same and its row, each written in one step;
- tasks/: a folder per long task, with its checkpoint and its progress;
- in the end table.csv, report.md and the figures.

Rows are written by this process, wherever they are computed. Tasks on a cluster need not see the folder.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from phiball.backends import Rng, rng
from phiball.backends.distributed import from_first, process_group
from phiball.backends.engines import Engine
from phiball.backends.files import write_whole
from phiball.backends.processes import Lost
from phiball.backends.provenance import differences, origin, provenance
from phiball.experiments.framework.compute import compute_row, read_files, write_files
from phiball.experiments.framework.config import result_settings
from phiball.experiments.framework.kept import NEW_FOLDER, locked, read_object, read_row, slug
from phiball.experiments.framework.outputs import write_figures, write_report, write_table
from phiball.experiments.framework.progress import RunStatus, TaskStatus
from phiball.experiments.framework.requirements import require
from phiball.experiments.framework.shards import Shard, ShardDoneError, join
from phiball.experiments.framework.study import Study
from phiball.experiments.framework.tasks import Row, Table, Task, TaskDir, as_json, task_source
from phiball.refimpl.validation import valid_count

PACKAGES = ("joblib", "matplotlib", "threadpoolctl")
HERE = Engine()
KINDS = {"study": str, "config": dict, "seed": int, "versions": dict, "backend": str, "machine": str}
RESUME = ("same", "any", "none")


def run(
    study: Study[Any],
    config: Any,
    out: Path,
    *,
    seed: int = 0,
    jobs: int = 1,
    engine: Engine | None = None,
    shard: Shard | None = None,
    merge: Sequence[Path] = (),
    resume: str = "same",
    on_start: Callable[[RunStatus], None] = lambda status: None,
) -> tuple[Table, list[Path]]:
    """Compute what is missing of a study in the folder `out`, and write its table, report and figures.

    - `jobs`: the number of tasks that are computed at a time, in processes on this machine.
    - `engine`: where tasks are computed, in place of `jobs`.
    - `shard`: compute only the tasks of this part, and raise ShardDoneError if those of others are missing.
    - `merge`: folders of the same run, whose rows are taken over. Without `shard` nothing is computed, and
      ValueError raised if a task is in none of them.
    - `resume`: what to go on with. "same" is a run of the same settings, versions, revision and backend;
      "any" has the same settings; "none" drops what is there and begins anew.
    - `on_start`: called with the tasks of a stage before they are computed.
    """
    valid_count("jobs", jobs)
    for name in PACKAGES:
        require(name, user="a study", extra="experiments")
    if resume not in RESUME:
        raise ValueError(f"resume is {resume!r}; expected one of {', '.join(RESUME)}")
    engine = engine or Engine(jobs=jobs)
    engine.check()  # before there is a folder
    only_join = bool(merge) and shard is None
    with process_group() as (rank, ranks):
        if ranks > 1 and not engine.shares_files:
            raise ValueError(f"engine is {engine.name!r}; expected processes under torchrun")
        folder = RunFolder(out, seed, engine, on_start, shard, only_join, rank, ranks)
        if rank > 0:
            from_first(None)  # the first one has opened the folder
            return study.compute(config, rng(seed), folder.map_tasks), []
        return _run_first(study, config, folder, resume, merge)


def _run_first(
    study: Study[Any], config: Any, folder: RunFolder, resume: str, merge: Sequence[Path]
) -> tuple[Table, list[Path]]:
    """Do what `run` does, in the only process, or in the first of torchrun's."""
    out = folder.path
    fresh = not (out / "run.json").exists()
    folder.make()
    with locked(out), ExitStack() as refused:
        if merge and fresh:  # a merge that is refused leaves nothing
            refused.callback(shutil.rmtree, out, ignore_errors=True)
        folder.open(study, config, resume)
        for other in merge:
            folder.join(other, resume)
        if not folder.only_join:
            refused.pop_all()
        from_first(None)
        table = study.compute(config, rng(folder.seed), folder.map_tasks)
        refused.pop_all()
        figures = write_figures(study, table, out)
        return table, [write_table(table, out), *figures, write_report(study, table, figures, out)]


@dataclass(frozen=True)
class RunFolder:
    """The folder of a run, which keeps the row of each task and finds those that it has already.

    Under torchrun all `ranks` compute every task together, and the first, of `rank` 0, writes the rows.
    """

    path: Path
    seed: int = 0
    engine: Engine = HERE
    on_start: Callable[[RunStatus], None] = lambda status: None
    shard: Shard | None = None
    only_join: bool = False
    rank: int = 0
    ranks: int = 1

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
        together = {"ranks": self.ranks} if self.ranks > 1 else {}  # whose draws are others
        settings = {**as_json(result_settings(config)), **together}
        asked = {"study": study.name, "config": settings, "seed": self.seed}
        file, now = self.path / "run.json", provenance()
        if resume == "none":
            for folder in ("rows", "tasks"):
                shutil.rmtree(self.path / folder, ignore_errors=True)
        if resume == "none" or not file.exists():
            write_whole(file, json.dumps({**asked, **now}, indent=1) + "\n")
        else:
            self._check(asked, [now], resume)
        (self.path / "rows").mkdir(exist_ok=True)

    def join(self, other: Path, resume: str = "same") -> None:
        """Take over the rows of another folder; ValueError if it holds another run."""
        if other.resolve() == self.path.resolve():
            raise ValueError(f"merge has {other}, the folder of the run itself (--out); expected others")
        if not (other / "run.json").is_file():
            raise ValueError(f"merge has {other}, which holds no run; expected folders of runs")
        kept = read_object(other / "run.json", KINDS)
        try:
            records = [kept, *kept.get("continued_with", [])]
            _ = [origin(record) for record in records]
        except (TypeError, KeyError):
            raise ValueError(f"{other / 'run.json'} is damaged (in continued_with)") from None
        self._check(kept, records, resume, other)
        join(other, self.path)

    def _check(
        self, asked: dict[str, Any], come: list[dict[str, Any]], resume: str, other: Path | None = None
    ) -> None:
        """Compare the run that is kept with one that is asked for, or that of an `other` folder to be merged.

        `come` says what that one is computed by.
        """
        file = self.path / "run.json"
        kept = read_object(file, KINDS)

        def different(ours: dict[str, Any], theirs: dict[str, Any]) -> str:
            """How the folder that is named differs from what is expected of it."""
            return differences(ours, theirs) if other is None else differences(theirs, ours)

        settings = different(_settings(kept), _settings(asked))
        if kept["study"] != asked["study"]:  # then all others differ too
            settings = different({"study": kept["study"]}, {"study": asked["study"]})
        if settings:
            raise ValueError(
                f"{self.path} holds another run: {settings}; expected the same configuration, or another "
                "folder (--out)"
                if other is None
                else f"{other} holds another run: {settings}; expected a merge with the options of its shards"
            )
        later = kept.get("continued_with", [])
        try:
            origins = [origin(record) for record in [kept, *later]]
        except (TypeError, KeyError):
            raise ValueError(f"{file} is damaged (in continued_with); {NEW_FOLDER}") from None
        new = [record for record in come if origin(record) not in origins]
        if not new:
            return
        if resume == "same":
            anew = ", or --resume none to begin anew" if other is None else ""
            raise ValueError(
                f"{other or self.path} holds results of other origin: "
                f"{different(origins[-1], origin(new[0]))}; "
                f"expected the same, or --resume any to go on all the same{anew}"
            )
        write_whole(file, json.dumps({**kept, "continued_with": [*later, *new]}, indent=1) + "\n")

    def map_tasks(self, study: Study[Any], config: Any, tasks: list[Task], rng: Rng) -> list[Row]:
        """Return the rows of all tasks: those in the folder are read, the others computed and written."""
        files = [self.path / "rows" / f"{k:04d}-{slug(task)}.json" for k, task in enumerate(tasks)]
        for task, file in zip(tasks, files, strict=True):
            if file.exists() and read_row(file)["task"] != as_json(task):
                raise ValueError(f"{file} is of another task; expected {task}")
        folders = [TaskDir(self.path / "tasks" / file.stem) for file in files]
        works = [float(study.work(config, task)) for task in tasks]
        mine = list(range(len(tasks))) if self.shard is None else self.shard.choose(works)
        statuses = (TaskStatus(study.label(tasks[k]), files[k], folders[k], works[k]) for k in mine)
        stage = str(tasks[0].get("stage", "")) if tasks else ""
        self.on_start(RunStatus(tuple(statuses), stage))
        if not self.only_join:
            missing = from_first([k for k in mine if not files[k].exists()])
            sources = {k: task_source(rng, tasks[k]) for k in missing}
            self._compute(study, config, [(tasks[k], sources[k], files[k], folders[k]) for k in missing])
            from_first(None)  # all rows are written
        absent = [k for k, file in enumerate(files) if not file.exists()]
        if absent:
            first = bool(stage) and stage == study.tasks(config)[0].get("stage")
            self._refuse(study.label(tasks[absent[0]]), len(absent), len(tasks), len(mine), stage, first)
        return [{**task, **read_row(file)["row"]} for task, file in zip(tasks, files, strict=True)]

    def _compute(self, study: Study[Any], config: Any, todo: list[tuple[Task, Rng, Path, TaskDir]]) -> None:
        """Compute some rows, each of which is written as soon as it is there."""
        record = {"seed": self.seed, **provenance()}
        shared, devices = self.engine.shares_files, study.devices(config)

        def write(k: int, outcome: tuple[dict[str, Any], dict[str, bytes]]) -> None:
            _, _, file, folder = todo[k]
            content, left = outcome
            if self.rank > 0:
                return
            write_files(folder, left)
            write_whole(file, json.dumps(content, allow_nan=True) + "\n")

        calls = [
            (study, config, task, source, folder if shared else read_files(folder), record)
            for task, source, _, folder in todo
        ]
        if self.ranks > 1 or (shared and (self.engine.jobs <= 1 or len(calls) < 2)):
            for k, call in enumerate(calls):
                write(k, compute_row(*call, *devices[:1]))
            return
        lost: dict[int, Lost] = {}
        threads = study.threads(config)
        with closing(self.engine.run(compute_row, calls, threads=threads, places=devices)) as outcomes:
            for _, ended in outcomes:
                for k, outcome in ended.items():
                    if isinstance(outcome, Lost):
                        lost[k] = outcome
                    else:
                        write(k, outcome)
        for k, outcome in lost.items():
            raise ChildProcessError(
                f"{len(lost)} of {len(calls)} tasks failed: the first, {calls[k][2]}, as {outcome.reason}; "
                "the others are kept, and the same command computes the rest"
            )

    def _refuse(self, name: str, absent: int, tasks: int, mine: int, stage: str, first: bool) -> None:
        """Say that tasks have no row, because others compute them; `name` is the first of them."""
        of_stage = f" of the stage {stage}" if stage else ""
        if self.shard is not None:
            k, n = self.shard.k, self.shard.n
            then = (
                f"when all shards have, the next stage is --shard {k}/{n} --merge FOLDERS, with another --out"
                if first
                else "--merge joins the folders of all shards"
            )
            raise ShardDoneError(
                f"shard {k} of {n} has computed its {mine} of {tasks} tasks{of_stage} in {self.path}; {then}"
            )
        later = stage and not first and absent == tasks
        raise ValueError(
            f"{absent} of {tasks} tasks{of_stage} {'is' if absent == 1 else 'are'} in none of the folders: "
            f"the first is {name}; expected the folders of all shards"
            + (", in which this stage is computed too (--shard k/n --merge FOLDERS)" if later else "")
        )


def _settings(record: dict[str, Any]) -> dict[str, Any]:
    return {"ranks": 1, **record["config"], "study": record["study"], "seed": record["seed"]}

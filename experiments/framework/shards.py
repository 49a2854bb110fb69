"""Runs that are split over machines: which tasks are whose, and how their folders become one."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from phiball.backends.files import read_json, write_whole
from phiball.experiments.framework.compute import read_files, write_files
from phiball.experiments.framework.study import Study
from phiball.experiments.framework.tables import ReportTable
from phiball.experiments.framework.tasks import TaskDir


class ShardDoneError(Exception):
    """A shard has computed its tasks, and those of others are missing: there is no table yet."""


@dataclass(frozen=True)
class Shard:
    """The k-th of n parts of a run, k from 1.

    >>> Shard.parse("2/4")
    Shard(k=2, n=4)
    >>> Shard(1, 2).choose([5.0, 1.0, 1.0, 3.0])
    [0]
    """

    k: int
    n: int

    @staticmethod
    def parse(text: str) -> Shard:
        """Read a shard such as 2/4; raise ValueError for anything else."""
        match = re.fullmatch(r"(\d+)/(\d+)", text)
        if not match or not 1 <= int(match[1]) <= int(match[2]):
            raise ValueError(f"shard is {text!r}; expected k/n with k from 1 to n, such as 2/4")
        return Shard(int(match[1]), int(match[2]))

    def choose(self, works: list[float]) -> list[int]:
        """Return the indices of the tasks of this shard: the longest first, each to who has least to do."""
        loads, chosen = [0.0] * self.n, []
        for index in sorted(range(len(works)), key=lambda k: -works[k]):
            who = min(range(self.n), key=loads.__getitem__)
            loads[who] += works[index]
            if who == self.k - 1:
                chosen.append(index)
        return sorted(chosen)


def join(folder: Path, out: Path) -> None:
    """Take over the rows of another folder of the same run, and what its tasks left.

    A row that both have must be the same in both: that is checked, number by number.
    """
    for file in sorted((folder / "rows").glob("*.json")):
        row, there = read_json(file), out / "rows" / file.name
        if there.exists():
            if _found(read_json(there)) != _found(row):
                raise ValueError(f"{file} and {there} differ; expected the same row, as it is of one task")
            continue
        write_files(TaskDir(out / "tasks" / file.stem), read_files(TaskDir(folder / "tasks" / file.stem)))
        write_whole(there, json.dumps(row, allow_nan=True) + "\n")


def _found(content: Any) -> str:
    """Return what was found, as text in which NaN equals NaN; who found it, and how fast, may differ."""
    if not isinstance(content, dict):
        return repr(content)
    return json.dumps([content.get("task"), content.get("row")], sort_keys=True)


def task_list(study: Study[Any], config: Any, out: Path, shard: Shard | None = None) -> ReportTable:
    """Return the tasks of a study, or of a shard, with their share of the work and about their time.

    The time is estimated from the rows that `out` has: it is blank before the first of them. Of a study in
    stages, these are the tasks of the first: what follows hangs on their results.
    """
    tasks = study.tasks(config)
    works = [float(study.work(config, task)) for task in tasks]
    chosen = list(range(len(tasks))) if shard is None else shard.choose(works)
    seconds = work = 0.0
    for file in sorted((out / "rows").glob("*.json")):
        row = read_json(file)
        seconds += row["seconds"]
        work += float(study.work(config, row["task"]))

    def line(name: str, part: float) -> tuple[str, ...]:
        share = f"{100 * part / sum(works):.1f} %" if tasks else ""
        return name, share, f"{part * seconds / work:.0f} s" if work else ""

    rows = [line(study.label(tasks[k]), works[k]) for k in chosen]
    rows.append(line(f"{len(chosen)} of {len(tasks)} tasks", sum(works[k] for k in chosen)))
    note = f"Times are estimates from {seconds:.0f} s of tasks in {out}." if work else ""
    return ReportTable("Tasks", ("task", "share of the work", "about"), rows, note)

"""A study with few short tasks."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from phiball.backends import Rng
from phiball.experiments.framework.config import StudyConfig, option
from phiball.experiments.framework.study import Study
from phiball.experiments.framework.tables import ReportTable
from phiball.experiments.framework.tasks import NO_TASK_DIR, Row, Table, Task, TaskDir

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Config(StudyConfig):
    count: int = option(6, "Tasks.")
    pause: float = option(0.0, "Seconds per task.", minimum=0)
    powers: tuple[float, ...] = option((1.0, 0.5), "Powers of the draws.", minimum=-inf)
    reading: str = option("plain", "How it is read.", ("plain", "fancy"))
    place: str = option("", "kill:DIR or stay:DIR, see `_misbehave`.", affects_results=False)


class TinyStudy(Study[Config]):
    name = "tiny"
    title = "A tiny study."
    scales = {"smoke": Config(count=2), "small": Config(count=3), "paper": Config()}  # noqa: RUF012

    def tasks(self, config: Config) -> list[Task]:
        return [{"name": f"task {k}", "k": k} for k in range(config.count)]

    def compute_task(self, config: Config, task: Task, rng: Rng, task_dir: TaskDir = NO_TASK_DIR) -> Row:
        time.sleep(config.pause)
        _misbehave(task, *config.place.partition(":")[::2])
        draws = rng.normal((300, 300), like=np.zeros(1))
        row: Row = {"total": np.sum(draws), "product": (draws @ draws)[0, 0], "draws": draws[0, :3]}
        if task["k"] == 1:
            row["only here"] = float("nan")
        if (file := task_dir.file("note.txt")) is not None:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f"task {task['k']}")
        return row

    def draw(self, table: Table) -> dict[str, Figure]:
        from matplotlib.figure import Figure

        figure = Figure(figsize=(2, 2))
        figure.subplots().plot([row["total"] for row in table.rows])
        return {"totals": figure}

    def tables(self, table: Table) -> list[ReportTable]:
        rows = [(row["name"], f"{row['total']:.3f}") for row in table.rows]
        return [ReportTable("Totals", ("name", "total"), rows)]

    def findings(self, table: Table) -> list[str]:
        return [f"There are [{len(table.rows)}] tasks."]


def _misbehave(task: Task, what: str, folder: str) -> None:
    """Kill the process of the second task once ("kill"), or write its process id and sleep ("stay")."""
    if what == "kill" and task["k"] == 1:
        with suppress(FileExistsError):
            Path(folder, "killed").touch(exist_ok=False)
            os.kill(os.getpid(), signal.SIGKILL)
    if what == "stay":
        Path(folder, str(os.getpid())).touch()
        time.sleep(600.0)


STUDY = TinyStudy()

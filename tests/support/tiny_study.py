"""A study of a few tasks that take as long as one likes, for tests of runs that are kept and resumed."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from math import inf
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
    pause: float = option(0.0, "Seconds per task.", least=0)
    powers: tuple[float, ...] = option((1.0, 0.5), "Powers of the draws.", least=-inf)
    reading: str = option("plain", "How it is read.", ("plain", "fancy"))
    place: str = option("", "Where files lie.", affects_results=False)


class TinyStudy(Study[Config]):
    name = "tiny"
    title = "A tiny study."
    scales = {"smoke": Config(count=2), "small": Config(count=3), "paper": Config()}  # noqa: RUF012

    def tasks(self, config: Config) -> list[Task]:
        return [{"name": f"task {k}", "k": k} for k in range(config.count)]

    def compute_task(self, config: Config, task: Task, rng: Rng, task_dir: TaskDir = NO_TASK_DIR) -> Row:
        time.sleep(config.pause)
        task_dir.report_progress(0.5, "half")
        draws = rng.normal((300, 300), like=np.zeros(1))
        row: Row = {"total": np.sum(draws), "product": (draws @ draws)[0, 0], "draws": draws[0, :3]}
        if task["k"] == 1:
            row["only here"] = float("nan")
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


class DeadlyStudy(TinyStudy):
    """Its second task kills the process that computes it."""

    def compute_task(self, config: Config, task: Task, rng: Rng, task_dir: TaskDir = NO_TASK_DIR) -> Row:
        if task["k"] == 1:
            os._exit(3)
        return super().compute_task(config, task, rng, task_dir)


STUDY = TinyStudy()

"""A study of a few cells that take as long as one likes, for tests of what keeps and resumes runs."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from phiball.backends import Rng
from phiball.experiments.framework.config import option
from phiball.experiments.framework.progress import Desk
from phiball.experiments.framework.runner import Cell, Each, Row, Table, in_turn
from phiball.experiments.framework.tables import Sheet

NAME = "tiny"
TITLE = "A tiny study."


@dataclass(frozen=True)
class Config:
    count: int = option(6, "Cells.")
    pause: float = option(0.0, "Seconds a cell.")
    powers: tuple[float, ...] = option((1.0, 0.5), "Powers of the draws.")
    reading: str = option("plain", "How it is read.", ("plain", "fancy"))
    place: str = option("", "Where files lie.", counts=False)

    def __post_init__(self) -> None:
        if self.count < 1:
            raise ValueError(f"count is {self.count!r}; expected a whole number of at least 1")


SCALES = {"smoke": Config(count=2), "small": Config(count=3), "paper": Config()}


def cells(config: Config) -> list[Cell]:
    return [{"name": f"cell {k}", "k": k} for k in range(config.count)]


def compute_cell(config: Config, cell: Cell, rng: Rng, desk: Desk | None = None) -> Row:
    time.sleep(config.pause)
    (desk or Desk()).say(0.5, "half")
    draws = rng.normal((300, 300), like=np.zeros(1))
    found: Row = {"total": np.sum(draws), "product": (draws @ draws)[0, 0], "draws": draws[0, :3]}
    if cell["k"] == 1:
        found["only here"] = float("nan")
    return found


def compute(config: Config, rng: Rng, each: Each = in_turn) -> Table:
    return Table(config, tuple(each(config, cells(config), compute_cell, rng)))


def draw(table: Table) -> dict[str, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(2, 2))
    figure.subplots().plot([row["total"] for row in table.rows])
    return {"totals": figure}


def sheets(table: Table) -> list[Sheet]:
    return [Sheet("Totals", ("name", "total"), [(row["name"], f"{row['total']:.3f}") for row in table.rows])]


def findings(table: Table) -> list[str]:
    return [f"There are [{len(table.rows)}] cells."]

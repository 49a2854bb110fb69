"""Tasks: the units of work of a study, one per row of its table."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from phiball.backends import Rng

Task: TypeAlias = dict[str, Any]  # identifies the task: numbers and strings
Row: TypeAlias = dict[str, Any]  # its results: numbers, strings and lists of them


def as_json(value: Any) -> Any:
    """`value` after a round trip through JSON: tuples become lists, NumPy numbers Python numbers."""
    return json.loads(json.dumps(value, default=lambda array: array.tolist()))


def task_source(rng: Rng, task: Task) -> Rng:
    """The random numbers of a task, derived from the seed and the task's key.

    They do not depend on the other tasks, nor on where and in which order tasks are computed.
    """
    return rng.keyed(json.dumps(as_json(task), sort_keys=True))


@dataclass(frozen=True)
class Table:
    """The results of a study: the rows of its tasks, in order."""

    config: Any
    rows: tuple[Row, ...]


@dataclass(frozen=True)
class TaskDir:
    """The folder for the checkpoints of a long task; None keeps none."""

    path: Path | None = None

    def file(self, name: str) -> Path | None:
        """The path of a file in the folder."""
        return None if self.path is None else self.path / name


NO_TASK_DIR = TaskDir()

"""Tasks: the units of work of a study, one per row of its table."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from phiball.backends import Rng

Task: TypeAlias = dict[str, Any]  # numbers and strings that identify a task
Row: TypeAlias = dict[str, Any]  # the results of a task: numbers, strings and lists of them


def as_json(value: Any) -> Any:
    """Convert a value to JSON and back: tuples become lists, and NumPy numbers become Python numbers."""
    return json.loads(json.dumps(value, default=lambda array: array.tolist()))


def task_rng(rng: Rng, task: Task) -> Rng:
    """The generator of a task, derived from the seed of `rng` and from the task itself.

    It does not depend on the other tasks, nor on where and in which order tasks are computed.
    """
    return rng.keyed(json.dumps(as_json(task), sort_keys=True))


@dataclass(frozen=True)
class Table:
    """The results of a study: the rows of its tasks, in order."""

    config: Any
    rows: tuple[Row, ...]


@dataclass(frozen=True)
class TaskDir:
    """The folder for the checkpoints of a long task; if `path` is None, no checkpoints are written."""

    path: Path | None = None

    def file(self, name: str) -> Path | None:
        """The path of a file in the folder."""
        return None if self.path is None else self.path / name


NO_TASK_DIR = TaskDir()

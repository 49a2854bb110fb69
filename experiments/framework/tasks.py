"""A task is one unit of work of a study, and gives one row of its table."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from phiball.backends import Rng

Task: TypeAlias = dict[str, Any]  # what names the task: numbers and words
Row: TypeAlias = dict[str, Any]  # its results: numbers, words and lists of them


def as_json(value: Any) -> Any:
    """Return `value` as JSON gives it back: tuples are lists, NumPy's numbers are Python's."""
    return json.loads(json.dumps(value, default=lambda array: array.tolist()))


def task_source(rng: Rng, task: Task) -> Rng:
    """Return the source of random numbers of a task: it hangs on the seed and on what names the task.

    So a task draws the same numbers whatever tasks there are beside it, and wherever and in whatever order
    they are computed.
    """
    return rng.keyed(json.dumps(as_json(task), sort_keys=True))


@dataclass(frozen=True)
class Table:
    """The results of a study: the rows of its tasks, in their order."""

    config: Any
    rows: tuple[Row, ...]


@dataclass(frozen=True)
class TaskDir:
    """The folder in which a long task keeps checkpoints; None keeps nothing."""

    path: Path | None = None

    def file(self, name: str) -> Path | None:
        """Return the path of a file in the folder."""
        return None if self.path is None else self.path / name


NO_TASK_DIR = TaskDir()

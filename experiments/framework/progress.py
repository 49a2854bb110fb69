"""Progress of a run, read from the files of its tasks and shown on the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from phiball.backends.progress import Progress
from phiball.experiments.framework.tasks import TaskDir


class TaskStatus(NamedTuple):
    """A task seen from outside: its name, the file of its row, its folder, and about its work."""

    label: str
    row_file: Path
    folder: Path
    work: float


class RunProgress(Progress):
    """The display of a run: how many tasks are done, and what those that run have reported."""

    _tasks: Sequence[TaskStatus] = ()

    def start(self, tasks: Sequence[TaskStatus], stage: str = "") -> None:
        """Show these tasks from now on."""
        self.name = " ".join(filter(None, (self.name.partition(" ")[0], stage)))
        self._tasks = tasks
        self.refresh()
        self.restart(self.share)

    def refresh(self) -> None:
        """Report what the files of the tasks say."""
        done, work, running = 0, 0.0, []
        for task in self._tasks:
            share, text = TaskDir(task.folder).read_progress()
            if task.row_file.exists():
                done, share, text = done + 1, 1.0, ""
            work += task.work * share
            running += [f"{task.label}: {text}"] if text else []
        if self._tasks:
            total = sum(task.work for task in self._tasks)
            self.update(work / total, "; ".join([f"{done} of {len(self._tasks)} tasks", *running]))

"""Progress of a run, read from the files of its tasks and shown on the terminal."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from phiball.backends.progress import Progress
from phiball.experiments.framework.tasks import TaskDir


@dataclass(frozen=True)
class TaskStatus:
    """A task seen from outside: its name, the file of its row, its folder, and about its work."""

    label: str
    row_file: Path
    task_dir: TaskDir
    work: float

    def poll(self) -> tuple[bool, float, str]:
        """Return whether the task is done, the share that is done, and its last report ("" if none)."""
        if self.row_file.exists():
            return True, 1.0, ""
        return False, *(self.task_dir.read_progress() or (0.0, ""))


@dataclass(frozen=True)
class RunStatus:
    """The tasks of a run, or of one stage of it."""

    tasks: tuple[TaskStatus, ...]
    stage: str = ""

    def poll(self) -> tuple[int, float, dict[str, tuple[float, str]]]:
        """Return the number of finished tasks, the share of the work done, and the last reports of others."""
        polled = [(task, *task.poll()) for task in self.tasks]
        total = sum(task.work for task in self.tasks)
        share = sum(task.work * share for task, _, share, _ in polled) / total if polled else 1.0
        running = {task.label: (share, text) for task, _, share, text in polled if text}
        return sum(done for _, done, _, _ in polled), share, running


class RunProgress(Progress):
    """The display of a run: how many tasks are done, and what those that run have reported."""

    _status: RunStatus | None = None

    def start(self, status: RunStatus) -> None:
        """Show these tasks from now on."""
        done, share, _ = status.poll()
        self.name = " ".join(filter(None, (self.name.partition(" ")[0], status.stage)))
        self.restart(share)
        self._status = status
        if not self._console.is_terminal:
            count = f"{done} of {len(status.tasks)} tasks are done; a line follows every minute"
            print(f"{self.name}: {count}", file=sys.stderr, flush=True)

    def refresh(self) -> None:
        """Report what the files of the tasks say."""
        if self._status is not None:
            done, share, running = self._status.poll()
            texts = [f"{done} of {len(self._status.tasks)} tasks"]
            self.update(share, "; ".join(texts + [f"{name}: {text}" for name, (_, text) in running.items()]))

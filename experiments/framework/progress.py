"""Progress of a run, read from the files of its tasks and shown on the terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread
from time import monotonic
from typing import Any

from phiball.backends.progress import LINE_PAUSE, PAUSE, progress_bars, time_left
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
        """Return the number of finished tasks, the share of the work done, and the reports of the others."""
        polled = [(task, *task.poll()) for task in self.tasks]
        total = sum(task.work for task in self.tasks)
        share = sum(task.work * share for task, _, share, _ in polled) / total if polled else 1.0
        running = {task.label: (share, text) for task, _, share, text in polled if text}
        return sum(done for _, done, _, _ in polled), share, running


class ProgressDisplay:
    """What a run shows: bars on a terminal, a line per minute elsewhere."""

    def __init__(self, name: str, console: Any) -> None:
        self._name, self._console = name, console
        self._status: RunStatus | None = None
        self._last_line = monotonic()
        self._first: tuple[float, float] | None = None
        self._bars: dict[str, Any] = {}

    def start(self, status: RunStatus) -> None:
        """Show these tasks from now on."""
        self._last_line = monotonic()
        self._first = None
        self._status = status
        if not self._console.is_terminal:
            done, _, _ = status.poll()
            self._print(status, f"{done} of {len(status.tasks)} tasks are done; a line follows every minute")

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Show the progress of the run inside the `with` block."""
        over = Event()
        bars = progress_bars(self._console)

        def refresh() -> None:
            while not over.wait(PAUSE):
                if self._status is not None:
                    self._show(bars, self._status)

        thread = Thread(target=refresh, daemon=True)
        with bars:
            thread.start()
            try:
                yield
            finally:
                over.set()
                thread.join()

    def _show(self, bars: Any, status: RunStatus) -> None:
        done, share, running = status.poll()
        if not self._console.is_terminal:
            self._print_share(status, done, share)
            return
        name = f"{self._name} {status.stage}".strip()
        lines = {name: (share, f"{done} of {len(status.tasks)} tasks", self._left(share))}
        lines |= {label: (part, text, "") for label, (part, text) in running.items()}
        for name in [name for name in self._bars if name not in lines]:
            bars.remove_task(self._bars.pop(name))
        for name, (part, text, left) in lines.items():
            if name not in self._bars:
                self._bars[name] = bars.add_task(name, total=1.0, text=text, left=left)
            bars.update(self._bars[name], completed=part, text=text, left=left)

    def _left(self, share: float) -> str:
        """How long the rest takes; time counts from the first look, since the start is slower."""
        if self._first is None:
            self._first = monotonic(), share
        began, first = self._first
        return time_left(monotonic() - began, share - first, 1 - share)

    def _print_share(self, status: RunStatus, done: int, share: float) -> None:
        if monotonic() - self._last_line < LINE_PAUSE:
            return
        self._last_line = monotonic()
        words = f"{done} of {len(status.tasks)} tasks", f"{100 * share:.0f} % of the work", self._left(share)
        self._print(status, ", ".join(filter(None, words)))

    def _print(self, status: RunStatus, text: str) -> None:
        print(f"{self._name} {status.stage}".strip() + f": {text}", file=sys.stderr, flush=True)

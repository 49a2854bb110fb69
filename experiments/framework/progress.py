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

from phiball.experiments.framework.tasks import TaskDir

PAUSE = 0.5  # seconds between two polls
LINE_PAUSE = 60.0  # seconds between two lines where there is no terminal
ENOUGH = 0.01  # share of the work after which the time left is estimated


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
        bars = self._progress()

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

    def _progress(self) -> Any:
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
        from rich.table import Column

        # On a narrow terminal the name is cut, and no number.
        return Progress(
            TextColumn("{task.description}", table_column=Column(no_wrap=True, overflow="ellipsis")),
            BarColumn(8),
            TextColumn("{task.percentage:3.0f} %", table_column=Column(no_wrap=True, min_width=5)),
            TextColumn("{task.fields[text]}", table_column=Column(no_wrap=True, min_width=16)),
            TimeRemainingColumn(table_column=Column(no_wrap=True, min_width=7)),
            TextColumn("left"),
            console=self._console,
            transient=True,
            disable=not self._console.is_terminal,
        )

    def _show(self, bars: Any, status: RunStatus) -> None:
        done, share, running = status.poll()
        if not self._console.is_terminal:
            self._print_share(status, done, share)
            return
        name = f"{self._name} {status.stage}".strip()
        lines = {name: (share, f"{done} of {len(status.tasks)} tasks"), **running}
        for name in [name for name in self._bars if name not in lines]:
            bars.remove_task(self._bars.pop(name))
        for name, (part, text) in lines.items():
            if name not in self._bars:
                self._bars[name] = bars.add_task(name, total=1.0, text=text)
            bars.update(self._bars[name], completed=part, text=text)

    def _print_share(self, status: RunStatus, done: int, share: float) -> None:
        if monotonic() - self._last_line < LINE_PAUSE:
            return
        now = self._last_line = monotonic()
        if self._first is None:  # the start was slower than what follows: time is taken from this moment on
            self._first = now, share
        began, first = self._first
        gained = share - first
        left = f", about {(1 - share) * (now - began) / gained / 60:.0f} min left" if gained > ENOUGH else ""
        self._print(status, f"{done} of {len(status.tasks)} tasks, {100 * share:.0f} % of the work{left}")

    def _print(self, status: RunStatus, text: str) -> None:
        print(f"{self._name} {status.stage}".strip() + f": {text}", file=sys.stderr, flush=True)

"""How far a run is: cells that take long say so in files, and whoever runs them reads it there."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread
from time import monotonic, time
from typing import Any

PAUSE = 0.5  # seconds between looks
QUIET = 60.0  # seconds between lines where there is no terminal
SURE = 0.01  # of the work must be done before the time left is told


@dataclass(frozen=True)
class Desk:
    """Where a cell that takes long keeps what it has so far, and says how far it is; None is nowhere."""

    path: Path | None = None

    def file(self, name: str) -> Path | None:
        """A file of the cell's own."""
        return None if self.path is None else self.path / name

    def say(self, share: float, text: str) -> None:
        """Tell whoever watches that this share of the cell is done; what comes too soon is dropped."""
        note = self.file("progress.json")
        if note is None or (note.exists() and time() - note.stat().st_mtime < PAUSE):
            return
        note.parent.mkdir(parents=True, exist_ok=True)
        part = note.with_suffix(".part")
        part.write_text(json.dumps({"share": share, "text": text}), encoding="utf-8")
        part.replace(note)

    def heard(self) -> tuple[float, str] | None:
        """The last that was said, if anything was."""
        try:
            note = json.loads((self.file("progress.json") or Path()).read_text(encoding="utf-8"))
            return float(note["share"]), str(note["text"])
        except (OSError, ValueError, KeyError, TypeError):
            return None


@dataclass(frozen=True)
class Watched:
    """A cell as seen from outside: its name, the file that it will leave, its desk, and about its work."""

    label: str
    file: Path
    desk: Desk
    work: float


@dataclass(frozen=True)
class Watch:
    """The cells of a run, or of one stage of it."""

    cells: tuple[Watched, ...]
    stage: str = ""

    def look(self) -> tuple[int, float, dict[str, tuple[float, str]]]:
        """The number of cells that are done, the share of all work that is, and what the others said."""
        over = [cell.file.exists() for cell in self.cells]
        heard = {
            k: told
            for k, cell in enumerate(self.cells)
            if not over[k] and (told := cell.desk.heard()) is not None
        }
        done = [
            cell.work * (1.0 if over[k] else heard.get(k, (0.0, ""))[0]) for k, cell in enumerate(self.cells)
        ]
        share = sum(done) / sum(cell.work for cell in self.cells) if self.cells else 1.0
        return sum(over), share, {self.cells[k].label: told for k, told in heard.items()}


class Board:
    """What a run shows: bars on a terminal, a line a minute elsewhere."""

    def __init__(self, name: str, console: Any) -> None:
        self._name, self._console = name, console
        self._watch: Watch | None = None
        self._told = monotonic()
        self._first: tuple[float, float] | None = None
        self._bars: dict[str, Any] = {}

    def start(self, watch: Watch) -> None:
        """Watch these cells from now on."""
        self._told = monotonic()
        self._first = None
        self._watch = watch
        if not self._console.is_terminal:
            done, _, _ = watch.look()
            self._line(watch, f"{done} of {len(watch.cells)} cells are there; a line a minute follows")

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Show how far the run is, until it is left."""
        over = Event()
        bars = self._progress()

        def go_on() -> None:
            while not over.wait(PAUSE):
                if self._watch is not None:
                    self._show(bars, self._watch)

        thread = Thread(target=go_on, daemon=True)
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

    def _show(self, bars: Any, watch: Watch) -> None:
        done, share, said = watch.look()
        if not self._console.is_terminal:
            self._tell(watch, done, share)
            return
        name = f"{self._name} {watch.stage}".strip()
        lines = {name: (share, f"{done} of {len(watch.cells)} cells"), **said}
        for name in [name for name in self._bars if name not in lines]:
            bars.remove_task(self._bars.pop(name))
        for name, (part, text) in lines.items():
            if name not in self._bars:
                self._bars[name] = bars.add_task(name, total=1.0, text=text)
            bars.update(self._bars[name], completed=part, text=text)

    def _tell(self, watch: Watch, done: int, share: float) -> None:
        if monotonic() - self._told < QUIET:
            return
        now = self._told = monotonic()
        if self._first is None:  # the start was slower than what follows: time is taken from here
            self._first = now, share
        began, first = self._first
        gained = share - first
        left = f", about {(1 - share) * (now - began) / gained / 60:.0f} min left" if gained > SURE else ""
        self._line(watch, f"{done} of {len(watch.cells)} cells, {100 * share:.0f} % of the work{left}")

    def _line(self, watch: Watch, text: str) -> None:
        print(f"{self._name} {watch.stage}".strip() + f": {text}", file=sys.stderr, flush=True)

"""Progress display: a bar on a terminal, otherwise one line per minute on stderr."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from threading import Event, Thread
from time import monotonic
from types import TracebackType
from typing import Any, Self, TypeAlias, TypeVar

T = TypeVar("T")
Update: TypeAlias = Callable[[float, str], None]  # a function of the share done and the next step's name
PAUSE = 0.5  # seconds between two updates of the display
LINE_PAUSE = 60.0  # seconds between two lines if stderr is not a terminal
MIN_SHARE = 0.01  # share of the work that must be done before the time left is estimated


def silent(share: float, text: str) -> None:
    """Ignore a progress update."""


class Progress:
    """A context manager that displays the share of the work done, the current step and the time left.

    `update` sets the share and the step; `each` does so while iterating over items; `part` returns the
    display for a part of the work. A thread refreshes the display twice a second.

    >>> with Progress("counting") as progress:
    ...     total = sum(progress.each([1, 2, 3], str))
    >>> total, progress.share
    (6, 1.0)
    """

    def __init__(self, name: str, console: Any = None, *, shown: bool = True) -> None:
        self.name, self._console, self._shown = name, console, shown
        self.share, self.text = 0.0, ""
        self._closed = Event()
        self._thread: Thread | None = None

    def __enter__(self) -> Self:
        self.restart(0.0)
        if self._shown:
            from rich.console import Console

            self._console = self._console or Console(stderr=True)
            self._bars = _make_bars(self._console)
            self._bar = self._bars.add_task(self.name, total=1.0, text="", left="")
            self._bars.start()
            self._thread = Thread(target=self._watch, daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._thread is not None:
            self._closed.set()
            self._thread.join()
            self._bars.stop()

    def restart(self, share: float) -> None:
        """Restart the estimate of the time left, with this share already done."""
        self._start_time = self._last_line = monotonic()
        self._start_share = share

    def update(self, share: float, text: str) -> None:
        """Set the share of the work done (clipped to [0, 1]) and the description of the next step."""
        self.share, self.text = min(max(share, 0.0), 1.0), text

    def each(self, items: Sequence[T], text: Callable[[T], str]) -> Iterator[T]:
        """Yield the items, each after an update with `text(item)`; every item counts the same share."""
        return self.part(0.0, 1.0).each(items, text)

    def part(self, start: float, stop: float) -> ProgressPart:
        """Return the display for the part of the work between the shares `start` and `stop`."""
        return ProgressPart(self, start, stop)

    def left(self) -> str:
        """Return the estimated time left, in words; "" if too little is done for an estimate."""
        done = self.share - self._start_share
        if done < MIN_SHARE:
            return ""
        left = (monotonic() - self._start_time) * (1 - self.share) / done
        return f"about {left:.0f} s left" if left < 90 else f"about {left / 60:.0f} min left"

    def refresh(self) -> None:
        """Called before each display; subclasses override it to set `share` and `text`."""

    def _watch(self) -> None:
        while not self._closed.wait(PAUSE):
            self.refresh()
            if self._console.is_terminal:
                shown = {"description": self.name, "completed": self.share, "text": self.text}
                self._bars.update(self._bar, **shown, left=self.left())
            elif monotonic() - self._last_line >= LINE_PAUSE:
                self._last_line = monotonic()
                words = (f"{100 * self.share:.0f} % of the work", self.left(), self.text)
                print(f"{self.name}: {', '.join(filter(None, words))}", file=sys.stderr, flush=True)


class ProgressPart:
    """A part of the work of a `Progress`; its own shares run from 0 to 1."""

    def __init__(self, whole: Progress, start: float, stop: float) -> None:
        self._whole, self._start, self._stop = whole, start, stop

    def update(self, share: float, text: str) -> None:
        """Set the share of this part that is done, and the description of the next step."""
        share = min(max(share, 0.0), 1.0)
        self._whole.update(self._start + share * (self._stop - self._start), text)

    def each(self, items: Sequence[T], text: Callable[[T], str]) -> Iterator[T]:
        """Yield the items, each after an update with `text(item)`; every item counts the same share."""
        for number, item in enumerate(items):
            self.update(number / len(items), text(item))
            yield item
        self.update(1.0, "")


def _make_bars(console: Any) -> Any:
    """Create a display of the library rich, with name, bar, percentage, current step and time left."""
    from rich.progress import BarColumn, TextColumn
    from rich.progress import Progress as Bars

    return Bars(
        TextColumn("{task.description}", markup=False),
        BarColumn(8),
        TextColumn("{task.percentage:3.0f} %"),
        TextColumn("{task.fields[text]}", markup=False),
        TextColumn("{task.fields[left]}"),
        console=console,
        transient=True,
        refresh_per_second=1 / PAUSE,
        disable=not console.is_terminal,
    )

"""The report of a verification run on the terminal: a table as it goes, and a summary."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from phiball.verification.framework.claim import Claim, Result
from phiball.verification.framework.evidence import Verdict
from phiball.verification.framework.runner import SECTIONS
from phiball.verification.report.files import markdown, record, remarks, summary, to_json
from phiball.verification.report.html import page

__all__ = ["Table", "list_claims", "summary", "write"]

_COLOURS = {
    Verdict.HOLDS: "green",
    Verdict.CORRECTED: "yellow",
    Verdict.REFUTED: "magenta",
    Verdict.UNCHECKED: "bright_black",
}
_COLUMNS = (("id", 15), ("verdict", 20), ("examples", 10), ("time", 8), ("statement", 0))


def _heading(section: str) -> str:
    name = SECTIONS.get(section, "")
    return name if section == max(SECTIONS) else f"Section {section}: {name}"


@dataclass
class Table:
    """A table that grows by a line a result, above a progress bar; a context manager."""

    console: Console
    total: int
    _progress: Progress = field(init=False)
    _section: str | None = field(init=False, default=None)

    def __enter__(self) -> Table:
        self._progress = Progress(
            TextColumn("{task.description}", style="dim"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=self.console,
            transient=True,
            disable=not self.console.is_terminal,
        )
        self._progress.start()
        self._task = self._progress.add_task("claims", total=self.total)
        self._print(_row(name for name, _ in _COLUMNS), "bold")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def _print(self, line: str, style: str = "") -> None:
        _wrapped(self._progress.console, Text(line, style=style), 0)

    def progress(self, done: int, running: list[str]) -> None:
        """Move the bar, and say what is running."""
        names = ", ".join(running[:3]) + (", …" if len(running) > 3 else "")
        self._progress.update(self._task, completed=done, description=f"running {names}" if names else "")

    def add(self, result: Result) -> None:
        """Print the line of one claim, with what a reader must know of it below."""
        if result.section != self._section:
            self._section = result.section
            self._print("")
            self._print(_heading(result.section), "bold underline")
        cells = (
            result.id,
            result.verdict.value,
            str(result.examples or ""),
            f"{result.seconds:.1f} s",
            result.label,
        )
        style = _COLOURS.get(result.verdict, "red") if result.as_recorded else "bold red"
        self._print(_row(cells), style)
        for word, text in remarks(result):
            style = "bold red" if word in ("DIFFERS", "error") else "dim"
            _wrapped(self._progress.console, Text.assemble((f"{word}: ", style), text), 4)


def _row(cells: Iterable[str]) -> str:
    return "".join(cell.ljust(width) for cell, (_, width) in zip(cells, _COLUMNS, strict=True)).rstrip()


def _wrapped(console: Console, text: Text, indent: int) -> None:
    """Wrapped below its own indent on a terminal; one line in a file, where people search."""
    if console.is_terminal:
        shown: RenderableType = Padding(text, (0, 0, 0, indent), expand=False) if indent else text
        console.print(shown, highlight=False)
    else:
        console.print(Text.assemble(" " * indent, text), highlight=False, soft_wrap=True)


def list_claims(claims: list[Claim], console: Console) -> None:
    """Print the claims with their recorded verdicts, without running them."""
    several = len({one.section for one in claims}) > 1
    for i, one in enumerate(claims):
        if several and (i == 0 or claims[i - 1].section != one.section):
            gap = "\n" if i else ""
            console.print(Text(f"{gap}{_heading(one.section)}", style="bold"), soft_wrap=True)
        line = f"{one.id:<15}{one.verdict.value:<20}{one.label}: {one.title}"
        console.print(Text(line), highlight=False, soft_wrap=True)


def write(results: list[Result], out: Path, *, seed: int, deep: bool, seconds: float) -> list[Path]:
    """Write claims.json, claims.md and claims.html into the folder `out`, and say where."""
    out.mkdir(parents=True, exist_ok=True)
    about = record(results, seed=seed, deep=deep, seconds=seconds)
    texts = {
        "claims.json": to_json(results, about),
        "claims.md": markdown(results, about),
        "claims.html": page(results, about),
    }
    for name, text in texts.items():
        (out / name).write_text(text, encoding="utf-8")
    return [out / name for name in texts]

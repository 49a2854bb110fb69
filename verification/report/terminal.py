"""The report on the terminal: a table that grows while the claims run, and a list of the claims."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from types import TracebackType

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from phiball.verification.framework.claim import Claim
from phiball.verification.framework.evidence import Verdict
from phiball.verification.framework.paper import Paper
from phiball.verification.framework.result import Result
from phiball.verification.report.entries import of_the_paper, rows
from phiball.verification.report.overview import overview
from phiball.verification.report.this_paper import THIS
from phiball.verification.report.words import WORDS, all_mutants, counts, false_alarm, full_name, remarks

_COLOURS = {
    Verdict.HOLDS: "green",
    Verdict.CORRECTED: "yellow",
    Verdict.REFUTED: "magenta",
    Verdict.UNCHECKED: "bright_black",
}
_COLUMNS = ((WORDS["verdict"], 20), (WORDS["examples"], 10), (WORDS["seconds"], 9), ("claim", 0))


@dataclass
class Table:
    """A table that grows by a line per result, above a progress bar; a context manager."""

    console: Console
    total: int
    paper: Paper = THIS
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

    def progress(self, done: int, running: list[Claim]) -> None:
        """Move the bar, and say what is running."""
        names = ", ".join(map(full_name, running[:3])) + (", …" if len(running) > 3 else "")
        self._progress.update(self._task, completed=done, description=f"running {names}" if names else "")

    def add(self, result: Result) -> None:
        """Print the line of one claim, with what a reader must know of it below."""
        if result.section != self._section:
            self._section = result.section
            self._print("")
            self._print(self.paper.section_heading(result.section), "bold underline")
        style = _COLOURS.get(result.verdict, "red") if result.as_recorded else "bold red"
        name = f"{full_name(result)}: {result.label}"
        self._print(_row((result.verdict, str(result.examples or ""), f"{result.seconds:.1f}", name)), style)
        for word, text in remarks(result).items():
            style = "bold red" if word in ("DIFFERS", WORDS["error"]) else "dim"
            for part in text.split("\n"):
                _wrapped(self._progress.console, Text.assemble((f"{word}: ", style), part), 4)


def _row(cells: Iterable[str]) -> str:
    return "".join(cell.ljust(width) for cell, (_, width) in zip(cells, _COLUMNS, strict=True)).rstrip()


def _wrapped(console: Console, text: Text, indent: int) -> None:
    """Wrapped below its own indent on a terminal; one line in a file, where people search."""
    if console.is_terminal:
        shown: RenderableType = Padding(text, (0, 0, 0, indent), expand=False) if indent else text
        console.print(shown, highlight=False)
    else:
        console.print(Text.assemble(" " * indent, text), highlight=False, soft_wrap=True)


def print_summary(results: list[Result], console: Console, paper: Paper = THIS) -> None:
    """Print what a run adds up to: by item of the paper, in words, and in numbers by kind of fault."""
    paragraphs = overview(results, paper)
    if paragraphs:  # the paper is whole
        console.print()
        for row in rows(of_the_paper(results), paper):
            worst = row.severest
            item = f"{row.item.name} {row.item.title}"[:58]
            consequence = f"; {worst.consequence}" if worst.kind else ""
            holding = f"{row.holding} of {len(row.entries)}"
            _wrapped(console, Text(f"{item:<60}{holding:<9}{worst.standing}{consequence}"), 0)
    for text in filter(None, (*paragraphs, *counts(results), all_mutants(results), false_alarm(results))):
        console.print()
        _wrapped(console, Text(text), 0)


def list_claims(claims: list[Claim], console: Console, paper: Paper = THIS) -> None:
    """Print the claims with their recorded verdicts, without running them."""
    several = len({claim.section for claim in claims}) > 1
    width = max(len(full_name(claim)) for claim in claims) + 2
    for i, claim in enumerate(claims):
        if several and (i == 0 or claims[i - 1].section != claim.section):
            gap = "\n" if i else ""
            console.print(Text(f"{gap}{paper.section_heading(claim.section)}", style="bold"), soft_wrap=True)
        line = f"{full_name(claim):<{width}}{claim.verdict:<20}{claim.label}: {claim.title}"
        console.print(Text(line), highlight=False, soft_wrap=True)

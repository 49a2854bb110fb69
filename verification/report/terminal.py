"""The report on the terminal: problems and a summary; with `verbose`, every claim."""

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
from phiball.verification.framework.paper import BEYOND, Paper
from phiball.verification.framework.result import Result
from phiball.verification.report.entries import of_the_paper
from phiball.verification.report.overview import overview
from phiball.verification.report.theorems import theorems
from phiball.verification.report.this_paper import THIS
from phiball.verification.report.wording import (
    NAMES,
    all_mutants,
    by_verdict,
    counts,
    false_alarm,
    full_name,
    remarks,
    totals,
)

_COLOURS = {
    Verdict.HOLDS: "green",
    Verdict.CORRECTED: "yellow",
    Verdict.REFUTED: "magenta",
    Verdict.UNCHECKED: "bright_black",
}
_COLUMNS = ((NAMES["verdict"], 20), (NAMES["examples"], 10), (NAMES["seconds"], 9), ("claim", 0))


@dataclass
class ResultTable:
    """A table of results above a progress bar; a context manager.

    With `verbose`, it has a row for every claim. Otherwise it has a row for every section, and for every
    claim whose verdict differs from the recorded one or that does not reject a mutant.
    """

    console: Console
    total: int
    paper: Paper = THIS
    verbose: bool = True
    _progress: Progress = field(init=False)
    _section: list[Result] = field(init=False, default_factory=list)

    def __enter__(self) -> ResultTable:
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
        if self.verbose:
            self._print(_row(name for name, _ in _COLUMNS), "bold")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end_section()
        self._progress.stop()

    def _print(self, line: str, style: str = "") -> None:
        _wrapped(self._progress.console, Text(line, style=style), 0)

    def progress(self, done: int, running: list[Claim]) -> None:
        """Move the bar, and show the claims that are running."""
        names = ", ".join(map(full_name, running[:3])) + (", …" if len(running) > 3 else "")
        self._progress.update(self._task, completed=done, description=f"running {names}" if names else "")

    def add(self, result: Result) -> None:
        """Print a result with its remarks; without `verbose`, only if it is a problem."""
        if not self._section or result.section != self._section[0].section:
            self._end_section()
            if self.verbose:
                self._print("")
                self._print(self.paper.section_heading(result.section), "bold underline")
        self._section.append(result)
        if not self.verbose and result.as_recorded and not result.survived:
            return
        style = _COLOURS.get(result.verdict, "red") if result.as_recorded else "bold red"
        name = f"{full_name(result)}: {result.label}"
        self._print(_row((result.verdict, str(result.examples or ""), f"{result.seconds:.1f}", name)), style)
        for word, text in remarks(result).items():
            style = "bold red" if word in ("DIFFERS", NAMES["error"]) else "dim"
            for part in text.split("\n"):
                _wrapped(self._progress.console, Text.assemble((f"{word}: ", style), part), 4)

    def _end_section(self) -> None:
        if self._section and not self.verbose:
            self._print(
                f"{self.paper.section_heading(self._section[0].section)}: {by_verdict(self._section)}"
            )
        self._section = []


def _row(cells: Iterable[str]) -> str:
    return "".join(cell.ljust(width) for cell, (_, width) in zip(cells, _COLUMNS, strict=True)).rstrip()


def _wrapped(console: Console, text: Text, indent: int) -> None:
    """Print with an indent: wrapped on a terminal, and on one line in a file, for searches."""
    if console.is_terminal:
        shown: RenderableType = Padding(text, (0, 0, 0, indent), expand=False) if indent else text
        console.print(shown, highlight=False)
    else:
        console.print(Text.assemble(" " * indent, text), highlight=False, soft_wrap=True)


def print_summary(results: list[Result], console: Console, paper: Paper = THIS) -> None:
    """Print the totals, and whether each theorem holds as printed."""
    if total := totals(results):
        console.print()
        _wrapped(console, Text(f"{total}. {overview(results, paper).stands}".strip()), 0)
    if listed := theorems(of_the_paper(results), paper):
        console.print()
        _wrapped(console, Text(f"{'':<62}holds as printed?", style="bold"), 0)
    for theorem in listed:
        _wrapped(console, Text(f"{theorem.full_name[:60]:<62}{theorem.answer}"), 0)
    console.print()
    of_paper = [result for result in results if result.section != BEYOND]
    for text in filter(None, (*counts(of_paper), all_mutants(results), false_alarm(results))):
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

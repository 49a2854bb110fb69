"""The report of a verification run: a table as it goes, a summary, JSON and Markdown."""

from __future__ import annotations

import json
import platform
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from math import isfinite
from pathlib import Path
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from phiball.backends import active
from phiball.verification.claims import Claim, Result
from phiball.verification.evidence import Verdict

_COLOURS = {Verdict.HOLDS: "green", Verdict.CORRECTED: "yellow", Verdict.REFUTED: "magenta"}
_WIDTHS = (14, 28, 20, 9, 8)
_VERBS = {
    Verdict.HOLDS: ("holds", "hold"),
    Verdict.CORRECTED: ("holds as corrected", "hold as corrected"),
    Verdict.REFUTED: ("refuted", "refuted"),
    Verdict.UNDECIDED: ("without a verdict", "without a verdict"),
}


@dataclass
class Table:
    """A table that grows by a line a result, above a progress bar; a context manager."""

    console: Console
    total: int
    _progress: Progress = field(init=False)

    def __enter__(self) -> Table:
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=self.console,
            transient=True,
            disable=not self.console.is_terminal,
        )
        self._progress.start()
        self._task = self._progress.add_task("claims", total=self.total)
        self._print(("id", "statement", "verdict", "examples", "time"), "bold")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def _print(self, cells: Iterable[str], style: str) -> None:
        line = "".join(cell.ljust(width) for cell, width in zip(cells, _WIDTHS, strict=True)).rstrip()
        self._progress.console.print(f"[{style}]{escape(line)}[/]", highlight=False, soft_wrap=True)

    def add(self, result: Result) -> None:
        """Print the line of one claim, with what a reader must know of it below."""
        good = result.as_recorded
        cells = (
            result.id,
            result.label,
            result.verdict.value,
            str(result.examples),
            f"{result.seconds:.1f} s",
        )
        self._print(cells, _COLOURS.get(result.verdict, "red") if good else "bold red")
        for word, text in _remarks(result):
            self._progress.console.print(
                f"    [dim]{word}:[/] {escape(text)}", highlight=False, soft_wrap=True
            )
        self._progress.advance(self._task)


def _remarks(result: Result) -> list[tuple[str, str]]:
    """The words that go with a verdict, each with its name; those that are empty are left out."""
    remarks = [
        ("statement", result.title),
        ("corrected", result.correction),
        ("counterexample", result.counterexample),
    ]
    if not result.as_recorded:
        remarks.append(("DIFFERS", f"the recorded verdict is: {result.recorded.value}"))
    if result.found and (not result.as_recorded or result.verdict is Verdict.REFUTED):
        remarks.append(("smallest found", result.found))
    remarks.append(("error", result.error))
    return [(word, text) for word, text in remarks if text]


def list_claims(claims: list[Claim], console: Console) -> None:
    """Print the claims with their recorded verdicts, without running them."""
    for one in claims:
        cells = (one.id, one.label, one.verdict.value)
        line = "".join(cell.ljust(width) for cell, width in zip(cells, _WIDTHS, strict=False))
        console.print(escape(line + one.title), highlight=False, soft_wrap=True)


def summary(results: list[Result], seconds: float) -> str:
    """One line: how many claims reached which verdict, and whether that is as recorded."""
    counts = {verdict: sum(1 for r in results if r.verdict is verdict) for verdict in Verdict}
    parts = [f"{n} {_VERBS[verdict][n != 1]}" for verdict, n in counts.items() if n]
    different = [r.id for r in results if not r.as_recorded]
    close = f"verdicts NOT as recorded: {', '.join(different)}" if different else "all verdicts as recorded"
    plural = "claim" if len(results) == 1 else "claims"
    backend = active().name
    return f"{len(results)} {plural}: {', '.join(parts)}; {close} (backend {backend}, {seconds:.0f} s)"


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in ("phiball", "numpy", "numba", "torch", "hypothesis", "mpmath", "cvxpy"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _plain(result: Result) -> dict[str, Any]:
    # JSON has no infinity and no NaN.
    row = {**asdict(result), "as_recorded": result.as_recorded}
    return {k: str(v) if isinstance(v, float) and not isfinite(v) else v for k, v in row.items()}


def write(results: list[Result], out: Path, *, seed: int, deep: bool, seconds: float) -> list[Path]:
    """Write claims.json and claims.md into the folder `out`, and say where."""
    out.mkdir(parents=True, exist_ok=True)
    record = {
        "summary": summary(results, seconds),
        "backend": active().name,
        "seed": seed,
        "deep": deep,
        "machine": platform.platform(),
        "versions": _versions(),
        "claims": [_plain(result) for result in results],
    }
    written = [out / "claims.json", out / "claims.md"]
    written[0].write_text(json.dumps(record, indent=2, allow_nan=False) + "\n", encoding="utf-8")
    written[1].write_text(markdown(results, seconds), encoding="utf-8")
    return written


def markdown(results: list[Result], seconds: float) -> str:
    """The report as a Markdown page."""
    lines = ["# What the paper states, and what is true", "", summary(results, seconds), ""]
    lines += [
        "| id | statement | verdict | worst violation | tolerance | examples |",
        "|---|---|---|---|---|---|",
    ]
    for r in results:
        mark = "" if r.as_recorded else f" (recorded: {r.recorded.value})"
        cells = (
            r.id,
            r.label,
            r.verdict.value + mark,
            f"{r.violation:.2g}",
            f"{r.tolerance:.2g}",
            str(r.examples),
        )
        lines.append(f"| {' | '.join(cells)} |")
    for r in results:
        lines += ["", f"## {r.id}: {r.label}", ""]
        lines += [f"- {word}: {text}" for word, text in _remarks(r)]
    return "\n".join(lines) + "\n"

"""A table that is printed and written: the same cells on the terminal and in Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.markup import escape
from rich.table import Table


@dataclass(frozen=True)
class Sheet:
    """A titled table of words; the first `left` columns are names, the others numbers."""

    title: str
    headings: tuple[str, ...]
    cells: Sequence[tuple[str, ...]]
    note: str = ""
    left: int = 1

    def table(self) -> Table:
        """For the terminal."""
        table = Table(title=escape(self.title), caption=escape(self.note), caption_justify="left")
        for place, heading in enumerate(self.headings):
            table.add_column(escape(heading), justify="left" if place < self.left else "right")
        for row in self.cells:
            table.add_row(*map(escape, row))
        return table

    def markdown(self) -> str:
        """For a page."""
        rule = ["---" if place < self.left else "---:" for place in range(len(self.headings))]
        lines = [f"| {' | '.join(row)} |" for row in (self.headings, rule, *self.cells)]
        return "\n".join([f"## {self.title}", "", *lines, "", *([self.note, ""] if self.note else [])])

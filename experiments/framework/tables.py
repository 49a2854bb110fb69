"""A table that can be printed on the terminal and as Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.markup import escape
from rich.table import Table


@dataclass(frozen=True)
class ReportTable:
    """A table of strings with a title; the first `left` columns are left-aligned."""

    title: str
    headings: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    note: str = ""
    left: int = 1

    def table(self) -> Table:
        """The table for a terminal."""
        table = Table(title=escape(self.title), caption=escape(self.note), caption_justify="left")
        for column, heading in enumerate(self.headings):
            table.add_column(escape(heading), justify="left" if column < self.left else "right")
        for row in self.rows:
            table.add_row(*map(escape, row))
        return table

    def markdown(self) -> str:
        """The table as Markdown."""
        rule = ["---" if column < self.left else "---:" for column in range(len(self.headings))]
        lines = [f"| {' | '.join(row)} |" for row in (self.headings, rule, *self.rows)]
        return "\n".join([f"## {self.title}", "", *lines, "", *([self.note, ""] if self.note else [])])

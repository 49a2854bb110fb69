"""Tables of reports."""

from __future__ import annotations

from phiball.experiments.framework.tables import ReportTable


def test_a_table_on_a_page() -> None:
    table = ReportTable("Title", ("name", "number"), [("a", "1")], "a note")
    assert table.markdown() == "## Title\n\n| name | number |\n| --- | ---: |\n| a | 1 |\n\na note\n"
    assert table.table().row_count == 1

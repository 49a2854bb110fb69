"""What a run leaves in the end: its table, figures and report."""

from __future__ import annotations

import csv
import json
from importlib import import_module
from pathlib import Path
from typing import Any

from phiball.experiments.framework.config import result_settings
from phiball.experiments.framework.study import Study
from phiball.experiments.framework.tasks import Table


def write_table(table: Table, out: Path) -> Path:
    """Write the numbers and words of all rows, blank where a row has none; lists stay in the row files."""
    names = dict.fromkeys(k for row in table.rows for k, v in row.items() if not isinstance(v, (list, dict)))
    with (out / "table.csv").open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, list(names), restval="", extrasaction="ignore")
        writer.writeheader()
        writer.writerows(table.rows)
    return out / "table.csv"


def write_figures(study: Study[Any], table: Table, out: Path) -> list[Path]:
    """Write the figures of a study as PNG and SVG."""
    matplotlib = import_module("matplotlib")
    matplotlib.use("agg")
    written = []
    for name, figure in study.draw(table).items():
        for kind, options in (("png", {"dpi": 110}), ("svg", {"metadata": {"Date": None}})):
            written.append(out / f"{name}.{kind}")
            with matplotlib.rc_context({"svg.hashsalt": name}):
                figure.savefig(written[-1], **options)
            if kind == "png":
                _reduce_colours(written[-1])
        import_module("matplotlib.pyplot").close(figure)
    return written


def _reduce_colours(file: Path) -> None:
    """Save a picture in 256 colours: lines and words look the same, and take a third of the space."""
    image = import_module("PIL.Image")
    with image.open(file) as picture:
        small = picture.convert("RGB").quantize(256)
    small.save(file, optimize=True)


def write_report(study: Study[Any], table: Table, figures: list[Path], out: Path) -> Path:
    """Write the findings, figures and tables as Markdown, with all that is needed to repeat the run."""
    record = json.loads((out / "run.json").read_text(encoding="utf-8"))
    settings = ", ".join(f"{name} {value}" for name, value in result_settings(table.config).items())
    lines = [f"# {study.title}", "", *(f"{paragraph}\n" for paragraph in study.findings(table))]
    lines += [f"![{f.stem}]({f.name})\n" for f in figures if f.suffix == ".png"]
    lines += [report_table.markdown() for report_table in study.tables(table)]
    versions = ", ".join(f"{name} {v}" for name, v in record["versions"].items())
    lines += [
        f"Settings: {settings}. Seed {record['seed']}; {versions}; backend {record['backend']}; "
        f"{record['machine']}; revision {record['revision'] or 'not known'}."
    ]
    (out / "report.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return out / "report.md"

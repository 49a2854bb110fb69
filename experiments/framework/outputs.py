"""What a run leaves in the end: its table, figures and report."""

from __future__ import annotations

import csv
import json
from importlib import import_module
from pathlib import Path
from typing import Any

from phiball.experiments.framework.config import counting


def write_table(table: Any, out: Path) -> Path:
    """The numbers and words of all rows, blank where a row has none; lists stay in the files of the cells."""
    names = dict.fromkeys(k for row in table.rows for k, v in row.items() if not isinstance(v, (list, dict)))
    with (out / "table.csv").open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        writer.writerow(names)
        writer.writerows([row.get(name, "") for name in names] for row in table.rows)
    return out / "table.csv"


def write_figures(study: Any, table: Any, out: Path) -> list[Path]:
    """The study's figures, as PNG and SVG."""
    matplotlib = import_module("matplotlib")
    matplotlib.use("agg")
    written = []
    for name, figure in study.draw(table).items():
        for kind, how in (("png", {"dpi": 110}), ("svg", {"metadata": {"Date": None}})):
            written.append(out / f"{name}.{kind}")
            with matplotlib.rc_context({"svg.hashsalt": name}):
                figure.savefig(written[-1], **how)
            if kind == "png":
                _fewer_colours(written[-1])
        import_module("matplotlib.pyplot").close(figure)
    return written


def _fewer_colours(file: Path) -> None:
    """A picture of lines and words looks the same in 256 colours, and takes a third of the space."""
    image = import_module("PIL.Image")
    with image.open(file) as picture:
        small = picture.convert("RGB").quantize(256)
    small.save(file, optimize=True)


def write_report(study: Any, table: Any, figures: list[Path], out: Path) -> Path:
    """What was found, in Markdown, with all that is needed to repeat it."""
    note = json.loads((out / "run.json").read_text(encoding="utf-8"))
    settings = ", ".join(f"{name} {value}" for name, value in counting(table.config).items())
    lines = [f"# {study.TITLE}", "", *(f"{paragraph}\n" for paragraph in study.findings(table))]
    lines += [f"![{f.stem}]({f.name})\n" for f in figures if f.suffix == ".png"]
    lines += [sheet.markdown() for sheet in study.sheets(table)]
    versions = ", ".join(f"{name} {v}" for name, v in note["versions"].items())
    lines += [
        f"Settings: {settings}. Seed {note['seed']}; {versions}; backend {note['backend']}; "
        f"{note['machine']}; revision {note['revision'] or 'not known'}."
    ]
    (out / "report.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return out / "report.md"

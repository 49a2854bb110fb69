"""Write the table, figures and report of a run, and list its tasks."""

from __future__ import annotations

import csv
from importlib import import_module
from io import StringIO
from pathlib import Path
from typing import Any

from phiball.backends.files import atomic_write, read_json, write_text_atomic
from phiball.experiments.framework.config import result_settings
from phiball.experiments.framework.shards import Shard
from phiball.experiments.framework.study import Study
from phiball.experiments.framework.tables import ReportTable
from phiball.experiments.framework.tasks import Table


def write_table(table: Table, out: Path) -> Path:
    """Write the scalars of all rows as CSV, blank where a row has none; lists are only in the row files."""
    names = dict.fromkeys(k for row in table.rows for k, v in row.items() if not isinstance(v, (list, dict)))
    stream = StringIO(newline="")
    writer = csv.DictWriter(stream, list(names), restval="", extrasaction="ignore")
    writer.writeheader()
    writer.writerows(table.rows)
    return write_text_atomic(out / "table.csv", stream.getvalue())


def write_figures(study: Study[Any], table: Table, out: Path) -> list[Path]:
    """Write the figures of a study as PNG and SVG."""
    matplotlib = import_module("matplotlib")
    matplotlib.use("agg")
    written = []
    for name, figure in study.draw(table).items():
        for kind, options in (("png", {"dpi": 110}), ("svg", {"metadata": {"Date": None}})):
            written.append(out / f"{name}.{kind}")
            with matplotlib.rc_context({"svg.hashsalt": name}), atomic_write(written[-1]) as stream:
                figure.savefig(stream, format=kind, **options)
        import_module("matplotlib.pyplot").close(figure)
    return written


def write_run_report(study: Study[Any], table: Table, figures: list[Path], out: Path) -> Path:
    """Write findings, figures and tables as Markdown, with the settings and provenance of the run."""
    record = read_json(out / "run.json")
    settings = ", ".join(f"{name} {value}" for name, value in result_settings(table.config).items())
    lines = [f"# {study.title}", "", *(f"{paragraph}\n" for paragraph in study.findings(table))]
    lines += [f"![{f.stem}]({f.name})\n" for f in figures if f.suffix == ".png"]
    lines += [report_table.markdown() for report_table in study.tables(table)]
    versions = ", ".join(f"{name} {version}" for name, version in record["versions"].items())
    origin = f"backend {record['backend']}; {record['machine']}; revision {record['revision'] or 'unknown'}"
    lines += [f"Settings: {settings}. Seed {record['seed']}; {versions}; {origin}."]
    return write_text_atomic(out / "report.md", "\n".join(lines) + "\n")


def task_list(study: Study[Any], config: Any, out: Path, shard: Shard | None = None) -> ReportTable:
    """The tasks of a study or a shard, with their share of the work and an estimate of their time.

    The time is estimated from finished tasks in `out`, and blank if there are none. For a study in stages,
    the tasks of the first stage are listed.
    """
    tasks = study.tasks(config)
    works = [float(study.work(config, task)) for task in tasks]
    chosen = list(range(len(tasks))) if shard is None else shard.choose(works)
    rows = [read_json(file) for file in sorted((out / "rows").glob("*.json"))]
    done = sum(float(study.work(config, row["task"])) for row in rows)
    rate = sum(row["seconds"] for row in rows) / done if done else 0.0

    def line(name: str, work: float) -> tuple[str, ...]:
        return name, f"{100 * work / sum(works):.1f} %", f"{work * rate:.0f} s" if done else ""

    lines = [line(study.label(tasks[k]), works[k]) for k in chosen]
    lines.append(line(f"{len(chosen)} of {len(tasks)} tasks", sum(works[k] for k in chosen)))
    return ReportTable("Tasks", ("task", "share of the work", "about"), lines)

"""What all benchmarks do with their results: print tables, and write a record of the run to a folder."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from phiball.backends.files import write_whole
from phiball.backends.provenance import versions
from phiball.experiments.framework.tables import ReportTable

PACKAGES = ("phiball", "numpy", "numba", "scipy", "torch", "entmax", "torchattacks", "skwdro", "dro")


def run_details(**settings: Any) -> dict[str, Any]:
    """Return what a reader needs to repeat the run: settings, versions, machine and its load."""
    load = list(os.getloadavg()) if hasattr(os, "getloadavg") else []
    return {**settings, "versions": versions(PACKAGES), "machine": platform.platform(), "load": load}


def open_console(out: Path | None, width: int = 132) -> Console:
    """Return a console of at least that width; make the folder `out` first, to fail before the work."""
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
    return Console(width=max(width, Console().width))


def print_lines(console: Console, lines: Iterable[str]) -> None:
    """Print lines of text as they are."""
    for line in lines:
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def write_results(
    console: Console,
    out: Path | None,
    name: str,
    record: Any,
    *,
    title: str = "",
    facts: Iterable[str] = (),
    tables: Sequence[ReportTable] = (),
) -> None:
    """Write `record` to out/name.json, and the tables, if any, to out/name.md; nothing if `out` is None."""
    if out is None:
        return
    files = [out / f"{name}.json"]
    write_whole(files[0], json.dumps(record, indent=1, allow_nan=False) + "\n")
    if tables:
        files.append(out / f"{name}.md")
        page = [
            f"# {title}",
            "",
            *(f"- {fact}" for fact in facts),
            "",
            *(table.markdown() for table in tables),
        ]
        write_whole(files[1], "\n".join(page))
    print_lines(console, [f"wrote {' and '.join(map(str, files))}"])

"""`phiball bench training`: what a training step costs, and what the estimators give for it.

Table 1 is of `bench_cost`: time and memory of a training step. Table 2 is of `bench_quality`: bias and noise
of the estimators where the risk is known.
"""

from __future__ import annotations

import json
import os
import platform
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console

from phiball.backends import use
from phiball.experiments.benchmarks import exact_problems as known_risks
from phiball.experiments.benchmarks import training_cost as bench_cost
from phiball.experiments.benchmarks import training_quality as bench_quality
from phiball.experiments.benchmarks.sampling import SCHEMES
from phiball.experiments.benchmarks.third_party import HINT, missing
from phiball.experiments.framework.provenance import versions
from phiball.experiments.framework.tables import ReportTable

PACKAGES = ("phiball", "numpy", "numba", "scipy", "torch", "torchattacks", "skwdro", "dro")
PARTS = ("all", "cost", "quality")


def about(**settings: Any) -> dict[str, Any]:
    """What a reader needs to repeat the run: settings, versions, machine and its load."""
    load = list(os.getloadavg()) if hasattr(os, "getloadavg") else []
    return {**settings, "versions": versions(PACKAGES), "machine": platform.platform(), "load": load}


def main(
    threads: int = 1,
    width: int = 64,
    quick: bool = False,
    full: bool = False,
    part: str = "all",
    seed: int = 0,
    out: Path | None = None,
) -> None:
    """Print the tables, and write them as JSON and Markdown to the folder `out`, if one is named."""
    if part not in PARTS:
        raise ValueError(f"part is {part!r}; expected one of {', '.join(PARTS)}")
    if quick and full:
        raise ValueError("quick and full are both given; expected one of them, or none")
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)  # a folder that cannot be written is told before the work
    console = Console(width=max(132, Console().width))
    record = about(seed=seed, threads=threads, width=width, quick=quick, full=full)
    pages: list[ReportTable] = []
    lines: list[str] = []
    with console.status("measuring") as status:
        if part != "quality":
            cost = list(
                bench_cost.rows(
                    seconds=1.0 if quick else 12.0,
                    width=width,
                    quick=quick,
                    full=full,
                    seed=seed,
                    threads=threads,
                    say=status.update,
                )
            )
            pages.append(bench_cost.cost_table(cost, width, threads))
            console.print(pages[-1].table())
            lines = bench_cost.verdicts(cost) + [HINT.format(name) for name in missing()]
            console.print("\n".join(lines), highlight=False, soft_wrap=True)
            record["cost"] = [{**asdict(row), "each": row.each} for row in cost]
        if part != "cost":
            with use("numpy"):
                tasks, found = known_risks.problems(), []
                for row in bench_quality.rows(tasks, work=1 << (16 if quick else 20), seed=seed):
                    status.update(f"{row.problem}, {row.points} points: {row.estimator}, L = {row.level}")
                    found.append(row)
            every, choice = bench_quality.tables(found), bench_quality.choice(found, tasks)
            pages += [*every, choice]
            for page in (*(page for page in every if page.title.endswith(": plain points")), choice):
                console.print(page.table())
            if len(bench_quality.schemes()) < len(SCHEMES):
                console.print(bench_quality.HINT, highlight=False, soft_wrap=True)
            record["quality"] = [asdict(row) for row in found]
    if out is not None:
        _write(out, record, lines, pages)
        console.print(f"wrote {out / 'training.json'} and {out / 'training.md'}", soft_wrap=True)


def _write(out: Path, record: dict[str, Any], lines: list[str], pages: list[ReportTable]) -> None:
    text = json.dumps(record, indent=1, allow_nan=False)
    (out / "training.json").write_text(text + "\n", encoding="utf-8")
    facts = [f"{key}: {value}" for key, value in record.items() if key not in ("cost", "quality")]
    said = [f"- {line}" for line in facts + lines]
    page = ["# Training: cost and quality", "", *said, "", *(page.markdown() for page in pages)]
    (out / "training.md").write_text("\n".join(page), encoding="utf-8")

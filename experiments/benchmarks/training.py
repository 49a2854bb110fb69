"""`phiball bench training`: what a training step costs, and how good the estimators are at that price.

The part `stages` measures where the time of a step goes on three networks (see `training_stages`), the part
`cost` time and memory of a step by every method (see `training_cost`), the part `quality` bias and noise of
the estimators where the risk is known (see `training_quality`).
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from phiball.backends import use
from phiball.backends.progress import Progress
from phiball.experiments.benchmarks import exact_problems, training_cost, training_quality, training_stages
from phiball.experiments.benchmarks.output import open_console, print_lines, run_details, write_results
from phiball.experiments.benchmarks.schemes import SCHEMES, installed_schemes
from phiball.experiments.benchmarks.third_party import HINT, missing
from phiball.experiments.benchmarks.training_cost import clock
from phiball.experiments.benchmarks.training_steps import require_torch
from phiball.experiments.framework.requirements import missing_package_message
from phiball.experiments.framework.tables import ReportTable

PARTS = ("all", "stages", "cost", "quality")


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
    console = open_console(out)
    record = run_details(seed=seed, threads=threads, width=width, quick=quick, full=full)
    facts = [f"{key}: {value}" for key, value in record.items()]
    tables: list[ReportTable] = []
    ends = {"stages": (0.0, 0.15), "cost": (0.15, 0.6), "quality": (0.6, 1.0)}  # of about equal speed
    with Progress("bench training", console) as progress:
        updates = {
            name: progress.part(*(ends[name] if part == "all" else (0.0, 1.0))).update for name in ends
        }
        if part in ("all", "stages"):
            require_torch("stages").set_num_threads(threads)
            stages = list(
                training_stages.rows(
                    seconds=0.3 if quick else 4.0,
                    width=0 if quick else width,
                    clock=clock(threads),
                    seed=seed,
                    update=updates["stages"],
                )
            )
            tables.append(training_stages.table(stages, threads))
            console.print(tables[-1].table())
            verdicts = training_stages.verdicts(stages)
            print_lines(console, verdicts)
            facts += verdicts
            record["stages"] = [asdict(row) for row in stages]
        if part in ("all", "cost"):
            cost = list(
                training_cost.rows(
                    seconds=1.0 if quick else 12.0,
                    width=width,
                    quick=quick,
                    full=full,
                    seed=seed,
                    threads=threads,
                    update=updates["cost"],
                )
            )
            tables.append(training_cost.table(cost, width, threads))
            console.print(tables[-1].table())
            verdicts = training_cost.verdicts(cost) + [HINT.format(name) for name in missing()]
            print_lines(console, verdicts)
            facts += verdicts
            record["cost"] = [{**asdict(row), "per_evaluation": row.per_evaluation} for row in cost]
        if part in ("all", "quality"):
            with use("numpy"):
                problems, work = exact_problems.problems(), 1 << (16 if quick else 20)
                update = updates["quality"]
                measured = list(training_quality.rows(problems, work=work, seed=seed, update=update))
            pages, choice = training_quality.tables(measured), training_quality.choice(measured, problems)
            tables += [*pages, choice]
            for page in (*(page for page in pages if page.title.endswith(": plain points")), choice):
                console.print(page.table())
            if len(installed_schemes()) < len(SCHEMES):
                print_lines(console, [missing_package_message("drawing Sobol points", "scipy", "verify")])
            record["quality"] = [asdict(row) for row in measured]
    title = "Training: cost and quality"
    write_results(console, out, "training", record, title=title, facts=facts, tables=tables)

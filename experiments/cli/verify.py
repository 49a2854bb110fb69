"""The command `phiball verify`: runs the claims, shows their verdicts and writes the report."""

from __future__ import annotations

import os
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any

import typer
from rich.console import Console

from phiball.backends import active, threads
from phiball.backends.provenance import code_links, revision, versions
from phiball.experiments.cli.errors import usage_errors
from phiball.experiments.cli.options import Address, Engine, NJobs, Seed
from phiball.experiments.studies.comparisons import comparisons

_PACKAGES = ("phiball", "numpy", "numba", "torch", "scipy", "hypothesis", "mpmath", "cvxpy")


def verify(
    claim: Annotated[
        list[str] | None,
        typer.Option(
            help="An id or name, such as A1 or strong_duality, or words of a statement; may be repeated."
        ),
    ] = None,
    section: Annotated[
        str | None, typer.Option(help="A section of the paper, 2 to 6, or beyond: what goes further.")
    ] = None,
    claims: Annotated[
        Path | None, typer.Option(help="A folder with claims on another paper, in place of ours.")
    ] = None,
    list_only: Annotated[bool, typer.Option("--list", help="List the claims, and run none.")] = False,
    deep: Annotated[bool, typer.Option("--deep", help="Search ten times as many examples.")] = False,
    mutants: Annotated[
        bool, typer.Option("--mutants", help="Also count the planted faults that each claim rejects.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(help="The folder of the report (results/verify; for a part, results/verify/selected)."),
    ] = None,
    seed: Seed = 0,
    jobs: NJobs = -1,
    engine: Engine = "processes",
    address: Address = "",
    record: Annotated[
        bool, typer.Option("--record", help="Note this run in the record of runs that the page shows.")
    ] = False,
    errata: Annotated[
        Path | None, typer.Option(help="Write the paper's errors to this file, and do nothing else.")
    ] = None,
) -> None:
    """Check the paper's statements: search each for violations, and reach a verdict."""
    from phiball.backends.parallel import check_cluster, cluster
    from phiball.verification.framework import suite
    from phiball.verification.report import errata as errata_file
    from phiball.verification.report import files, terminal
    from phiball.verification.report import record as runs
    from phiball.verification.report.this_paper import THIS

    console = Console()
    if errata is not None:
        _print(console, f"wrote {errata_file.write_errata(errata)}")
        return
    part = bool(claim) or section is not None
    with usage_errors():
        if record and part:
            raise ValueError("record is given for a part of the claims; expected a run of all of them")
        paper, known = (THIS, None) if claims is None else suite.load_folder(claims)
        chosen = suite.find_claims(claim or None, section, claims=known)
        check_cluster(engine, address)
    if list_only:
        terminal.list_claims(chosen, console, paper)
        return
    _ = active().namespace, threads()  # bad settings of the environment are errors before the work
    if out is None:  # a part, or another paper, must not replace the full report
        out = Path("results/verify") / ("" if claims is None else claims.resolve().name)
        out /= "selected" if part else ""
    home = Path(runs.__file__).parent if claims is None else claims
    out.mkdir(parents=True, exist_ok=True)
    runs.read_record(home)
    began = perf_counter()
    with cluster(engine, address), terminal.Table(console, len(chosen), paper) as table:
        results = suite.run_claims(
            chosen,
            folder=claims,
            deep=deep,
            seed=seed,
            mutants=mutants,
            n_jobs=jobs or -1,
            on_result=table.add,
            on_progress=table.progress,
        )
    about = files.circumstances(
        results, seed=seed, deep=deep, seconds=perf_counter() - began, provenance=_source(claims, out)
    )
    if record:
        runs.add_run(home, results, about)
    about["record"] = runs.in_words(runs.read_record(home))
    ours = comparisons() if claims is None and not part else []
    written = files.write_report(results, out, about, paper, ours)
    terminal.print_summary(results, console, paper)
    _print(console, f"\n{about['agreement']}")
    _print(console, f"wrote {', '.join(map(str, written))}")
    if not all(result.as_recorded and not result.survived for result in results):
        raise typer.Exit(1)


def _source(claims: Path | None, out: Path) -> dict[str, Any]:
    """What is known of the source of the claims: ours, or those of a folder."""
    found: dict[str, Any] = {"versions": versions(_PACKAGES)}
    if claims is None:
        return found | {"revision": revision(), "code": code_links(out)}
    place = Path(os.path.relpath(claims.resolve(), out.resolve())).as_posix()
    return found | {"claims": str(claims), "code": f"{place}/{{path}}"}


def _print(console: Console, line: str) -> None:
    console.print(line, highlight=False, soft_wrap=True)

"""The command `phiball verify`: check the claims, print a summary and write the report."""

from __future__ import annotations

import os
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any

import typer
from rich.console import Console

from phiball.backends import active, threads
from phiball.backends.provenance import code_links, revision, versions
from phiball.backends.selection import BACKEND_VARIABLE
from phiball.experiments.cli.errors import usage_errors
from phiball.experiments.cli.options import Address, Engine, NJobs, Seed
from phiball.experiments.studies.comparisons import comparisons

_PACKAGES = ("phiball", "numpy", "numba", "torch", "jax", "scipy", "hypothesis", "mpmath", "cvxpy")


def verify(
    claim: Annotated[
        list[str] | None,
        typer.Option(help="A claim by id, name or words, such as A1 or strong_duality; can be repeated."),
    ] = None,
    section: Annotated[
        str | None,
        typer.Option(help="Section of the paper, 2 to 6, or 'beyond' for claims that go beyond the paper."),
    ] = None,
    claims: Annotated[
        Path | None, typer.Option(help="Folder with claims on another paper, instead of the built-in ones.")
    ] = None,
    list_only: Annotated[bool, typer.Option("--list", help="List the claims without running them.")] = False,
    deep: Annotated[bool, typer.Option("--deep", help="Search ten times as many examples.")] = False,
    mutants: Annotated[
        bool, typer.Option("--mutants", help="Also report how many mutants (wrong code) each claim rejects.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder of the report. Default: results/verify, with subfolders seed-N for another seed, "
            "deep for --deep and selected for --claim or --section."
        ),
    ] = None,
    verbose: Annotated[
        bool, typer.Option("--verbose", help="Print every claim, not only problems; implied by --claim.")
    ] = False,
    seed: Seed = 0,
    n_jobs: NJobs = -1,
    engine: Engine = "processes",
    address: Address = "",
    record: Annotated[
        bool, typer.Option("--record", help="Add this run to the list of complete runs.")
    ] = False,
    errata: Annotated[
        Path | None, typer.Option(help="Only write the corrections of the paper, to this file.")
    ] = None,
) -> None:
    """Check the statements of the paper, and write a report (HTML, Markdown and JSON)."""
    from phiball.backends.workers import check_cluster, cluster
    from phiball.verification.framework import suite
    from phiball.verification.report import errata as errata_file
    from phiball.verification.report import record as runs
    from phiball.verification.report import report_files, terminal
    from phiball.verification.report.this_paper import THIS

    console = Console()
    if errata is not None:
        _print(console, f"wrote {errata_file.write_errata(errata)}")
        return
    selected = bool(claim) or section is not None
    with usage_errors():
        if record and selected:
            raise ValueError("--record needs a complete run, without --claim and --section")
        paper, known = (THIS, None) if claims is None else suite.load_folder(claims)
        chosen = suite.find_claims(claim or None, section, claims=known)
        check_cluster(engine, address)
    if list_only:
        terminal.list_claims(chosen, console, paper)
        return
    if os.environ.get(BACKEND_VARIABLE) == "jax":  # claims have the tolerances of double precision
        os.environ.setdefault("JAX_ENABLE_X64", "1")
    _ = active().namespace, threads()  # report invalid environment variables before any work
    if out is None:
        out = _default_folder(claims, selected, deep, seed)
    record_folder = Path(runs.__file__).parent if claims is None else claims
    out.mkdir(parents=True, exist_ok=True)
    runs.read_record(record_folder)  # report an unreadable record before any work
    start = perf_counter()
    with (
        cluster(engine, address),
        terminal.ResultTable(console, len(chosen), paper, verbose or bool(claim)) as table,
    ):
        results = suite.run_claims(
            chosen,
            folder=claims,
            deep=deep,
            seed=seed,
            mutants=mutants,
            n_jobs=n_jobs,
            on_result=table.add,
            on_progress=table.progress,
        )
    about = report_files.circumstances(
        results, seed=seed, deep=deep, seconds=perf_counter() - start, provenance=_provenance(claims, out)
    )
    if record:
        runs.add_run(record_folder, results, about)
    about["record"] = runs.in_sentences(runs.read_record(record_folder))
    studies = comparisons() if claims is None and not selected else []
    written = report_files.write_report(results, out, about, paper, studies)
    terminal.print_summary(results, console, paper)
    _print(console, f"\n{about['agreement']}")
    _print(console, f"wrote {', '.join(map(str, written))}")
    if not all(result.as_recorded and not result.survived for result in results):
        raise typer.Exit(1)


def _default_folder(claims: Path | None, selected: bool, deep: bool, seed: int) -> Path:
    """A separate folder for each kind of run, so that no report replaces one of another kind."""
    names = (
        claims.resolve().name if claims else "",
        f"seed-{seed}" if seed else "",
        "deep" if deep else "",
        "selected" if selected else "",
    )
    return Path("results/verify", *filter(None, names))


def _provenance(claims: Path | None, out: Path) -> dict[str, Any]:
    """The versions of libraries, the revision, and links from `out` to the code of the claims."""
    found: dict[str, Any] = {"versions": versions(_PACKAGES)}
    if claims is None:
        return found | {"revision": revision(), "code": code_links(out)}
    folder = Path(os.path.relpath(claims.resolve(), out.resolve())).as_posix()
    return found | {"claims": str(claims), "code": f"{folder}/{{path}}"}


def _print(console: Console, line: str) -> None:
    console.print(line, highlight=False, soft_wrap=True)

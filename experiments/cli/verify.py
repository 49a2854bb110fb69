"""The command `phiball verify`: runs the claims, shows their verdicts and writes the report."""

from __future__ import annotations

from pathlib import Path
from time import perf_counter
from typing import Annotated

import typer
from rich.console import Console

from phiball.backends import active, threads
from phiball.experiments.cli.errors import fail, one_line_errors
from phiball.experiments.framework.provenance import code_links, revision, versions

_PACKAGES = ("phiball", "numpy", "numba", "torch", "scipy", "hypothesis", "mpmath", "cvxpy")


def verify(
    claim: Annotated[
        str | None, typer.Option(help="An id or name, such as A1 or strong_duality, or words of a statement.")
    ] = None,
    section: Annotated[
        str | None, typer.Option(help="A section of the paper, 2 to 6, or beyond: what goes further.")
    ] = None,
    list_only: Annotated[bool, typer.Option("--list", help="List the claims, and run none.")] = False,
    deep: Annotated[bool, typer.Option("--deep", help="Search ten times as many examples.")] = False,
    out: Annotated[
        Path | None,
        typer.Option(help="The folder of the report (results/verify; for a part, results/verify/selected)."),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="The seed of the search.")] = 0,
    jobs: Annotated[int | None, typer.Option(min=1, help="The number of processes (one per core).")] = None,
    errata: Annotated[
        Path | None, typer.Option(help="Write the paper's errors to this file, and do nothing else.")
    ] = None,
) -> None:
    """Check the paper's statements: search each for violations, and reach a verdict."""
    with one_line_errors(ImportError):
        from phiball.backends.processes import cores
        from phiball.verification.framework import runner
        from phiball.verification.report import errata as errata_file
        from phiball.verification.report import files, terminal
    console = Console()
    if errata is not None:
        with one_line_errors(ValueError, OSError):
            _print(console, f"wrote {errata_file.write_errata(errata)}")
        return
    with one_line_errors(ValueError, code=2):
        chosen = runner.find(claim, section)
    if list_only:
        terminal.list_claims(chosen, console)
        return
    with one_line_errors(ValueError, ImportError):
        _ = active().namespace
        threads()  # PHIBALL_THREADS is read here, not in the middle of a claim
    if out is None:  # a part must not replace the full report
        out = Path("results/verify") / ("selected" if claim or section is not None else "")
    with one_line_errors(OSError):
        out.mkdir(parents=True, exist_ok=True)  # a folder that cannot be written is reported before the work
    began = perf_counter()
    try:
        with terminal.Table(console, len(chosen)) as table:
            results = runner.run(
                claim,
                section,
                deep=deep,
                seed=seed,
                jobs=jobs or cores(),
                on_result=table.add,
                on_progress=table.progress,
            )
    except KeyboardInterrupt:
        fail("stopped; no report is written", 130)
    provenance = {"revision": revision(), "versions": versions(_PACKAGES), "code": code_links(out)}
    about = files.circumstances(
        results, seed=seed, deep=deep, seconds=perf_counter() - began, provenance=provenance
    )
    with one_line_errors(OSError):
        written = files.write_report(results, out, about)
    terminal.print_summary(results, console)
    _print(console, f"\n{about['agreement']}")
    _print(console, f"wrote {', '.join(map(str, written))}")
    if not all(result.as_recorded for result in results):
        raise typer.Exit(1)


def _print(console: Console, line: str) -> None:
    console.print(line, highlight=False, soft_wrap=True)

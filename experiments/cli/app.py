"""The commands of `phiball`: verify, report, backends, bench and run."""

from __future__ import annotations

import os
from importlib.metadata import packages_distributions, version
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from phiball.backends import BACKENDS, Backend, active
from phiball.backends.selection import BACKEND_VARIABLE
from phiball.experiments.cli import bench, run
from phiball.experiments.cli.errors import OneLineErrors
from phiball.experiments.cli.report import report
from phiball.experiments.cli.verify import verify

app = typer.Typer(
    cls=OneLineErrors,
    help="Adversarially robust learning with phi-divergence regularisation.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    rich_markup_mode=None,
)
app.command(epilog="Example: phiball verify --section 3")(verify)
app.command(epilog="Example: phiball report mymodels:network --data test.npz --norm l2 --radii 0:1:9")(report)
app.add_typer(bench.app, name="bench", epilog="Example: phiball bench inner --quick")
app.add_typer(run.app, name="run", epilog="Example: phiball run worst-case --scale smoke")


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"phiball {version('phiball')}")
        raise typer.Exit


@app.callback()
def phiball(
    show_version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Adversarially robust learning with phi-divergence regularisation."""


@app.command(epilog=f"Example: {BACKEND_VARIABLE}=torch phiball backends")
def backends() -> None:
    """List the backends with the versions of their libraries, and mark the active one."""
    chosen = active()
    default = f"the default; set {BACKEND_VARIABLE} to change it"
    why = f"set by {BACKEND_VARIABLE}" if os.environ.get(BACKEND_VARIABLE) else default
    table = Table("name", "library", "active")
    for backend in BACKENDS.values():
        # In the hint to install phiball[torch], the brackets are not markup.
        table.add_row(backend.name, escape(_installed(backend)), f"yes: {why}" if backend is chosen else "")
    Console().print(table)


def _installed(backend: Backend) -> str:
    """The backend's library with its version, or how to install it."""
    distributions = packages_distributions().get(backend.package.replace("-", "_"))
    return (
        f"{backend.package} {version(distributions[0])}"
        if distributions
        else f"not installed: {backend.install}"
    )

"""The commands of `phiball`: verify, report, backends, bench and run."""

from __future__ import annotations

import os
from importlib import import_module
from importlib.metadata import packages_distributions, version
from importlib.util import find_spec
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from phiball.backends import BACKENDS, Backend, active
from phiball.backends.selection import VARIABLE
from phiball.experiments.cli import bench, run
from phiball.experiments.cli.errors import OneLineErrors, one_line_errors
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
app.command(epilog="Example: phiball verify --section 3 --out results/verify")(verify)
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


@app.command(epilog=f"Example: {VARIABLE}=torch phiball backends")
def backends() -> None:
    """List the backends: what is installed, on which device, and which one is active and why."""
    with one_line_errors(ValueError):
        chosen = active()
    why = f"{VARIABLE} says so" if os.environ.get(VARIABLE) else f"the default; {VARIABLE} selects another"
    table = Table("name", "library", "device", "active")
    for backend in BACKENDS.values():
        # The brackets of 'phiball[torch]' are no markup.
        mark = f"yes: {why}" if backend is chosen else ""
        table.add_row(backend.name, escape(_installed(backend)), _device(backend), mark)
    Console().print(table)


def _module(backend: Backend) -> str:
    return backend.package.replace("-", "_")


def _installed(backend: Backend) -> str:
    """The library and its version, or how to install it."""
    distributions = packages_distributions().get(_module(backend))
    if find_spec(_module(backend)) is None or not distributions:
        return f"not installed: {backend.install}"
    return f"{backend.package} {version(distributions[0])}"


def _device(backend: Backend) -> str:
    """Where the backend's new arrays live, as far as this machine allows."""
    if find_spec(_module(backend)) is None:
        return ""
    if backend.name == "torch":
        return "cpu and cuda" if import_module("torch").cuda.is_available() else "cpu"
    if backend.name != "cupy":
        return "cpu"
    try:
        count = int(import_module("cupy").cuda.runtime.getDeviceCount())
    except Exception:  # CuPy has several errors for a machine without a driver or a device
        count = 0
    return "cuda" if count else "none: CuPy found no GPU"

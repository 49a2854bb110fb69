"""The commands of `phiball`: verify, backends, bench and run."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.metadata import packages_distributions, version
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from phiball.backends import BACKENDS, Backend, active
from phiball.backends.selection import VARIABLE
from phiball.experiments.cli import run as cli_run
from phiball.experiments.cli.verify import verify

app = typer.Typer(
    help="Adversarially robust learning with phi-divergence regularisation.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
bench = typer.Typer(help="Benchmarks of the solvers, the attacks and the samples.", no_args_is_help=True)
app.command(epilog="Example: phiball verify --section 3 --out results/verify")(verify)
app.add_typer(bench, name="bench", epilog="Example: phiball bench inner --quick")
app.add_typer(cli_run.app, name="run", epilog="Example: phiball run worst-case --scale smoke")


@contextmanager
def _readable(*kinds: type[Exception], code: int = 1) -> Iterator[None]:
    """Turn the errors that a user can mend into one line on stderr and an exit status."""
    try:
        yield
    except kinds as error:
        print(f"phiball: {' '.join(str(error).split())}", file=sys.stderr)
        raise typer.Exit(code) from None


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
    with _readable(ValueError):
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


@bench.command(epilog="Example: phiball bench inner --threads 2 --out results/bench")
def inner(
    threads: Annotated[int, typer.Option(min=1, help="Threads that every solver may use.")] = 1,
    quick: Annotated[bool, typer.Option("--quick", help="Measure each for a tenth of a second.")] = False,
    out: Annotated[Path | None, typer.Option(help="The folder of the results.")] = None,
) -> None:
    """Time the inner solver, and its accuracy, beside the other systems that are installed."""
    with _readable(ValueError, ImportError, OSError):
        bench_inner = import_module("phiball.experiments.benchmarks.inner_solver")
        bench_inner.main(threads=threads, quick=quick, out=out)


@bench.command(epilog="Example: phiball bench attacks --quick --out results/bench")
def attacks(
    threads: Annotated[int, typer.Option(min=1, help="Threads that torch may use.")] = 1,
    quick: Annotated[
        bool, typer.Option("--quick", help="Two networks, not six, and the two smaller radii.")
    ] = False,
    out: Annotated[Path | None, typer.Option(help="The folder of the results.")] = None,
) -> None:
    """Count the errors that FGM, IFGM, PGM and white noise find, beside torchattacks if it is installed."""
    with _readable(ValueError, ImportError, OSError):
        bench_attacks = import_module("phiball.experiments.benchmarks.attacks")
        bench_attacks.main(threads=threads, quick=quick, out=out)


@bench.command(epilog="Example: phiball bench sampling --quick --out results/bench")
def sampling(
    quick: Annotated[bool, typer.Option("--quick", help="Fewer repetitions, and no 784 dimensions.")] = False,
    out: Annotated[Path | None, typer.Option(help="The folder of the results.")] = None,
) -> None:
    """Compare plain, antithetic and Sobol samples of balls by the noise of their means."""
    with _readable(ValueError, ImportError, OSError):
        bench_sampling = import_module("phiball.experiments.benchmarks.sampling")
        bench_sampling.main(quick=quick, out=out)


@bench.command(epilog="Example: phiball bench training --part cost --quick --out results/bench")
def training(
    threads: Annotated[int, typer.Option(min=1, help="Threads that torch may use.")] = 1,
    width: Annotated[int, typer.Option(min=1, help="Filters of the network's first layer.")] = 64,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer methods, for a second each.")] = False,
    full: Annotated[bool, typer.Option("--full", help="SG up to 2^7 samples, which takes minutes.")] = False,
    part: Annotated[str, typer.Option(help="cost, quality (needs no torch), or all.")] = "all",
    seed: Annotated[int, typer.Option(min=0, help="The seed of images, network and draws.")] = 0,
    out: Annotated[Path | None, typer.Option(help="The folder of the results.")] = None,
) -> None:
    """Time a training step by every method, and compare the estimators where the risk is known."""
    with _readable(ValueError, ImportError, OSError):
        bench_training = import_module("phiball.experiments.benchmarks.training")
        bench_training.main(
            threads=threads, width=width, quick=quick, full=full, part=part, seed=seed, out=out
        )


@bench.command(epilog="Example: phiball bench settings --quick --out results/bench")
def settings(
    threads: Annotated[int, typer.Option(min=1, help="Threads that torch may use.")] = 1,
    quick: Annotated[
        bool, typer.Option("--quick", help="One epoch, two seeds, one radius: to see that it runs.")
    ] = False,
    out: Annotated[Path | None, typer.Option(help="The folder of the results.")] = None,
) -> None:
    """Train digits with many balls, etas, divergences and estimators, and say which withstand attacks."""
    with _readable(ValueError, ImportError, OSError):
        guide = import_module("phiball.experiments.benchmarks.settings")
        guide.main(threads=threads, quick=quick, out=out)


@bench.command(epilog="Example: phiball bench estimators --quick --out results/bench")
def estimators(
    threads: Annotated[int, typer.Option(min=1, help="Threads that torch may use.")] = 1,
    quick: Annotated[
        bool, typer.Option("--quick", help="One radius, two etas and few points: to see that it runs.")
    ] = False,
    seed: Annotated[int, typer.Option(min=0, help="The seed of the network and of the draws.")] = 0,
    out: Annotated[Path | None, typer.Option(help="The folder of the results.")] = None,
) -> None:
    """Compare uniform and tilted points at a trained network: digits, or MNIST if PHIBALL_DATA says where."""
    with _readable(ValueError, ImportError, OSError):
        bench_estimators = import_module("phiball.experiments.benchmarks.estimators")
        bench_estimators.main(threads=threads, quick=quick, seed=seed, out=out)

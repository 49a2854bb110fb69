"""`phiball bench NAME`: benchmarks of the solvers, the attacks, the samples and the training."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from phiball.experiments.cli.errors import fail, one_line_errors
from phiball.experiments.cli.run import load_study

app = typer.Typer(help="Benchmarks: speed, accuracy, training cost, and settings.", no_args_is_help=True)
Threads = Annotated[int, typer.Option(min=1, help="Threads that may be used.")]
Out = Annotated[Path | None, typer.Option(help="The folder of the results.")]


def _run(module: str, **options: Any) -> None:
    """Run a benchmark, which is imported only now: its libraries are not needed before."""
    try:
        with one_line_errors(ValueError, ImportError, OSError):
            import_module(module).main(**options)
    except KeyboardInterrupt:
        fail("stopped", 130)


@app.command(epilog="Example: phiball bench inner --threads 2 --out results/bench")
def inner(
    threads: Threads = 1,
    quick: Annotated[
        bool, typer.Option("--quick", help="Two shapes, and a few calls of each: under a minute.")
    ] = False,
    busy: Annotated[
        bool,
        typer.Option(
            "--busy",
            help="Only the threads: the default number and two against one, on the machine as it is and "
            "with every core kept busy by processes that this command starts.",
        ),
    ] = False,
    against: Annotated[
        Path | None,
        typer.Option(help="Only the kernels, beside those of another version: the folder of its clone."),
    ] = None,
    out: Out = None,
) -> None:
    """Time the inner solver, and its accuracy, beside the other systems that are installed."""
    if busy and against is not None:
        raise typer.BadParameter("--busy and --against are two measurements; expected one of them")
    options = {"threads": threads, "quick": quick, "busy": busy, "against": against, "out": out}
    _run("phiball.experiments.benchmarks.inner_solver", **options)


@app.command(epilog="Example: phiball bench attacks --quick --out results/bench")
def attacks(
    threads: Threads = 1,
    quick: Annotated[
        bool, typer.Option("--quick", help="Two networks, not six, and the two smaller radii.")
    ] = False,
    out: Out = None,
) -> None:
    """Count the errors that FGM, IFGM, PGM and white noise find, beside torchattacks if it is installed."""
    _run("phiball.experiments.benchmarks.attacks", threads=threads, quick=quick, out=out)


@app.command(epilog="Example: phiball bench sampling --quick --out results/bench")
def sampling(
    quick: Annotated[bool, typer.Option("--quick", help="Fewer repetitions, and no 784 dimensions.")] = False,
    out: Out = None,
) -> None:
    """Time samples of balls, and compare plain, antithetic and Sobol ones by the noise of their means."""
    _run("phiball.experiments.benchmarks.sampling", quick=quick, out=out)


@app.command(epilog="Example: phiball bench training --part cost --quick --out results/bench")
def training(
    threads: Threads = 1,
    width: Annotated[int, typer.Option(min=1, help="Filters of the network's first layer.")] = 64,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer methods, for a second each.")] = False,
    full: Annotated[bool, typer.Option("--full", help="SG up to 2^7 samples, which takes minutes.")] = False,
    part: Annotated[str, typer.Option(help="stages, cost, quality (needs no torch), or all.")] = "all",
    seed: Annotated[int, typer.Option(min=0, help="The seed of images, network and draws.")] = 0,
    out: Out = None,
) -> None:
    """Time a training step by every method, and compare the estimators where the risk is known."""
    size = {"threads": threads, "width": width, "quick": quick, "full": full}
    _run("phiball.experiments.benchmarks.training", **size, part=part, seed=seed, out=out)


@app.command(epilog="Example: phiball bench settings --quick --out results/bench")
def settings(
    threads: Threads = 1,
    quick: Annotated[
        bool, typer.Option("--quick", help="One epoch, two seeds, one radius: to see that it runs.")
    ] = False,
    defaults: Annotated[
        bool,
        typer.Option("--defaults", help="Only RobustLoss beside a grid, on digits, tables and MNIST."),
    ] = False,
    out: Out = None,
) -> None:
    """Train digits with many balls, etas, divergences and estimators, and report which withstand attacks."""
    name = "choices.defaults" if defaults else "settings"
    _run(f"phiball.experiments.benchmarks.{name}", threads=threads, quick=quick, out=out)


@app.command(epilog="Example: phiball bench estimators --quick --out results/bench")
def estimators(
    threads: Threads = 1,
    quick: Annotated[
        bool, typer.Option("--quick", help="One radius, two etas and few points: to see that it runs.")
    ] = False,
    seed: Annotated[int, typer.Option(min=0, help="The seed of the network and of the draws.")] = 0,
    out: Out = None,
) -> None:
    """Compare uniform and tilted points at a trained network: digits, or MNIST if PHIBALL_DATA is set."""
    _run("phiball.experiments.benchmarks.estimators", threads=threads, quick=quick, seed=seed, out=out)


@app.command(epilog="Example: phiball bench scaling --quick --out results/bench")
def scaling(
    axis: Annotated[
        str | None, typer.Option(help="What grows: m, batch, level, dimension or threads; all by default.")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Fewer sizes and curves, for an instant each: under a minute.")
    ] = False,
    simulate: Annotated[
        bool,
        typer.Option("--simulate", help="Only a simulated run on 1 to 1,000 workers, and a plan on paper."),
    ] = False,
    times: Annotated[
        Path | None, typer.Option(help="For --simulate: the folder of a run, for its tasks' times.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The folder of the results and of the plot.")] = None,
) -> None:
    """Show how time and memory grow: fitted exponents beside theory, ours and those of other systems."""
    with one_line_errors(ValueError, code=2):
        if simulate and (axis or quick):
            raise ValueError("--simulate takes no --axis and no --quick; expected it alone, or with --times")
        if times is not None and not simulate:
            raise ValueError("--times is for --simulate; expected both")
    if simulate:
        with one_line_errors(ImportError):
            study = load_study("worst-case")  # whose tasks are timed, unless `times` has others
        _run("phiball.experiments.benchmarks.growth.makespan", study=study, times=times, out=out)
        return
    _run("phiball.experiments.benchmarks.scaling", axis=axis, quick=quick, out=out)


@app.command(epilog="Example: phiball bench endurance --out results/bench")
def endurance(
    steps: Annotated[int, typer.Option(min=1, help="Training steps of each method, in hundreds.")] = 10_000,
    quick: Annotated[bool, typer.Option("--quick", help="At most 2,000 steps.")] = False,
    seed: Annotated[int, typer.Option(min=0, help="The seed of data and draws.")] = 0,
    out: Out = None,
) -> None:
    """Train for thousands of steps in one process, and see whether memory grows or steps get slower."""
    _run("phiball.experiments.benchmarks.endurance", steps=steps, quick=quick, seed=seed, out=out)


@app.command(epilog="Example: phiball bench linear --quick --out results/bench")
def linear(
    quick: Annotated[
        bool, typer.Option("--quick", help="Short timings, 25,000 examples, and no other systems.")
    ] = False,
    evidence: Annotated[
        bool,
        typer.Option("--evidence", help="Only the errors on four data sets under noise and worst cases."),
    ] = False,
    out: Out = None,
) -> None:
    """Time robust linear models beside scikit-learn and others, or compare their errors on real data."""
    if evidence:
        _run("phiball.experiments.benchmarks.linear_evidence", quick=quick, out=out)
    else:
        _run("phiball.experiments.benchmarks.linear", quick=quick, out=out)

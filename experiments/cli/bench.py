"""`phiball bench NAME`: benchmarks of solvers, attacks, sampling and training."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from phiball.experiments.cli.options import Seed

app = typer.Typer(help="Benchmarks: speed, accuracy, growth of time and memory.", no_args_is_help=True)
Threads = Annotated[int, typer.Option(min=1, help="Number of threads.")]
Quick = Annotated[bool, typer.Option("--quick", help="Run a small version that only tests the benchmark.")]
Out = Annotated[Path | None, typer.Option(help="Folder for the results, as JSON and Markdown.")]


def _run(module: str, name: str, variant: str = "", **options: Any) -> None:
    """Run the function bench_NAME of a module; `variant` is appended to the names of the files it writes."""
    package = "phiball.experiments.benchmarks"
    run = import_module(f"{package}.harness").run_benchmark
    run(getattr(import_module(f"{package}.{module}"), f"bench_{name}"), f"{name}{variant}", **options)


@app.command(epilog="Example: phiball bench inner --threads 2 --out results/bench")
def inner(
    threads: Threads = 1,
    quick: Quick = False,
    busy: Annotated[
        bool,
        typer.Option(
            "--busy",
            help="Instead, compare the default number of threads and two threads with one thread, on the "
            "machine as it is and with every core busy.",
        ),
    ] = False,
    against: Annotated[
        Path | None, typer.Option(help="Instead, compare with another version, cloned to this folder.")
    ] = None,
    jax: Annotated[
        bool,
        typer.Option("--jax", help="Instead, time jitted JAX functions; JAX_ENABLE_X64=1 selects float64."),
    ] = False,
    out: Out = None,
) -> None:
    """Time the inner solver and check its accuracy, compared with other installed solvers."""
    variants = {"busy": busy, "against": against is not None, "jax": jax}
    given = [name for name, value in variants.items() if value]
    if len(given) > 1:
        raise typer.BadParameter(
            f"--{given[0]} and --{given[1]} are both given; expected at most one of them"
        )
    options = {"threads": threads, "quick": quick, "busy": busy, "against": against, "jax": jax, "out": out}
    _run("inner_speed", "inner", "".join(f"-{name}" for name in given), **options)


@app.command(epilog="Example: phiball bench attacks --quick --out results/bench")
def attacks(
    threads: Threads = 1,
    quick: Quick = False,
    part: Annotated[
        str,
        typer.Option(
            help="digits (FGM, IFGM, PGM and white noise); autoattack (apgd, and APGD of pyautoattack); or "
            "tools (the robustness report, and attacks of four libraries)."
        ),
    ] = "digits",
    out: Out = None,
) -> None:
    """Count the errors found by attacks, compared with other installed libraries."""
    variant = "" if part == "digits" else f"-{part}"
    _run("attack_errors", "attacks", variant, threads=threads, quick=quick, part=part, out=out)


@app.command(epilog="Example: phiball bench certify --part soundness --quick --out results/bench")
def certify(
    threads: Threads = 1,
    quick: Quick = False,
    part: Annotated[
        str,
        typer.Option(
            help="soundness (attacks on certified margins), tightness (certified and attacked errors), cost, "
            "training (certified training), or all. They use MNIST if PHIBALL_DATA is set, otherwise digits."
        ),
    ] = "all",
    out: Out = None,
) -> None:
    """Compare certified margins of networks with attacks."""
    variant = "" if part == "all" else f"-{part}"
    _run("certificates", "certify", variant, threads=threads, quick=quick, part=part, out=out)


@app.command(epilog="Example: phiball bench sampling --quick --out results/bench")
def sampling(quick: Quick = False, out: Out = None) -> None:
    """Time sampling from balls, and compare the noise of plain, antithetic and Sobol points."""
    _run("sampling", "sampling", quick=quick, out=out)


@app.command("training", epilog="Example: phiball bench training --part cost --quick --out results/bench")
def training_step(
    threads: Threads = 1,
    width: Annotated[int, typer.Option(min=1, help="Filters of the network's first layer.")] = 64,
    quick: Quick = False,
    part: Annotated[str, typer.Option(help="cost, quality (does not need torch), or all.")] = "all",
    seed: Seed = 0,
    out: Out = None,
) -> None:
    """Time a training step of every method, and compare estimators on a problem of known risk."""
    _run(
        "training_cost", "training", threads=threads, width=width, quick=quick, part=part, seed=seed, out=out
    )


@app.command(epilog="Example: phiball bench estimators --quick --out results/bench")
def estimators(threads: Threads = 1, quick: Quick = False, seed: Seed = 0, out: Out = None) -> None:
    """Compare uniform and tilted points on a network for digits, or for MNIST if PHIBALL_DATA is set."""
    _run("estimator_noise", "estimators", threads=threads, quick=quick, seed=seed, out=out)


@app.command(epilog="Example: phiball bench scaling --quick --out results/bench")
def scaling(quick: Quick = False, out: Out = None) -> None:
    """Fit exponents to the growth of time and memory of the main code paths."""
    _run("scaling", "scaling", quick=quick, out=out)


@app.command(epilog="Example: phiball bench linear --quick --out results/bench")
def linear(
    quick: Quick = False,
    part: Annotated[
        str,
        typer.Option(
            help="models; evidence (errors on four data sets under noise and worst-case perturbations); "
            "sinkhorn (exact optima of a published benchmark); or peers (dro, skwdro, adversarial training)."
        ),
    ] = "models",
    data_dir: Annotated[
        Path | None,
        typer.Option(help="For sinkhorn and peers: the folder that contains sdro/; by default PHIBALL_DATA."),
    ] = None,
    out: Out = None,
) -> None:
    """Time robust linear models, compared with scikit-learn and other libraries."""
    variant = "" if part == "models" else f"-{part}"
    _run("linear", "linear", variant, quick=quick, part=part, data_dir=data_dir, out=out)

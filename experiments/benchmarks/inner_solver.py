"""`phiball bench inner`: time and accuracy of the inner solver beside the systems people use today.

Time is a multiple of `np.max` over the same flat array, one streaming pass over the losses; the two are
measured in turn within one run, so that a busy machine slows both. phiball returns value, mu, weights and
gap; the others return what their row says.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from phiball.backends import threads as thread_count
from phiball.backends import use
from phiball.experiments.benchmarks.output import open_console, print_lines, write_results
from phiball.experiments.benchmarks.third_party import optional_module
from phiball.experiments.benchmarks.timing import ratio
from phiball.experiments.framework.requirements import missing_package_message
from phiball.experiments.framework.tables import ReportTable
from phiball.refimpl import ENTROPIC, QUADRATIC, Divergence, bisection, cressie_read, indicator, worst_case
from phiball.verification.oracles.inner import solve_extended

SHAPES = ((4096, 8), (1024, 128), (64, 4096), (1, 1 << 20))
ETA, ALPHA = 0.1, 0.25
FAMILIES: dict[str, Divergence] = {
    "entropic": ENTROPIC,
    "quadratic": QUADRATIC,
    "indicator": indicator(ALPHA),
    "Cressie-Read 1.5": cressie_read(1.5),
    "Cressie-Read 0.5": cressie_read(0.5),  # these two have no kernel
    "Cressie-Read 3": cressie_read(3),
}
VALUE_ONLY = "(value only)"
Solver = Callable[[Any], Any]  # losses to weights, or to values where its name says so


@dataclass(frozen=True)
class Row:
    """One solver on one shape: its time over that of np.max, and m times its worst weight error."""

    problem: str
    solver: str
    shape: tuple[int, int]
    ratio: float
    error: float | None


def _phiball(divergence: Divergence) -> Solver:
    return lambda f: worst_case(f, ETA, divergence).weights


def _sort_sparsemax(f: Any) -> Any:
    m = f.shape[-1]
    ranked = -np.sort(-f, axis=-1)
    mu = (np.cumsum(ranked, axis=-1) - m * ETA) / np.arange(1, m + 1)
    last = np.sum(ranked > mu, axis=-1, keepdims=True) - 1
    return np.maximum(f - np.take_along_axis(mu, last, axis=-1), 0) / (m * ETA)


def _partition(f: Any) -> Any:
    k = int(ALPHA * f.shape[-1])
    weights = np.zeros_like(f)
    np.put_along_axis(weights, np.argpartition(-f, k - 1, axis=-1)[..., :k], 1 / k, axis=-1)
    return weights


def _third_party(problem: str) -> dict[str, Solver]:
    """Return the other systems that are installed, as functions of NumPy losses."""
    solvers: dict[str, Solver] = {}
    torch, entmax, special = map(optional_module, ("torch", "entmax", "scipy.special"))

    def on_torch(function: Callable[[Any], Any]) -> Solver:
        return lambda f: function(torch.from_numpy(f)).numpy()  # type: ignore[union-attr]

    if problem == "entropic":
        if torch:
            solvers["torch.softmax"] = on_torch(lambda x: torch.softmax(x / ETA, -1))
            solvers[f"torch.logsumexp {VALUE_ONLY}"] = on_torch(lambda x: torch.logsumexp(x / ETA, -1))
        if special:
            solvers[f"scipy logsumexp {VALUE_ONLY}"] = lambda f: special.logsumexp(f / ETA, -1)
    if problem == "quadratic":
        solvers["NumPy sort"] = _sort_sparsemax
        if entmax:
            solvers["entmax.sparsemax"] = on_torch(lambda x: entmax.sparsemax(x / (x.shape[-1] * ETA), -1))
            solvers["entmax.sparsemax_bisect"] = on_torch(
                lambda x: entmax.sparsemax_bisect(x / (x.shape[-1] * ETA), -1)
            )
    if problem == "indicator":
        solvers["np.argpartition"] = _partition
        if torch:
            solvers["torch.topk"] = on_torch(_topk)
    if problem == "Cressie-Read 1.5" and entmax:
        # gamma = (sqrt(m) (f/(2 eta m) - tau))_+^2, which is entmax at 1.5 of f / (eta sqrt(m))
        solvers["entmax.entmax15"] = on_torch(lambda x: entmax.entmax15(x / (ETA * x.shape[-1] ** 0.5), -1))
        solvers["entmax.entmax_bisect"] = on_torch(
            lambda x: entmax.entmax_bisect(x / (ETA * x.shape[-1] ** 0.5), 1.5, -1)
        )
    return solvers


def _topk(x: Any) -> Any:
    k = int(ALPHA * x.shape[-1])
    return x.new_zeros(x.shape).scatter_(-1, x.topk(k, -1).indices, 1 / k)


def _solvers(problem: str) -> dict[str, Solver]:
    divergence = FAMILIES[problem]
    solvers = {"phiball": _phiball(divergence), **_third_party(problem)}
    if problem == "quadratic":  # a law `p` takes the reference implementation, not a kernel
        solvers["phiball, with a law p"] = lambda f: (
            worst_case(f, ETA, divergence, p=np.full(f.shape[-1], 1 / f.shape[-1])).weights
        )
        solvers["phiball bisection (Algorithm 2)"] = partial(_bisect, divergence=divergence)
    return solvers


def _bisect(f: Any, *, divergence: Divergence) -> Any:
    return bisection(f, ETA, divergence, tol=1e-12).weights


def _truth(problem: str, row: Any) -> Any:
    if problem == "indicator":
        return np.where(row >= np.sort(row)[-int(ALPHA * row.size)], 1 / int(ALPHA * row.size), 0.0)
    divergence = FAMILIES[problem]
    return solve_extended(row, ETA, divergence.family or "", divergence.parameter)[1]


@contextmanager
def _threads(n: int) -> Iterator[None]:
    before = os.environ.get("PHIBALL_THREADS")
    os.environ["PHIBALL_THREADS"] = str(n)
    torch = optional_module("torch")
    if torch:
        torch.set_num_threads(n)
    try:
        yield
    finally:
        if before is None:
            del os.environ["PHIBALL_THREADS"]
        else:
            os.environ["PHIBALL_THREADS"] = before


def rows(*, seconds: float, shapes: tuple[tuple[int, int], ...] = SHAPES) -> Iterator[Row]:
    """Yield the measurement of every solver of every problem on every shape."""
    rng = np.random.default_rng(0)
    losses = {shape: rng.exponential(size=shape) for shape in shapes}
    for problem in FAMILIES:
        for solver, solve in _solvers(problem).items():
            for shape, f in losses.items():
                unit = f.reshape(-1).max
                weights = solve(f)
                error = None
                if VALUE_ONLY not in solver:
                    error = max(
                        float(np.max(np.abs(weights[i] - _truth(problem, f[i])))) * shape[1]
                        for i in range(min(shape[0], 8))
                    )
                yield Row(problem, solver, shape, ratio(partial(solve, f), unit, seconds), error)


def speedup(seconds: float) -> dict[str, float]:
    """Return the time on one thread over the time on two, at (8192, 128): smaller batches stay on one."""
    f = np.random.default_rng(0).exponential(size=(8192, 128))
    gains = {}
    for problem, divergence in list(FAMILIES.items())[:4]:

        def on(n: int, divergence: Divergence = divergence) -> None:
            os.environ["PHIBALL_THREADS"] = str(n)
            worst_case(f, ETA, divergence)

        with _threads(1):
            gains[problem] = ratio(partial(on, 1), partial(on, 2), seconds)
    return gains


def table(measured: list[Row], threads: int) -> ReportTable:
    """Return the time of every solver on every shape, and its worst error."""
    cells = []
    for problem, solver in dict.fromkeys((row.problem, row.solver) for row in measured):
        mine = [row for row in measured if (row.problem, row.solver) == (problem, solver)]
        errors = [row.error for row in mine if row.error is not None]
        worst = f"{max(errors):.0e}" if errors else ""
        cells.append((problem, solver, *(f"{row.ratio:.1f}" for row in mine), worst))
    return ReportTable(
        f"The inner problem, {threads} thread(s): time as a multiple of np.max, "
        "losses Exp(1), eta 0.1, alpha 0.25, float64",
        ("problem", "solver", *map(str, SHAPES), "worst m·error of gamma"),
        cells,
        left=2,
    )


def main(threads: int = 1, quick: bool = False, out: Path | None = None) -> None:
    """Print the table, and write it as JSON to the folder `out`, if one is named."""
    console = open_console(out)
    seconds = 0.1 if quick else 0.6
    measured: list[Row] = []
    with use("numba"), _threads(threads):
        with console.status("measuring") as status:
            for row in rows(seconds=seconds):
                status.update(f"measuring {row.solver} on {row.problem} {row.shape}")
                measured.append(row)
        console.print(table(measured, thread_count()).table())
        gains = speedup(seconds) if (os.cpu_count() or 1) > 1 else {}
    lines = [
        f"two threads against one at (8192, 128), {problem}: {gain:.2f} times as fast"
        for problem, gain in gains.items()
    ]
    if not optional_module("entmax"):
        lines.append(missing_package_message("the comparison with entmax", "entmax", "bench"))
    print_lines(console, lines)
    record = {"rows": [asdict(row) for row in measured], "two_threads": gains}
    write_results(console, out, "inner", record)

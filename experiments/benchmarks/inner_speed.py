"""`phiball bench inner`: time and accuracy of the inner solver, compared with other solvers.

The unit of time is one `np.max` over the same losses. phiball computes the value, the dual variable mu, the
weights and the duality gap. Other solvers compute only the weights.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

from phiball.backends import backend
from phiball.backends.progress import Update, silent
from phiball.experiments.benchmarks.harness import (
    ROUNDS,
    BenchmarkReport,
    BenchmarkTable,
    Clock,
    Row,
    Timing,
    bar_verdict,
    compare,
    part_of,
)
from phiball.experiments.benchmarks.inner_problems import (
    BAR_SHAPES,
    PER_ROW,
    POWERS,
    SHAPES,
    SHARED,
    THREE_HALVES,
    UNIFORM,
    Shape,
    contestants,
    losses_of,
)
from phiball.experiments.benchmarks.inner_threads import busy_report
from phiball.experiments.benchmarks.inner_versions import against_report

# Bars: the largest ratios of times that we accept.
DISTRIBUTION_BAR = 1.8  # a given reference distribution, relative to the uniform one
POWER_BAR = 25.0  # other orders of Cressie-Read, relative to 1.5
KINKED_BAR = 1.2  # the absolute and hinge divergences, relative to the quadratic one
PEER_BAR = 1.0  # phiball, relative to other solvers
OURS = f"phiball, {UNIFORM}"
NOTE = (
    "losses Exp(1), eta 0.1, alpha 0.25, float64. Ratios are medians over rounds that time all solvers in "
    "turn. error: the largest error of a weight, times the row length; blank if rows are too long for exact "
    "and extended arithmetic"
)


def bench_inner(
    *,
    clock: Clock,
    quick: bool = False,
    busy: bool = False,
    against: Path | None = None,
    jax: bool = False,
    update: Update = silent,
) -> BenchmarkReport:
    """Compare solvers; with `busy` numbers of threads, with `against` versions, with `jax` JAX functions."""
    if against is not None:
        return against_report(against, seconds=0.02 if quick else 0.2, update=update)
    with backend("numba"):
        if busy:
            return busy_report(quick=quick, update=update)
        if jax:
            return import_module("phiball.experiments.benchmarks.inner_jax").jax_report(  # type: ignore[no-any-return]
                clock=clock, quick=quick, update=update
            )
        shapes = BAR_SHAPES if quick else SHAPES
        return solver_report(shapes, clock=clock, quick=quick, update=update)


def solver_report(
    shapes: tuple[Shape, ...], *, clock: Clock, quick: bool, update: Update = silent
) -> BenchmarkReport:
    """A table of all solvers on all shapes, and a table of the ratios that have a bar."""
    rows, bars = [], []
    for number, shape in enumerate(shapes):
        f = losses_of(shape)
        players = contestants(f, quick=quick)
        seconds, rounds = (0.004, 3) if quick else (0.1, ROUNDS)
        times = compare(
            f.reshape(-1).max,
            list(players.values()),
            seconds=seconds,
            rounds=rounds,
            clock=clock,
            update=part_of(update, number / len(shapes), (number + 1) / len(shapes)),
        )
        timed = {key: times[player.name] for key, player in players.items()}
        for (problem, solver), timing in timed.items():
            accuracy = {"error": timing.error, "accurate": timing.accurate}
            where = {"problem": problem, "solver": solver, "shape": str(shape)}
            rows.append({**where, **timing.columns("np.max"), **accuracy})
        if shape in BAR_SHAPES or len(shapes) == 1:
            bars += bar_rows(timed, shape)
    wrong = sorted({f"{row['problem']}: {row['solver']}" for row in rows if row["accurate"] == "NO"})
    return BenchmarkReport(
        [BenchmarkTable("Inner solvers", rows, NOTE), BenchmarkTable("Bars", bars)],
        [f"INACCURATE: {', '.join(wrong) or 'none'}"],
    )


def bar_rows(timed: dict[tuple[str, str], Timing], shape: Shape) -> list[Row]:
    """The ratios of times that have a bar, from the timings by problem and solver."""
    pairs = []
    for problem, solver in timed:
        if solver in (f"phiball, {SHARED}", f"phiball, {PER_ROW}"):
            pairs.append(((problem, solver), (problem, OURS), DISTRIBUTION_BAR))
        elif not solver.startswith("phiball"):
            pairs.append(((problem, OURS), (problem, solver), PEER_BAR))
    orders = [f"Cressie-Read {k:g}" for k in POWERS if k <= 3]
    pairs += [((order, OURS), (THREE_HALVES, OURS), POWER_BAR) for order in orders]
    pairs += [((kinked, OURS), ("quadratic", OURS), KINKED_BAR) for kinked in ("absolute", "hinge")]
    rows = []
    for work, unit, bar in pairs:
        if work not in timed or unit not in timed:
            continue
        quotient = timed[work].relative_to(timed[unit])
        names = {"time of": _label(work), "relative to": _label(unit), "shape": str(shape)}
        judged = {"verdict": bar_verdict(quotient.ratio, bar), "at most": bar}
        rows.append({**names, **judged, **quotient.columns("the other")})
    return rows


def _label(solver: tuple[str, str]) -> str:
    return ", ".join(solver).replace("phiball, ", "")

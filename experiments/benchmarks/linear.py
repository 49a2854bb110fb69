"""`phiball bench linear`: robust linear models beside scikit-learn, skwdro and dro, and how they grow.

Times are those of a fit on one thread, as multiples of that of scikit-learn's `LogisticRegression` beside it,
on the breast cancer data, standardised, with C = 1. Each solution is valued under three objectives: the
entropic risk on a Euclidean ball with its ridge, which is ours; the worst mean loss where examples move by at
most RADIUS in the root mean square, which skwdro smooths and samples; and that within a KL divergence over
the examples, which is dro's. The last two are without a ridge; these data can be separated, so that dro's has
no minimum, and the least of it is 0: there ours is timed to its end, and to the value at which dro ends.
Other systems are timed once, by the time of the processor.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np
from scipy.optimize import minimize_scalar
from scipy.special import expit
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler
from threadpoolctl import threadpool_limits

from phiball.backends.progress import Progress
from phiball.experiments.benchmarks.inner.problems import thread_limit
from phiball.experiments.benchmarks.memory import peak_memory
from phiball.experiments.benchmarks.output import open_console, print_lines, run_details, write_results
from phiball.experiments.benchmarks.own_process import in_own_process
from phiball.experiments.benchmarks.third_party import HINT, optional_module
from phiball.experiments.benchmarks.timing import ratio_of_totals
from phiball.experiments.framework.tables import ReportTable
from phiball.refimpl import (
    ENTROPIC,
    QUADRATIC,
    Ball,
    Divergence,
    LinearProblem,
    Reweighting,
    cressie_read,
    fit_linear_model,
    indicator,
    linear_model_risk,
)

RADIUS, ETA = 0.5, 0.1
ROWS, FEATURES = (12_500, 25_000, 50_000, 100_000), 50
BAR_SKLEARN, BAR_PEERS = 20.0, 20.0
FREE, AS_LOW = "ours, the same without a ridge", "ours, without a ridge, as low as dro"
KL = 0.1  # the divergence over examples that dro's model allows


@dataclass(frozen=True)
class Model:
    """One fit: its time over scikit-learn's, and its value under each objective."""

    name: str
    ratio: float
    ours: float
    moved: float
    reweighted: float
    iterations: str


def cancer() -> tuple[Any, Any]:
    """Return the standardised features and the signs of the breast cancer data."""
    X, y = load_breast_cancer(return_X_y=True)
    return StandardScaler().fit_transform(X), 2.0 * y - 1


def problem(divergence: Divergence = ENTROPIC, n: int = 569, **options: Any) -> LinearProblem:
    """Return the problem that is timed."""
    return LinearProblem("logistic", Ball(2, RADIUS), ETA, divergence, ridge=1 / n, **options)


def _skwdro(module: Any, X: Any, y: Any) -> Callable[[], tuple[Any, float]]:
    """Wasserstein DRO with the logistic loss, as it comes, at the same radius."""

    def fit() -> tuple[Any, float]:
        model = module.LogisticRegression(rho=RADIUS, l2_reg=1 / len(y)).fit(X, y)
        return np.ravel(model.coef_), float(np.ravel(model.intercept_)[0])

    return fit


def _dro(module: Any, X: Any, y: Any) -> Callable[[], tuple[Any, float]]:
    """KL-DRO with the logistic loss: the divergence over the examples is at most KL."""

    def fit() -> tuple[Any, float]:
        model = module.KLDRO(input_dim=X.shape[1], model_type="logistic", eps=KL)
        found = model.fit(X, y)
        return np.ravel(found["theta"]), float(np.ravel(found.get("b", 0.0))[0])

    return fit


PEERS: dict[str, tuple[str, Callable[..., Any]]] = {
    "skwdro LogisticRegression": ("skwdro.linear_models", _skwdro),
    "dro KLDRO": ("dro.linear_model.kl_dro", _dro),
}


def moved_risk(coef: Any, intercept: float, X: Any, y: Any, radius: float) -> float:
    """Return the worst mean logistic loss where examples move by `radius` in the root mean square.

    By duality it is the least over l of l radius^2 + mean_i max_s log(1 + exp(|theta| s - m_i)) - l s^2.
    """
    size, m = float(np.linalg.norm(coef)), y * (X @ coef + intercept)

    def dual(log_price: float) -> float:
        price = np.exp(log_price)
        s = np.linspace(0.0, size / (2 * price), 400)  # the slope of the loss is |theta| at most
        gains = np.logaddexp(0.0, size * s - m[:, None]) - price * s * s
        best = s[np.argmax(gains, axis=1)]
        for _ in range(3):  # Newton's method, from the best point of the grid
            share = expit(size * best - m)
            bend = 2 * price - size * size * share * (1 - share)
            best = np.clip(best + np.where(bend > 0, size * share - 2 * price * best, 0.0) / bend, 0.0, s[-1])
        polished = np.logaddexp(0.0, size * best - m) - price * best * best
        return float(price * radius**2 + np.mean(np.maximum(polished, gains.max(axis=1))))

    if size == 0 or radius == 0:
        return float(np.mean(np.logaddexp(0.0, -m)))
    centre = np.log(size / (2 * radius))
    return float(minimize_scalar(dual, bounds=(centre - 12, centre + 4), method="bounded").fun)


def models(seconds: float, peers: bool = True) -> list[Model]:
    """Return scikit-learn's, ours and, if asked, what is installed of the others, timed and valued."""
    X, y = cancer()
    n = len(y)
    reweighting = Reweighting(ENTROPIC, radius=KL)
    reweighted = LinearProblem("logistic", ridge=1 / n, reweighting=reweighting)
    free = LinearProblem("logistic", reweighting=reweighting)

    def plain() -> Any:
        return LogisticRegression(C=1.0, tol=1e-6, max_iter=1000).fit(X, y)

    def row(name: str, ratio: float, coef: Any, intercept: float, iterations: str) -> Model:
        ours, theirs = (linear_model_risk(p, coef, intercept, X, y).value for p in (problem(), free))
        return Model(name, ratio, ours, moved_risk(coef, intercept, X, y, RADIUS), theirs, iterations)

    unit = plain()
    rows = [row("scikit-learn", 1.0, unit.coef_[0], float(unit.intercept_[0]), str(unit.n_iter_[0]))]
    ours = {
        "ours, entropic": problem(),
        "ours, quadratic": problem(QUADRATIC),
        "ours, CVaR 0.3": problem(indicator(0.3)),
        "ours, Cressie-Read 3": problem(cressie_read(3)),
        "ours, Hellinger": problem(cressie_read(0.5)),
        "ours, KL over the examples": reweighted,
        FREE: free,
    }

    def timed(name: str, task: LinearProblem, **options: Any) -> Model:
        found = fit_linear_model(task, X, y, **options)
        times = ratio_of_totals(lambda: fit_linear_model(task, X, y, **options), plain, seconds, rounds=3)
        steps = f"{found.iterations}, {found.gradient:.0e}, {found.gap:.0e}"
        return row(name, times.middle, found.coef, float(found.intercept), steps)

    rows += [timed(name, task) for name, task in ours.items()]
    for name, (module, make) in PEERS.items() if peers else ():
        library = optional_module(module)
        if library is None:
            continue
        start = process_time()
        for _ in range(20):
            plain()
        middle = process_time()
        coef, intercept = make(library, X, y)()  # once: it takes seconds
        spent = 20 * (process_time() - middle) / (middle - start)
        rows.append(row(name, spent, np.asarray(coef, dtype=np.float64), intercept, ""))
        if name.startswith("dro"):
            most = next(k for k in range(1, 501) if _value(free, X, y, k) <= rows[-1].reweighted)
            rows.append(timed(AS_LOW, free, max_iterations=most))
    return rows


def _value(task: LinearProblem, X: Any, y: Any, most: int) -> float:
    return fit_linear_model(task, X, y, max_iterations=most).value


@dataclass(frozen=True)
class Growth:
    """A fit to n examples: time over that of the smallest n, and memory."""

    n: int
    ratio: float
    megabytes: float


def large(n: int) -> tuple[Any, Any]:
    """Return n examples with FEATURES features, and signs with noise."""
    source = np.random.default_rng(0)
    X = source.normal(size=(n, FEATURES))
    return X, np.where(X @ source.normal(size=FEATURES) + source.logistic(size=n) > 0, 1.0, -1.0)


def memory_of(n: int) -> float:
    """Return the MB that a fit to n examples takes on top of the data."""
    X, y = large(n)
    small = large(100)
    fit_linear_model(problem(n=100), *small)
    return peak_memory(lambda: fit_linear_model(problem(n=n), X, y))


def growth(sizes: tuple[int, ...]) -> list[Growth]:
    """Return how the time and the memory of a fit grow with the examples."""
    rows, unit = [], 0.0
    for n in sizes:
        X, y = large(n)
        task = problem(n=n)
        fit_linear_model(task, X[:100], y[:100])
        times = []
        for _ in range(3):
            start = process_time()  # of one thread: a busy machine would show its other work
            fit_linear_model(task, X, y)
            times.append(process_time() - start)
        spent = sorted(times)[1]
        unit = unit or spent
        rows.append(Growth(n, spent / unit, in_own_process(memory_of, n)))
    return rows


def tables(timed: list[Model], grown: list[Growth]) -> list[ReportTable]:
    """Return the two tables."""
    first = ReportTable(
        f"Breast cancer, l2 radius {RADIUS}, eta {ETA}: time over scikit-learn's, and values",
        ("model", "time", "entropic, ball", "moved", f"KL {KL}", "iterations, gradient, gap"),
        [
            (m.name, f"{m.ratio:.1f}", f"{m.ours:.5f}", f"{m.moved:.5f}", f"{m.reweighted:.5f}", m.iterations)
            for m in timed
        ],
        left=1,
    )
    second = ReportTable(
        f"Entropic risk, d = {FEATURES}: time over that of the first row, and memory besides the data",
        ("examples", "time", "MB"),
        [(f"{g.n:,}", f"{g.ratio:.1f}", f"{g.megabytes:.0f}") for g in grown],
        left=0,
    )
    return [first, second]


def verdicts(timed: list[Model], grown: list[Growth]) -> list[str]:
    """Return a line per bar: whether it is met."""
    by_name = {m.name: m for m in timed}
    lines = [
        f"{m.name}: {m.ratio:.1f} times scikit-learn, bar {BAR_SKLEARN:g}: {_met(m.ratio <= BAR_SKLEARN)}"
        for m in timed
        if m.name.startswith("ours") and m.name != AS_LOW
    ]
    for name, (module, _) in PEERS.items():
        if name in by_name:
            nearest = by_name["ours, KL over the examples" if name.startswith("dro") else "ours, entropic"]
            faster = by_name[name].ratio / nearest.ratio
            lines.append(
                f"{name}: ours ({nearest.name.removeprefix('ours, ')}) is {faster:.0f} times faster, "
                f"bar {BAR_PEERS:g}: {_met(faster >= BAR_PEERS)}"
            )
            frees = [by_name[key] for key in (AS_LOW, FREE) if key in by_name and name.startswith("dro")]
            lines += [
                f"{name} has no ridge: ours without one is {by_name[name].ratio / free.ratio:.0f} times "
                f"faster, to {free.reweighted:.5f} where it ends at {by_name[name].reweighted:.5f}"
                for free in frees
            ]
        elif optional_module(module) is not None:
            lines.append(f"{name}: not timed with --quick")
        else:
            lines.append(HINT.format(module.partition(".")[0]))
    if len(grown) > 1:
        slope = np.polyfit(np.log([g.n for g in grown]), np.log([g.ratio for g in grown]), 1)[0]
        lines.append(f"time grows as n^{slope:.2f}")
    return lines


def _met(good: bool) -> str:
    return "met" if good else "not met"


def main(quick: bool = False, out: Path | None = None) -> None:
    """Print the tables and the bars, and write them to the folder `out`, if one is named."""
    console = open_console(out, 120)
    with (
        Progress("bench linear", console) as progress,
        thread_limit(1),
        threadpool_limits(1),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")  # of other systems
        progress.update(0.0, "breast cancer")
        timed = models(0.5 if quick else 3.0, peers=not quick)
        progress.update(0.5, "growth")
        grown = growth(ROWS[:2] if quick else ROWS)
    pages, lines = tables(timed, grown), verdicts(timed, grown)
    for page in pages:
        console.print(page.table())
    print_lines(console, lines)
    record = {
        "models": [asdict(m) for m in timed],
        "growth": [asdict(g) for g in grown],
        **run_details(quick=quick),
    }
    write_results(console, out, "linear", record, title="Linear models", facts=lines, tables=pages)

"""Tables, figure and findings of the cart-pole study."""

from __future__ import annotations

from math import prod, sqrt
from typing import TYPE_CHECKING, Any

import numpy as np

from phiball.experiments.framework.tables import ReportTable
from phiball.experiments.framework.tasks import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

METHODS = ("regular", "outside", "inside")
PROBLEM_NAMES = ("original", "heavy", "short", "strong g")
WINDOW = 20  # training episodes in one point of a curve
SHOWN = ("original", "strong g")  # problems in the table of grids: the easiest and the hardest
STYLES = {  # colour-blind-safe colours, and labels
    "regular": ("#555555", "regular"),
    "outside": ("#0072B2", "robust, maximum outside (paper)"),
    "inside": ("#D55E00", "robust, maximum inside"),
}


def returns(table: Table, method: str, problem: str, at: tuple[str, float] | None = None) -> Any:
    """The returns of a method in all trials; `at` is a grid and an initial value, by default the main."""
    at = at or _main(table)
    rows = [row["returns"] for row in table.rows if (row["table"], row["initial"]) == at]
    return np.array([value for row in rows for value in row[method][problem]])


def _main(table: Table) -> tuple[str, float]:
    """The main grid and initial value: those of the configuration."""
    return table.config.table, table.config.initial


def methods_by(table: Table, parameter: str) -> dict[float, str]:
    """The name of the method for each value of the parameter rho or eta, including the main value."""
    main = getattr(table.config, parameter)
    values = sorted({main, *getattr(table.config, f"{parameter}s")})
    return {value: "outside" if value == main else f"{parameter} {value:g}" for value in values}


def curves_of(table: Table, method: str) -> Any:
    """Mean lengths of training episodes (trials, windows) on the main grid."""
    rows = [row for row in table.rows if (row["table"], row["initial"]) == _main(table)]
    return np.array([trial for row in rows for trial in row["lengths"][method]])


def tables_of(table: Table) -> list[tuple[str, float]]:
    """All pairs of grid and initial value: by initial value, then from coarse to fine."""

    def rank(at: tuple[str, float]) -> tuple[float, int]:
        return at[1], prod(int(n) for n in at[0].split("x"))

    return sorted(dict.fromkeys((row["table"], row["initial"]) for row in table.rows), key=rank)


def standard_error(values: Any) -> float:
    """The standard error of the mean of `values`."""
    return float(np.std(values, ddof=1) / sqrt(len(values)))


def draw(table: Table) -> dict[str, Figure]:
    """The figure `training`: the lengths of training episodes."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5, 3.4), layout="constrained")
    axes = figure.subplots()
    for method, (colour, label) in STYLES.items():
        curves = curves_of(table, method)
        episode = np.minimum(WINDOW * (np.arange(curves.shape[1]) + 0.5), table.config.episodes)
        mean, band = np.mean(curves, axis=0), 2 * np.std(curves, axis=0, ddof=1) / sqrt(len(curves))
        axes.fill_between(episode, mean - band, mean + band, color=colour, alpha=0.2, linewidth=0)
        axes.plot(episode, mean, color=colour, label=label, linewidth=1.5)
    axes.set(xlabel="training episode", ylabel="length of the episode", ylim=(0, table.config.train_cap))
    count = len(curves_of(table, "regular"))
    axes.set_title(f"mean of {count} trials ± two standard errors", fontsize=10)
    axes.legend(loc="lower right", frameon=False, fontsize=9)
    axes.spines[["top", "right"]].set_visible(False)
    return {"training": figure}


PAPER = {  # (return, error bar) of the regular and of the robust table
    "original": ((469.42, 19.03), (487.11, 9.09)),
    "heavy": ((187.63, 29.40), (394.12, 12.01)),
    "short": ((355.54, 28.89), (443.17, 9.98)),
    "strong g": ((271.41, 20.7), (418.42, 13.64)),
}
PAPER_TRIALS = 10


def _plus_minus(values: Any, sign: str = "") -> str:
    return f"{np.mean(values):{sign}.0f} ± {standard_error(values):.0f}"


def tables(table: Table) -> list[ReportTable]:
    """Three tables of returns: next to the paper's, for other radii and prices, and for other grids."""
    return [_returns(table), _sweep(table), _q_tables(table)]


def _returns(table: Table) -> ReportTable:
    lines = []
    for problem, numbers in PAPER.items():
        regular, outside, inside = (returns(table, method, problem) for method in METHODS)
        lines.append(
            (
                problem,
                *(f"{value:.0f} ± {bar:.0f}" for value, bar in numbers),
                *(_plus_minus(values) for values in (regular, outside, inside)),
                *(_plus_minus(values, "+") for values in (outside - regular, inside - outside)),
            )
        )
    count = len(returns(table, "regular", "original"))
    compared = ("robust - regular", "inside - robust")
    return ReportTable(
        "Returns",
        ("problem", "paper: regular", "paper: robust", "regular", "robust", "maximum inside", *compared),
        lines,
        f"Means over {count} trials ± standard errors; differences are within a trial. The paper has "
        f"{PAPER_TRIALS} trials and does not define its error bars. Episodes are truncated at "
        f"{table.config.eval_cap} steps.",
    )


def _sweep(table: Table) -> ReportTable:
    named = {"regular": "regular"}
    for parameter in ("rho", "eta"):
        methods = methods_by(table, parameter)
        named |= {f"{parameter} {value:g}": method for value, method in methods.items()}
    lines = [
        (name, *(_plus_minus(returns(table, method, problem)) for problem in PROBLEM_NAMES))
        for name, method in named.items()
    ]
    note = "Robust, with the maximum outside; rho is in grid cells."
    return ReportTable("Radius and price", ("method", *PROBLEM_NAMES), lines, note)


def _q_tables(table: Table) -> ReportTable:
    lines = [
        (
            at[0].replace("x", ","),
            f"{at[1]:g}",
            str(len(returns(table, "regular", "original", at))),
            *(_plus_minus(returns(table, m, problem, at)) for problem in SHOWN for m in METHODS),
        )
        for at in tables_of(table)
    ]
    columns = (f"{problem}: {name}" for problem in SHOWN for name in ("regular", "robust", "inside"))
    return ReportTable("Grids and initial values", ("grid", "initial", "trials", *columns), lines)


def findings(table: Table) -> list[str]:
    """In how many problems robust returns are higher, and the mean lengths of training episodes."""
    gains = [returns(table, "outside", name) - returns(table, "regular", name) for name in PROBLEM_NAMES]
    higher = sum(np.mean(gain) > 2 * standard_error(gain) for gain in gains)
    regular, robust = (np.mean(curves_of(table, method)) for method in ("regular", "outside"))
    return [
        f"Robust returns are higher by more than two standard errors in {higher} of {len(gains)} problems.",
        f"Mean length of training episodes: robust {robust:.0f} steps, regular {regular:.0f}.",
    ]

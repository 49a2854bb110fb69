"""The figures of the study of the cart and pole, and the numbers that they and its tables share."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod, sqrt
from typing import TYPE_CHECKING, Any

import numpy as np

from phiball.experiments.framework.tasks import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

METHODS = ("regular", "outside", "inside")
PLACES = ("original", "heavy", "short", "strong g")
WINDOW = 20  # training episodes in one point of a curve
SHOWN = ("original", "strong g")  # in the figure: the easiest and the hardest
# Colours that are distinct to all readers, and markers that need no colour.
STYLES: dict[str, dict[str, Any]] = {
    "regular": {"color": "#555555", "marker": "o", "label": "regular"},
    "outside": {"color": "#0072B2", "marker": "s", "label": "robust, maximum outside (paper)"},
    "inside": {"color": "#D55E00", "marker": "^", "label": "robust, maximum inside"},
}


def returns(table: Table, method: str, place: str, at: tuple[str, float] | None = None) -> Any:
    """The returns of all trials of a method; `at` is a table and its initial value (main)."""
    at = at or _main(table)
    rows = [row["returns"] for row in table.rows if (row["table"], row["initial"]) == at]
    return np.array([value for row in rows for value in row[method][place]])


def _main(table: Table) -> tuple[str, float]:
    return table.config.table, table.config.initial


def methods_by(table: Table, what: str) -> dict[float, str]:
    """The name of the method for each value of rho or eta, the main one included."""
    main = getattr(table.config, what)
    values = sorted({main, *getattr(table.config, f"{what}s")})
    return {value: "outside" if value == main else f"{what} {value:g}" for value in values}


def curves_of(table: Table, method: str) -> Any:
    """Training lengths on the main table (trials, windows)."""
    rows = [row for row in table.rows if (row["table"], row["initial"]) == _main(table)]
    return np.array([trial for row in rows for trial in row["lengths"][method]])


def tables_of(table: Table) -> list[tuple[str, float]]:
    """Every table and initial value: by the initial value, then from coarse to fine."""

    def rank(at: tuple[str, float]) -> tuple[float, int]:
        return at[1], prod(int(n) for n in at[0].split("x"))

    return sorted(dict.fromkeys((row["table"], row["initial"]) for row in table.rows), key=rank)


def mean_of(values: Any) -> float:
    """The mean of some trials."""
    return float(np.mean(values))


def error_of(values: Any) -> float:
    """The standard error of their mean."""
    return float(np.std(values, ddof=1) / sqrt(len(values)))


def draw(table: Table) -> dict[str, Figure]:
    """`training`, the lengths of training episodes, and `sensitivity`, returns as parameters change."""
    return {"training": _training(table), "sensitivity": _sensitivity(table)}


def _training(table: Table) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5, 3.4), layout="constrained")
    axes = figure.subplots()
    for method, style in STYLES.items():
        curves = curves_of(table, method)
        episode = np.minimum(WINDOW * (np.arange(curves.shape[1]) + 0.5), table.config.episodes)
        mean, band = np.mean(curves, axis=0), 2 * np.std(curves, axis=0, ddof=1) / sqrt(len(curves))
        axes.fill_between(episode, mean - band, mean + band, color=style["color"], alpha=0.2, linewidth=0)
        axes.plot(episode, mean, color=style["color"], label=style["label"], linewidth=1.5)
    axes.set(xlabel="training episode", ylabel="length of the episode", ylim=(0, table.config.train_cap))
    count = len(curves_of(table, "regular"))
    axes.set_title(f"mean of {count} trials ± two standard errors", fontsize=10)
    axes.legend(loc="lower right", frameon=False, fontsize=9)
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def _sensitivity(table: Table) -> Figure:
    from matplotlib.figure import Figure

    initials = list(dict.fromkeys(initial for _, initial in tables_of(table)))
    figure = Figure(figsize=(2.6 * (2 + len(initials)), 5), layout="constrained")
    panels = figure.subplots(len(SHOWN), 2 + len(initials), sharex="col", sharey=True, squeeze=False)
    for row, place in zip(panels, SHOWN, strict=True):
        row[0].set_ylabel(f"return, {place}")
        for axes, what in zip(row, ("rho", "eta"), strict=False):
            _draw_sweep(axes, table, what, place)
        for axes, initial in zip(row[2:], initials, strict=True):
            _draw_tables(axes, table, initial, place)
        for axes in row:
            axes.set_ylim(0, 1.05 * table.config.eval_cap)
            axes.spines[["top", "right"]].set_visible(False)
            axes.grid(axis="y", color="#dddddd", linewidth=0.6)
    titles = [f"radius rho ({table.config.reading})", "price eta"]
    titles += [f"tables, initial value {initial:g}" for initial in initials]
    for axes, title in zip(panels[0], titles, strict=True):
        axes.set_title(title, fontsize=10)
    for axes in panels[-1, :2]:
        axes.set_xlabel(f"table {table.config.table.replace('x', ',')}", fontsize=8)
    handles, labels = panels[0, -1].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False, fontsize=9)
    return figure


def _draw_sweep(axes: Any, table: Table, what: str, place: str) -> None:
    samples = {value: returns(table, method, place) for value, method in methods_by(table, what).items()}
    _points(axes, list(range(len(samples))), list(samples.values()), "outside")
    regular, grey = returns(table, "regular", place), STYLES["regular"]["color"]
    middle, band = mean_of(regular), 2 * error_of(regular)
    axes.axhline(middle, color=grey, linewidth=1.2)
    axes.axhspan(middle - band, middle + band, color=grey, alpha=0.2, linewidth=0)
    axes.set_xticks(range(len(samples)), [f"{value:g}" for value in samples])


def _draw_tables(axes: Any, table: Table, initial: float, place: str) -> None:
    names = [name for name, value in tables_of(table) if value == initial]
    for shift, method in zip((-0.15, 0, 0.15), METHODS, strict=True):
        samples = [returns(table, method, place, (name, initial)) for name in names]
        _points(axes, [k + shift for k in range(len(names))], samples, method, line="")
    axes.set_xticks(range(len(names)), [name.replace("x", ",") for name in names], rotation=40, ha="right")
    axes.tick_params(axis="x", labelsize=8)


def _points(axes: Any, x: Sequence[float], samples: Sequence[Any], method: str, line: str = "-") -> None:
    axes.errorbar(
        x,
        [mean_of(values) for values in samples],
        [2 * error_of(values) for values in samples],
        linestyle=line,
        markersize=4,
        linewidth=1.2,
        **STYLES[method],
    )

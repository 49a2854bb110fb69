"""The figures of the study of supervised learning."""

from __future__ import annotations

from math import log
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np

from phiball.experiments.runs import Table
from phiball.experiments.supervised_attacks import ATTACKS
from phiball.experiments.supervised_verdicts import (
    data_of,
    error_of,
    evaluations,
    every,
    family_of,
    methods_of,
    rows_of,
    values,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

CLASSES = 10
# Colours told apart by all eyes, and marks told apart without them.
LOOKS: dict[str, dict[str, Any]] = {
    "ERM": {"color": "#555555", "marker": "x"},
    "FGM": {"color": "#0072B2", "marker": "s"},
    "IFGM": {"color": "#56B4E9", "marker": "D"},
    "RT-MLMC": {"color": "#D55E00", "marker": "o"},
    "noise x4": {"color": "#E69F00", "marker": "^"},
    "random-start FGM": {"color": "#009E73", "marker": "v"},
    "tilted": {"color": "#CC79A7", "marker": "P"},
    "SG": {"color": "#D55E00", "marker": "<"},
    "quadratic": {"color": "#000000", "marker": ">"},
    "CVaR": {"color": "#000000", "marker": "d"},
}
LINES = {"l2": "-", "linf": "--", "chosen": ":"}
KINDS = {"noise": "white noise", "PGM": "PGM"}


def draw(table: Table) -> dict[str, Figure]:
    """`panels-l2` and `panels-linf`, the paper's figure for each norm of the ball; `cost`; `training`."""
    found = {f"panels-{norm}": _panels(table, norm) for norm in table.config.norms}
    return {**found, "cost": _cost(table), "training": _training(table)}


def _figure(width: float, height: float) -> Figure:
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def _tidy(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#e4e4e4", linewidth=0.6)
    axes.tick_params(labelsize=8)


# --- The paper's figure -----------------------------------------------------------------------------


def shown(table: Table, norm: str) -> dict[str, dict[str, Any]]:
    """The methods of a figure of panels, at most eight, and the look of each."""
    config = table.config
    rho, step = f"{norm} {config.rho:g}", f"{norm} {config.step:g}"
    # In a linf ball of the paper's radius FGM and IFGM both end at chance: one of them shows it.
    inner = step if norm == "linf" else rho
    lines = {
        "ERM": ":",
        f"FGM {rho}": "-",
        f"FGM {step}": "--",
        f"IFGM {inner}": "-",
        f"noise x4 {rho}": "--",
        "random-start FGM, chosen": "-.",
        "tilted, chosen": "-.",
        f"RT-MLMC {rho}": "-",
    }
    there = methods_of(table)
    looks = {m: {**LOOKS[family_of(m)], "linestyle": line} for m, line in lines.items() if m in there}
    for method, look in looks.items():
        ours = method.startswith("RT-MLMC")
        look.update(linewidth=2.4 if ours else 1.2, markersize=5 if ours else 3.5, zorder=4 if ours else 3)
        if method == f"FGM {step}":
            look["markerfacecolor"] = "white"
    return looks


def _panels(table: Table, norm: str) -> Figure:
    data = data_of(table)
    figure = _figure(8.2, 1.0 + 1.9 * len(data))
    grid = figure.subplots(len(data), len(ATTACKS), sharex="col", sharey="row", squeeze=False)
    for row, name in zip(grid, data, strict=True):
        for axes, attack in zip(row, ATTACKS, strict=True):
            for method, look in shown(table, norm).items():
                _curve(axes, table, name, attack, method, look)
            _tidy(axes)
            axes.set_yscale("log")
            _percent_axis(axes.yaxis)
        row[0].set_ylabel(f"{name}\nerror (%)", fontsize=9)
    for axes, attack in zip(grid[0], ATTACKS, strict=True):
        axes.set_title(attack.replace("noise", "white noise"), fontsize=10)
    for axes in grid[-1]:
        axes.set_xlabel("ratio to the mean norm", fontsize=8)
    _legend(figure, 4)
    return figure


def _curve(axes: Axes, table: Table, data: str, attack: str, method: str, look: dict[str, Any]) -> None:
    found = [values(table, data, method, [name]) for name in ("clean", *every(table.config, attack))]
    if not found[0]:
        return
    least = _least(table, data, method)
    ratios = [0.0, *table.config.ratios[attack]]
    mean = np.maximum([fmean(numbers) for numbers in found], least)
    bar = np.nan_to_num([error_of(numbers) for numbers in found])
    axes.fill_between(
        ratios, np.maximum(mean - bar, least), mean + bar, color=look["color"], alpha=0.18, linewidth=0
    )
    axes.plot(ratios, mean, label=method, **look)


def _least(table: Table, data: str, method: str) -> float:
    """Half an image: where no error at all stands on a scale of logarithms."""
    return 50 / float(rows_of(table, data, method)[0]["tested on"])


def _percent_axis(axis: Axis) -> None:
    _plain_axis(axis, [0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100])


def _plain_axis(axis: Axis, places: list[float]) -> None:
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    axis.set_major_locator(FixedLocator(places))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, place: f"{value:g}"))


def _legend(figure: Figure, columns: int) -> None:
    """One for all panels, of which the first may lack a curve."""
    pairs = [zip(*axes.get_legend_handles_labels(), strict=True) for axes in figure.axes]
    found = {label: handle for panel in pairs for handle, label in panel}
    figure.legend(
        list(found.values()),
        list(found),
        loc="outside lower center",
        ncols=columns,
        frameon=False,
        fontsize=8.5,
    )


# --- Cost -------------------------------------------------------------------------------------------


def _cost(table: Table) -> Figure:
    """Every method by name, those of few evaluations above: too many share a cost to be points of an axis."""
    families = list(LOOKS)
    cost = {method: evaluations(table, method) for method in methods_of(table)}
    methods = sorted(cost, key=lambda method: (round(cost[method]), families.index(family_of(method))))
    data = data_of(table)
    figure = _figure(8.2 if len(data) > 1 else 5.6, 0.7 + 0.19 * len(methods))
    panels = figure.subplots(1, len(KINDS) * len(data), sharey=True, squeeze=False)[0]
    places = [(kind, name) for kind in KINDS for name in data]
    for axes, (kind, name) in zip(panels, places, strict=True):
        for place, method in enumerate(methods):
            _point(axes, table, name, place, method, kind)
        for place in range(1, len(methods)):
            if round(cost[methods[place]]) > round(cost[methods[place - 1]]):
                axes.axhline(place - 0.5, color="#777777", linewidth=0.8)
        _tidy(axes)
        axes.grid(axis="x", color="#e4e4e4", linewidth=0.6)
        axes.set_title(f"{KINDS[kind]}\n{name}", fontsize=8.5)
        if kind == "noise":
            axes.set_xscale("log")
            _plain_axis(axes.xaxis, [0.1, 0.3, 1, 3, 10, 30, 100])
            axes.set_xlim(min(0.8, axes.dataLim.x0), 130)
        else:
            axes.set_xticks([0, 50, 100])
            axes.set_xlim(0, 105)
    panels[0].set_yticks(range(len(methods)), [f"{method}   {cost[method]:.3g}" for method in methods])
    panels[0].set_ylim(len(methods) - 0.5, -0.5)
    panels[0].set_ylabel("method, and evaluations a data point", fontsize=8)
    figure.supxlabel("error (%), mean over ratios and both norms of the attack", fontsize=8)
    return figure


def _point(axes: Axes, table: Table, data: str, place: int, method: str, kind: str) -> None:
    columns = [c for attack in ATTACKS if attack.startswith(kind) for c in every(table.config, attack)]
    found = values(table, data, method, columns)
    if found:
        axes.errorbar(
            max(fmean(found), _least(table, data, method)),
            place,
            xerr=np.nan_to_num(error_of(found)),
            markersize=5,
            elinewidth=1.2,
            linestyle="",
            **LOOKS[family_of(method)],
        )


# --- Training ---------------------------------------------------------------------------------------


def _training(table: Table) -> Figure:
    """The losses that the methods minimise, which are not the same: with the paper's radius, or chosen."""
    config, data = table.config, data_of(table)
    figure = _figure(8.2 if len(data) > 1 else 5, 3.4)
    panels = figure.subplots(1, len(data), sharex=True, sharey=True, squeeze=False)[0]
    for axes, name in zip(panels, data, strict=True):
        for method in methods_of(table):
            curves = [row["curve"] for row in rows_of(table, name, method)]
            kind = next((kind for kind in LINES if method in _trained(config, kind)), None)
            if curves and kind:
                mean = np.mean(curves, axis=0)
                look = {**LOOKS[family_of(method)], "linestyle": LINES[kind]}
                axes.plot(range(1, len(mean) + 1), mean, label=method, markersize=3.5, linewidth=1.2, **look)
        axes.axhline(log(CLASSES), color="#999999", linewidth=0.8)
        axes.set_yscale("log")
        _plain_axis(axes.yaxis, [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5])
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.set_title(name, fontsize=10)
        axes.set_xlabel("epoch", fontsize=8)
        _tidy(axes)
    note = {"xy": (0.98, log(CLASSES)), "xycoords": ("axes fraction", "data"), "textcoords": "offset points"}
    panels[0].annotate("guessing", xytext=(0, -9), ha="right", fontsize=7, color="#777777", **note)
    panels[0].set_ylabel("mean loss in training", fontsize=9)
    _legend(figure, 4 if len(data) > 1 else 2)
    return figure


def _trained(config: Any, kind: str) -> list[str]:
    if kind == "chosen":
        return ["random-start FGM, chosen", "tilted, chosen"]
    plain = ["ERM"] if kind == "l2" else []
    return [*plain, *(f"{family} {kind} {config.rho:g}" for family in ("FGM", "IFGM", "RT-MLMC", "noise x4"))]

"""The figures of the study of supervised learning."""

from __future__ import annotations

from math import log
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np

from phiball.experiments.framework.tasks import Table
from phiball.experiments.studies.supervised.attacks import ATTACKS
from phiball.experiments.studies.supervised.verdicts import (
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
# Colours that are distinct to all readers, and markers that need no colour.
STYLES: dict[str, dict[str, Any]] = {
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
    panels = {f"panels-{norm}": _panels(table, norm) for norm in table.config.norms}
    return {**panels, "cost": _cost(table), "training": _training(table)}


def _figure(width: float, height: float) -> Figure:
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def tidy(axes: Axes) -> None:
    """Leave two sides of the frame, and horizontal lines."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#e4e4e4", linewidth=0.6)
    axes.tick_params(labelsize=8)


# --- The paper's figure -----------------------------------------------------------------------------


def shown(table: Table, norm: str) -> dict[str, dict[str, Any]]:
    """The methods of a figure of panels: all of the paper's readings and three beyond; the style of each."""
    config = table.config
    rho, step = f"{norm} {config.rho:g}", f"{norm} {config.step:g}"
    lines = {
        "ERM": ":",
        f"FGM {rho}": "-",
        f"FGM {step}": "--",
        f"IFGM {rho}": "-",
        f"IFGM {step}": "--",
        f"noise x4 {rho}": "--",
        "random-start FGM, chosen": "-.",
        "tilted, chosen": "-.",
        f"RT-MLMC {rho}": "-",
    }
    present = methods_of(table)
    styles = {m: {**STYLES[family_of(m)], "linestyle": line} for m, line in lines.items() if m in present}
    for method, style in styles.items():
        ours = method.startswith("RT-MLMC")
        # Where IFGM lies on FGM, both are seen.
        size = {"RT-MLMC": 5.0, "FGM": 5.0, "IFGM": 3.0}.get(family_of(method), 3.5)
        style.update(linewidth=2.4 if ours else 1.2, markersize=size, zorder=4 if ours else 3)
        if method.endswith(f"FGM {step}"):
            style["markerfacecolor"] = "white"
    return styles


def _panels(table: Table, norm: str) -> Figure:
    data = data_of(table)
    figure = _figure(8.2, 1.0 + 1.9 * len(data))
    grid = figure.subplots(len(data), len(ATTACKS), sharex="col", sharey="row", squeeze=False)
    for row, name in zip(grid, data, strict=True):
        for axes, attack in zip(row, ATTACKS, strict=True):
            for method, style in shown(table, norm).items():
                _curve(axes, table, name, attack, method, style)
            tidy(axes)
            axes.set_yscale("log")
        for axes in row:  # once all have their curves, as they share a scale
            log_ticks(axes.yaxis, 8)
        row[0].set_ylabel(f"{name}\nerror (%)", fontsize=9)
    for axes, attack in zip(grid[0], ATTACKS, strict=True):
        axes.set_title(attack.replace("noise", "white noise"), fontsize=10)
    for axes in grid[-1]:
        axes.set_xlabel("ratio to the mean norm", fontsize=8)
    _legend(figure, 3)
    return figure


def _curve(axes: Axes, table: Table, data: str, attack: str, method: str, style: dict[str, Any]) -> None:
    errors = [values(table, data, method, [name]) for name in ("clean", *every(table.config, attack))]
    if not errors[0]:
        return
    least = _least(table, data, method)
    ratios = [0.0, *table.config.ratios[attack]]
    mean = np.maximum([fmean(numbers) for numbers in errors], least)
    bar = np.nan_to_num([error_of(numbers) for numbers in errors])
    axes.fill_between(
        ratios, np.maximum(mean - bar, least), mean + bar, color=style["color"], alpha=0.18, linewidth=0
    )
    axes.plot(ratios, mean, label=method, **style)


def _least(table: Table, data: str, method: str) -> float:
    """Half an image: where no error at all stands on a scale of logarithms."""
    return 50 / float(rows_of(table, data, method)[0]["tested on"])


def log_ticks(axis: Axis, most: int) -> None:
    """Label a log axis with plain numbers, two at least and about `most` at most."""
    from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator, StrMethodFormatter

    low, high = axis.get_view_interval()
    even = MaxNLocator(most, steps=[1, 2, 5, 10], min_n_ticks=2)  # where less than a decade is in view
    locators = [LogLocator(subs=(1, 2, 5)), LogLocator(subs=(1, 3)), LogLocator(numticks=most)]
    counts = [sum(low <= x <= high for x in locator.tick_values(low, high)) for locator in locators]
    fitting = (locator for locator, count in zip(locators, counts, strict=True) if 2 <= count <= most)
    axis.set_major_locator(next(fitting, even))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(StrMethodFormatter("{x:g}"))


def _legend(figure: Figure, columns: int) -> None:
    """One for all panels, of which the first may lack a curve."""
    pairs = [zip(*axes.get_legend_handles_labels(), strict=True) for axes in figure.axes]
    handles = {label: drawn for panel in pairs for drawn, label in panel}
    figure.legend(
        list(handles.values()),
        list(handles),
        loc="outside lower center",
        ncols=columns,
        frameon=False,
        fontsize=8.5,
    )


# --- Cost -------------------------------------------------------------------------------------------


def _cost(table: Table) -> Figure:
    """Every method by name, those of few evaluations above: too many share a cost to be points of an axis."""
    families = list(STYLES)
    cost = {method: evaluations(table, method) for method in methods_of(table)}
    methods = sorted(cost, key=lambda method: (round(cost[method]), families.index(family_of(method))))
    data = data_of(table)
    figure = _figure(8.2 if len(data) > 1 else 5.6, max(2.0, 0.9 + 0.19 * len(methods)))
    panels = figure.subplots(1, len(KINDS) * len(data), sharey=True, squeeze=False)[0]
    places = [(kind, name) for kind in KINDS for name in data]
    for axes, (kind, name) in zip(panels, places, strict=True):
        for place, method in enumerate(methods):
            _point(axes, table, name, place, method, kind)
        for place in range(1, len(methods)):
            if round(cost[methods[place]]) > round(cost[methods[place - 1]]):
                axes.axhline(place - 0.5, color="#777777", linewidth=0.8)
        tidy(axes)
        axes.grid(axis="x", color="#e4e4e4", linewidth=0.6)
        axes.set_title(f"{KINDS[kind]}\n{name}", fontsize=8.5)
        axes.set_xscale("log")
        axes.margins(x=0.1)
        log_ticks(axes.xaxis, 3)
    panels[0].set_yticks(range(len(methods)), [f"{method}   {cost[method]:.3g}" for method in methods])
    panels[0].set_ylim(len(methods) - 0.5, -0.5)
    figure.supxlabel(
        "error (%) on a scale of logarithms, mean over ratios and both norms of the attack;\n"
        "beside each method its evaluations per data point",
        fontsize=8,
    )
    return figure


def _point(axes: Axes, table: Table, data: str, place: int, method: str, kind: str) -> None:
    columns = [c for attack in ATTACKS if attack.startswith(kind) for c in every(table.config, attack)]
    errors = values(table, data, method, columns)
    if errors:
        axes.errorbar(
            max(fmean(errors), _least(table, data, method)),
            place,
            xerr=np.nan_to_num(error_of(errors)),
            markersize=5,
            elinewidth=1.2,
            linestyle="",
            **STYLES[family_of(method)],
        )


# --- Training ---------------------------------------------------------------------------------------


def _training(table: Table) -> Figure:
    """The losses that the methods minimise, which are not the same: with the paper's radius, or chosen."""
    from matplotlib.ticker import MaxNLocator

    config, data = table.config, data_of(table)
    figure = _figure(8.2 if len(data) > 1 else 5, 3.4)
    panels = figure.subplots(1, len(data), sharex=True, sharey=True, squeeze=False)[0]
    for axes, name in zip(panels, data, strict=True):
        for method in methods_of(table):
            curves = [row["curve"] for row in rows_of(table, name, method)]
            kind = next((kind for kind in LINES if method in _trained(config, kind)), None)
            if curves and kind:
                mean = np.mean(curves, axis=0)
                style = {**STYLES[family_of(method)], "linestyle": LINES[kind]}
                axes.plot(range(1, len(mean) + 1), mean, label=method, markersize=3.5, linewidth=1.2, **style)
        axes.axhline(log(CLASSES), color="#999999", linewidth=0.8)
        axes.set_yscale("log")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        axes.set_xlim(0.7, config.epochs + 0.3)
        axes.set_title(name, fontsize=10)
        axes.set_xlabel("epoch", fontsize=8)
        tidy(axes)
    note = {"xy": (0.98, log(CLASSES)), "xycoords": ("axes fraction", "data"), "textcoords": "offset points"}
    panels[0].annotate("guessing", xytext=(0, -9), ha="right", fontsize=7, color="#777777", **note)
    panels[0].set_ylabel("mean loss in training", fontsize=9)
    for axes in panels:
        log_ticks(axes.yaxis, 8)
    _legend(figure, 4 if len(data) > 1 else 2)
    return figure


def _trained(config: Any, kind: str) -> list[str]:
    if kind == "chosen":
        return ["random-start FGM, chosen", "tilted, chosen"]
    plain = ["ERM"] if kind == "l2" else []
    return [*plain, *(f"{family} {kind} {config.rho:g}" for family in ("FGM", "IFGM", "RT-MLMC", "noise x4"))]

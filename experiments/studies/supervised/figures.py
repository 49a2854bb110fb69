"""The figures of the study of supervised learning."""

from __future__ import annotations

from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np

from phiball.experiments.framework.tasks import Table
from phiball.experiments.studies.supervised.report import (
    ATTACKS,
    every,
    family_of,
    methods_of,
)
from phiball.experiments.training.trials import data_of, error_of, rows_of, values

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Colours that all readers can distinguish, and markers that need no colour.
STYLES: dict[str, dict[str, Any]] = {
    "ERM": {"color": "#555555", "marker": "x"},
    "FGM": {"color": "#0072B2", "marker": "s"},
    "IFGM": {"color": "#56B4E9", "marker": "D"},
    "RT-MLMC": {"color": "#D55E00", "marker": "o"},
    "noise x4": {"color": "#E69F00", "marker": "^"},
    "random-start FGM": {"color": "#009E73", "marker": "v"},
    "tilted": {"color": "#CC79A7", "marker": "P"},
}


def draw(table: Table) -> dict[str, Figure]:
    """`panels-l2` and `panels-linf`: the paper's figure for each norm of the ball."""
    return {f"panels-{norm}": _panels(table, norm) for norm in table.config.norms}


def _styles(table: Table, norm: str) -> dict[str, dict[str, Any]]:
    """The methods of a figure of panels: all of the paper's readings and three beyond; the style of each."""
    rho, step = f"{norm} {table.config.rho:g}", f"{norm} {table.config.step:g}"
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
    styles = {}
    for method in (name for name in lines if name in methods_of(table)):
        ours = method.startswith("RT-MLMC")
        # Where IFGM lies on FGM, both are visible.
        size = {"RT-MLMC": 5.0, "FGM": 5.0, "IFGM": 3.0}.get(family_of(method), 3.5)
        style = {"linestyle": lines[method], "linewidth": 2.4 if ours else 1.2, "markersize": size}
        styles[method] = {**STYLES[family_of(method)], **style, "zorder": 4 if ours else 3}
        if method.endswith(f"FGM {step}"):
            styles[method]["markerfacecolor"] = "white"
    return styles


def _panels(table: Table, norm: str) -> Figure:
    from matplotlib.figure import Figure

    data = data_of(table)
    figure = Figure(figsize=(8.2, 1.0 + 1.9 * len(data)), layout="constrained")
    grid = figure.subplots(len(data), len(ATTACKS), sharex="col", sharey="row", squeeze=False)
    for row, name in zip(grid, data, strict=True):
        for axes, attack in zip(row, ATTACKS, strict=True):
            for method, style in _styles(table, norm).items():
                _curve(axes, table, name, attack, method, style)
            axes.set_yscale("log")
            axes.yaxis.set_major_formatter("{x:g}")
            axes.spines[["top", "right"]].set_visible(False)
            axes.grid(color="#e4e4e4", linewidth=0.6)
            axes.tick_params(labelsize=8)
        row[0].set_ylabel(f"{name}\nerror (%)", fontsize=9)
    for axes, attack in zip(grid[0], ATTACKS, strict=True):
        axes.set_title(attack.replace("noise", "white noise"), fontsize=10)
    for axes in grid[-1]:
        axes.set_xlabel("ratio to the mean norm", fontsize=8)
    pairs = [zip(*axes.get_legend_handles_labels(), strict=True) for axes in figure.axes]
    handles = {label: drawn for panel in pairs for drawn, label in panel}
    figure.legend(
        list(handles.values()),
        list(handles),
        loc="outside lower center",
        ncols=3,
        frameon=False,
        fontsize=8.5,
    )
    return figure


def _curve(axes: Axes, table: Table, data: str, attack: str, method: str, style: dict[str, Any]) -> None:
    errors = [values(table, data, method, [name]) for name in ("clean", *every(table.config, attack))]
    if not errors[0]:
        return
    least = 50 / float(rows_of(table, data, method)[0]["tested on"])  # half an image: no error, on a log axis
    ratios = [0.0, *table.config.ratios[attack]]
    mean = np.maximum([fmean(numbers) for numbers in errors], least)
    bar = np.nan_to_num([error_of(numbers) for numbers in errors])
    low, high = np.maximum(mean - bar, least), mean + bar
    axes.fill_between(ratios, low, high, color=style["color"], alpha=0.18, linewidth=0)
    axes.plot(ratios, mean, label=method, **style)

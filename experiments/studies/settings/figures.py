"""The figures of the study of settings."""

from __future__ import annotations

from statistics import fmean
from typing import TYPE_CHECKING

import numpy as np

from phiball.experiments.framework.tasks import Table
from phiball.experiments.studies.settings.report import attack_name, by_norm, held_out_error, methods_of
from phiball.experiments.training.image_attacks import NORMS
from phiball.experiments.training.trials import data_of, error_of, values

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Colours that all readers can distinguish; the markers repeat with another period.
COLOURS = ("#009E73", "#0072B2", "#E69F00", "#CC79A7", "#D55E00", "#56B4E9", "#000000")
MARKERS = ("v", "s", "^", "P", "X", "o", "D", "*")


def draw(table: Table) -> dict[str, Figure]:
    """For each norm in training `methods-NORM`, errors under APGD, and `rates-NORM`, held-out errors."""
    found: dict[str, Figure] = {}
    for norm, part in by_norm(table).items():
        found |= {f"methods-{norm}": _errors(part), f"rates-{norm}": _rates(part)}
    return found


def _figure(width: float, height: float) -> Figure:
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def _without_plain(methods: list[str]) -> list[str]:
    """All but plain training, whose errors are so much larger that the others would look the same."""
    return [name for name in methods if name != "ERM"] or methods


def _errors(table: Table) -> Figure:
    """A panel for each data set and attack: the trials, their mean and its standard error, by method."""
    methods, data = _without_plain(methods_of(table)), data_of(table)
    cost = {row["method"]: row["evaluations"] for row in table.rows}
    figure = _figure(8.2, 0.9 + 0.28 * len(methods) * len(NORMS))
    panels = figure.subplots(len(NORMS), len(data), sharey=True, squeeze=False)
    for row, norm in zip(panels, NORMS, strict=True):
        for axes, name in zip(row, data, strict=True):
            for place, method in enumerate(methods):
                errors = values(table, name, method, [f"APGD {norm}"])
                if errors:
                    axes.plot(errors, [place] * len(errors), "|", color="#999999", markersize=7)
                    bar = np.nan_to_num(error_of(errors))
                    axes.errorbar(fmean(errors), place, xerr=bar, marker="o", markersize=4, color="#0072B2")
            axes.spines[["top", "right"]].set_visible(False)
            axes.grid(color="#e4e4e4", linewidth=0.6)
            axes.tick_params(labelsize=8)
            axes.set_title(f"{name}, {attack_name(name, f'APGD {norm}')}", fontsize=9)
        row[0].set_yticks(range(len(methods)), [f"{method}   {cost[method]:.2g}" for method in methods])
        row[0].set_ylim(len(methods) - 0.5, -0.5)
    figure.supxlabel(
        "error (%): trials (grey), mean and standard error; evaluations per image beside each method",
        fontsize=8,
    )
    return figure


def _rates(table: Table) -> Figure:
    """The error on held-out images, of the best setting, against the peak of the rate."""
    judged = [row for row in table.rows if row["stage"] == "choose"]
    data = list(dict.fromkeys(row["data"] for row in judged))
    methods = _without_plain(list(dict.fromkeys(row["method"] for row in judged)))
    rates = sorted({row["rate"] for row in judged})
    figure = _figure(8.2 if len(data) > 1 else 5.0, 3.4)
    panels = figure.subplots(1, len(data), squeeze=False)[0]
    for axes, name in zip(panels, data, strict=True):
        for k, method in enumerate(methods):
            rows = [row for row in judged if (row["data"], row["method"]) == (name, method)]
            lowest = [min(held_out_error(row) for row in rows if row["rate"] == rate) for rate in rates]
            style = {"color": COLOURS[k % len(COLOURS)], "marker": MARKERS[k % len(MARKERS)]}
            axes.plot(rates, lowest, label=method, markersize=4, linewidth=1.2, **style)
        axes.set_xscale("log")
        axes.set_xticks(rates, [f"{rate:g}" for rate in rates])
        axes.minorticks_off()
        axes.set_title(name, fontsize=10)
        axes.set_xlabel("peak of the rate", fontsize=8)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", color="#e4e4e4", linewidth=0.6)
    panels[0].set_ylabel("held-out error (%), PGM,\nmean of both norms", fontsize=8)
    handles, labels = panels[0].get_legend_handles_labels()
    columns = 4 if len(data) > 1 else 2
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, frameon=False, fontsize=8.5)
    return figure

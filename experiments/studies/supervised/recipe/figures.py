"""The figures of the study of recipes."""

from __future__ import annotations

from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np

from phiball.experiments.framework.tasks import Table
from phiball.experiments.studies.supervised.attacks import NORMS
from phiball.experiments.studies.supervised.figures import STYLES, tidy
from phiball.experiments.studies.supervised.recipe.methods import CONSTANT, REFERENCE
from phiball.experiments.studies.supervised.recipe.report import attack_name, held_out_error, methods_of
from phiball.experiments.studies.supervised.verdicts import data_of, error_of, values

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

OWN: dict[str, dict[str, Any]] = {
    **{name: STYLES[name] for name in ("ERM", "RT-MLMC", "IFGM", "tilted", REFERENCE)},
    CONSTANT: {**STYLES[REFERENCE], "markerfacecolor": "white"},
    "N-FGSM": {"color": "#0072B2", "marker": "s"},
    "wide tilted": {"color": "#000000", "marker": "*"},
    "ATTA-1": {"color": "#E69F00", "marker": "^"},
    "random-start tilted": {"color": "#CC79A7", "marker": "X", "linestyle": "--"},
}


def draw(table: Table) -> dict[str, Figure]:
    """`recipe`, the errors of all methods under APGD; `rates`, those on held-out images by the rate."""
    judged = any(row["stage"] == "choose" for row in table.rows)
    return {"recipe": _errors(table), **({"rates": _rates(table)} if judged else {})}


def _figure(width: float, height: float) -> Figure:
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def _adversarial(methods: list[str]) -> list[str]:
    """All but plain training, which lies so far above that the others could not be told apart."""
    return [name for name in methods if name != "ERM"] or methods


def _errors(table: Table) -> Figure:
    """A panel for each data set and attack: the trials, their mean and its standard error, by method."""
    methods, data = _adversarial(methods_of(table)), data_of(table)
    cost = {row["method"]: row["evaluations"] for row in table.rows}
    figure = _figure(8.2, 0.9 + 0.28 * len(methods) * len(NORMS))
    grid = figure.subplots(len(NORMS), len(data), sharey=True, squeeze=False)
    for row, norm in zip(grid, NORMS, strict=True):
        for axes, name in zip(row, data, strict=True):
            for place, method in enumerate(methods):
                _point(axes, values(table, name, method, [f"APGD {norm}"]), place, method)
            tidy(axes)
            axes.grid(axis="x", color="#e4e4e4", linewidth=0.6)
            axes.set_title(f"{name}, {attack_name(name, f'APGD {norm}')}", fontsize=9)
        row[0].set_yticks(range(len(methods)), [f"{method}   {cost[method]:.2g}" for method in methods])
        row[0].set_ylim(len(methods) - 0.5, -0.5)
    figure.supxlabel(
        "error (%): trials (grey), their mean and standard error; beside each method its evaluations per "
        "data point; without ERM",
        fontsize=8,
    )
    return figure


def _point(axes: Axes, errors: list[float], place: int, method: str) -> None:
    if errors:
        axes.plot(errors, [place] * len(errors), "|", color="#999999", markersize=7)
        style = {name: value for name, value in OWN[method].items() if name != "linestyle"}
        bar = np.nan_to_num(error_of(errors))
        axes.errorbar(fmean(errors), place, xerr=bar, markersize=5, elinewidth=1.2, linestyle="", **style)


def _rates(table: Table) -> Figure:
    """The error on held-out images against the peak of the rate."""
    judged = [row for row in table.rows if row["stage"] == "choose"]
    data = list(dict.fromkeys(row["data"] for row in judged))
    figure = _figure(8.2 if len(data) > 1 else 5.0, 3.4)
    panels = figure.subplots(1, len(data), squeeze=False)[0]
    rates = sorted({row["rate"] for row in judged})
    for axes, name in zip(panels, data, strict=True):
        for method in _adversarial(list(dict.fromkeys(row["method"] for row in judged))):
            found = {
                r["rate"]: held_out_error(r) for r in judged if (r["data"], r["method"]) == (name, method)
            }
            axes.plot(
                list(found), list(found.values()), label=method, markersize=4, linewidth=1.2, **OWN[method]
            )
        axes.set_xscale("log")
        axes.set_xticks(rates, [f"{rate:g}" for rate in rates])
        axes.minorticks_off()
        axes.set_title(name, fontsize=10)
        axes.set_xlabel("peak of the rate", fontsize=8)
        tidy(axes)
    panels[0].set_ylabel("held-out error (%), PGM,\nmean of both norms", fontsize=8)
    handles, labels = panels[0].get_legend_handles_labels()
    columns = 4 if len(data) > 1 else 2
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, frameon=False, fontsize=8.5)
    return figure

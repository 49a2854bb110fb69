"""Tables and figures of the study `supervised`, and verdicts on the paper's statement.

The ratio of an attack is its radius divided by the mean norm of the images. A panel is a data set and an
attack. It has one number per method and trial: the mean error over the ratios of the attack, or the error at
the largest ratio. Methods are compared within trials: all methods of a trial share a seed.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import fmean
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from phiball.experiments.framework.tables import ReportTable
from phiball.experiments.framework.tasks import Row, Table
from phiball.experiments.studies.supervised.paper_methods import (
    CHOSEN,
    FAMILIES,
    PaperReading,
    paper_methods,
    readings,
)
from phiball.experiments.training.trials import (
    LEVEL,
    data_of,
    difference,
    plus_minus,
    standard_error_of_mean,
    trial_rows,
    values,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ATTACKS = ("noise l2", "noise linf", "PGM l2", "PGM linf")
VERDICTS = ("best", "tied", "not best")

ColumnSelector: TypeAlias = Callable[[Any, str], list[str]]


def all_ratios(config: Any, attack: str) -> list[str]:
    """Return the columns of an attack, by increasing ratio."""
    return [f"{attack} {ratio:g}" for ratio in config.ratios[attack]]


def largest_ratio(config: Any, attack: str) -> list[str]:
    """Return the column of the largest ratio."""
    return all_ratios(config, attack)[-1:]


def score(row: Row) -> float:
    """Return the score of a setting: the mean of the clean error and the mean errors of all attacks."""
    means = [
        fmean(value for name, value in row.items() if name.startswith(f"{attack} ")) for attack in ATTACKS
    ]
    return fmean([row["clean"], *means])


def reported_methods(table: Table) -> list[str]:
    """Return the methods that have results: the paper's settings first, then the chosen ones."""
    present = {row["method"] for row in table.rows if row["stage"] == "report"}
    return [
        name for name in (*paper_methods(table.config), *map("{}, chosen".format, CHOSEN)) if name in present
    ]


def family_of(method: str) -> str:
    """Return the family of a method, which is the longest family name that its name starts with."""
    return max((name for name in (*FAMILIES, *CHOSEN) if method.startswith(name)), key=len)


def panel_verdict(table: Table, reading: PaperReading, data: str, columns: list[str]) -> str | None:
    """Compare the method of a reading with its baselines; None if one of them is missing.

    best: significantly below every baseline. not best: significantly above one. Otherwise tied.
    """
    found = [difference(table, data, columns, reading.ours, other) for other in reading.baselines]
    signs = [d.sign for d in found if d is not None]
    if len(signs) < len(found):
        return None
    return "not best" if max(signs) > 0 else "best" if max(signs) < 0 else "tied"


def panels(table: Table, reading: PaperReading, select: ColumnSelector) -> dict[tuple[str, str], str]:
    """Return the verdict in each panel (data set, attack) whose methods all have results."""
    found = {
        (data, attack): panel_verdict(table, reading, data, select(table.config, attack))
        for attack in ATTACKS
        for data in data_of(table)
    }
    return {panel: verdict for panel, verdict in found.items() if verdict is not None}


def tables(table: Table) -> list[ReportTable]:
    """Return the tables of errors, of verdicts, and of comparisons at equal cost."""
    found = [_errors(table), _verdicts(table), _pairs(table)]
    return [report_table for report_table in found if report_table.rows]


def _errors(table: Table) -> ReportTable:
    kinds = {"clean": ["clean"]}
    for kind in ("noise", "PGM"):
        attacks = [attack for attack in ATTACKS if attack.startswith(kind)]
        kinds[kind] = [name for attack in attacks for name in all_ratios(table.config, attack)]
    places = [(data, kind) for data in data_of(table) for kind in kinds]
    cost = {row["method"]: row["evaluations"] for row in table.rows}
    lines = [
        (
            method,
            f"{cost[method]:.3g}",
            *(plus_minus(values(table, data, method, kinds[kind])) for data, kind in places),
        )
        for method in reported_methods(table)
    ]
    return ReportTable(
        "Errors in percent",
        ("method", "evaluations", *(f"{data} {kind}" for data, kind in places)),
        lines,
        "Means over trials and their standard errors. Noise and PGM are averaged over both norms of the "
        "attack and all ratios. Evaluations are per image in training.",
    )


def _counts(verdicts: dict[tuple[str, str], str]) -> str:
    found = list(verdicts.values())
    return " / ".join(str(found.count(verdict)) for verdict in VERDICTS)


def _verdicts(table: Table) -> ReportTable:
    lines = [
        (
            reading.name,
            _counts(panels(table, reading, all_ratios)),
            _counts(panels(table, reading, largest_ratio)),
        )
        for reading in readings(table.config)
        if panels(table, reading, all_ratios)
    ]
    return ReportTable(
        f"Panels in which RT-MLMC is {' / '.join(VERDICTS)}",
        ("reading", "mean over ratios", "largest ratio"),
        lines,
        "best: significantly below every baseline; not best: significantly above one; otherwise tied. A "
        f"difference is significant if Student's {100 * LEVEL:g} % interval of the differences within trials "
        "excludes zero, and it exceeds one image. The interval does not cover the choice of test images, "
        "which all trials share.",
    )


def _pairs(table: Table) -> ReportTable:
    """Compare RT-MLMC with noise of equal cost, and tilted points with random-start FGM."""
    ends = [f" {norm} {table.config.rho:g}" for norm in table.config.norms] + [", chosen"]
    pairs = [(f"RT-MLMC{end}", f"noise x4{end}") for end in ends]
    pairs.append(("tilted, chosen", "random-start FGM, chosen"))
    lines = []
    for ours, other in pairs:
        found = [
            difference(table, data, all_ratios(table.config, attack), ours, other)
            for data in data_of(table)
            for attack in ATTACKS
        ]
        signs = [d.sign for d in found if d is not None]
        if signs:
            lines.append((ours, other, *(str(signs.count(sign)) for sign in (-1, 1, 0))))
    headings = ("method", "against", "lower", "higher", "undecided")
    return ReportTable("Methods of equal cost: number of panels", headings, lines, left=2)


def findings(table: Table) -> list[str]:
    """Return a sentence: under how many readings of the paper RT-MLMC is best in every panel."""
    results = [panels(table, reading, all_ratios) for reading in readings(table.config)]
    confirmed = sum(set(verdicts.values()) == {"best"} for verdicts in results)
    return [
        '"Consistently outperforms all baselines": RT-MLMC is best in every panel in '
        f"{confirmed} of {sum(map(bool, results))} readings of the paper whose methods were all trained."
    ]


# Colour-blind safe colours, and distinct markers.
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
    """Return `panels-l2` and `panels-linf`: the paper's figure for each norm of the ball."""
    return {f"panels-{norm}": _panels(table, norm) for norm in table.config.norms}


def _styles(table: Table, norm: str) -> dict[str, dict[str, Any]]:
    """Return the style of each method in a figure: the methods of the paper's readings and three more."""
    rho, step = f"{norm} {table.config.rho:g}", f"{norm} {table.config.step:g}"
    lines = {"ERM": ":"} | dict.fromkeys((f"FGM {rho}", f"IFGM {rho}", f"RT-MLMC {rho}"), "-")
    lines |= dict.fromkeys((f"FGM {step}", f"IFGM {step}", f"noise x4 {rho}"), "--")
    lines |= {"random-start FGM, chosen": "-.", "tilted, chosen": "-."}
    return {
        method: {**STYLES[family_of(method)], "linestyle": line, "linewidth": 1.2, "markersize": 3.5}
        for method, line in lines.items()
        if method in reported_methods(table)
    }


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
    layout: dict[str, Any] = {"loc": "outside lower center", "ncols": 3, "frameon": False, "fontsize": 8.5}
    figure.legend(list(handles.values()), list(handles), **layout)
    return figure


def _curve(axes: Axes, table: Table, data: str, attack: str, method: str, style: dict[str, Any]) -> None:
    """Draw the mean error of a method against the ratio of an attack, with a band of one standard error."""
    errors = [values(table, data, method, [name]) for name in ("clean", *all_ratios(table.config, attack))]
    if not errors[0]:
        return
    # On the log axis, half an image stands for zero.
    least = 50 / float(trial_rows(table, data, method)[0]["tested on"])
    ratios = [0.0, *table.config.ratios[attack]]
    mean = np.maximum([fmean(numbers) for numbers in errors], least)
    bar = np.nan_to_num([standard_error_of_mean(numbers) for numbers in errors])
    low, high = np.maximum(mean - bar, least), mean + bar
    axes.fill_between(ratios, low, high, color=style["color"], alpha=0.18, linewidth=0)
    axes.plot(ratios, mean, label=method, **style)

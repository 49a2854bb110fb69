"""Tables and figures of the study of settings."""

from __future__ import annotations

from statistics import fmean
from typing import TYPE_CHECKING

import numpy as np

from phiball.experiments.framework.tables import ReportTable
from phiball.experiments.framework.tasks import Row, Table
from phiball.experiments.studies.settings.method_grid import DEFAULT, FAMILIES, RADII, REFERENCE
from phiball.experiments.training.image_attacks import ATTACK_NORMS
from phiball.experiments.training.trials import (
    LEVEL,
    Difference,
    data_of,
    difference,
    plus_minus,
    standard_error_of_mean,
    trial_rows,
    values,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLUMNS = ("clean", *(f"{kind} {norm}" for norm in ATTACK_NORMS for kind in ("PGM", "APGD")))
STRONG = tuple(f"APGD {norm}" for norm in ATTACK_NORMS)


def held_out_error(row: Row) -> float:
    """Return the mean error under PGM in both norms, by which settings and rates are chosen."""
    return fmean(row[f"PGM {norm}"] for norm in ATTACK_NORMS)


def by_norm(table: Table) -> dict[str, Table]:
    """Split a table by the norm of the ball in training."""
    return {
        norm: Table(table.config, tuple(row for row in table.rows if row["norm"] == norm))
        for norm in table.config.norms
    }


def methods_of(table: Table) -> list[str]:
    """Return the methods that have results on test images."""
    present = {row["method"] for row in table.rows if row["stage"] == "report"}
    return [name for name in FAMILIES if name in present]


def attack_name(data: str, column: str) -> str:
    """Return the name of a column with the radius of its attack, such as "APGD l2 1.5"."""
    kind, _, norm = column.partition(" ")
    return f"{kind} {norm} {RADII[data][norm]:g}" if norm else column


def tables(table: Table) -> list[ReportTable]:
    """Return the tables of errors, of paired differences, and of RobustLoss next to the best method."""
    found = []
    for norm, part in by_norm(table).items():
        found += [_errors(part, norm, data) for data in data_of(part)]
        found.append(_differences(part, norm))
    found.append(_defaults(table))
    return [report_table for report_table in found if report_table.rows]


def _errors(table: Table, norm: str, data: str) -> ReportTable:
    """The errors of all methods on a data set, after training in balls of one norm."""
    lines = []
    for method in methods_of(table):
        rows = trial_rows(table, data, method)
        if rows:
            first = rows[0]
            numbers = (plus_minus(values(table, data, method, [name])) for name in COLUMNS)
            lines.append(
                (method, first["setting"], f"{first['evaluations']:.3g}", f"{first['rate']:g}", *numbers)
            )
    row = next(row for row in table.rows if (row["stage"], row["data"]) == ("report", data))
    headings = ("method", "setting", "evaluations", "rate")
    return ReportTable(
        f"Errors on {data} after training in {norm}, in percent",
        (*headings, *(attack_name(data, name) for name in COLUMNS)),
        lines,
        f"Means over trials and their standard errors; {row['trained on']:,} training images, "
        f"{row['tested on']:,} test images. Evaluations are per image in training.",
        left=2,
    )


def _differences(table: Table, norm: str) -> ReportTable:
    columns = [(data, column) for data in data_of(table) for column in ("clean", *STRONG)]
    lines = [
        (method, *(_marked(difference(table, data, [column], method, REFERENCE)) for data, column in columns))
        for method in methods_of(table)
        if method != REFERENCE and REFERENCE in methods_of(table)
    ]
    return ReportTable(
        f"Differences from {REFERENCE} after training in {norm}, in points",
        ("method", *(f"{data} {attack_name(data, column)}" for data, column in columns)),
        lines,
        f"Errors minus the errors of {REFERENCE}, paired by trial: mean and standard error. A star marks a "
        f"significant difference: Student's {100 * LEVEL:g} % interval excludes zero, and it exceeds one "
        "image. The interval does not cover the choice of test images, which all trials share.",
    )


def _marked(found: Difference | None) -> str:
    return "-" if found is None else f"{found}{'*' if found.sign else ''}"


def _defaults(table: Table) -> ReportTable:
    """Compare RobustLoss with the method of equal cost that has the lowest error on held-out images."""
    lines = []
    for norm, part in by_norm(table).items():
        for data in data_of(part):
            judged = [row for row in part.rows if (row["stage"], row["data"]) == ("choose", data)]
            others = [row for row in judged if row["method"] != DEFAULT and row["evaluations"] <= 2]
            if not others or not trial_rows(part, data, DEFAULT):
                continue
            best, columns = min(others, key=held_out_error)["method"], ["clean", f"APGD {norm}"]
            lines.append(
                (
                    data,
                    attack_name(data, columns[1]),
                    plus_minus(values(part, data, DEFAULT, columns)),
                    best,
                    plus_minus(values(part, data, best, columns)),
                    _marked(difference(part, data, columns, DEFAULT, best)),
                )
            )
    return ReportTable(
        f"{DEFAULT} and the best of the grid",
        ("data", "attack", DEFAULT, "best of the grid", "its error", "difference"),
        lines,
        "Means of the clean and the attacked error on test images, in percent. The grid consists of the "
        "other methods with at most two evaluations per image; its best is chosen on held-out images.",
        left=2,
    )


def draw(table: Table) -> dict[str, Figure]:
    """Return the figures `methods-NORM`: the errors under APGD for each norm in training."""
    return {f"methods-{norm}": _draw_errors(part) for norm, part in by_norm(table).items()}


def _draw_errors(table: Table) -> Figure:
    """Draw a panel for each data set and attack: trials, mean and standard error of each method."""
    from matplotlib.figure import Figure

    data = data_of(table)
    # Plain training has much larger errors, which would hide the differences between the others.
    methods = [name for name in methods_of(table) if name != "ERM"] or methods_of(table)
    cost = {row["method"]: row["evaluations"] for row in table.rows}
    figure = Figure(figsize=(8.2, 0.9 + 0.28 * len(methods) * len(ATTACK_NORMS)), layout="constrained")
    panels = figure.subplots(len(ATTACK_NORMS), len(data), sharey=True, squeeze=False)
    for row, norm in zip(panels, ATTACK_NORMS, strict=True):
        for axes, name in zip(row, data, strict=True):
            for y, method in enumerate(methods):
                errors = values(table, name, method, [f"APGD {norm}"])
                if errors:
                    axes.plot(errors, [y] * len(errors), "|", color="#999999", markersize=7)
                    bar = np.nan_to_num(standard_error_of_mean(errors))
                    axes.errorbar(fmean(errors), y, xerr=bar, marker="o", markersize=4, color="#0072B2")
            axes.spines[["top", "right"]].set_visible(False)
            axes.grid(color="#e4e4e4", linewidth=0.6)
            axes.tick_params(labelsize=8)
            axes.set_title(f"{name}, {attack_name(name, f'APGD {norm}')}", fontsize=9)
        row[0].set_yticks(range(len(methods)), [f"{method}   {cost[method]:.2g}" for method in methods])
        row[0].set_ylim(len(methods) - 0.5, -0.5)
    text = "error (%): trials (grey), mean and standard error; evaluations per image beside each method"
    figure.supxlabel(text, fontsize=8)
    return figure

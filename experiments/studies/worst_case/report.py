"""Tables, figures and findings of the study of worst-case distributions."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

from phiball.experiments.framework.tables import ReportTable
from phiball.experiments.framework.tasks import Row, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BLUE, ORANGE = "#0072B2", "#D55E00"  # colour-blind safe
PLOT_POINTS = 1000  # of a curve


def rows_of(table: Table, part: str, **columns: Any) -> list[Row]:
    """Return the rows of a part of the study that have these values in these columns."""
    wanted = {"part": part, **columns}.items()
    return [row for row in table.rows if all(row.get(name) == value for name, value in wanted)]


def columns_of(table: Table) -> list[str]:
    """Return the regularisations, which are the columns of the figure."""
    return list(dict.fromkeys(row["regularisation"] for row in rows_of(table, "density")))


def level(row: Row) -> str:
    """Return the parameter of a density as text: alpha or eta."""
    if row["regularisation"] == "indicator":
        return f"alpha = {row['alpha']:g}"
    return f"eta = {row['eta']:.2g}"


def draw(table: Table) -> dict[str, Figure]:
    """Return the figures `overview`, `landscape` and, for each reading, `densities-READING`."""
    landscapes = rows_of(table, "landscape")
    return {
        "overview": _draw_overview(table, landscapes[-1]),
        "landscape": _draw_landscapes(table, landscapes),
        **{f"densities-{row['reading']}": _draw_densities(table, row) for row in landscapes},
    }


def _curve(table: Table, values: Any) -> tuple[Any, Any]:
    """Return at most PLOT_POINTS points of the interval and their values; flat parts keep only their ends."""
    index = np.unique(np.linspace(0, len(values) - 1, PLOT_POINTS).round().astype(int))
    x = np.linspace(-table.config.radius, table.config.radius, len(values))[index]
    y = np.asarray(values)[index]
    changes = np.abs(np.diff(y)) > 1e-4 * np.abs(y).max()
    mask = np.concatenate([[True], changes]) | np.concatenate([changes, [True]])
    return x[mask], y[mask]


def _draw_overview(table: Table, landscape: Row) -> Figure:
    """Draw the loss and its worst-case densities at a large, a medium and a small eta, for the README."""
    from matplotlib.figure import Figure

    last = len(table.config.etas) - 1
    numbers = sorted({0, min(1, last), last})
    figure = Figure(figsize=(9, 2.5), layout="constrained")
    first, *others = figure.subplots(1, 1 + len(numbers))
    first.plot(*_curve(table, landscape["losses"]), color="black", linewidth=1.5)
    first.set(title="a loss on a ball", ylabel="f(x)")
    top = 0.0
    for name, colour in (("entropic", BLUE), ("quadratic", ORANGE)):
        rows = rows_of(table, "density", reading=landscape["reading"], regularisation=name)
        top = max(top, *(rows[number]["largest"] for number in numbers))
        for axes, number in zip(others, numbers, strict=True):
            x, density = _curve(table, rows[number]["density"])
            axes.fill_between(x, density, color=colour, alpha=0.12, linewidth=0)
            axes.plot(x, density, color=colour, linewidth=1.5, label=name)
            axes.set(title=f"worst case, $\\{level(rows[number])}$")
    for axes in others:
        axes.set(ylim=(0, 1.1 * top))
    others[0].set_ylabel("density")
    others[0].legend(frameon=False, loc="upper left")
    for axes in (first, *others):
        axes.set(xlabel="x", xlim=(-1.02 * table.config.radius, 1.02 * table.config.radius))
        axes.spines[["top", "right"]].set_visible(False)
    return figure


def _draw_landscapes(table: Table, rows: list[Row]) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.5 * len(rows), 3), layout="constrained")
    for axes, row in zip(figure.subplots(1, len(rows), squeeze=False)[0], rows, strict=True):
        axes.plot(*_curve(table, row["losses"]), color=BLUE, linewidth=1.5)
        ends = [row["top_from"], row["top_to"]]
        axes.plot(ends, [row["highest"]] * 2, color=ORANGE, linewidth=3, marker="o", markersize=4)
        axes.set(title=row["reading"], xlabel="x", ylabel="f(x)")
        axes.spines[["top", "right"]].set_visible(False)
    return figure


def _draw_densities(table: Table, landscape: Row) -> Figure:
    from matplotlib.figure import Figure

    columns, height = columns_of(table), len(table.config.etas)
    figure = Figure(figsize=(2.3 * len(columns), 1.6 * height + 0.5), layout="constrained")
    panels = figure.subplots(height, len(columns), sharex=True, squeeze=False)
    for column, name in enumerate(columns):
        rows = rows_of(table, "density", reading=landscape["reading"], regularisation=name)
        for axes, row in zip(panels[:, column], rows, strict=True):
            _draw_density(axes, table, row, landscape)
        panels[0, column].set_title(name)
        panels[-1, column].set_xlabel("x")
    for axes in panels[:, 0]:
        axes.set_ylabel("density")
    return figure


def _draw_atom(axes: Any, table: Table, row: Row, landscape: Row) -> float:
    """Draw the atom as a stem above the density, whose height is the atom's mass; return the mass."""
    f = np.asarray(landscape["losses"])
    highest = np.linspace(-table.config.radius, table.config.radius, len(f))[f == f.max()]
    x = highest[len(highest) // 2]  # the middle of a plateau
    bottom, mass = row["largest"], row["atom"]
    axes.vlines(x, bottom, bottom + mass, color=ORANGE, linewidth=2)
    axes.plot(x, bottom + mass, "o", color=ORANGE, markersize=4)
    return float(mass)


def _draw_density(axes: Any, table: Table, row: Row, landscape: Row) -> None:
    """Draw the worst-case density of a row, with its atom at the maximum of the loss of `landscape`."""
    x, density = _curve(table, row["density"])
    axes.fill_between(x, density, color=BLUE, alpha=0.35, linewidth=0)
    axes.plot(x, density, color=BLUE, linewidth=1)
    top = row["largest"]
    if row["atom"]:
        top += _draw_atom(axes, table, row, landscape)
        label = f"atom {row['atom']:.2g}"
        axes.text(0.04, 0.66, label, color=ORANGE, fontsize=9, transform=axes.transAxes)
    axes.text(0.04, 0.86, f"$\\{level(row)}$", fontsize=9, transform=axes.transAxes)
    axes.set(ylim=(0, 1.3 * top), xlim=(-1.02 * table.config.radius, 1.02 * table.config.radius))
    axes.set_xticks([-table.config.radius, 0, table.config.radius])
    axes.tick_params(labelsize=8)
    axes.locator_params(axis="y", nbins=3)
    axes.spines[["top", "right"]].set_visible(False)


def tables(table: Table) -> list[ReportTable]:
    """Return the tables of landscapes and, for each reading, of worst cases."""
    rows = rows_of(table, "landscape")
    return [_landscapes(table, rows), *(_worst_cases(table, row["reading"]) for row in rows)]


def _landscapes(table: Table, rows: list[Row]) -> ReportTable:
    lines = []
    for row in rows:
        others = rows_of(table, "networks", reading=row["reading"])
        numbers = [number for other in others for number in other["numbers"]]
        drawn, many, at_end = (sum(other[name] for other in others) for name in ("drawn", "many", "at_end"))
        lines.append(
            (
                row["reading"],
                f"{row['lowest']:.2f} to {row['highest']:.2f}",
                f"{row['top_from']:.3g} to {row['top_to']:.3g}",
                str(row["maxima"]),
                f"{many} of {drawn}",
                f"{median(numbers):g}" if numbers else "",
                f"{at_end} of {drawn}",
            )
        )
    headings = ("reading", "f", "largest at", "local maxima", "others: 3 or more", "their median")
    return ReportTable(
        "Landscapes",
        (*headings, f"largest in [{0.8 * table.config.radius:g}, {table.config.radius:g}]"),
        lines,
        "Local maxima have a prominence of at least 1 % of the range of f. others: networks drawn from the "
        "same distribution, how many have 3 or more local maxima, and the median number.",
    )


def _worst_cases(table: Table, reading: str) -> ReportTable:
    lines = [
        (
            name,
            level(row),
            f"{row['value']:.4f}",
            f"{row['dual_minus_primal']:.0e}",
            f"{100 * row['support']:.1f} %",
            f"{row['largest']:.3g}",
            f"{row['atom']:.3f}" if row["atom"] else "",
            f"{row['low']:.2f} to {row['high']:.2f}",
            f"{row['printed_mass']:.3f}",
        )
        for name in columns_of(table)
        for row in rows_of(table, "density", reading=reading, regularisation=name)
    ]
    headings = ("level", "value", "dual - primal", "support", "density up to", "atom", "90 % lie in")
    return ReportTable(
        f"Worst cases, reading {reading}",
        ("regularisation", *headings, "mass as printed"),
        lines,
        "The atom is at the maximum of f, and is not part of the density. mass as printed: the mass of the "
        "density printed in Examples 1 to 5.",
        left=2,
    )


def findings(table: Table) -> list[str]:
    """Return a paragraph per reading on the errors of the printed densities."""
    paragraphs = []
    for landscape in rows_of(table, "landscape"):
        rows = rows_of(table, "density", reading=landscape["reading"])
        masses = [row["printed_mass"] for row in rows]
        miss = max(row["value"] - row["printed_value"] for row in rows)
        gap = max(abs(row["dual_minus_primal"]) for row in rows)
        paragraphs.append(
            f"Reading {landscape['reading']}: {len(rows)} worst cases attain the dual value to {gap:.0e}. "
            f"The printed densities have masses from {min(masses):.2f} to {max(masses):.2f}; "
            f"scaled to mass one, they miss the value by up to {miss:.2g}."
        )
    return paragraphs

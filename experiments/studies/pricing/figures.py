"""The figure of the study of pricing, and what it shares with the report."""

from __future__ import annotations

from typing import TYPE_CHECKING

from phiball.experiments.framework.tasks import Row, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LABELS = {"erm": "ERM, descent", "fgm": "FGM", "ifgm": "IFGM", "sg": "KL, SG", "rt-mlmc": "KL, RT-MLMC"}
# Colours that are distinct to all readers, and markers that need no colour.
STYLES = {
    "fgm": ("#D55E00", "s", "-"),
    "ifgm": ("#E69F00", "D", "--"),
    "sg": ("#0072B2", "o", "-"),
    "rt-mlmc": ("#56B4E9", "^", "--"),
}
INTERVAL = 1.96  # standard errors: 95 %


def scenarios(table: Table) -> list[Row]:
    """Return the rows of all methods, one per M and m."""
    return [row for row in table.rows if row["part"] == "methods"]


def by_covariates(rows: list[Row]) -> dict[int, list[Row]]:
    """Return the rows of each M."""
    return {M: [row for row in rows if row["M"] == M] for M in dict.fromkeys(row["M"] for row in rows)}


def draw(table: Table) -> dict[str, Figure]:
    """The figure `improvement`: J against m, a panel for each M and a line for each method; bars of 95 %."""
    from matplotlib.figure import Figure

    panels = by_covariates(scenarios(table))
    figure = Figure(figsize=(2.6 * len(panels) + 0.6, 3.2), layout="constrained")
    for axes, (M, rows) in zip(
        figure.subplots(1, len(panels), squeeze=False)[0], panels.items(), strict=True
    ):
        axes.axhline(0, color="0.5", linewidth=0.8)
        for k, (name, (color, marker, line)) in enumerate(STYLES.items()):
            aside = (k - 1.5) * 0.01 * max(row["m"] for row in rows)  # so that no bar hides another
            axes.errorbar(
                [row["m"] + aside for row in rows],
                [row[name] for row in rows],
                yerr=[INTERVAL * row[f"{name}_stderr"] for row in rows],
                label=LABELS[name],
                color=color,
                marker=marker,
                linestyle=line,
                linewidth=1.4,
                markersize=4,
                capsize=2,
                elinewidth=1,
            )
        axes.set(title=f"M = {M}", xlabel="m")
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(labelsize=8)
    figure.axes[0].set_ylabel("improvement J (%)")
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(STYLES), frameon=False)
    return {"improvement": figure}

"""Tables, figure and findings of the pricing study."""

from __future__ import annotations

from collections.abc import Iterable
from math import sqrt
from typing import TYPE_CHECKING, Any

import numpy as np

from phiball.experiments.framework.tables import ReportTable
from phiball.experiments.framework.tasks import Row, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LABELS = {"erm": "ERM, descent", "fgm": "FGM", "ifgm": "IFGM", "sg": "KL, SG", "rt-mlmc": "KL, RT-MLMC"}
# Colour-blind-safe colours, markers and line styles.
STYLES = {
    "fgm": ("#D55E00", "s", "-"),
    "ifgm": ("#E69F00", "D", "--"),
    "sg": ("#0072B2", "o", "-"),
    "rt-mlmc": ("#56B4E9", "^", "--"),
}
INTERVAL = 1.96  # standard errors: 95 %


def scenarios(table: Table) -> list[Row]:
    """The rows that compare all methods: one per number M of covariates and m of observations at each."""
    return [row for row in table.rows if row["part"] == "methods"]


def draw(table: Table) -> dict[str, Figure]:
    """The figure `improvement`: improvement J against m, a panel per M, a line per method, 95 % bars."""
    from matplotlib.figure import Figure

    panels = {M: [row for row in scenarios(table) if row["M"] == M] for M in table.config.covariates}
    figure = Figure(figsize=(2.6 * len(panels) + 0.6, 3.2), layout="constrained")
    all_axes = figure.subplots(1, len(panels), squeeze=False)[0]
    for axes, (M, rows) in zip(all_axes, panels.items(), strict=True):
        axes.axhline(0, color="0.5", linewidth=0.8)
        for k, (name, (color, marker, line)) in enumerate(STYLES.items()):
            shift = (k - 1.5) * 0.01 * max(row["m"] for row in rows)  # keep error bars from overlapping
            x, y = [row["m"] + shift for row in rows], [row[name] for row in rows]
            bars = [INTERVAL * row[f"{name}_stderr"] for row in rows]
            style: dict[str, Any] = {"color": color, "marker": marker, "linestyle": line, "markersize": 4}
            axes.errorbar(x, y, bars, label=LABELS[name], capsize=2, **style)
        axes.set(title=f"M = {M}", xlabel="m")
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(labelsize=8)
    figure.axes[0].set_ylabel("improvement J (%)")
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(STYLES), frameon=False)
    return {"improvement": figure}


UNREGULARISED, REGULARISED = ("fgm", "ifgm"), ("sg", "rt-mlmc")
CLEAR = 2.0  # a difference of more than this many standard errors is clear


def _difference(row: Row, first: str, second: str) -> tuple[float, float]:
    """The mean over trials of J of the first rule minus J of the second, and its standard error."""
    d = np.asarray(row[f"{first}_trials"]) - np.asarray(row[f"{second}_trials"])
    return float(d.mean()), float(d.std(ddof=1)) / sqrt(len(d))


def _improvements(row: Row, names: Iterable[str]) -> tuple[str, ...]:
    """M and m of a row, and means ± standard errors of the named rules."""
    return str(row["M"]), str(row["m"]), *(f"{row[n]:.1f} ± {row[f'{n}_stderr']:.1f}" for n in names)


def tables(table: Table) -> list[ReportTable]:
    """Two tables of improvements: of all methods in every scenario, and of SG at several levels."""
    rows = [
        (
            *_improvements(row, LABELS),
            f"{row['nothing']:.1f}",
            *(f"{row[f'{name}_worst']:.2f}" for name in UNREGULARISED),
        )
        for row in scenarios(table)
    ]
    first = ReportTable(
        "Improvement J over ERM, in percent",
        ("M", "m", *LABELS.values(), "theta = 0", "worst cost of FGM", "worst cost of IFGM"),
        rows,
        f"Means ± standard errors over {table.config.trials} trials. theta = 0: all prices are zero. "
        "The worst cost is found by a PGM attack on the training data.",
        left=2,
    )
    levels = table.config.levels
    second = ReportTable(
        "Improvement of SG, by its level L",
        ("M", "m", *(f"L = {L}" for L in levels)),
        [_improvements(row, [f"L{L}" for L in levels]) for row in table.rows if row["part"] == "levels"],
        "2^L points per ball. With L = 0 this is training with noise: the point does not depend on the loss.",
        left=2,
    )
    return [first, second]


def findings(table: Table) -> list[str]:
    """The number of scenarios in which each regularised rule is above each unregularised rule."""
    rows, parts = scenarios(table), []
    for first in REGULARISED:
        for second in UNREGULARISED:
            pairs = [_difference(row, first, second) for row in rows]
            wins = sum(mean > 0 for mean, _ in pairs)
            significant = sum(mean > CLEAR * error for mean, error in pairs)
            parts.append(
                f"{LABELS[first]} is above {LABELS[second]} in {wins} of {len(rows)} scenarios, in "
                f"{significant} by more than {CLEAR:g} standard errors"
            )
    return [f'Paper: the regularised model "outperforms the un-regularized one". Here {"; ".join(parts)}.']

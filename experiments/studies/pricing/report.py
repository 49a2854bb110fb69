"""What the study of pricing shows: its tables and its findings."""

from __future__ import annotations

from math import sqrt

import numpy as np

from phiball.experiments.framework.tables import ReportTable
from phiball.experiments.framework.tasks import Row, Table
from phiball.experiments.studies.pricing.figures import LABELS, scenarios

UNREGULARISED, REGULARISED = ("fgm", "ifgm"), ("sg", "rt-mlmc")
CLEAR = 2.0  # standard errors: more is called clear


def _of_levels(table: Table) -> list[Row]:
    return [row for row in table.rows if row["part"] == "levels"]


def _difference(row: Row, first: str, second: str) -> tuple[float, float]:
    """The mean over trials of J of the first minus J of the second, and its standard error."""
    d = np.asarray(row[f"{first}_trials"]) - np.asarray(row[f"{second}_trials"])
    return float(d.mean()), float(d.std(ddof=1)) / sqrt(len(d))


def tables(table: Table) -> list[ReportTable]:
    """The improvements of all scenarios, and those of SG by its level."""
    rows = [
        (
            str(row["M"]),
            str(row["m"]),
            *(f"{row[name]:.1f} ± {row[f'{name}_stderr']:.1f}" for name in LABELS),
            f"{row['nothing']:.1f}",
        )
        for row in scenarios(table)
    ]
    first = ReportTable(
        "Improvement J over ERM, in percent",
        ("M", "m", *LABELS.values(), "theta = 0"),
        rows,
        f"Means and standard errors of {table.config.trials} trials. theta = 0 sells for nothing.",
        left=2,
    )
    levels = table.config.levels
    second = ReportTable(
        "Improvement of SG, by its level L",
        ("M", "m", *(f"L = {L}" for L in levels)),
        [
            (
                str(row["M"]),
                str(row["m"]),
                *(f"{row[f'L{L}']:.1f} ± {row[f'L{L}_stderr']:.1f}" for L in levels),
            )
            for row in _of_levels(table)
        ],
        "2^L points of each ball; L = 0 trains on points with noise, without regard to the loss.",
        left=2,
    )
    return [first, second]


# --- Findings ---------------------------------------------------------------------------------------


def findings(table: Table) -> list[str]:
    """The two statements of the paper and its explanation, each beside what the table shows."""
    rows = scenarios(table)
    return [_on_order(rows), _on_explanation(rows)]


def _on_order(rows: list[Row]) -> str:
    parts = []
    for first in REGULARISED:
        for second in UNREGULARISED:
            pairs = [_difference(row, first, second) for row in rows]
            wins = sum(mean > 0 for mean, _ in pairs)
            significant = sum(mean > CLEAR * error for mean, error in pairs)
            parts.append(
                f"{LABELS[first]} is above {LABELS[second]} in {wins} of {len(rows)} scenarios, in "
                f"{significant} by more than {CLEAR:g} standard errors"
            )
    return f'The regularised model "outperforms the un-regularized one": {"; ".join(parts)}.'


def _on_explanation(rows: list[Row]) -> str:
    """Whether a solver that comes nearer to the worst case improves on FGM where FGM is worse than ERM."""
    quote = 'That the failure is "mainly due to the computational intractability"'
    stronger = [row for row in rows if row["fgm"] < 0 and row["ifgm_worst"] < row["fgm_worst"]]
    if not stronger:
        return f"{quote} cannot be judged: nowhere is FGM below ERM and IFGM nearer to the worst case."
    worse = sum(row["ifgm"] < row["fgm"] for row in stronger)
    means = {k: float(np.mean([row[k] for row in stronger])) for k in ("fgm", "ifgm", "nothing")}
    costs = [float(np.mean([row[f"{k}_worst"] for row in stronger])) for k in UNREGULARISED]
    return (
        f"{quote}: in {len(stronger)} of {len(rows)} scenarios FGM is below ERM and IFGM has a lower worst "
        f"cost in training (mean {costs[1]:.2f} against {costs[0]:.2f}); in {worse} of these the better "
        f"solver has the lower improvement (mean {means['ifgm']:.1f} against {means['fgm']:.1f}; theta = 0 "
        f"has {means['nothing']:.1f})."
    )

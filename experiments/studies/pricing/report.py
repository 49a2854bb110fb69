"""What the study of pricing shows: its tables and its findings."""

from __future__ import annotations

from math import sqrt

import numpy as np

from phiball.experiments.framework.tables import ReportTable
from phiball.experiments.framework.tasks import Row, Table
from phiball.experiments.studies.pricing.figures import LABELS, by_covariates, scenarios

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
    return [
        _on_order(rows),
        *(_on_sign(rows, name) for name in UNREGULARISED),
        _on_explanation(rows),
        *(_on_sizes(rows, name) for name in REGULARISED),
        _on_levels(table),
        _on_descent(table, rows),
    ]


def _verdict(agrees: bool) -> str:
    return "agrees with the paper" if agrees else "differs from the paper"


def _at(row: Row) -> str:
    return f"M = {row['M']}, m = {row['m']}"


def _on_order(rows: list[Row]) -> str:
    parts, everywhere = [], True
    for first in REGULARISED:
        for second in UNREGULARISED:
            pairs = [(*_difference(row, first, second), row) for row in rows]
            wins = sum(mean > 0 for mean, _, _ in pairs)
            clear = sum(mean > CLEAR * error for mean, error, _ in pairs)
            lost = [_at(row) for mean, _, row in pairs if mean <= 0]
            mean, error, row = min(pairs, key=lambda pair: pair[0])
            everywhere = everywhere and wins == len(rows)
            parts.append(
                f"{LABELS[first]} is above {LABELS[second]} in {wins} of {len(rows)} ({clear} by more than "
                f"{CLEAR:g} standard errors; least at {_at(row)}, by {mean:.1f} ± {error:.1f}"
                + (f"; not at {', '.join(lost)})" if lost else ")")
            )
    return (
        f'That the regularised model "outperforms the un-regularized one" in all scenarios '
        f"{_verdict(everywhere)}: " + "; ".join(parts) + "."
    )


def _on_sign(rows: list[Row], name: str) -> str:
    negative = [row for row in rows if row[name] < 0]
    clear = sum(row[name] < -CLEAR * row[f"{name}_stderr"] for row in rows)
    text = (
        f'"The un-regularized DRO model has negative improvements in general", {LABELS[name]}, '
        f"{_verdict(2 * len(negative) > len(rows))}: J is negative in {len(negative)} of {len(rows)} "
        f"scenarios, in {clear} by more than {CLEAR:g} standard errors ({_ranges(rows, name)})."
    )
    others = [_at(row) for row in rows if row[name] >= 0]
    return text + (f" It is not at {', '.join(others)}." if others else "")


def _ranges(rows: list[Row], name: str) -> str:
    parts = []
    for M, some in by_covariates(rows).items():
        ends = sorted(
            {f"{min(row[name] for row in some):.1f}", f"{max(row[name] for row in some):.1f}"}, key=float
        )
        parts.append(f"M = {M}: {' to '.join(ends)}")
    return "; ".join(parts)


def _on_sizes(rows: list[Row], name: str) -> str:
    positive = sum(row[name] > 0 for row in rows)
    clear = sum(row[name] > CLEAR * row[f"{name}_stderr"] for row in rows)
    return (
        f"{LABELS[name]} improves on ERM in {positive} of {len(rows)} scenarios, in {clear} by more than "
        f"{CLEAR:g} standard errors ({_ranges(rows, name)})."
    )


def _on_explanation(rows: list[Row]) -> str:
    """Whether a solver that comes nearer to the worst case mends what FGM does worse than ERM."""
    quote = 'That the failure is "mainly due to the computational intractability"'
    stronger = [row for row in rows if row["fgm"] < 0 and row["ifgm_worst"] < row["fgm_worst"]]
    if not stronger:
        return f"{quote} cannot be judged: nowhere is FGM below ERM and IFGM nearer to the worst case."
    worse = [row for row in stronger if row["ifgm"] < row["fgm"]]
    undecided = 0 < len(worse) < len(stronger)
    verdict = "is not decided" if undecided else _verdict(not worse)
    means = {k: float(np.mean([row[k] for row in stronger])) for k in ("fgm", "ifgm", "nothing")}
    costs = [float(np.mean([row[f"{k}_worst"] for row in stronger])) for k in UNREGULARISED]
    return (
        f"{quote} {verdict}. In {len(stronger)} of {len(rows)} scenarios FGM is below ERM and the rules of "
        f"IFGM have a lower worst cost in training than its own (mean {costs[1]:.2f} against "
        f"{costs[0]:.2f}); of these, the better solver has the lower improvement in {len(worse)} (mean "
        f"{means['ifgm']:.1f} against {means['fgm']:.1f}; theta = 0 has {means['nothing']:.1f})."
    )


def _on_levels(table: Table) -> str:
    levels = table.config.levels
    parts = []
    for row in _of_levels(table):
        best = max(levels, key=lambda L: float(row[f"L{L}"]))
        part = f"{_at(row)}: {', '.join(format(row[f'L{L}'], '.1f') for L in levels)}, most at L = {best}"
        if 0 in levels and best > 0:
            mean, error = _difference(row, f"L{best}", "L0")
            part += f", by {mean:.1f} ± {error:.1f} over L = 0"
        parts.append(part)
    return (
        f"The level, which the paper does not give, is part of the model. J of SG for L = "
        f"{', '.join(map(str, levels))}, at {'; at '.join(parts)}. L = 0 is noise without regard to the loss."
    )


def _on_descent(table: Table, rows: list[Row]) -> str:
    if table.config.reading == "prices":
        return "ERM is trained by the same descent as the other methods; it has no exact solution here."
    far = max(rows, key=lambda row: abs(float(row["erm"])))
    return (
        f"ERM by the same descent has an improvement of {far['erm']:.1f} over the exact one at the worst "
        f"({_at(far)}): so much of the other numbers may be due to descent."
    )

"""What the study of the cart and pole shows: its tables and its findings."""

from __future__ import annotations

from typing import Any

import numpy as np

from phiball.experiments.framework.tables import ReportTable
from phiball.experiments.framework.tasks import Table
from phiball.experiments.studies.cartpole.figures import (
    METHODS,
    PLACES,
    SHOWN,
    curves_of,
    error_of,
    mean_of,
    methods_by,
    returns,
    tables_of,
)

PAPER = {  # the return and its error bar: regular, robust
    "original": ((469.42, 19.03), (487.11, 9.09)),
    "heavy": ((187.63, 29.40), (394.12, 12.01)),
    "short": ((355.54, 28.89), (443.17, 9.98)),
    "strong g": ((271.41, 20.7), (418.42, 13.64)),
}
PAPER_TRIALS = 10


def _plus_minus(values: Any, sign: str = "") -> str:
    return f"{mean_of(values):{sign}.0f} ± {error_of(values):.0f}"


# --- Tables -----------------------------------------------------------------------------------------


def tables(table: Table) -> list[ReportTable]:
    """The paper's table with ours beside it; other radii and prices; other tables and initial values."""
    return [_returns(table), _sweep(table), _q_tables(table)]


def _returns(table: Table) -> ReportTable:
    lines = []
    for place, numbers in PAPER.items():
        regular, outside, inside = (returns(table, method, place) for method in METHODS)
        lines.append(
            (
                place,
                *(f"{value:.0f} ± {bar:.0f}" for value, bar in numbers),
                *(_plus_minus(values) for values in (regular, outside, inside)),
                *(_plus_minus(values, "+") for values in (outside - regular, inside - outside)),
            )
        )
    count = len(returns(table, "regular", "original"))
    compared = ("robust - regular", "inside - robust")
    return ReportTable(
        "Returns",
        ("problem", "paper: regular", "paper: robust", "regular", "robust", "maximum inside", *compared),
        lines,
        f"Means over {count} trials and their standard errors; differences are within a trial. The paper has "
        f"{PAPER_TRIALS} trials and does not say what its error bars are. Episodes are cut off at "
        f"{table.config.eval_cap} steps.",
    )


def _sweep(table: Table) -> ReportTable:
    named = {"regular": "regular"}
    for what in ("rho", "eta"):
        named |= {f"{what} {value:g}": method for value, method in methods_by(table, what).items()}
    lines = [
        (name, *(_plus_minus(returns(table, method, place)) for place in PLACES))
        for name, method in named.items()
    ]
    note = f"Robust, the maximum outside; rho counts {table.config.reading}."
    return ReportTable("Radius and price", ("method", *PLACES), lines, note)


def _q_tables(table: Table) -> ReportTable:
    lines = [
        (
            _name(at),
            f"{at[1]:g}",
            str(len(returns(table, "regular", "original", at))),
            *(_plus_minus(returns(table, m, place, at)) for place in SHOWN for m in METHODS),
        )
        for at in tables_of(table)
    ]
    columns = (f"{place}: {name}" for place in SHOWN for name in ("regular", "robust", "inside"))
    return ReportTable("Tables and initial values", ("table", "initial", "trials", *columns), lines)


def _name(at: tuple[str, float]) -> str:
    return at[0].replace("x", ",")


# --- Findings ---------------------------------------------------------------------------------------


def findings(table: Table) -> list[str]:
    """What the tables say of the paper's statements."""
    return [_better(table), _faster(table)]


def _verdict(difference: Any) -> str:
    """Higher, lower or neither, beyond two standard errors."""
    ratio = mean_of(difference) / max(error_of(difference), 1e-9)  # two tables may be equal
    return "higher" if ratio > 2 else "lower" if ratio < -2 else "no different"


def _compare(table: Table, place: str) -> str:
    difference = returns(table, "outside", place) - returns(table, "regular", place)
    return f"{_verdict(difference)} ({_plus_minus(difference, '+')})"


def _better(table: Table) -> str:
    found = {place: _compare(table, place) for place in PLACES}
    higher = sum(text.startswith("higher") for text in found.values())
    return (
        f'"Consistently outperforms": beyond two standard errors, robust returns are higher in {higher} of '
        f"{len(PLACES)} problems. {'; '.join(f'{place}: {text}' for place, text in found.items())}."
    )


def _faster(table: Table) -> str:
    regular, robust = curves_of(table, "regular"), curves_of(table, "outside")
    difference = np.mean(robust, axis=1) - np.mean(regular, axis=1)
    return (
        f'"Learns more efficiently": training episodes take {mean_of(regular):.0f} steps on average in the '
        f"regular runs and {mean_of(robust):.0f} in the robust ones ({_verdict(difference)}: "
        f"{_plus_minus(difference, '+')})."
    )

"""What the study of the cart and pole shows: its tables and its findings."""

from __future__ import annotations

from math import sqrt
from typing import Any

import numpy as np

from phiball.experiments.framework.tables import ReportTable
from phiball.experiments.framework.tasks import Table
from phiball.experiments.studies.cartpole.figures import (
    METHODS,
    PLACES,
    SHOWN,
    WINDOW,
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
PAPER_TRIALS, PAPER_CAP = 10, 400


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
    return [
        _cap(table),
        _better(table),
        _drop(table),
        _faster(table),
        _inside(table),
        _ranges(table),
        _tables(table),
    ]


def _verdict(difference: Any) -> str:
    """Higher, lower or neither, beyond two standard errors."""
    ratio = mean_of(difference) / max(error_of(difference), 1e-9)  # two tables may be equal
    return "higher" if ratio > 2 else "lower" if ratio < -2 else "no different"


def _sorted(differences: dict[str, Any]) -> str:
    """Which of these are higher, lower or neither, in words."""
    parts = []
    for verdict in ("higher", "no different", "lower"):
        those = [
            f"{name} ({_plus_minus(d, '+')})" for name, d in differences.items() if _verdict(d) == verdict
        ]
        if those:
            parts.append(f"{verdict}: {', '.join(those)}")
    return "; ".join(parts)


def _against_regular(table: Table, method: str, place: str, at: tuple[str, float] | None = None) -> Any:
    return returns(table, method, place, at) - returns(table, "regular", place, at)


def _cap(table: Table) -> str:
    above = [value for row in PAPER.values() for value, _ in row if value > PAPER_CAP]
    return (
        f"{len(above)} of the paper's {2 * len(PAPER)} returns exceed {PAPER_CAP}, the cap of its training "
        f"figure: {', '.join(f'{value:g}' for value in above)}. Here training is capped at "
        f"{table.config.train_cap} steps and evaluation at {table.config.eval_cap}."
    )


def _better(table: Table) -> str:
    differences = {place: _against_regular(table, "outside", place) for place in PLACES}
    agreeing = sum(_verdict(d) == "higher" for d in differences.values())
    ten = [float(np.std(d, ddof=1)) / sqrt(PAPER_TRIALS) for d in differences.values()]
    return (
        f'"Consistently outperforms": beyond two standard errors, robust returns are higher in {agreeing} of '
        f"{len(PLACES)} problems. Robust minus regular is {_sorted(differences)}. With {PAPER_TRIALS} trials "
        f"the standard errors would be {min(ten):.0f} to {max(ten):.0f}."
    )


def _drop(table: Table) -> str:
    def parts(values: dict[str, float]) -> str:
        shares = (f"{place} {values[place] / values['original']:.0%}" for place in PLACES[1:])
        return ", ".join(shares)

    printed = {place: PAPER[place][0][0] for place in PLACES}
    regular = {place: mean_of(returns(table, "regular", place)) for place in PLACES}
    robust = {place: mean_of(returns(table, "outside", place)) for place in PLACES}
    return (
        f"What is left of the original return in other physics: regular {parts(regular)}; robust "
        f"{parts(robust)}; the paper's regular {parts(printed)}."
    )


def _faster(table: Table) -> str:
    regular, robust = curves_of(table, "regular"), curves_of(table, "outside")
    difference = np.mean(robust, axis=1) - np.mean(regular, axis=1)
    half = table.config.train_cap / 2
    return (
        f'"Learns more efficiently": training episodes take {mean_of(regular):.0f} steps on average in the '
        f"regular runs and {mean_of(robust):.0f} in the robust ones ({_verdict(difference)}: "
        f"{_plus_minus(difference, '+')}). A mean of {half:g} steps is reached {_reached(regular, half)} in "
        f"the regular runs, {_reached(robust, half)} in the robust ones."
    )


def _reached(curves: Any, length: float) -> str:
    reached = np.flatnonzero(np.mean(curves, axis=0) >= length)
    return f"after {WINDOW * (reached[0] + 1)} episodes" if reached.size else "never"


def _inside(table: Table) -> str:
    differences = {p: returns(table, "inside", p) - returns(table, "outside", p) for p in PLACES}
    return f"With the maximum inside the soft minimum and not outside, returns are {_sorted(differences)}."


def _ranges(table: Table) -> str:
    sentences = []
    for what in ("rho", "eta"):
        for place in SHOWN:
            methods = methods_by(table, what).items()
            differences = {f"{v:g}": _against_regular(table, method, place) for v, method in methods}
            sentences.append(f"By {what}, {place}, robust minus regular is {_sorted(differences)}.")
    return " ".join(sentences)


def _tables(table: Table) -> str:
    sentences = []
    for initial in dict.fromkeys(initial for _, initial in tables_of(table)):
        for place in SHOWN:
            differences = {
                _name(at): _against_regular(table, "outside", place, at)
                for at in tables_of(table)
                if at[1] == initial
            }
            where = f"On tables that begin at {initial:g}, {place},"
            sentences.append(f"{where} robust minus regular is {_sorted(differences)}.")
    return " ".join(sentences)

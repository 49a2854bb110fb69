"""The tables of the study of supervised learning, and the verdicts on the paper's statement.

A panel is a data set and an attack. For each method and trial it has one number, the mean error over the
ratios of the attack (or the error at the largest). Methods are compared within trials, which share a seed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean
from typing import Any, TypeAlias

from phiball.experiments.framework.tables import ReportTable
from phiball.experiments.framework.tasks import Row, Table
from phiball.experiments.studies.supervised.methods import CHOSEN, FAMILIES, Reading, fixed, readings
from phiball.experiments.training.trials import (
    LEVEL,
    Difference,
    count_signs,
    data_of,
    difference,
    plus_minus,
    too_small,
    values,
)

ATTACKS = ("noise l2", "noise linf", "PGM l2", "PGM linf")
GUESSING = 80.0  # clean error in %; ten classes by chance have 90
WORDS = ("best", "tied", "not best")

ColumnSelector: TypeAlias = Callable[[Any, str], list[str]]


def every(config: Any, attack: str) -> list[str]:
    """The columns of an attack, from its smallest ratio to its largest."""
    return [f"{attack} {ratio:g}" for ratio in config.ratios[attack]]


def largest(config: Any, attack: str) -> list[str]:
    """The column of its largest ratio."""
    return every(config, attack)[-1:]


def columns_of(config: Any, kind: str) -> list[str]:
    """The columns of "noise" or "PGM" in both norms."""
    return [name for attack in ATTACKS if attack.startswith(kind) for name in every(config, attack)]


def score(row: Row) -> float:
    """The mean over clean images and the four attacks, each over its ratios, by which settings are chosen."""
    means = [
        fmean(value for name, value in row.items() if name.startswith(f"{attack} ")) for attack in ATTACKS
    ]
    return fmean([row["clean"], *means])


def methods_of(table: Table) -> list[str]:
    """The methods that have results: those of the paper's settings first, then the chosen ones."""
    present = {row["method"] for row in table.rows if row["stage"] == "report"}
    return [name for name in (*fixed(table.config), *map("{}, chosen".format, CHOSEN)) if name in present]


def family_of(method: str) -> str:
    """The family of a method of the second stage."""
    return max((name for name in (*FAMILIES, *CHOSEN) if method.startswith(name)), key=len)


def evaluations(table: Table, method: str) -> float:
    """The evaluations per image of a method; all settings of a family cost the same."""
    return next(float(row["evaluations"]) for row in table.rows if row["method"] == method)


# --- Verdicts ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Verdict:
    """The verdict on a method in a panel: one of WORDS, and the difference that decides it."""

    word: str
    decisive: Difference

    def __str__(self) -> str:
        return f"{self.word} ({self.decisive}, {self.decisive.other})"


def verdict(table: Table, reading: Reading, data: str, columns: list[str]) -> Verdict | None:
    """Compare the method of a reading with its baselines; None if one of them is missing.

    best: significantly below every baseline; not best: significantly above one; else tied. Decisive is the
    lowest baseline; with "not best", the lowest of those significantly below the method.
    """
    candidates = [difference(table, data, columns, reading.ours, other) for other in reading.baselines]
    differences = [d for d in candidates if d is not None]
    if not differences or len(differences) < len(candidates):
        return None
    above = [d for d in differences if d.sign > 0]
    decisive = max(above or differences, key=lambda d: d.mean)
    best = all(d.sign < 0 for d in differences)
    return Verdict("not best" if above else "best" if best else "tied", decisive)


def panels(table: Table, reading: Reading, select: ColumnSelector) -> dict[tuple[str, str], Verdict]:
    """The verdict in each panel (data set, attack) whose methods all have results."""
    found = {
        (data, attack): verdict(table, reading, data, select(table.config, attack))
        for attack in ATTACKS
        for data in data_of(table)
    }
    return {place: result for place, result in found.items() if result is not None}


# --- Tables -----------------------------------------------------------------------------------------


def tables(table: Table) -> list[ReportTable]:
    """Errors of all methods, verdicts, and comparisons at equal cost."""
    found = [
        _errors(table),
        _verdicts(table, "Verdicts on RT-MLMC: mean over ratios", every, _rule()),
        _verdicts(table, "Verdicts on RT-MLMC: the largest ratio", largest, "By the same rule."),
        _pairs(table),
    ]
    return [report_table for report_table in found if report_table.rows]


def _errors(table: Table) -> ReportTable:
    kinds = {"clean": ["clean"], **{kind: columns_of(table.config, kind) for kind in ("noise", "PGM")}}
    lines = [
        (
            method,
            f"{evaluations(table, method):.3g}",
            *(
                plus_minus(values(table, data, method, names))
                for data in data_of(table)
                for names in kinds.values()
            ),
        )
        for method in methods_of(table)
    ]
    return ReportTable(
        "Errors in percent",
        ("method", "evaluations", *(f"{data} {kind}" for data in data_of(table) for kind in kinds)),
        lines,
        "Means over trials and their standard errors; of noise and PGM over both norms of the attack and all "
        "ratios. Evaluations are per image in training.",
    )  # fmt: skip


def _verdicts(table: Table, title: str, select: ColumnSelector, note: str) -> ReportTable:
    data, lines = data_of(table), []
    for reading in readings(table.config):
        verdicts = panels(table, reading, select)
        lines += [
            (reading.name, attack, *(str(verdicts.get((name, attack), "-")) for name in data))
            for attack in ATTACKS
            if verdicts
        ]
    return ReportTable(title, ("reading", "attack", *data), lines, note, left=2)


def _rule() -> str:
    return (
        "best: significantly below every baseline; not best: significantly above one; else tied. In "
        "brackets: errors of RT-MLMC minus those of the lowest baseline (with not best, the lowest of those "
        "below it), within trials: mean and standard error, in points. Significant is outside of Student's "
        "interval of "
        f"{100 * LEVEL:g} % and more than one image; the interval does not cover the choice of test images, "
        "which all trials share."
    )


def _pairs(table: Table) -> ReportTable:
    """RT-MLMC against noise of equal cost, and tilted points against random-start FGM."""
    ends = [f" {norm} {table.config.rho:g}" for norm in table.config.norms] + [", chosen"]
    pairs = [(f"RT-MLMC{end}", f"noise x4{end}") for end in ends]
    pairs.append(("tilted, chosen", "random-start FGM, chosen"))
    lines = []
    for ours, other in pairs:
        found = [
            difference(table, data, every(table.config, attack), ours, other)
            for data in data_of(table)
            for attack in ATTACKS
        ]
        differences = [d for d in found if d is not None]
        if differences:
            means = [d.mean for d in differences]
            counts = map(str, count_signs(differences))
            lines.append((ours, other, *counts, f"{min(means):+.1f} to {max(means):+.1f}"))
    return ReportTable(
        "Methods of equal cost, by panel",
        ("method", "against", "lower", "higher", "undecided", "difference"),
        lines,
        "Differences of the mean errors over ratios, in points.",
        left=2,
    )


# --- Findings ---------------------------------------------------------------------------------------


def findings(table: Table) -> list[str]:
    """The verdict on the paper's statement, methods near guessing, and a caveat for small runs."""
    return [text for text in (_outperforms(table), _guessing(table), too_small(table)) if text]


def _outperforms(table: Table) -> str:
    """In how many readings of the paper RT-MLMC is best in every panel."""
    judged = {reading.name: panels(table, reading, every).values() for reading in readings(table.config)}
    judged = {name: verdicts for name, verdicts in judged.items() if verdicts}
    if not judged:
        return "RT-MLMC is not judged: no reading of the paper has all of its methods here (--methods)."
    sums, whole = [], 0
    for name, verdicts in judged.items():
        words = [v.word for v in verdicts]
        whole += set(words) == {"best"}
        sums.append(f"{name} {' / '.join(str(words.count(word)) for word in WORDS)}")
    return (
        '"Consistently outperforms all baselines", that is, RT-MLMC is best in every panel, holds in '
        f"{whole} of {len(judged)} readings of the paper. Panels in which it is {' / '.join(WORDS)}: "
        f"{'; '.join(sums)}."
    )


def _guessing(table: Table) -> str:
    methods = []
    for method in methods_of(table):
        for data in data_of(table):
            clean = values(table, data, method, ["clean"])
            count = sum(error > GUESSING for error in clean)
            if count:
                methods.append(f"{method} on {data} ({count} of {len(clean)} trials)")
    if not methods:
        return ""
    return f"Near guessing, with a clean error above {GUESSING:g} %: {', '.join(methods)}."

"""Supervised learning: numbers of its table, and verdicts on the paper's statement.

A panel is a data set and an attack. For each method and trial it has one number, the mean error over the
ratios of the attack (or the error at one of them). Methods are compared within trials, which share a seed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from math import inf, nan, sqrt
from statistics import fmean, stdev
from typing import Any, TypeAlias

from phiball.experiments.framework.tasks import Row, Table
from phiball.experiments.studies.supervised.attacks import ATTACKS
from phiball.experiments.studies.supervised.methods import CHOSEN, FAMILIES, Reading, fixed, readings

LEVEL = 0.95  # of the intervals
GUESSING = 80.0  # clean error in %; ten classes by chance have 90
WORDS = ("best", "tied", "not")

ColumnSelector: TypeAlias = Callable[[Any, str], list[str]]


def every(config: Any, attack: str) -> list[str]:
    """The columns of an attack, from its smallest ratio to its largest."""
    return [f"{attack} {ratio:g}" for ratio in config.ratios[attack]]


def middle(config: Any, attack: str) -> list[str]:
    """The column of its middle ratio."""
    columns = every(config, attack)
    return [columns[len(columns) // 2]]


def largest(config: Any, attack: str) -> list[str]:
    """The column of its largest ratio."""
    return every(config, attack)[-1:]


def score(row: Row) -> float:
    """What settings are chosen by: the mean over clean images and the four attacks, each over its ratios."""
    means = [
        fmean(value for name, value in row.items() if name.startswith(f"{attack} ")) for attack in ATTACKS
    ]
    return fmean([row["clean"], *means])


def rows_of(table: Table, data: str, method: str) -> list[Row]:
    """The rows of a method on the test images, one per trial."""
    return [
        row for row in table.rows if (row["stage"], row["data"], row["method"]) == ("report", data, method)
    ]


def values(table: Table, data: str, method: str, columns: Iterable[str]) -> list[float]:
    """The mean over some columns, one per trial."""
    columns = list(columns)
    return [fmean(row[name] for name in columns) for row in rows_of(table, data, method)]


def data_of(table: Table) -> list[str]:
    """The data sets that have results."""
    return list(dict.fromkeys(row["data"] for row in table.rows if row["stage"] == "report"))


def methods_of(table: Table) -> list[str]:
    """The methods that have results: those of the paper's settings first, then the chosen ones."""
    present = {row["method"] for row in table.rows if row["stage"] == "report"}
    return [name for name in asked_for(table.config) if name in present]


def asked_for(config: Any) -> list[str]:
    """The methods that a configuration asks for, in the order of all tables."""
    return [*fixed(config), *(f"{family}, chosen" for family in CHOSEN if family in config.chosen)]


def join_names(methods: Iterable[str]) -> str:
    """Join names of methods by commas, for a sentence."""
    return ", ".join(f"chosen {m.removesuffix(', chosen')}" if m.endswith(", chosen") else m for m in methods)


def pluralize(number: float, thing: str) -> str:
    """A number of things, in the singular if it is one."""
    text = str(number) if isinstance(number, int) else f"{number:.3g}"
    return f"{text} {thing}{'' if number == 1 else 's'}"


def family_of(method: str) -> str:
    """The family of a method of the second stage."""
    return max((name for name in (*FAMILIES, *CHOSEN) if method.startswith(name)), key=len)


def evaluations(table: Table, method: str) -> float:
    """The evaluations per data point of a method; all settings of a family cost the same."""
    return next(float(row["evaluations"]) for row in table.rows if row["method"] == method)


def error_of(numbers: list[float]) -> float:
    """The standard error of the mean; NaN for a single number."""
    return stdev(numbers) / sqrt(len(numbers)) if len(numbers) > 1 else nan


def guessing(table: Table, data: str, method: str) -> int:
    """The number of trials in which the classifier is near guessing: constant, or barely trained."""
    return sum(row["clean"] > GUESSING for row in rows_of(table, data, method))


# --- Verdicts ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Difference:
    """Errors of a method minus those of `other`, over the trials that both have, in percentage points."""

    other: str
    mean: float
    stderr: float
    bound: float  # beyond it, the difference is clear

    @property
    def sign(self) -> int:
        """1 or -1 where the difference is clear, and 0 elsewhere."""
        return (self.mean > self.bound) - (self.mean < -self.bound)

    @property
    def word(self) -> str:
        """How the first method compares: lower, undecided or higher."""
        return {-1: "lower", 0: "undecided", 1: "higher"}[self.sign]

    def __str__(self) -> str:
        bar = "" if self.stderr != self.stderr else f" ± {self.stderr:.1f}"
        return f"{self.mean:+.1f}{bar}"


def difference(table: Table, data: str, columns: list[str], ours: str, other: str) -> Difference | None:
    """The mean over columns of `ours` minus that of `other`; None unless they share a trial.

    It is clear outside of Student's interval, and if it is more than one image.
    """
    first, second = ({row["trial"]: row for row in rows_of(table, data, method)} for method in (ours, other))
    pairs = [(row, second[trial]) for trial, row in first.items() if trial in second]
    if not pairs:
        return None
    differences = [fmean(a[name] for name in columns) - fmean(b[name] for name in columns) for a, b in pairs]
    bar, image = error_of(differences), 100 / pairs[0][0]["tested on"]
    bound = max(student(len(differences)) * bar, image) if len(differences) > 1 else inf
    return Difference(other, fmean(differences), bar, bound)


@cache
def student(trials: int) -> float:
    """The half-width, in standard errors, of Student's interval of LEVEL."""
    return float(import_module("scipy.stats").t.ppf((1 + LEVEL) / 2, trials - 1))


@dataclass(frozen=True)
class Verdict:
    """The verdict on a method in a panel: one of WORDS, and the difference that decides it."""

    word: str
    decisive: Difference

    @property
    def lowest(self) -> bool:
        """Whether the mean is below that of each baseline, clearly or not."""
        return self.decisive.mean < 0

    def __str__(self) -> str:
        return f"{self.word} ({self.decisive}, {self.decisive.other})"


def verdict(table: Table, reading: Reading, data: str, columns: list[str]) -> Verdict | None:
    """best: clearly below every baseline; not: clearly above one; else tied. None if a method is missing."""
    candidates = [difference(table, data, columns, reading.ours, other) for other in reading.baselines]
    differences = [d for d in candidates if d is not None]
    if not differences or len(differences) < len(candidates):
        return None
    above = [d for d in differences if d.sign > 0]
    decisive = max(above or differences, key=lambda d: d.mean)
    clear = all(d.sign < 0 for d in differences)
    return Verdict("not" if above else "best" if clear else "tied", decisive)


def panels(
    table: Table, reading: Reading, select: ColumnSelector, *, alive: bool = False
) -> dict[tuple[str, str], Verdict]:
    """The verdict in each panel (data set, attack) whose methods all have results.

    `alive`: only against baselines that are never near guessing.
    """
    verdicts = {}
    for attack in ATTACKS:
        for data in data_of(table):
            baselines = tuple(b for b in reading.baselines if not (alive and guessing(table, data, b)))
            result = verdict(table, replace(reading, baselines=baselines), data, select(table.config, attack))
            if result is not None:
                verdicts[data, attack] = result
    return verdicts


def comparisons(table: Table) -> list[Reading]:
    """The paper's readings; RT-MLMC against random starts and noise of no more cost; and all as chosen."""
    config, present = table.config, methods_of(table)
    comparisons = readings(config)
    for norm in config.norms:
        at = f"{norm} {config.rho:g}"
        rivals = [n for f in ("random-start FGM", "noise x4") for n in (f"{f} {at}", f"{f}, chosen")]
        rivals = [name for name in rivals if name in present]
        comparisons.append(Reading(f"{norm}, beyond", f"RT-MLMC {at}", tuple(rivals)))
    others = (f"{family}, chosen" for family in CHOSEN if family != "RT-MLMC")
    comparisons.append(
        Reading("chosen", "RT-MLMC, chosen", tuple(name for name in others if name in present))
    )
    return [reading for reading in comparisons if reading.ours in present and reading.baselines]

"""Statistics of trials: means, and differences between methods within trials."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from math import inf, nan, sqrt
from statistics import fmean, stdev

from phiball.experiments.framework.tasks import Row, Table

LEVEL = 0.95  # confidence level of intervals


def trial_rows(table: Table, data: str, method: str) -> list[Row]:
    """Return the rows of a method on the test images, one per trial."""
    wanted = ("report", data, method)
    return [row for row in table.rows if (row["stage"], row["data"], row["method"]) == wanted]


def values(table: Table, data: str, method: str, columns: Iterable[str]) -> list[float]:
    """Return the mean over some columns for each trial."""
    columns = list(columns)
    return [fmean(row[name] for name in columns) for row in trial_rows(table, data, method)]


def data_of(table: Table) -> list[str]:
    """Return the data sets that have results."""
    return list(dict.fromkeys(row["data"] for row in table.rows if row["stage"] == "report"))


def standard_error_of_mean(numbers: list[float]) -> float:
    """Return the standard error of the mean; NaN for a single number."""
    return stdev(numbers) / sqrt(len(numbers)) if len(numbers) > 1 else nan


def plus_minus(numbers: list[float]) -> str:
    """Format the mean and its standard error; a dash if there are no numbers."""
    if not numbers:
        return "-"
    return f"{fmean(numbers):.1f}" + (f" ± {standard_error_of_mean(numbers):.1f}" if len(numbers) > 1 else "")


@dataclass(frozen=True)
class Difference:
    """The error of a method minus that of `other` over common trials, in percentage points."""

    other: str
    mean: float
    stderr: float
    bound: float  # a larger difference is significant

    @property
    def sign(self) -> int:
        """The sign of a significant difference, else 0."""
        return (self.mean > self.bound) - (self.mean < -self.bound)

    def __str__(self) -> str:
        bar = "" if self.stderr != self.stderr else f" ± {self.stderr:.1f}"
        return f"{self.mean:+.1f}{bar}"


def difference(table: Table, data: str, columns: list[str], ours: str, other: str) -> Difference | None:
    """Return the mean over columns of `ours` minus `other`; None without a common trial.

    It is significant if it is outside Student's interval and larger than one image.
    """
    first, second = (
        {row["trial"]: row for row in trial_rows(table, data, method)} for method in (ours, other)
    )
    pairs = [(row, second[trial]) for trial, row in first.items() if trial in second]
    if not pairs:
        return None
    differences = [fmean(a[name] for name in columns) - fmean(b[name] for name in columns) for a, b in pairs]
    bar, image = standard_error_of_mean(differences), 100 / pairs[0][0]["tested on"]
    bound = max(student(len(differences)) * bar, image) if len(differences) > 1 else inf
    return Difference(other, fmean(differences), bar, bound)


@cache
def student(trials: int) -> float:
    """Return the half-width of Student's interval of level LEVEL, in standard errors."""
    return float(import_module("scipy.stats").t.ppf((1 + LEVEL) / 2, trials - 1))

"""Statistics over trials: means of a method, and paired differences between two methods."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from math import inf, isnan, nan, sqrt
from statistics import fmean, stdev

from phiball.experiments.framework.tasks import Row, Table

LEVEL = 0.95  # confidence level of intervals


def trial_rows(table: Table, data: str, method: str) -> list[Row]:
    """Return the rows of a method on the test images, one per trial."""
    wanted = ("report", data, method)
    return [row for row in table.rows if (row["stage"], row["data"], row["method"]) == wanted]


def values(table: Table, data: str, method: str, columns: Iterable[str]) -> list[float]:
    """Return the mean over the columns for each trial of a method."""
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
    """The error of a method minus the error of `other`, paired by trial, in percentage points."""

    other: str
    mean: float
    stderr: float
    bound: float  # a mean beyond ±bound is significant

    @property
    def sign(self) -> int:
        """The sign of a significant difference, else 0."""
        return (self.mean > self.bound) - (self.mean < -self.bound)

    def __str__(self) -> str:
        return f"{self.mean:+.1f}" + ("" if isnan(self.stderr) else f" ± {self.stderr:.1f}")


def difference(table: Table, data: str, columns: list[str], method: str, other: str) -> Difference | None:
    """Return the error of `method` minus that of `other`, paired by trial; None without a common trial.

    Errors are means over the columns. The difference is significant if its absolute value exceeds both the
    half-width of Student's interval and one image.
    """
    first, second = ({row["trial"]: row for row in trial_rows(table, data, m)} for m in (method, other))
    pairs = [(row, second[trial]) for trial, row in first.items() if trial in second]
    if not pairs:
        return None
    differences = [fmean(a[name] for name in columns) - fmean(b[name] for name in columns) for a, b in pairs]
    stderr, image = standard_error_of_mean(differences), 100 / pairs[0][0]["tested on"]
    bound = max(student(len(differences)) * stderr, image) if len(differences) > 1 else inf
    return Difference(other, fmean(differences), stderr, bound)


@cache
def student(trials: int) -> float:
    """Return the half-width of Student's interval at confidence LEVEL, in standard errors."""
    return float(import_module("scipy.stats").t.ppf((1 + LEVEL) / 2, trials - 1))

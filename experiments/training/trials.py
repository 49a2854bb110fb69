"""Statistics of the studies of images: means over trials, and differences of methods within trials."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from math import inf, nan, sqrt
from statistics import fmean, stdev

from phiball.experiments.framework.tasks import Row, Table

LEVEL = 0.95  # of the intervals


def trial_rows(table: Table, data: str, method: str) -> list[Row]:
    """The rows of a method on the test images, one per trial."""
    wanted = ("report", data, method)
    return [row for row in table.rows if (row["stage"], row["data"], row["method"]) == wanted]


def values(table: Table, data: str, method: str, columns: Iterable[str]) -> list[float]:
    """The mean over some columns, one per trial."""
    columns = list(columns)
    return [fmean(row[name] for name in columns) for row in trial_rows(table, data, method)]


def data_of(table: Table) -> list[str]:
    """The data sets that have results."""
    return list(dict.fromkeys(row["data"] for row in table.rows if row["stage"] == "report"))


def standard_error_of_mean(numbers: list[float]) -> float:
    """The standard error of the mean; NaN for a single number."""
    return stdev(numbers) / sqrt(len(numbers)) if len(numbers) > 1 else nan


def plus_minus(numbers: list[float]) -> str:
    """The mean and its standard error; a dash where there are no numbers."""
    if not numbers:
        return "-"
    return f"{fmean(numbers):.1f}" + (f" ± {standard_error_of_mean(numbers):.1f}" if len(numbers) > 1 else "")


@dataclass(frozen=True)
class Difference:
    """Errors of a method minus those of `other`, over the trials that both have, in percentage points."""

    other: str
    mean: float
    stderr: float
    bound: float  # beyond it, the difference is significant

    @property
    def sign(self) -> int:
        """1 or -1 where the difference is significant, and 0 elsewhere."""
        return (self.mean > self.bound) - (self.mean < -self.bound)

    def __str__(self) -> str:
        bar = "" if self.stderr != self.stderr else f" ± {self.stderr:.1f}"
        return f"{self.mean:+.1f}{bar}"


def difference(table: Table, data: str, columns: list[str], ours: str, other: str) -> Difference | None:
    """The mean over columns of `ours` minus that of `other`; None unless they share a trial.

    It is significant outside of Student's interval, and if it is more than one image.
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
    """The half-width, in standard errors, of Student's interval of LEVEL."""
    return float(import_module("scipy.stats").t.ppf((1 + LEVEL) / 2, trials - 1))

"""The report of `verify_solver`, and how it reads in a terminal."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from textwrap import fill

_JOINT = "\0"  # a space at which no line is broken


class Outcome(StrEnum):
    """The outcome of one claim on a solver."""

    PASSED = "passed"
    FAILED = "FAILED"
    RAISED = "RAISED"
    NOT_ASKED = "not asked"


@dataclass(frozen=True)
class SolverCheck:
    """One claim about the inner problem, put to a solver.

    - `id`, `name` and `title` are those of the claim, `examples` how many inner problems were solved.
    - `example`: the smallest inner problem on which it fails; `wrong`: what is wrong there, in words.
    - `returned` and `exact`: what the solver gave for it, and the solution in exact arithmetic.

    The last four are empty unless it failed or raised.
    """

    id: str
    name: str
    title: str
    outcome: Outcome
    examples: int
    example: str
    wrong: str
    returned: str
    exact: str


@dataclass(frozen=True)
class SolverReport:
    """All checks of one solver; `print` it.

    `missing` are the fields that the solver does not return, which are not judged.
    """

    solver: str
    checks: tuple[SolverCheck, ...]
    missing: tuple[str, ...]
    tol: float
    backend: str
    seconds: float

    @property
    def failures(self) -> tuple[SolverCheck, ...]:
        """The checks that failed or raised."""
        return tuple(check for check in self.checks if check.outcome in (Outcome.FAILED, Outcome.RAISED))

    @property
    def passed(self) -> tuple[SolverCheck, ...]:
        """The checks that passed."""
        return tuple(check for check in self.checks if check.outcome is Outcome.PASSED)

    @property
    def ok(self) -> bool:
        """Whether something was checked, and nothing failed."""
        return bool(self.passed) and not self.failures

    def __str__(self) -> str:
        asked = len(self.failures) + len(self.passed)
        summary = (
            f"{len(self.failures)} of {asked} checks failed" if self.failures else f"{asked} checks passed"
        )
        if not asked:
            summary = "nothing was checked"
        lines = [f"{self.solver}: {summary} ({self.backend} arrays, {self.seconds:.0f} s)"]
        for check in self.failures:
            lines += ["", f"{check.outcome}  {check.id} {check.name}  {check.title}"]
            rows = {
                "at": check.example,
                "wrong": check.wrong,
                "returned": check.returned,
                "exact": check.exact,
            }
            lines += [_row(name, text) for name, text in rows.items() if text]
        lines.append("")
        if self.passed:
            passed = [f"{check.id}{_JOINT}{check.name}{_JOINT}({check.examples})" for check in self.passed]
            lines.append(_row("passed", ", ".join(passed), 0))
        left_out = [f"{c.id}{_JOINT}{c.name}" for c in self.checks if c.outcome is Outcome.NOT_ASKED]
        if left_out:
            lines.append(_row("not asked", ", ".join(left_out), 0))
        if self.missing:
            names = ", ".join(self.missing[:-1]) + " and " * (len(self.missing) > 1) + self.missing[-1]
            lines.append(_row("not judged", f"{names}, which the solver does not return", 0))
        if self.tol:
            text = f"values up to {self.tol:g}; weights and mu by the values they give, not entry by entry"
            lines.append(_row("judged", text, 0))
        if any(check.outcome is Outcome.RAISED for check in self.failures):
            text = "divergences=[...], laws=False and batches=False leave out what a solver is not meant for"
            lines.append(_row("hint", text, 0))
        return "\n".join(lines)


def _row(name: str, text: str, indent: int = 8) -> str:
    head = " " * indent + f"{name:<12}"
    lines = fill(text, width=108, initial_indent=head, subsequent_indent=" " * len(head))
    return lines.replace(_JOINT, " ")

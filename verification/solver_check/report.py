"""What `verify_solver` found, and how it reads in a terminal."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from textwrap import fill


class Outcome(StrEnum):
    """What became of one claim on a solver."""

    PASSED = "passed"
    FAILED = "FAILED"
    RAISED = "RAISED"
    NOT_ASKED = "not asked"


@dataclass(frozen=True)
class SolverCheck:
    """One claim about the inner problem, put to a solver.

    - `id` and `title` are those of the claim, `examples` how many inner problems were solved.
    - `example`: the smallest inner problem on which it fails; `wrong`: what is wrong there, in words.
    - `returned` and `exact`: what the solver gave for it, and the solution in exact arithmetic.

    The last four are empty unless it failed or raised.
    """

    id: str
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
        return tuple(one for one in self.checks if one.outcome in (Outcome.FAILED, Outcome.RAISED))

    @property
    def passed(self) -> tuple[SolverCheck, ...]:
        """The checks that passed."""
        return tuple(one for one in self.checks if one.outcome is Outcome.PASSED)

    @property
    def ok(self) -> bool:
        """Whether something was checked, and nothing failed."""
        return bool(self.passed) and not self.failures

    def __str__(self) -> str:
        asked = len(self.failures) + len(self.passed)
        found = (
            f"{len(self.failures)} of {asked} checks failed" if self.failures else f"{asked} checks passed"
        )
        if not asked:
            found = "nothing was checked"
        lines = [f"{self.solver}: {found} ({self.backend} arrays, {self.seconds:.0f} s)"]
        for one in self.failures:
            lines += ["", f"{one.outcome}  {one.id}  {one.title}"]
            rows = {"at": one.example, "wrong": one.wrong, "returned": one.returned, "exact": one.exact}
            lines += [_row(name, text) for name, text in rows.items() if text]
        lines.append("")
        if self.passed:
            lines.append(_row("passed", ", ".join(f"{one.id} ({one.examples})" for one in self.passed), 0))
        left = [one.id for one in self.checks if one.outcome is Outcome.NOT_ASKED]
        if left:
            lines.append(_row("not asked", ", ".join(left), 0))
        if self.missing:
            names = ", ".join(self.missing[:-1]) + " and " * (len(self.missing) > 1) + self.missing[-1]
            lines.append(_row("not judged", f"{names}, which the solver does not return", 0))
        if self.tol:
            said = f"values up to {self.tol:g}; weights and mu by the values they give, not entry by entry"
            lines.append(_row("judged", said, 0))
        if any(one.outcome is Outcome.RAISED for one in self.failures):
            said = "divergences=[...], laws=False and batches=False leave out what a solver is not meant for"
            lines.append(_row("hint", said, 0))
        return "\n".join(lines)


def _row(name: str, text: str, indent: int = 8) -> str:
    head = " " * indent + f"{name:<12}"
    return fill(text, width=108, initial_indent=head, subsequent_indent=" " * len(head))

"""The report of `verify_solver`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from textwrap import fill

_NO_BREAK = "\0"  # printed as a space at which lines are not broken


class Outcome(StrEnum):
    """The outcome of one claim on a solver.

    >>> [outcome.value for outcome in Outcome]
    ['passed', 'FAILED', 'RAISED', 'skipped']
    """

    PASSED = "passed"
    FAILED = "FAILED"
    RAISED = "RAISED"
    SKIPPED = "skipped"


@dataclass(frozen=True)
class SolverCheck:
    """One claim about the inner problem, applied to a solver by `verify_solver`.

    - `id`, `name`, `title`: the claim's id, name and statement in words.
    - `outcome`: an `Outcome`. A claim is skipped if the options exclude all of its problems.
    - `examples`: the number of inner problems solved.
    - `example`: the smallest inner problem on which the solver fails.
    - `wrong`: a description of the failure.
    - `returned`, `exact`: the solver's solution of `example`, and the exact one.

    `example`, `wrong`, `returned` and `exact` are empty unless the solver failed or raised an error.

    >>> SolverCheck("A1", "strong_duality", "Primal is dual.", Outcome.PASSED, 100, "", "", "", "")
    SolverCheck(A1 strong_duality: passed)
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

    def __repr__(self) -> str:
        return f"SolverCheck({self.id} {self.name}: {self.outcome})"


@dataclass(frozen=True)
class SolverReport:
    """The result of `verify_solver`; print it.

    - `solver`: the name of the solver.
    - `checks`: one `SolverCheck` per claim.
    - `missing`: the fields that the solver does not return, which are not checked.
    - `tol`, `backend`: the tolerance, and the backend whose arrays the solver received.
    - `seconds`: the run time.

    >>> passed = SolverCheck("A1", "strong_duality", "Primal is dual.", Outcome.PASSED, 100, "", "", "", "")
    >>> report = SolverReport("my_solver", (passed,), (), 0.0, "numba", 1.0)
    >>> report
    SolverReport(my_solver: 1 checks passed)
    >>> report.ok
    True
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
        """Whether at least one check passed and none failed."""
        return bool(self.passed) and not self.failures

    @property
    def summary(self) -> str:
        """The number of checks that failed, or else that passed, as text."""
        checked = len(self.failures) + len(self.passed)
        if self.failures:
            return f"{len(self.failures)} of {checked} checks failed"
        return f"{checked} checks passed" if checked else "nothing was checked"

    def __repr__(self) -> str:
        return f"SolverReport({self.solver}: {self.summary})"

    def __str__(self) -> str:
        lines = [f"{self.solver}: {self.summary} ({self.backend} arrays, {self.seconds:.0f} s)"]
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
            passed = [
                f"{check.id}{_NO_BREAK}{check.name}{_NO_BREAK}({check.examples})" for check in self.passed
            ]
            lines.append(_row("passed", ", ".join(passed), 0))
        skipped = [f"{c.id}{_NO_BREAK}{c.name}" for c in self.checks if c.outcome is Outcome.SKIPPED]
        if skipped:
            lines.append(_row("skipped", ", ".join(skipped), 0))
        if self.missing:
            names = ", ".join(self.missing[:-1]) + " and " * (len(self.missing) > 1) + self.missing[-1]
            lines.append(_row("unchecked", f"{names}, which the solver does not return", 0))
        if self.tol:
            text = f"{self.tol:g} for values; weights and mu are checked by their primal and dual values"
            lines.append(_row("tolerance", text, 0))
        if any(check.outcome is Outcome.RAISED for check in self.failures):
            text = "divergences=[...], nonuniform=False and batches=False exclude unsupported problems"
            lines.append(_row("hint", text, 0))
        return "\n".join(lines)


def _row(name: str, text: str, indent: int = 8) -> str:
    head = " " * indent + f"{name:<12}"
    lines = fill(text, width=108, initial_indent=head, subsequent_indent=" " * len(head))
    return lines.replace(_NO_BREAK, " ")

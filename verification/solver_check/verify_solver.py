"""Check any solver of the inner problem: every claim about it, on any function."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import count
from math import inf
from time import perf_counter
from typing import Any

from phiball.backends import active
from phiball.backends.progress import Part, Progress
from phiball.refimpl import Divergence
from phiball.verification.framework.claim import Claim
from phiball.verification.framework.evidence import Evidence, Quantity
from phiball.verification.framework.runner import all_claims
from phiball.verification.solver_check.adapter import FIELDS, Options, Trial, on_trial
from phiball.verification.solver_check.report import Outcome, SolverCheck, SolverReport


def inner_claims() -> list[Claim]:
    """The claims that hold for any solver of the inner problem, which is their parameter `solve`."""
    return [claim for claim in all_claims() if claim.any_solver]


def _check(claim: Claim, trial: Trial, effort: float, seed: int, progress: Part) -> SolverCheck:
    statement, seen = on_trial(claim, trial), count()

    def shown(**example: Any) -> Iterator[Evidence]:
        doing = ": shrinking what fails" if trial.failure else ""
        progress.update(next(seen) / (claim.examples * effort), f"{claim.id} {claim.name}{doing}")
        return statement(**example)

    tried = replace(
        claim,
        statement=shown,
        strategies={name: drawn.map(trial.options.adapted) for name, drawn in claim.strategies.items()},
        counterexamples=[],
        mutants={},
    )
    result = tried.run(effort=effort, seed=seed)
    example = wrong = returned = exact = ""
    if result.found and trial.failure is not None:
        example, wrong, returned, exact, raised = trial.failure
        outcome = Outcome.RAISED if raised else Outcome.FAILED
    elif not (trial.asked and trial.judged) or (Quantity.GAP in trial.measured and "gap" in trial.missing):
        outcome = Outcome.NOT_ASKED
    elif result.error:
        outcome, wrong = Outcome.FAILED, result.error
        if trial.failure is not None:  # the search could not repeat what it saw
            example, wrong, returned, exact, _ = trial.failure
            wrong += "; but not each time, for the same losses"
    else:
        outcome = Outcome.PASSED
    texts = (example, wrong, returned, exact)
    return SolverCheck(claim.id, claim.name, claim.title, outcome, trial.asked, *texts)


def verify_solver(
    solve: Callable[..., Any],
    *,
    divergences: Sequence[Divergence] | None = None,
    distributions: bool = True,
    batches: bool = True,
    tol: float = 0.0,
    effort: float = 1.0,
    seed: int = 0,
    progress: bool = True,
) -> SolverReport:
    """Apply every claim about the inner problem to your own solver, and report where it breaks.

    Arguments:
    - `solve`: a function solve(losses, eta, divergence, *, p=None) that takes what
      `phiball.refimpl.worst_case` takes. It returns an object with some of the fields `value`, `mu`,
      `weights` and `gap`; missing fields are not judged.
    - `divergences`: those that it is meant for; all named ones by default.
    - `distributions`: False if it knows the uniform distribution only; then `p` is never passed.
    - `batches`: False if it takes one row of losses only.
    - `tol`: by how much its values may be off, in the units of the losses, which reach 1e6. Weights and mu
      are then judged by the primal and the dual value that they give. Zero asks for rounding. The mass must
      be one to rounding in any case.
    - `effort`: multiplies the number of problems; `seed`: repeats a search.
    - `progress`: whether the claim at hand, how far it is and the time left are shown on the error stream,
      as a bar on a terminal and as a line per minute elsewhere.

    Returns a `SolverReport`; print it. The problems are arrays of the active backend, in float64. It takes
    about half a minute.

    >>> from types import SimpleNamespace
    >>> from phiball.refimpl import QUADRATIC
    >>> def mean_only(losses, eta, divergence):
    ...     return SimpleNamespace(value=losses.mean())
    >>> report = verify_solver(mean_only, divergences=[QUADRATIC], distributions=False, batches=False, effort=0.1)
    >>> report.ok, report.failures[0].returned, report.missing
    (False, 'value 0.5', ('mu', 'weights', 'gap'))
    """
    if not callable(solve):
        raise TypeError(f"solve is {solve!r}; expected a function of losses, eta and a divergence")
    asked = tuple(divergences or ())
    for divergence in asked:
        if not isinstance(divergence, Divergence) or divergence.family is None:
            raise ValueError(f"divergences contains {divergence!r}; expected named ones, such as QUADRATIC")
    if not (isinstance(tol, (int, float)) and 0 <= tol < inf):
        raise ValueError(f"tol is {tol!r}; expected a number, zero or positive")
    if not (isinstance(effort, (int, float)) and 0 < effort < inf):
        raise ValueError(f"effort is {effort!r}; expected a positive number")
    options = Options(asked, distributions, batches, float(tol))
    began, checks = perf_counter(), []
    missing: set[str] = set()
    name = getattr(solve, "__name__", None) or type(solve).__name__
    claims, done = inner_claims(), 0
    total = sum(claim.examples for claim in claims)
    with Progress(name, shown=progress) as whole:
        for claim in claims:
            trial = Trial(solve, options, fixed=not claim.strategies)
            part = whole.part(done / total, (done := done + claim.examples) / total)
            checks.append(_check(claim, trial, effort, seed, part))
            missing |= trial.missing
    absent = tuple(field for field in FIELDS if field in missing)
    return SolverReport(name, tuple(checks), absent, options.tol, active().name, perf_counter() - began)

"""`verify_solver`: every claim about the inner problem, checked on a user's solver."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import count
from math import inf
from time import perf_counter
from typing import Any

from phiball.backends import active
from phiball.backends.progress import Progress, ProgressPart
from phiball.refimpl import Divergence
from phiball.refimpl.inner.divergences import as_divergence
from phiball.verification.framework.claim import Claim
from phiball.verification.framework.evidence import Evidence, Quantity
from phiball.verification.framework.suite import all_claims
from phiball.verification.solver_check.adapter import FIELDS, Options, Trial, statement_on
from phiball.verification.solver_check.solver_report import Outcome, SolverCheck, SolverReport


def inner_claims() -> list[Claim]:
    """Return the claims about the inner problem, which take a solver as their parameter `solve`."""
    return [claim for claim in all_claims() if claim.any_solver]


def _check(claim: Claim, trial: Trial, effort: float, seed: int, progress: ProgressPart) -> SolverCheck:
    """Run one claim on the solver of `trial`."""
    statement, seen = statement_on(claim, trial), count()

    def with_progress(**example: Any) -> Iterator[Evidence]:
        phase = ": shrinking a counterexample" if trial.failure else ""
        progress.update(next(seen) / (claim.examples * effort), f"{claim.id} {claim.name}{phase}")
        return statement(**example)

    adapted = replace(
        claim,
        statement=with_progress,
        strategies={name: drawn.map(trial.options.adapt) for name, drawn in claim.strategies.items()},
        counterexamples=[],
        mutants={},
    )
    result = adapted.run(effort=effort, seed=seed)
    example = wrong = returned = exact = ""
    if result.found and trial.failure is not None:
        example, wrong, returned, exact, raised = trial.failure
        outcome = Outcome.RAISED if raised else Outcome.FAILED
    elif not (trial.solved and trial.checked) or (Quantity.GAP in trial.measured and "gap" in trial.missing):
        outcome = Outcome.SKIPPED
    elif result.error:
        outcome, wrong = Outcome.FAILED, result.error
        if trial.failure is not None:  # Hypothesis ran the failing example again, and it passed
            example, wrong, returned, exact, _ = trial.failure
            wrong += "; the solver does not always fail on this problem"
    else:
        outcome = Outcome.PASSED
    texts = (example, wrong, returned, exact)
    return SolverCheck(claim.id, claim.name, claim.title, outcome, trial.solved, *texts)


def verify_solver(
    solve: Callable[..., Any],
    *,
    divergences: str | Divergence | Sequence[str | Divergence] | None = None,
    nonuniform: bool = True,
    batches: bool = True,
    tol: float = 0.0,
    effort: float = 1.0,
    seed: int = 0,
    progress: bool = True,
) -> SolverReport:
    """Check your own solver of the inner problem against every claim about the inner problem.

    Arguments:
    - `solve`: called as `solve(losses, eta, divergence)` if the losses are equally likely, and as
      `solve(losses, eta, divergence, p=p)` if they have the probabilities `p`, some of which may be zero. It
      returns an object with some of the fields `value`, `mu`, `weights` and `gap` of `WorstCase`; missing
      fields are not checked.
    - `divergences`: the supported divergences, or their names; by default all named divergences.
    - `nonuniform`: False if the solver does not support `p`, which is then never passed.
    - `batches`: False if the solver takes one row of losses at a time.
    - `tol`: the absolute error that `value` may have, for losses up to 1e6; 0 allows rounding errors only.
      With a positive `tol`, the primal value at `weights` and the dual value at `mu` must be accurate to
      `tol`, but `weights` and `mu` themselves are not compared. Weights must sum to one in any case.
    - `effort`: multiplies the number of problems.
    - `seed`: the seed of the search.
    - `progress`: whether to show progress on stderr.

    Returns a `SolverReport`. The problems are float64 arrays of the active backend. A run takes about half a
    minute.

    This solver rounds its values to six decimals, which `tol=1e-6` allows. It has a bug: its log-sum-exp
    subtracts the largest loss even if that loss has probability zero, and underflows.

    >>> import numpy as np
    >>> from types import SimpleNamespace
    >>> def my_worst_case(losses, eta, divergence, *, p=None):
    ...     p = np.full(losses.shape, 1 / losses.size) if p is None else p
    ...     top = losses.max()
    ...     e = p * np.exp((losses - top) / eta)
    ...     value = top + eta * np.log(e.sum())
    ...     return SimpleNamespace(value=value.round(6), weights=e / e.sum())
    >>> report = verify_solver(my_worst_case, divergences=["entropic"], batches=False, tol=1e-6, effort=0.2)
    >>> report
    SolverReport(my_worst_case: 1 of 9 checks failed)
    >>> print(report.failures[0].example)
    losses = (0, 1000), eta = 1, entropic, p = (1, 0)
    >>> print(report.failures[0].wrong)
    value is -inf; expected finite numbers
    """
    if not callable(solve):
        raise TypeError(f"solve is {solve!r}; expected a function of losses, eta and a divergence")
    chosen = [divergences] if isinstance(divergences, (str, Divergence)) else divergences or ()
    supported = tuple(map(as_divergence, chosen))
    for divergence in supported:
        if divergence.family is None:
            raise ValueError(
                f"divergences contains {divergence!r}; expected named divergences, such as QUADRATIC"
            )
    if not (isinstance(tol, (int, float)) and 0 <= tol < inf):
        raise ValueError(f"tol is {tol!r}; expected a number, zero or positive")
    if not (isinstance(effort, (int, float)) and 0 < effort < inf):
        raise ValueError(f"effort is {effort!r}; expected a positive number")
    options = Options(supported, nonuniform, batches, float(tol))
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

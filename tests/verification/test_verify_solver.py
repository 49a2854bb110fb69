"""`verify_solver` passes correct solvers and names the failures of others."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from phiball.backends import backend
from phiball.backends.progress import Progress
from phiball.refimpl import ENTROPIC, QUADRATIC, Divergence, bisection, cressie_read, indicator, worst_case
from phiball.verification import Evidence, Outcome, Quantity, SolverReport, verify_solver
from phiball.verification.solver_check.adapter import Options, Trial

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _numpy() -> Iterator[None]:
    with backend("numpy"):
        yield


def verify_quickly(solve: Callable[..., Any], **options: Any) -> SolverReport:
    """Run a short search, by default with the quadratic divergence, uniform p and no batches."""
    plain: dict[str, Any] = {"divergences": [QUADRATIC], "nonuniform": False, "batches": False, "effort": 0.2}
    return verify_solver(solve, **plain | options)


def failure_of(report: SolverReport, name: str) -> tuple[str, str]:
    """The example on which a claim failed, and the failure in words."""
    check = next(check for check in report.failures if check.id == name)
    assert f"{check.outcome}  {name} {check.name}  {check.title}" in str(report)
    return check.example, check.wrong


def test_worst_case_passes_every_claim() -> None:
    report = verify_solver(worst_case, effort=0.1)
    assert report.ok, str(report)
    assert {check.outcome for check in report.checks} == {Outcome.PASSED}
    ids = {"A1", "A1-conic", *(f"E{k}" for k in (1, 2, 3, 4, 5, 8, 9, 10, 13, 14, 15, 17, 19))}
    assert {check.id for check in report.checks} == ids
    assert str(report).startswith(f"worst_case: {len(report.checks)} checks passed (numpy arrays, ")


def test_solver_gets_arrays_of_the_active_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("rich")
    reported: list[tuple[float, str]] = []
    monkeypatch.setattr(Progress, "update", lambda _, *report: reported.append(report))
    with backend("torch"):
        report = verify_solver(
            worst_case, divergences=[ENTROPIC], nonuniform=False, effort=0.05, progress=True
        )
    assert report.ok, str(report)
    assert report.backend == "torch"
    shares = [share for share, _ in reported]
    assert shares == sorted(shares)
    assert shares[-1] > 0.9
    assert {text.split()[0] for _, text in reported if text} <= {check.id for check in report.checks}


def test_bisection_passes_with_a_tolerance_and_fails_without() -> None:
    solve = partial(bisection, tol=1e-7)
    report = verify_solver(solve, divergences=[QUADRATIC, cressie_read(1.5)], tol=1e-7, effort=0.1)
    assert report.ok, str(report)
    assert "tolerance   1e-07 for values; weights and mu are checked by their primal" in str(report)
    assert "off by" in failure_of(verify_quickly(solve), "A1")[1]


def uniform_solution(losses: Any) -> Any:
    return SimpleNamespace(value=losses.mean(), weights=np.full(losses.shape, 1 / losses.shape[-1]))


def uniform_if_negative(losses: Any, eta: float, d: Divergence) -> Any:
    return worst_case(losses, eta, d) if losses.max() >= 0 else uniform_solution(losses)


def uniform_if_large(losses: Any, eta: float, d: Divergence) -> Any:
    return worst_case(losses, eta, d) if abs(losses).max() < 1e5 else uniform_solution(losses)


def too_much_mass(losses: Any, eta: float, d: Divergence) -> Any:
    s = worst_case(losses, eta, d)
    return replace(s, weights=s.weights * 1.006)


def maximum_at_alpha_one(losses: Any, eta: float, d: Divergence) -> Any:
    if d == indicator(1.0):
        return SimpleNamespace(value=losses.max(), weights=worst_case(losses, 1e-9, ENTROPIC).weights)
    return worst_case(losses, eta, d)


def modifying(losses: Any, eta: float, d: Divergence) -> Any:
    losses -= losses.max()
    return worst_case(losses, eta, d)


def overflowing(losses: Any, eta: float, d: Divergence) -> Any:
    e = np.exp(losses / eta)
    return SimpleNamespace(value=eta * np.log(e.mean()), weights=e / e.sum())


@pytest.mark.parametrize(
    ("solve", "options", "claim", "where", "wrong"),
    [
        (uniform_if_negative, {}, "E8", "losses = (-", "off by"),
        (uniform_if_large, {"effort": 0.5}, "E9", "c = ", "off by"),
        (too_much_mass, {"tol": 1e-2}, "E10", "", "the mass of the weights, 1.006: off by 0.006"),
        (maximum_at_alpha_one, {"divergences": [indicator(1.0)]}, "A1", "indicator(1)", "off by"),
        (overflowing, {"divergences": [ENTROPIC]}, "E19", "eta = ", ""),
        (modifying, {"effort": 0.1}, "E9", "", "it modifies its argument losses"),
    ],
)
def test_common_solver_bugs_are_found(
    solve: Any, options: dict[str, Any], claim: str, where: str, wrong: str
) -> None:
    example, said = failure_of(verify_quickly(solve, **options), claim)
    assert where in example
    assert wrong in said


def raising(losses: Any, eta: float, d: Divergence) -> Any:
    raise ZeroDivisionError("by nought")


def column_weights(losses: Any, eta: float, d: Divergence) -> Any:
    return SimpleNamespace(weights=worst_case(losses, eta, d).weights[:, None])


@pytest.mark.parametrize(
    ("solve", "outcome", "words"),
    [
        (raising, Outcome.RAISED, "it raised ZeroDivisionError: by nought"),
        (lambda f, eta, d: None, Outcome.FAILED, "it returned None, which has no value, mu, weights or gap"),
        (lambda f, eta, d: SimpleNamespace(value="x"), Outcome.FAILED, "value is an object of type str"),
        (lambda f, eta, d: SimpleNamespace(value=np.nan), Outcome.FAILED, "value is nan"),
        (lambda f, eta, d: SimpleNamespace(weights=0 * f), Outcome.FAILED, "the sum of the weights is not"),
        (column_weights, Outcome.FAILED, "weights has shape ("),
    ],
)
def test_invalid_answers_fail_every_claim(solve: Any, outcome: Outcome, words: str) -> None:
    report = verify_quickly(solve, effort=0.1)
    assert {check.outcome for check in report.checks} == {outcome, Outcome.SKIPPED}
    assert all(words in check.wrong for check in report.failures)
    assert all(check.example.startswith("losses = (") for check in report.failures)


def test_excluded_problems_and_missing_fields_are_not_checked() -> None:
    seen = set()

    def solve(losses: Any, eta: float, d: Divergence, **others: Any) -> Any:
        seen.add((losses.ndim, d, tuple(others)))
        return SimpleNamespace(weights=worst_case(losses, eta, d).weights)

    report = verify_quickly(solve, effort=0.1)
    assert report.ok, str(report)
    assert seen == {(1, QUADRATIC, ())}
    assert "unchecked   value, mu and gap, which the solver does not return" in str(report)
    assert "skipped     A1-conic strong_duality_by_cones, E1 indicator_is_average" in str(report)


def test_tolerance_depends_on_the_quantity() -> None:
    """With tol > 0, weights and mu are not compared entry by entry, and only values get the tolerance."""
    for quantity, tol, missing, judged in (
        (Quantity.VALUE, 0.25, set(), 1.0),
        *((quantity, 0.25, set(), None) for quantity in (Quantity.WEIGHTS, Quantity.MU)),
        *((quantity, 0.0, set(), 0.5) for quantity in (Quantity.WEIGHTS, Quantity.MU)),
        *((quantity, 0.25, set(), 0.5) for quantity in (Quantity.MASS, Quantity.GAP)),
        (Quantity.GAP, 0.0, {"mu"}, None),
    ):
        trial = Trial(worst_case, Options((), True, True, tol), fixed=False, calls=2, missing=missing)
        found = trial.with_tolerance(Evidence(1.0, 0.5, "in any words", quantity))
        assert (found and found.tolerance) == judged, (quantity, tol)


def test_invalid_arguments_raise() -> None:
    assert not SolverReport("f", (), (), 0.0, "numpy", 0.0).ok  # a report without checks is not ok
    with pytest.raises(TypeError, match="solve is 3; expected a function"):
        verify_solver(3)  # type: ignore[arg-type]
    for name, value in (("divergences?", ["cubic"]), ("tol", -1), ("effort", 0)):
        with pytest.raises(ValueError, match=f"{name} (is|contains) .*; expected"):
            verify_solver(worst_case, **{name.rstrip("?"): value})

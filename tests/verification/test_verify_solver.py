"""verify_solver: solvers that are right pass, and each fault is found and named."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from phiball.backends import use
from phiball.refimpl import ENTROPIC, QUADRATIC, Divergence, bisection, cressie_read, indicator, worst_case
from phiball.verification import Evidence, Outcome, Quantity, SolverReport, verify_solver
from phiball.verification.solver_check.adapter import Options, Trial
from phiball.verification.solver_check.verify_solver import inner_claims

pytestmark = pytest.mark.slow

SMOOTH = (QUADRATIC, ENTROPIC, cressie_read(1.5))


@pytest.fixture(autouse=True)
def _numpy() -> Iterator[None]:
    with use("numpy"):
        yield


def quick(solve: Callable[..., Any], **options: Any) -> SolverReport:
    """A short search, on the quadratic divergence and one row under the uniform law by default."""
    plain: dict[str, Any] = {"divergences": [QUADRATIC], "laws": False, "batches": False, "effort": 0.2}
    return verify_solver(solve, **{**plain, **options})


def failure_of(report: SolverReport, name: str) -> tuple[str, str]:
    """What is said of a claim that failed: the example, and what is wrong."""
    assert not report.ok
    check = next(check for check in report.failures if check.id == name)
    assert f"{check.outcome}  {name} {check.name}  {check.title}" in str(report)
    return check.example, check.wrong


def uniform(losses: Any) -> Any:
    return SimpleNamespace(value=losses.mean(), weights=np.full(losses.shape, 1 / losses.shape[-1]))


# --- Solvers without fault ------------------------------------------------------------------------


def test_worst_case_passes_everything() -> None:
    report = verify_solver(worst_case, effort=0.1)
    assert report.ok, str(report)
    assert not report.missing
    assert {check.outcome for check in report.checks} == {Outcome.PASSED}
    assert {"A1", "A1-conic", "E1", "E5", "E8", "E19"} <= {check.id for check in report.checks}
    assert str(report).startswith(f"worst_case: {len(report.checks)} checks passed (numpy arrays, ")


@pytest.mark.parametrize("backend", ["torch", "strict"])
def test_the_solver_is_given_arrays_of_the_active_backend(backend: str) -> None:
    pytest.importorskip({"torch": "torch", "strict": "array_api_strict"}[backend])
    with use(backend):
        report = verify_solver(worst_case, divergences=SMOOTH, laws=False, effort=0.05)
    assert report.ok, str(report)
    assert report.backend == backend


def test_bisection_keeps_the_tolerance_that_it_promises() -> None:
    solve = partial(bisection, tol=1e-7)
    report = verify_solver(solve, divergences=SMOOTH, tol=1e-7, effort=0.2)
    assert report.ok, str(report)
    assert "values up to 1e-07; weights and mu by the values they give" in str(report)


def test_bisection_is_not_exact() -> None:
    example, wrong = failure_of(quick(partial(bisection, tol=1e-7)), "A1")
    assert example.endswith("quadratic")
    assert "off by" in wrong


def test_bisection_is_not_for_kinked_divergences() -> None:
    report = verify_solver(
        partial(bisection, tol=1e-6), divergences=[indicator(0.5)], tol=1e-6, effort=0.1, batches=False
    )
    _, wrong = failure_of(report, "A1")
    assert "it raised ValueError: divergence is indicator(0.5), which is kinked" in wrong
    assert {check.outcome for check in report.failures} == {Outcome.RAISED}
    assert "divergences=[...], laws=False and batches=False leave out" in str(report)


# --- Published faults -----------------------------------------------------------------------------


def test_uniform_weights_when_all_losses_are_negative() -> None:
    def solve(losses: Any, eta: float, d: Divergence) -> Any:
        return worst_case(losses, eta, d) if losses.max() >= 0 else uniform(losses)

    report = quick(solve)
    example, wrong = failure_of(report, "E8")
    assert "losses = (-" in example
    assert "off by" in wrong
    assert "All losses negative" in str(report)
    assert "weights (0.5, 0.5)" in str(report)  # the smallest has two points


def test_uniform_weights_beside_an_offset() -> None:
    def solve(losses: Any, eta: float, d: Divergence) -> Any:
        return worst_case(losses, eta, d) if abs(losses).max() < 1e5 else uniform(losses)

    example, wrong = failure_of(quick(solve, effort=0.5), "E9")
    assert "c = 1.04858e+06" in example or "c = -1.04858e+06" in example
    assert wrong.startswith(("the weights: off by", "the value: off by"))


def test_mass_of_a_loose_tolerance() -> None:
    def solve(losses: Any, eta: float, d: Divergence) -> Any:
        s = worst_case(losses, eta, d)
        return replace(s, weights=s.weights * 1.006)

    for tol in (0.0, 1e-2):  # no tolerance in the value excuses it
        _, wrong = failure_of(quick(solve, tol=tol), "E10")
        assert wrong.startswith("the mass of the weights, 1.006: off by 0.006")


def test_an_option_that_is_ignored() -> None:
    def solve(losses: Any, eta: float, d: Divergence, tol: float) -> Any:
        return bisection(losses, eta, d, tol=1e-2)

    _, wrong = failure_of(quick(partial(solve, tol=1e-9), tol=1e-9), "A1")
    assert wrong.startswith(
        ("the value: off by 0.0", "the primal at the weights: off by 0.0", "the dual at mu")
    )
    assert "(allowed 1e-09)" in wrong


def test_alpha_one() -> None:
    def solve(losses: Any, eta: float, d: Divergence) -> Any:
        if d == indicator(1.0):  # "nothing to cut off" taken for "the maximum"
            return SimpleNamespace(value=losses.max(), weights=worst_case(losses, 1e-9, ENTROPIC).weights)
        return worst_case(losses, eta, d)

    report = quick(solve, divergences=[indicator(1.0), indicator(0.5)])
    example, wrong = failure_of(report, "A1")
    assert "indicator(1)" in example
    assert "off by" in wrong


def test_overflow_to_nan() -> None:
    def solve(losses: Any, eta: float, d: Divergence) -> Any:
        e = np.exp(losses / eta)
        return SimpleNamespace(value=eta * np.log(e.mean()), weights=e / e.sum())

    report = quick(solve, divergences=[ENTROPIC])
    example, wrong = failure_of(report, "E19")
    assert "eta = " in example
    assert "; expected finite numbers" in wrong or "off by inf" in wrong
    assert "nan" in str(report)
    assert report.missing == ("mu", "gap")
    assert "mu and gap, which the solver does not return" in str(report)


# --- Answers that cannot be read ------------------------------------------------------------------


def raises(losses: Any, eta: float, d: Divergence) -> Any:
    raise ZeroDivisionError("by nought")


def changes(losses: Any, eta: float, d: Divergence) -> Any:
    losses -= losses.max()
    return worst_case(losses, eta, d)


def column(losses: Any, eta: float, d: Divergence) -> Any:
    s = worst_case(losses, eta, d)
    return SimpleNamespace(weights=s.weights[:, None])


@pytest.mark.parametrize(
    ("solve", "outcome", "words"),
    [
        (raises, Outcome.RAISED, "it raised ZeroDivisionError: by nought"),
        (lambda f, eta, d: None, Outcome.FAILED, "it returned None, which has no value, mu, weights or gap"),
        (lambda f, eta, d: SimpleNamespace(value="x"), Outcome.FAILED, "value is an object of type str"),
        (lambda f, eta, d: SimpleNamespace(value=np.nan), Outcome.FAILED, "value is nan"),
        (lambda f, eta, d: SimpleNamespace(weights=0 * f), Outcome.FAILED, "the mass of the weights is not"),
        (column, Outcome.FAILED, "weights has shape ("),
    ],
)
def test_answer_that_cannot_be_read(solve: Any, outcome: Outcome, words: str) -> None:
    report = quick(solve, effort=0.1)
    assert not report.ok
    assert {check.outcome for check in report.checks} == {outcome, Outcome.NOT_ASKED}
    assert {"A1", "E3", "E8", "E9", "E10", "E15", "E17", "E19"} <= {check.id for check in report.failures}
    assert all(words in check.wrong for check in report.failures)
    assert all(check.example.startswith("losses = (") for check in report.failures)


def test_losses_that_are_changed() -> None:
    _, wrong = failure_of(quick(changes, effort=0.1), "E9")
    assert wrong == "it changes the losses that it is given"


def test_answer_that_is_not_repeatable() -> None:
    rng = np.random.default_rng(0)

    def solve(losses: Any, eta: float, d: Divergence) -> Any:
        s = worst_case(losses, eta, d)
        return replace(s, value=s.value + (rng.random() < 0.05))

    report = quick(solve)
    assert not report.ok
    assert all("off by" in check.wrong for check in report.failures)


# --- What is asked --------------------------------------------------------------------------------


def test_only_what_is_there_is_judged() -> None:
    def solve(losses: Any, eta: float, d: Divergence) -> Any:
        return SimpleNamespace(weights=worst_case(losses, eta, d).weights)

    report = quick(solve)
    assert report.ok, str(report)
    assert report.missing == ("value", "mu", "gap")
    assert "not judged  value, mu and gap, which the solver does not return" in str(report)


def test_claims_for_any_solver_are_the_ones_about_the_inner_problem() -> None:
    ids = [claim.id for claim in inner_claims()]
    assert ids == ["A1", "A1-conic", *(f"E{k}" for k in (1, 2, 3, 4, 5, 8, 9, 10, 13, 14, 15, 17, 19))]
    assert all("solve" in claim.injectable for claim in inner_claims())


def test_tolerance_is_by_the_quantity_and_not_by_the_words() -> None:
    def judged(quantity: Quantity, tol: float, missing: set[str] | None = None) -> Evidence | None:
        trial = Trial(
            worst_case, Options((), True, True, tol), fixed=False, calls=2, missing=missing or set()
        )
        return trial.judge(Evidence(1.0, 0.5, "in any words", quantity))

    value = judged(Quantity.VALUE, 0.25)
    assert value is not None
    assert value.tolerance == 1.0
    for quantity in (Quantity.WEIGHTS, Quantity.MU):
        assert judged(quantity, 0.25) is None
        assert judged(quantity, 0.0) == Evidence(1.0, 0.5, "in any words", quantity)
    for quantity in (Quantity.MASS, Quantity.GAP):
        assert judged(quantity, 0.25) == Evidence(1.0, 0.5, "in any words", quantity)
    assert judged(Quantity.GAP, 0.0, {"mu"}) is None


def test_options_leave_out_what_a_solver_is_not_meant_for() -> None:
    seen = []

    def solve(losses: Any, eta: float, d: Divergence, **others: Any) -> Any:
        seen.append((losses.ndim, d, tuple(others)))
        return worst_case(losses, eta, d)

    report = quick(solve, effort=0.1)
    assert report.ok, str(report)
    assert set(seen) == {(1, QUADRATIC, ())}
    left = {check.id for check in report.checks if check.outcome is Outcome.NOT_ASKED}
    assert left == {"A1-conic", "E1", "E2", "E4", "E5", "E13", "E14"}
    assert "not asked   A1-conic strong_duality_by_cones, E1 indicator_is_average_value_at_risk" in str(
        report
    )


def test_a_solver_without_p_is_told_of_laws() -> None:
    def solve(losses: Any, eta: float, d: Divergence) -> Any:
        return worst_case(losses, eta, d)

    report = quick(solve, laws=True)
    _, wrong = failure_of(report, "E14")
    assert "unexpected keyword argument 'p'" in wrong
    assert "laws=False" in str(report)


def test_nothing_asked_is_not_ok() -> None:
    assert not SolverReport("f", (), (), 0.0, "numpy", 0.0).ok
    assert str(SolverReport("f", (), (), 0.0, "numpy", 0.0)).startswith("f: nothing was checked")


def test_bad_arguments() -> None:
    with pytest.raises(TypeError, match="solve is 3; expected a function"):
        verify_solver(3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="divergences contains 'quadratic'; expected named ones"):
        verify_solver(worst_case, divergences=["quadratic"])  # type: ignore[list-item]
    with pytest.raises(ValueError, match="tol is -1; expected"):
        verify_solver(worst_case, tol=-1)
    with pytest.raises(ValueError, match="effort is 0; expected"):
        verify_solver(worst_case, effort=0)

"""How curves, searches, counterexamples and mutants lead to a verdict."""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from math import exp, inf, nan

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.stats import linregress, t

from phiball.refimpl import ENTROPIC, QUADRATIC
from phiball.verification.framework.claim import Claim, claim, unchecked
from phiball.verification.framework.evidence import Curve, Evidence, Verdict
from phiball.verification.framework.suite import _sort_key, find_claims
from phiball.verification.instances.assumptions import (
    bounded_loss,
    in_the_definition,
    on_an_interval,
    strongly_convex,
)

SCALES = (1.0, 2.0, 4.0, 8.0, 16.0)


def curve(y: tuple[float, ...], x: tuple[float, ...] = SCALES) -> Curve:
    return Curve("error", "n", "error", "the bound", x, y, tuple(2 * v for v in y))


def claim_with_evidence(*pieces: Evidence | Curve, verdict: Verdict = Verdict.HOLDS) -> Claim:
    """A claim that yields these pieces of evidence."""

    @claim("x", id="X", section=2, verdict=verdict)
    def statement() -> Iterator[Evidence | Curve]:
        """Says something."""
        yield from pieces

    return statement


def claim_on(strategy: st.SearchStrategy[int], work: Callable[[int], object], verdict: Verdict) -> Claim:
    """A claim that calls `work` on numbers from the strategy."""

    @claim("x", id="X", section=2, verdict=verdict, n=strategy)
    def statement(n: int) -> object:
        """Says something of a number."""
        return work(n)

    return statement


# --- Curves ---------------------------------------------------------------------------------------


@given(st.lists(st.floats(-3, 3), min_size=5, max_size=5), st.floats(-4, 4))
def test_fitted_slope_agrees_with_numpy_and_scipy(noise: list[float], slope: float) -> None:
    y = tuple(exp(e) * x**slope for x, e in zip(SCALES, noise, strict=True))
    fit = curve(y).fit
    u, v = np.log(SCALES), np.log(y)
    assume(np.ptp(v) > 1e-9)  # scipy returns NaN for a constant
    assert fit.slope == pytest.approx(np.polyfit(u, v, 1)[0], abs=1e-9)
    other = linregress(u, v)
    half = t.ppf(0.995, len(u) - 2) * other.stderr
    # For an exact fit, the interval has the size of rounding errors.
    assert fit.low == pytest.approx(other.slope - half, abs=1e-6)
    assert fit.high == pytest.approx(other.slope + half, abs=1e-6)


def test_curve_is_compared_with_an_exponent_and_a_bound() -> None:
    decreasing = curve(tuple(1 / x for x in SCALES))
    assert decreasing.at_most(-1, 1e-9).holds
    assert not decreasing.at_most(-1.1, 0.05).holds
    assert decreasing.exactly(-1, 1e-9).holds
    assert not decreasing.exactly(0, 0.9).holds
    assert not decreasing.exactly(-2, 0.9).holds
    assert decreasing.below_bound().violation == -0.5
    above = Curve("error", "n", "error", "the bound", SCALES, (1.0,) * 5, (2.0, 2.0, 0.5, 2.0, 2.0))
    assert above.below_bound().violation == 1.0
    assert "exponent -1.000 [-1.000, -1.000]" in decreasing.at_most(-1, 0.1).note


def test_invalid_curves_are_rejected() -> None:
    for place, bad in product(("x", "y", "bound"), (nan, inf, 0.0, -1.0)):
        values = {"x": SCALES, "y": SCALES, "bound": SCALES, place: (*SCALES[:4], bad)}
        with pytest.raises(ValueError, match=f"{place} is .*expected 5 positive numbers"):
            Curve("", "", "", "", **values)
    for y, x in (((1.0, 2.0, 3.0), SCALES[:3]), ((1.0, 2.0, 3.0, 4.0), (1.0, 1.0, 2.0, 4.0))):
        with pytest.raises(ValueError, match="expected at least four scales"):
            curve(y, x)
    with pytest.raises(ValueError, match=r"y is .*expected 5 positive numbers"):
        curve((1.0, 2.0, 3.0, 4.0))


def test_only_claims_without_strategies_may_yield_curves() -> None:
    increasing = curve(SCALES)
    result = claim_with_evidence(increasing, increasing.exactly(1, 1e-9)).run()
    assert (result.verdict, result.curves, result.examples) == (Verdict.HOLDS, (increasing,), 1)
    assert claim_with_evidence(increasing).run().error == "no example was checked"

    by_search = claim_on(st.integers(), lambda n: [increasing, increasing.exactly(1, 1e-9)], Verdict.HOLDS)
    assert "only statements without strategies may" in by_search.run().error


# --- Verdicts -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("violation", "counterexample", "verdict"),
    [
        (0.5, None, Verdict.HOLDS),
        (-inf, None, Verdict.HOLDS),
        (1.5, None, Verdict.REFUTED),
        (inf, None, Verdict.REFUTED),
        (nan, None, Verdict.UNDECIDED),
        (0.5, 2.0, Verdict.CORRECTED),
        (1.5, 2.0, Verdict.REFUTED),
        (0.5, 0.5, Verdict.UNDECIDED),
        (0.5, nan, Verdict.UNDECIDED),
        (1.5, 0.5, Verdict.UNDECIDED),
        (nan, 2.0, Verdict.UNDECIDED),
    ],
)
def test_verdict_follows_from_statement_and_counterexample(
    violation: float, counterexample: float | None, verdict: Verdict
) -> None:
    entry = claim_with_evidence(Evidence(violation, 1.0))
    if counterexample is not None:
        entry.counterexample(margin=1.0)(lambda: Evidence(counterexample, 0.0))
    result = entry.run()
    assert result.verdict is verdict
    assert result.as_recorded == (verdict is Verdict.HOLDS)


@pytest.mark.parametrize(("off", "verdict"), [(0.0, Verdict.CORRECTED), (1.0, Verdict.UNDECIDED)])
def test_counterexample_that_violates_the_assumptions_is_invalid(off: float, verdict: Verdict) -> None:
    entry = claim_with_evidence(Evidence(0.0, 1.0))
    meets = lambda: [Evidence(0.0, 0.0, "f bounded"), Evidence(off, 0.5, "phi convex")]  # noqa: E731
    entry.counterexample(margin=1.0, meets=meets)(lambda: Evidence(2.0, 0.0, "f = (0, 1)"))
    result = entry.run()
    assert result.verdict is verdict
    assert result.counterexamples == ("f = (0, 1)", "it satisfies the assumptions: f bounded, phi convex")
    entry.counterexample(margin=1.0)(list)  # a counterexample without evidence is invalid, too
    assert entry.run().verdict is Verdict.UNDECIDED


def test_no_examples_nan_and_exceptions_are_errors() -> None:
    numbers, none = st.integers(), st.integers().filter(lambda n: False)
    not_a_number = claim_on(numbers, lambda n: Evidence(nan, 1.0), Verdict.REFUTED)
    not_a_number.counterexample(margin=1.0)(lambda: Evidence(2.0, 0.0))
    for entry, error in (
        (claim_with_evidence(), "no example was checked"),
        (claim_on(numbers, lambda n: [], Verdict.HOLDS), ""),
        (claim_on(none, lambda n: Evidence(0, 0), Verdict.HOLDS), ""),
        (not_a_number, "NaN"),
        (claim_on(numbers, lambda n: 1 // 0, Verdict.REFUTED), "ZeroDivisionError: "),
    ):
        result = entry.run()
        assert result.verdict is Verdict.UNDECIDED
        assert result.error
        assert error in result.error


def test_failing_example_is_shrunk() -> None:
    result = claim_on(st.integers(0, 10**6), lambda n: Evidence(n, 99.5), Verdict.HOLDS).run()
    assert (result.found, result.violation, result.tolerance) == ("n = 100", 100.0, 99.5)


def test_search_stops_at_the_first_failure_and_keeps_the_worst_evidence() -> None:
    result = claim_with_evidence(*(Evidence(float(i), 0.5, f"piece {i}") for i in range(3))).run()
    assert (result.found, result.note) == ("the fixed instances: piece 1", "piece 1")
    result = claim_with_evidence(Evidence(-1, 0.5, "a"), Evidence(2, 10, "b"), Evidence(3, 100, "c")).run()
    assert (result.violation, result.tolerance, result.note, result.examples) == (2, 10, "b", 3)


def test_result_reports_the_largest_share_of_a_bound() -> None:
    result = claim_with_evidence(
        Evidence.at_most(0.0, 0.0, 0.0, "nothing of nothing"),
        Evidence.at_most(1.0, 8.0, 1e-9, "far"),
        Evidence.at_most(3.0, 4.0, 1e-3, "near"),
    ).run()
    assert (result.measured, result.bound, result.share, result.closest) == (3.0, 4.0, 0.75, "near")
    assert result.note != "nothing of nothing"  # 0 <= 0 has the smallest margin, but is not informative


# --- Arguments ------------------------------------------------------------------------------------


def test_invalid_evidence_claims_and_mutants_raise() -> None:
    for tolerance in (nan, inf, -1.0):
        with pytest.raises(ValueError, match="tolerance is"):
            Evidence(0.0, tolerance)
    with pytest.raises(ValueError, match="section is None; expected a section"):
        claim("x", id="X", verdict=Verdict.HOLDS)(lambda: Evidence(0, 0))
    with pytest.raises(TypeError, match=r"forumla is 'x'; expected"):
        claim("x", id="X", section=2, verdict=Verdict.HOLDS, forumla="x")
    with pytest.raises(ValueError, match="replaces is 'solver'; expected one of solve"):
        find_claims("A1")[0].mutant("x", replaces="solver")
    with pytest.raises(ValueError, match="expected one of dual, primal"):
        find_claims("C4-gap")[0].mutant("x")


def test_mutant_is_rejected_only_by_failing_evidence() -> None:
    @claim("x", id="X", section=2, verdict=Verdict.HOLDS, n=st.integers(1, 9))
    def positive(n: int, value: float = 1.0) -> Evidence:
        """Is positive."""
        return Evidence(-value, 0.0)

    for name, value in (("negative", -1.0), ("positive", 2.0), ("nan", nan)):
        positive.mutant(name)(value)  # type: ignore[type-var]
    assert [positive.rejects(name) for name in positive.mutants] == [True, False, False]


def test_claims_are_sorted_in_the_order_of_the_paper() -> None:
    def named(name: str, section: str = "3") -> Claim:
        return unchecked("x", id=name, section=section, reason="r")(lambda: None)

    names = ["D10-disc", "D10", "D9", "X1", "C2", "G1", "D6b", "D6", "F1"]
    claims = [*map(named, names), named("A1", "beyond"), named("A1", "9"), named("T1", "2")]
    ordered = ["T1", "C2", "D6", "D6b", "D9", "D10", "D10-disc", "F1", "G1", "X1", "A1", "A1"]
    assert [entry.id for entry in sorted(claims, key=_sort_key)] == ordered


def test_assumption_checks_detect_violations() -> None:
    assert all(piece.holds for piece in in_the_definition(ENTROPIC))
    assert [piece.note for piece in in_the_definition(QUADRATIC) if not piece.holds] == ["phi >= 0"]
    failed = [piece.note for piece in in_the_definition(lambda x: abs(x - 1) ** 0.5) if not piece.holds]
    assert failed == ["phi convex", "phi infinite below 0"]
    assert all(piece.holds for piece in strongly_convex(QUADRATIC, 1.0))
    assert not all(piece.holds for piece in strongly_convex(ENTROPIC, 1.0))

    def ends_at_two(x: float, end: float) -> float:
        return (x - 1) ** 2 if 0 <= x < 2 else end if x == 2 else inf

    for end, notes in ((1.0, []), (3.0, ["phi lower semicontinuous"])):  # 3 exceeds the limit 1 from the left
        found = in_the_definition(partial(ends_at_two, end=end))
        assert [piece.note for piece in found if not piece.holds] == notes
    assert [piece.holds for piece in bounded_loss((0.0, inf), (0.5, 0.4))] == [False, False]
    wave = on_an_interval(lambda t: 2 * abs(t), -1, 1, convex=True, lipschitz=1, smooth=1, between=(0, 1))
    assert [piece.holds for piece in wave] == [True, False, False, False]

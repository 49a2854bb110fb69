"""Curves and their exponents, statements that no run can check, and evidence that is looked at lazily."""

from __future__ import annotations

from collections.abc import Iterator
from math import exp, inf, nan

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.stats import linregress, t

from phiball.verification.framework.claim import Claim, claim, unchecked
from phiball.verification.framework.evidence import Curve, Evidence, Verdict
from phiball.verification.framework.runner import SECTIONS, _place, all_claims

SCALES = (1.0, 2.0, 4.0, 8.0, 16.0)


def curve(y: tuple[float, ...], x: tuple[float, ...] = SCALES) -> Curve:
    return Curve("error", "n", "error", "the bound", x, y, tuple(2 * v for v in y))


# --- Curves ---------------------------------------------------------------------------------------


@given(st.lists(st.floats(-3, 3), min_size=5, max_size=5), st.floats(-4, 4))
def test_fit_is_that_of_numpy_and_scipy(noise: list[float], slope: float) -> None:
    y = tuple(exp(e) * x**slope for x, e in zip(SCALES, noise, strict=True))
    fit = curve(y).fit
    u, v = np.log(SCALES), np.log(y)
    assume(np.ptp(v) > 1e-9)  # scipy gives NaN for a constant
    assert fit.slope == pytest.approx(np.polyfit(u, v, 1)[0], abs=1e-9)
    other = linregress(u, v)
    half = t.ppf(0.995, len(u) - 2) * other.stderr
    # A fit that is exact has an interval of rounding errors.
    assert fit.low == pytest.approx(other.slope - half, abs=1e-6)
    assert fit.high == pytest.approx(other.slope + half, abs=1e-6)


def test_curve_judges_its_exponent_and_its_bound() -> None:
    falls = curve(tuple(1 / x for x in SCALES))
    assert falls.at_most(-1, 1e-9).holds
    assert not falls.at_most(-1.1, 0.05).holds
    assert falls.at_most(0, 0.0).holds
    assert falls.exactly(-1, 1e-9).holds
    assert not falls.exactly(0, 0.9).holds
    assert not falls.exactly(-2, 0.9).holds
    assert falls.below_bound().violation == -0.5
    above = Curve("error", "n", "error", "the bound", SCALES, (1.0,) * 5, (2.0, 2.0, 0.5, 2.0, 2.0))
    assert above.below_bound().violation == 1.0
    assert "exponent -1.000 [-1.000, -1.000]" in falls.at_most(-1, 0.1).note


@pytest.mark.parametrize("bad", [nan, inf, 0.0, -1.0])
@pytest.mark.parametrize("place", ["x", "y", "bound"])
def test_curve_takes_positive_numbers(place: str, bad: float) -> None:
    values = {"x": SCALES, "y": SCALES, "bound": SCALES, place: (*SCALES[:4], bad)}
    with pytest.raises(ValueError, match=f"{place} is .*expected 5 positive numbers"):
        Curve("", "", "", "", **values)


def test_curve_needs_four_scales_and_equal_lengths() -> None:
    with pytest.raises(ValueError, match="expected four scales or more"):
        curve((1.0, 2.0, 3.0), SCALES[:3])
    with pytest.raises(ValueError, match="expected four scales or more"):
        curve((1.0, 2.0, 3.0, 4.0), (1.0, 1.0, 2.0, 4.0))
    with pytest.raises(ValueError, match=r"y is .*expected 5 positive numbers"):
        curve((1.0, 2.0, 3.0, 4.0))


def test_fixed_instances_may_give_curves_and_a_search_may_not() -> None:
    drawn = curve((1.0, 2.0, 4.0, 8.0, 16.0))

    @claim("x", id="X", section=3, verdict=Verdict.HOLDS)
    def rate() -> Iterator[Evidence | Curve]:
        """Grows."""
        yield drawn
        yield drawn.exactly(1, 1e-9)

    result = rate.run()
    assert result.verdict is Verdict.HOLDS
    assert result.curves == (drawn,)
    assert result.examples == 1

    @claim("x", id="X", section=3, verdict=Verdict.HOLDS, n=st.integers())
    def searched(n: int) -> Iterator[Evidence | Curve]:
        """Grows."""
        yield drawn
        yield drawn.exactly(1, 1e-9)

    result = searched.run()
    assert result.verdict is Verdict.UNDECIDED
    assert "expected curves from fixed instances" in result.error


def test_curve_without_evidence_is_no_verdict() -> None:
    @claim("x", id="X", section=3, verdict=Verdict.HOLDS)
    def silent() -> Iterator[Curve]:
        """Only draws."""
        yield curve((1.0, 2.0, 4.0, 8.0, 16.0))

    assert silent.run().error == "no example was checked"


# --- Statements -----------------------------------------------------------------------------------


def test_unchecked_statement_carries_its_reason() -> None:
    @unchecked("Figure 4", id="S9", section=6, reason="no data", quote="best")
    def best() -> None:
        """It is best."""

    result = best.run()
    assert result.verdict is result.recorded is Verdict.UNCHECKED
    assert (result.reason, result.title, result.quote, result.examples) == (
        "no data",
        "It is best.",
        "best",
        0,
    )
    assert result.error == ""


def test_evidence_is_looked_at_up_to_the_first_failure() -> None:
    reached: list[int] = []

    @claim("x", id="X", section=2, verdict=Verdict.REFUTED)
    def three() -> Iterator[Evidence]:
        """Fails at the second."""
        for i in range(3):
            reached.append(i)
            yield Evidence(float(i), 0.5, f"piece {i}")

    result = three.run()
    assert reached == [0, 1]
    assert result.found == "the fixed instances: piece 1"
    assert result.note == "piece 1"


def test_result_keeps_the_worst_evidence() -> None:
    @claim("x", id="X", section=2, verdict=Verdict.HOLDS)
    def several() -> list[Evidence]:
        """Holds."""
        return [Evidence(-1, 0.5, "a"), Evidence(2, 10, "b"), Evidence(3, 100, "c")]

    result = several.run()
    assert (result.violation, result.tolerance, result.note, result.examples) == (2, 10, "b", 3)


def test_result_tells_how_much_of_the_bound_was_reached() -> None:
    @claim("x", id="X", section=2, verdict=Verdict.HOLDS)
    def bounded() -> list[Evidence]:
        """Holds."""
        return [
            Evidence.at_most(0.0, 0.0, 0.0, "nothing of nothing"),
            Evidence.at_most(1.0, 8.0, 1e-9, "far"),
            Evidence.at_most(3.0, 4.0, 1e-3, "near"),
        ]

    result = bounded.run()
    assert (result.measured, result.bound, result.share, result.closest) == (3.0, 4.0, 0.75, "near")
    assert {place: count for place, count in enumerate(result.shares) if count} == {2: 1, 15: 1}
    assert result.note != "nothing of nothing"  # it says least, though its margin is the smallest


def test_claims_are_in_the_order_of_the_paper() -> None:
    def named(name: str, section: str = "3") -> Claim:
        return unchecked("x", id=name, section=section, reason="r")(lambda: None)

    names = ["D10-disc", "D10", "D9", "X1", "C2", "G1", "D6b", "D6", "F1"]
    claims = [*map(named, names), named("A1", "beyond"), named("A1", "9"), named("T1", "2")]
    ordered = [claim.id for claim in sorted(claims, key=_place)]
    assert ordered == [
        *("T1", "C2", "D6", "D6b", "D9", "D10", "D10-disc", "F1", "G1", "X1"),
        *("A1", "A1"),
    ]
    sections = [claim.section for claim in all_claims()]
    assert sections == sorted(sections, key=list(SECTIONS).index)


# --- The search -----------------------------------------------------------------------------------


def test_search_does_not_depend_on_what_is_imported() -> None:
    """Hypothesis tries the constants of our source files, unless it is kept from it."""
    from hypothesis.internal.conjecture import providers

    assert hasattr(providers, "_get_local_constants")  # else what `repeatable` guards against is gone
    drawn: list[float] = []

    @claim("x", id="X", section=2, verdict=Verdict.HOLDS, examples=300, v=st.floats(0, 1e6))
    def collects(v: float) -> Evidence:
        """Collects."""
        drawn.append(v)
        return Evidence(0, 0)

    providers._get_local_constants().floats.add(424242.5)
    providers.CONSTANTS_CACHE.cache.clear()
    try:
        collects.run()
    finally:
        providers._get_local_constants().floats.discard(424242.5)
    assert len(drawn) >= 300
    assert 424242.5 not in drawn

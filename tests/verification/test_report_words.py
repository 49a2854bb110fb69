"""The words of the report: how a claim was checked, and what its evidence says."""

from __future__ import annotations

import json
from dataclasses import replace
from math import nan

import pytest

from phiball.verification.report.files import circumstances
from phiball.verification.report.html import to_html
from phiball.verification.report.json import to_json
from phiball.verification.report.markdown import to_markdown
from phiball.verification.report.words import all_mutants, approach, evidence, false_alarm, method, mutants
from tests.support.reports import results

RESULTS = results()
ABOUT = circumstances(RESULTS, seed=5, deep=False, seconds=12.3)


@pytest.mark.parametrize(
    ("numbers", "said"),
    [
        ({"violation": nan}, ""),
        ({"violation": -3.0}, "a margin of 3 was left"),
        ({"violation": 0.0}, "no difference at all"),
        (
            {"violation": 1e-16, "tolerance": 1e-15},
            "off by 1e-16 at most, where rounding or noise may explain 1e-15",
        ),
        ({"violation": 2.0}, "exceeds what is allowed by 2, of which 0 could be rounding or noise"),
        (
            {"violation": 2.0, "bound": 4.0, "measured": 6.0},
            "exceeds the bound of 4 by 2, of which 0 could be ",
        ),
        (
            {"violation": -2.0, "bound": 4.0, "measured": 2.0},
            "at most 50 % of the bound was reached: 2 measured, 4 allowed",
        ),
        (
            {"violation": -2.0, "bound": 1.0, "measured": 0.05},
            "5 % of the bound was reached; a loose bound here",
        ),
        (
            {"violation": -2.0, "bound": 4.0, "measured": 0.002},
            "0.002 measured, 4 allowed; a vacuous bound here",
        ),
    ],
)
def test_evidence_is_explained(numbers: dict[str, float], said: str) -> None:
    blank = replace(RESULTS[0], tolerance=0.0, bound=nan, measured=nan)
    assert said in evidence(replace(blank, **numbers))  # type: ignore[arg-type]


def test_how_a_claim_was_checked() -> None:
    fixed = replace(RESULTS[0], error_level=0.0, examples=1200)
    assert method(fixed) == "fixed instances: 1\N{NO-BREAK SPACE}200 checks"
    assert method(replace(fixed, searched=True)) == "searched: 1\N{NO-BREAK SPACE}200 examples"
    statistical = replace(fixed, error_level=1e-6)
    assert method(statistical, 7).endswith("checks at an error level of 1e-6 in all, seed 7")
    assert approach(statistical, 7) == "statistical, level 1e-6, seed 7"
    assert approach(replace(fixed, enumerated=True)) == "fixed instances, enumerated"
    assert false_alarm([fixed]) == ""
    assert "2 claims are statistical" in false_alarm([statistical, fixed, statistical])
    assert " in a run is 2e-6 at most" in false_alarm([statistical, statistical])


def test_mutants_are_counted_in_every_report() -> None:
    assert mutants(RESULTS[0]) == all_mutants(RESULTS) == ""
    run = replace(RESULTS[0], rejected=("a", "b"), survived=("doubles <eta>",))
    assert mutants(run) == "2 of 3 rejected; NOT rejected: doubles <eta>"
    assert all_mutants([run, *RESULTS]).startswith("Mutants: 2 of 3 planted faults are rejected")
    page = to_html([run], ABOUT)
    assert "NOT rejected: doubles &lt;eta&gt;" in page
    assert "Mutants: 2 of 3 planted faults" in page
    assert "mutants: 2 of 3 rejected; NOT rejected: doubles" in to_markdown([run], ABOUT)
    (row,) = json.loads(to_json([run], ABOUT))["claims"]
    assert (row["mutants_rejected"], row["mutants_not_rejected"]) == (["a", "b"], ["doubles <eta>"])

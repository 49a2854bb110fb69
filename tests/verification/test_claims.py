"""The claims reach their recorded verdicts, reject their mutants, and have complete metadata."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter

import pytest
from hypothesis import strategies as st

from phiball.backends import backend
from phiball.verification.framework.claim import claim
from phiball.verification.framework.evidence import Evidence, Verdict
from phiball.verification.framework.paper import BEYOND
from phiball.verification.framework.sources import enumerates, oracles_of, source_location
from phiball.verification.framework.suite import GROUPS, SECTIONS, all_claims, find_claims, run_claims
from phiball.verification.instances.tolerances import TEST_LEVEL
from tests.support.paths import ROOT

CLAIMS = {entry.id: entry for entry in all_claims() if entry.verdict is not Verdict.UNCHECKED}
UNCHECKED = {entry.id: entry for entry in all_claims() if entry.verdict is Verdict.UNCHECKED}
# The statements of the paper; each has at least one claim. Suffixes such as -rate are further parts.
LAST = {"A": 10, "E": 7, "B": 7, "C": 10, "D": 13, "F": 9, "G": 8, "H": 10, "I": 8, "S": 1, "J": 6, "P": 5}
STATEMENTS = [f"{group}{k + 1}" for group, last in (LAST | {"L": 2, "Q": 3}).items() for k in range(last)]
IN_WORDS = {"S1-columns", "J4-numbers"}  # statements without a formula


@pytest.mark.slow
@pytest.mark.parametrize("name", CLAIMS)
def test_claim_reaches_its_verdict_and_rejects_its_mutants(name: str) -> None:
    with backend("numba"):
        result = CLAIMS[name].run()
        assert result.error == ""
        assert result.as_recorded, result.found
        assert result.examples > 0
        assert [mutant for mutant in CLAIMS[name].mutants if not CLAIMS[name].rejects(mutant)] == []


@pytest.mark.slow
@pytest.mark.parametrize("backend_name", ["numpy", "torch", "strict"])
@pytest.mark.parametrize("name", sorted(CLAIMS.keys() - {"A1-conic"})[::8])
def test_claim_reaches_its_verdict_on_other_arrays(name: str, backend_name: str) -> None:
    pytest.importorskip({"strict": "array_api_strict"}.get(backend_name, backend_name))
    with backend(backend_name):
        result = CLAIMS[name].run(effort=0.1, shrink=False)
    assert result.error == ""
    assert result.as_recorded, result.found


# --- Metadata -------------------------------------------------------------------------------------


def test_every_claim_has_the_metadata_of_its_verdict() -> None:
    ids = {entry.id: entry for entry in all_claims()}
    for entry in ids.values():
        assessment, differs = entry.assessment, entry.verdict is not Verdict.HOLDS
        assert (assessment is not None) == differs, entry.id
        if assessment is not None:
            assert entry.quote, entry.id
            assert len(assessment.why) > 30, entry.id
            assert assessment.why.endswith("."), entry.id
            assert all(ids[source].assessment is not None for source in assessment.follows), entry.id
        if entry.id in CLAIMS:
            assert all((entry.mutants, entry.title, entry.assumptions)), entry.id
            assert entry.formula or entry.id in IN_WORDS, entry.id
            assert bool(entry.correction) == bool(entry.counterexamples) == differs, entry.id


def test_unchecked_claims_give_a_reason() -> None:
    assert len(UNCHECKED) <= 6
    for entry in UNCHECKED.values():
        assert len(entry.reason) > 40, entry.id
        result = entry.run()
        assert (result.verdict, result.reason, result.error) == (Verdict.UNCHECKED, entry.reason, "")
    assert "of 100 draws from the printed distribution, 4 have" in UNCHECKED["Q2-area"].run().note


def test_statements_sections_groups_and_names_are_complete() -> None:
    ids, names = ([getattr(entry, field) for entry in all_claims()] for field in ("id", "name"))
    for statement in [*STATEMENTS, "E4c", "D6b"]:
        assert any(f"{i}-".startswith(f"{statement}-") for i in ids), statement
    assert list(Counter(entry.section for entry in all_claims())) == list(SECTIONS)
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", name) for name in names)
    assert {i[0] for i in ids} == GROUPS.keys()
    assert (find_claims("A1")[0].section, find_claims("T8")[0].section) == ("2", BEYOND)


def test_false_alarms_are_rare_and_statistical_claims_use_the_seed() -> None:
    levels = {entry.id: entry.error_level for entry in CLAIMS.values() if entry.error_level}
    assert sum(levels.values()) < 1e-4  # bounds the chance of a false alarm in a full run
    assert all(TEST_LEVEL <= level < 1e-5 for level in levels.values())
    assert all(CLAIMS[name].seeded for name in levels)
    assert CLAIMS["T8"].run(seed=1).violation != CLAIMS["T8"].run(seed=2).violation


def test_counterexamples_satisfy_the_assumptions_of_the_paper() -> None:
    # A3 is about Example 3 itself; the others quote numbers, without assumptions.
    free = {"A3", "J4", "J4-numbers", "Q1"}
    for entry in all_claims():
        for counterexample in entry.counterexamples:
            assert (counterexample.meets is None) == (entry.id in free), entry.id
            if counterexample.meets is not None:
                met = [piece for piece in counterexample.meets() if isinstance(piece, Evidence)]
                assert met, entry.id
                assert all(piece.note and piece.holds for piece in met), entry.id


def test_sources_and_oracles_point_at_code() -> None:
    for entry in all_claims():
        oracles = [oracle.rpartition(" ")[2] for oracle in oracles_of(entry.statement)]
        for at in (source_location(entry.statement), *oracles):
            path, _, line = at.rpartition(":")
            code = (ROOT / path).read_text(encoding="utf-8").splitlines()[int(line) - 1]
            assert code.startswith(("@", "def ")), (entry.id, at)
    assert "solve_exactly" in {oracle.split()[0] for oracle in oracles_of(find_claims("A1")[0].statement)}
    assert oracles_of(find_claims("C7")[0].statement) == ()
    assert source_location(pytest.approx) == ""
    assert [enumerates(find_claims(name)[0].statement) for name in ("D5", "A1")] == [True, False]


# --- The runner -----------------------------------------------------------------------------------


def test_find_by_id_words_and_section() -> None:
    assert [entry.id for entry in find_claims("c4")] == ["C4"]
    assert [entry.id for entry in find_claims(["c4", "strong_duality"])] == ["A1", "C4"]
    assert [entry.id for entry in find_claims("gap_of_normal")] == ["C4-gap"]
    assert [entry.id for entry in find_claims("example", 2)] == ["A3", "E1", "E2", "E3", "E4", "E5", "E7"]
    assert {entry.section for entry in find_claims(section=3)} == {"3"}
    assert {entry.section for entry in find_claims(section="beyond")} == {BEYOND}
    with pytest.raises(ValueError, match="claim is 'nonsense', but no id, name"):
        find_claims("nonsense")
    for section in (99, 7, ""):
        with pytest.raises(ValueError, match=f"section is {section}; expected one of 2, 3, .*beyond"):
            find_claims(section=section)


def test_runs_are_reproducible_and_report_each_result() -> None:
    seen: list[str] = []
    with backend("strict"):
        run_claims(find_claims(["C7", "E2"]), on_result=lambda result: seen.append(result.id))
    assert seen == ["E2", "C7"]
    numbers: list[int] = []

    @claim("x", id="X", section=2, verdict=Verdict.HOLDS, examples=30, n=st.integers())
    def collects(n: int) -> Evidence:
        """Collects."""
        numbers.append(n)
        return Evidence(0, 0)

    draws = []
    for seed in (1, 1, 2):
        numbers.clear()
        collects.run(seed=seed)
        draws.append(tuple(numbers))
    assert draws[0] == draws[1] != draws[2]


def test_missing_hypothesis_is_reported_with_the_command_to_install() -> None:
    code = "import sys; sys.modules['hypothesis'] = None; import phiball.verification"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "ImportError: phiball.verification needs hypothesis" in result.stderr
    assert "pip install 'phiball[verify]', or '.[verify]' in a clone" in result.stderr

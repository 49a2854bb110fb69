"""The opening of the report: the results that stand, and the corrections by consequence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from phiball.verification.framework.assessment import Consequence, Kind
from phiball.verification.framework.evidence import Verdict
from phiball.verification.framework.paper import BEYOND, Paper
from phiball.verification.framework.suite import all_claims
from phiball.verification.report.entries import Entry, Line, of_the_paper
from phiball.verification.report.this_paper import THIS

STANDS = (
    "The main results of the paper stand. Strong duality, consistency and the variation regularization "
    "(Theorem 1 (I), Proposition 1, Theorem 4 (II)) each need one more condition on phi. Examples 2 to 5 "
    "satisfy all three conditions; Example 1 satisfies that of Theorem 1 if alpha < 1. The complexity orders "
    "of Theorems 2 and 3, the other regularization effects and the generalization bounds hold as printed. So "
    "do the guarantees of Algorithm 2 for its weights and multiplier, if (x - 1)^2/2 replaces the phi of "
    "Example 3. Proposition 3 (I) has to be weakened; the weaker form is enough for Theorem 2."
)
TITLES = {
    Consequence.RESULT: "Results to restate",
    Consequence.REPAIR: "Proofs to repair; their results stand",
}
_WITHOUT_CONSEQUENCE = {
    Kind.MISPRINT: "misprints",
    Kind.IMPRECISE: "imprecise sentences",
    Kind.ASSUMPTION: "implicit assumptions, such as continuity of the loss",
    Kind.CONSTANT: "wrong constants",
    Kind.FALSE: "false statements on which nothing else depends",
    Kind.OPEN: "experiments that the paper describes too briefly to repeat",
}


class Correction(NamedTuple):
    """One line of the opening lists: the item of the paper, the id of the claim, and the correction."""

    label: str
    id: str
    text: str


class Overview(NamedTuple):
    """The opening of the report.

    - `stands`: the results that stand, in words.
    - `corrections`: the corrections that change a result or a proof.
    - `wording`: the corrections without consequence, in words.
    """

    stands: str
    corrections: dict[Consequence, list[Correction]]
    wording: str


def overview(lines: Sequence[Line], paper: Paper = THIS) -> Overview:
    """The opening of the report; `stands` is empty unless all claims about our paper are as recorded."""
    found = of_the_paper(lines)
    chosen = [(consequence, _corrections(found, consequence)) for consequence in TITLES]
    known = {claim.id for claim in all_claims() if claim.section != BEYOND}
    complete = known <= {line.id for line in lines if line.verdict is line.recorded}
    return Overview(
        STANDS if paper is THIS and complete else "",
        {consequence: members for consequence, members in chosen if members},
        _without_consequence(found),
    )


def _corrections(found: Sequence[Entry[Line]], consequence: Consequence) -> list[Correction]:
    """The corrections of the entries with this consequence, in the order of the paper."""
    return [
        Correction(line.label, line.id, line.correction or line.reason or entry.assessments[0].why)
        for entry in found
        if entry.kind and entry.consequence is consequence
        for line in entry.lines
        if line.assessment is entry.assessments[0]
    ]


def _without_consequence(found: Sequence[Entry[Line]]) -> str:
    """The errors without consequence, by kind; empty if there are none."""
    parts = []
    for kind, errors in _WITHOUT_CONSEQUENCE.items():
        ids = [
            entry.head.id
            for entry in found
            if entry.kind is kind
            and entry.consequence is Consequence.NONE
            and entry.head.verdict is not Verdict.UNDECIDED
        ]
        if ids:
            parts.append(f"{errors} ({', '.join(ids)})")
    return f"The other corrections change no result: {'; '.join(parts)}." if parts else ""

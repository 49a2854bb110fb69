"""What a reader should know first: what of the paper stands, what changes, and what is a misprint."""

from __future__ import annotations

from collections.abc import Sequence

from phiball.verification.framework.assessment import Consequence, Kind
from phiball.verification.framework.evidence import Verdict
from phiball.verification.framework.paper import BEYOND, Paper
from phiball.verification.framework.suite import all_claims
from phiball.verification.report.entries import Entry, Line, of_the_paper
from phiball.verification.report.this_paper import THIS

STANDS = (
    "All main results stand. As printed: the worst-case density (Theorem 1 (II)), what Algorithm 2 "
    "guarantees for weights and multiplier (Proposition 2), the cost of training with convex and with "
    "smooth losses (Theorems 2 and 3), the regularisation effects (Theorem 4 (I) and (III)) and the "
    "generalisation bounds (Propositions 4 and 5); for the quadratic and the entropic phi Assumption 3 (I) "
    "of Theorem 2 needs bounded losses. With one more condition on phi, which the examples in question meet "
    "(Example 1 for alpha < 1): strong duality (Theorem 1 (I)), consistency (Proposition 1) and the "
    "variation regularisation (Theorem 4 (II))."
)
CHANGES = (
    "What changes: the phi of Example 3 should be (x - 1)^2/2, as Definition 1 requires phi >= 0; with the "
    "printed phi the bracket of Algorithm 2 can miss the multiplier (A3). Theorem 1 (I) needs phi finite "
    "around 1, or a loss that is bounded above (A1); Proposition 1, and Theorem 4 (II) with it, need phi "
    "finite on (0, infinity) (B1, H4). The worst-case densities of Examples 4 and 5 lack the mass at the "
    "maximum (E4, E5), and finding 4 of Section 2.2 with them (E6-kinked); their values stand. The mean of "
    "a gradient estimator is an eps-subgradient, not a gradient (D4), and the second moment of RT-MLMC has "
    "one more term (D6). Assumption 3 (I) needs bounded losses for the quadratic and the entropic phi (D9). "
    "The pricing problem of Section 6.3 needs bounded prices (P1)."
)
REPAIRS = (
    "What needs a repair, and stands: one step in the proof of Proposition 1 (B4); Proposition 2 for the "
    "entropy (C8); the constant D_* of Lemma EC.1 and of the proof of Theorem 2 (F1)."
)
_REST = {
    Kind.MISPRINT: "misprints",
    Kind.IMPRECISE: "sentences that are open to several readings or short of what is meant",
    Kind.ASSUMPTION: "conditions that are left implicit, such as a continuous loss",
    Kind.CONSTANT: "a constant",
    Kind.FALSE: "an output that nothing else uses",
    Kind.OPEN: "what the paper gives too little for to be repeated",
}


def overview(lines: Sequence[Line], paper: Paper = THIS) -> list[str]:
    """The opening paragraphs, with ids in brackets; none where only a part of this paper was run."""
    if paper is not THIS:
        return []
    missing = {claim.id for claim in all_claims() if claim.section != BEYOND} - {line.id for line in lines}
    if missing:
        return []
    return [STANDS, CHANGES, REPAIRS, _rest(of_the_paper(lines))]


def _rest(found: Sequence[Entry[Line]]) -> str:
    """What has no consequence, by kind."""
    parts = []
    for kind, words in _REST.items():
        ids = [
            entry.head.id
            for entry in found
            if entry.kind is kind
            and entry.consequence is Consequence.NONE
            and entry.head.verdict is not Verdict.UNDECIDED
        ]
        if ids:
            parts.append(f"{words} ({', '.join(ids)})")
    return f"Nothing follows from the rest: {'; '.join(parts)}."

"""ERRATA.md: the corrections to the paper by consequence, with computed counterexamples."""

from __future__ import annotations

from pathlib import Path

from phiball.backends import backend
from phiball.backends.files import write_text_atomic
from phiball.verification.framework.assessment import Assessment, Consequence
from phiball.verification.framework.claim import Claim
from phiball.verification.framework.evidence import Verdict
from phiball.verification.framework.suite import all_claims
from phiball.verification.report.entries import Entry, of_the_paper
from phiball.verification.report.markdown import markdown_name, plain, quotation, theorem_table
from phiball.verification.report.math import markdown_math
from phiball.verification.report.overview import TITLES, overview
from phiball.verification.report.this_paper import THIS
from phiball.verification.report.wording import CONSEQUENCES, NAMES, full_name, reading_of, sentence, totals

_HEADINGS = TITLES | {Consequence.NONE: "Corrections without consequence"}


def errata(claims: list[Claim] | None = None) -> str:
    """The text of ERRATA.md: the corrections to the paper, from all claims or from the given ones.

    Only the counterexamples are run, on the NumPy backend. Raises ValueError if one is invalid.
    """
    chosen = all_claims() if claims is None else claims
    found = of_the_paper(chosen)
    lines = [
        "# Errata",
        "",
        f"Corrections to [{THIS.name}]({THIS.link}),",
        "with counterexamples. `make errata` computes the numbers and writes this file; `phiball verify",
        "--claim ID` checks one entry.",
        "",
        "A statement *holds with a correction* if its corrected form passed every check. It is *refuted* if",
        "the correction replaces it by a different statement. The sections below sort the corrections by",
        "their consequences.",
        "",
        plain(f"{totals(chosen)}. {overview(chosen).stands}".strip()),
        *theorem_table(found, THIS),
    ]
    for consequence, heading in _HEADINGS.items():
        members = [entry for entry in found if entry.kind and entry.consequence is consequence]
        if members:
            members.sort(key=lambda entry: entry.severity, reverse=True)
            meaning = CONSEQUENCES[consequence]
            lines += ["", f"## {heading}", "", f"{meaning[:1].upper()}{meaning[1:]}.", *_table(members)]
            for entry in members:
                for depth, claim in enumerate(line for line in entry.lines if line.assessment is not None):
                    lines += ["", *_entry(claim, depth)]
    return "\n".join(lines) + "\n"


def write_errata(path: Path) -> Path:
    """Write ERRATA.md, and return its path."""
    return write_text_atomic(path, errata())


def _table(members: list[Entry[Claim]]) -> list[str]:
    lines = ["", f"| claim | item | kind | {NAMES['correction']} |", "|---|---|---|---|"]
    for entry in members:
        claim = next(line for line in entry.lines if line.assessment is not None)
        link = f"[{markdown_name(claim)}](#{full_name(claim).lower().replace(' ', '-')})"
        follows = f" (follows from {', '.join(entry.follows)})" if entry.follows else ""
        cells = (link, plain(claim.label), f"{entry.kind}{follows}", plain(claim.correction or claim.reason))
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _entry(claim: Claim, depth: int) -> list[str]:
    """The section on one claim; `depth` is positive for further claims about the same sentence."""
    with backend("numpy"):
        texts, valid = claim.check_counterexamples()
    if not valid:
        raise ValueError(
            f"a counterexample of {full_name(claim)} is invalid; it must violate the printed statement and "
            f"satisfy the paper's assumptions: {'; '.join(texts)}"
        )
    assessment = claim.assessment
    assert isinstance(assessment, Assessment)
    mark = "###" if depth == 0 else "####"
    lines = [f"{mark} {markdown_name(claim)}", "", f"**{plain(claim.label)}.** {plain(assessment.why)}"]
    follows = f"; follows from {', '.join(assessment.follows)}" if assessment.follows else ""
    lines[-1] += f" *{assessment.kind.capitalize()}{follows}.*"
    if claim.quote and depth == 0:
        lines += ["", quotation(claim.quote, THIS)]
    if reading := reading_of(assessment):
        lines += ["", f"**Reading checked.** {plain(sentence(reading))}"]
    for index, text in enumerate(texts):
        lines += ["", f"**Counterexample.** {plain(sentence(text))}" if index == 0 else plain(sentence(text))]
    if claim.correction:
        lines += ["", f"**Correction.** {plain(sentence(claim.correction))}"]
    if claim.corrected:
        lines += ["", markdown_math(claim.corrected)]
    if claim.remark:
        lines += ["", plain(sentence(claim.remark))]
    if claim.verdict is Verdict.CORRECTED:
        lines += ["", f"**Checked {NAMES['title']}.** {plain(sentence(claim.title))}"]
    if claim.reason:
        lines += ["", f"**{claim.verdict.capitalize()}.** {plain(sentence(claim.reason))}"]
    return lines

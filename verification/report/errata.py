"""What is to be corrected in the paper, by kind, each with a counterexample that is computed here."""

from __future__ import annotations

from pathlib import Path

from phiball.backends import backend
from phiball.backends.files import write_whole
from phiball.verification.framework.assessment import Assessment, Consequence, Kind
from phiball.verification.framework.claim import Claim
from phiball.verification.framework.evidence import Verdict
from phiball.verification.framework.suite import all_claims
from phiball.verification.report.entries import Entry, of_the_paper
from phiball.verification.report.markdown import markdown_name, plain, quotation
from phiball.verification.report.math import markdown_math
from phiball.verification.report.overview import overview
from phiball.verification.report.this_paper import THIS
from phiball.verification.report.words import KINDS, WORDS, full_name, reading_of

_CORRECTION = f"**{WORDS['correction'].capitalize()}.**"
_HEADINGS = {
    Kind.FALSE: "False as stated",
    Kind.CONSTANT: "Constants and rates",
    Kind.ASSUMPTION: "Missing assumptions",
    Kind.IMPRECISE: "Imprecise, or open to several readings",
    Kind.OPEN: "Not reproducible from what is given",
    Kind.MISPRINT: "Misprints",
}


def errata(claims: list[Claim] | None = None) -> str:
    """The text of ERRATA.md: what is wrong in the paper, by the claims (all of them by default).

    Only the counterexamples are run, on the plain NumPy backend. ValueError if one does not stand.
    """
    chosen = all_claims() if claims is None else claims
    found = [entry for entry in of_the_paper(chosen) if entry.kind is not None]
    lines = [
        "# Errata",
        "",
        f"What the verification suite finds to correct in [{THIS.name}]({THIS.link}),",
        "by kind, and what is true instead. The suite computes the numbers and writes this file: `make",
        "errata`. `phiball verify --claim ID` searches for violations of the corrected statement, or shows",
        "how the search refutes the printed one.",
    ]
    for paragraph in overview(chosen):
        lines += ["", plain(paragraph)]
    groups = {kind: [entry for entry in found if entry.kind is kind] for kind in _HEADINGS}
    for kind, members in groups.items():
        if members:
            lines += ["", f"## {_HEADINGS[kind]}", "", f"{KINDS[kind].capitalize()}.", *_table(members)]
            for entry in members:
                for depth, claim in enumerate(line for line in entry.lines if line.assessment is not None):
                    lines += ["", *_entry(claim, depth)]
    return "\n".join(lines) + "\n"


def write_errata(path: Path) -> Path:
    """Write ERRATA.md, and return its path."""
    return write_whole(path, errata())


def _table(members: list[Entry[Claim]]) -> list[str]:
    lines = ["", f"| claim | item | {WORDS['correction']} | consequence |", "|---|---|---|---|"]
    for entry in members:
        claim = next(line for line in entry.lines if line.assessment is not None)
        link = f"[{markdown_name(claim)}](#{full_name(claim).lower().replace(' ', '-')})"
        follows = f" (follows from {', '.join(entry.follows)})" if entry.follows else ""
        cells = (link, plain(claim.label), plain(claim.correction), f"{entry.consequence}{follows}")
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _entry(claim: Claim, depth: int) -> list[str]:
    """What there is to say of one claim; those below the first of an entry are further readings of it."""
    with backend("numpy"):
        texts, stands = claim.violated()
    if not stands:
        raise ValueError(f"the counterexample of {full_name(claim)} does not stand: {'; '.join(texts)}")
    fault = claim.assessment
    assert isinstance(fault, Assessment)
    mark = "###" if depth == 0 else "####"
    lines = [f"{mark} {markdown_name(claim)}", "", f"**{plain(claim.label)}.** {plain(fault.why)}"]
    if fault.consequence is not Consequence.NONE:
        follows = f", as it follows from {', '.join(fault.follows)}" if fault.follows else ""
        lines[-1] += f" *{fault.consequence.capitalize()}{follows}.*"
    if claim.quote and depth == 0:
        lines += ["", quotation(claim.quote, THIS)]
    if reading := reading_of(fault):
        lines += ["", f"**One reading.** {plain(reading.removeprefix('one reading: '))}."]
    for place, text in enumerate(texts):
        lines += ["", f"{'**Counterexample.** ' if place == 0 else ''}{plain(text)}."]
    if claim.correction:
        lines += ["", f"{_CORRECTION} {plain(claim.correction)}."]
    if claim.corrected:
        lines += ["", markdown_math(claim.corrected)]
    if claim.remark:
        lines += ["", plain(claim.remark)]
    if claim.verdict is Verdict.CORRECTED:
        lines += ["", f"**Checked {WORDS['title']}.** {plain(claim.title)}"]
    if claim.reason:
        lines += ["", f"**{claim.verdict.capitalize()}.** {plain(claim.reason)}."]
    return lines

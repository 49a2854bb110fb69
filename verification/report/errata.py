"""The paper's errors, each with a counterexample that is computed here, and the corrected statement."""

from __future__ import annotations

from pathlib import Path

from phiball.backends import use
from phiball.backends.files import write_whole
from phiball.verification.framework.claim import Claim
from phiball.verification.framework.evidence import Verdict
from phiball.verification.framework.runner import BEYOND, all_claims
from phiball.verification.report.markdown import markdown_name, plain
from phiball.verification.report.math import markdown_math
from phiball.verification.report.words import LINK, PAPER, WORDS, full_name, section_heading

_CORRECTION = f"**{WORDS['correction'].capitalize()}.**"
_COUNTEREXAMPLE = "**Counterexample.**"


def errata(claims: list[Claim] | None = None) -> str:
    """The text of ERRATA.md: what is wrong in the paper, by the claims (all of them by default).

    Only the counterexamples are run, on the plain NumPy backend. ValueError if one does not stand.
    """
    chosen = [claim for claim in (all_claims() if claims is None else claims) if claim.section != BEYOND]
    wrong = [claim for claim in chosen if claim.verdict in (Verdict.CORRECTED, Verdict.REFUTED)]
    unchecked = [claim for claim in chosen if claim.verdict is Verdict.UNCHECKED and claim.correction]
    lines = [
        "# Errata",
        "",
        f"What the verification suite finds wrong, or too weak to say what is meant, in {PAPER}",
        f"([arXiv]({LINK})), and what is true instead. The suite computes the numbers and writes this file:",
        "`make errata`. `phiball verify --claim ID` searches for violations of the corrected statement, or",
        "shows how the search refutes the printed one.",
        "",
        f"| claim | {WORDS['label']} | {WORDS['correction']} |",
        "|---|---|---|",
    ]
    for claim in (*wrong, *unchecked):
        link = f"[{markdown_name(claim)}](#{full_name(claim).lower().replace(' ', '-')})"
        lines.append(f"| {link} | {plain(claim.label)} | {plain(claim.correction)} |")
    for section in dict.fromkeys(claim.section for claim in wrong):
        lines += ["", f"## {section_heading(section)}"]
        for claim in (claim for claim in wrong if claim.section == section):
            lines += ["", *_entry(claim)]
    if unchecked:
        lines += ["", "## Without a counterexample", "", "Errors that no run can show, by their nature."]
        for claim in unchecked:
            lines += ["", *_head(claim, claim.title), "", f"{_CORRECTION} {plain(claim.correction)}"]
            lines += ["", f"**{claim.verdict.capitalize()}.** {plain(claim.reason)}"]
    return "\n".join(lines) + "\n"


def write_errata(path: Path) -> Path:
    """Write ERRATA.md, and return its path."""
    return write_whole(path, errata())


def _head(claim: Claim, title: str) -> list[str]:
    lines = [f"### {markdown_name(claim)}", "", f"**{plain(claim.label)}.** {plain(title)}".rstrip()]
    if claim.quote:
        lines += ["", f"> {plain(claim.quote)}"]
    if claim.formula:
        assumptions = f" ({WORDS['assumptions']}: {plain(claim.assumptions)})" if claim.assumptions else ""
        lines += ["", f"The paper states{assumptions}", "", markdown_math(claim.formula)]
    return lines


def _entry(claim: Claim) -> list[str]:
    with use("numpy"):
        texts, stands = claim.violated()
    if not stands:
        raise ValueError(f"the counterexample of {full_name(claim)} does not stand: {'; '.join(texts)}")
    # The title of a corrected claim says what is checked, which is the corrected statement.
    refuted = claim.verdict is Verdict.REFUTED
    lines = _head(claim, claim.title if refuted or not (claim.quote or claim.formula) else "")
    lines += ["", f"{_COUNTEREXAMPLE} {plain('; '.join(texts))}"]
    if claim.correction:
        lines += ["", f"{_CORRECTION} {plain(claim.correction)}"]
    if claim.corrected:
        lines += ["", markdown_math(claim.corrected)]
    if not refuted:
        lines += ["", f"**Checked {WORDS['title']}.** {plain(claim.title)}"]
    return lines

"""The paper's errors, each with a counterexample that is computed here, and the corrected statement."""

from __future__ import annotations

from pathlib import Path

from phiball.backends import use
from phiball.verification.framework.claim import Claim
from phiball.verification.framework.evidence import Verdict
from phiball.verification.framework.runner import SECTIONS, all_claims
from phiball.verification.report.files import plain
from phiball.verification.report.html import LINK, PAPER
from phiball.verification.report.math import markdown_math

_BEYOND = max(SECTIONS)
_WRONG = (Verdict.CORRECTED, Verdict.REFUTED)


def errata(claims: list[Claim] | None = None) -> str:
    """ERRATA.md: what is wrong in the paper, by the claims (all of them by default).

    Only the counterexamples are run, on the plain NumPy backend; one that does not stand is an error.
    """
    chosen = [one for one in (all_claims() if claims is None else claims) if one.section != _BEYOND]
    wrong = [one for one in chosen if one.verdict in _WRONG]
    silent = [one for one in chosen if one.verdict is Verdict.UNCHECKED and one.correction]
    lines = [
        "# Errata",
        "",
        f"What the verification suite finds wrong, or too weak to say what is meant, in {PAPER}",
        f"([arXiv]({LINK})), and what is true instead. The suite computes the numbers and writes this file:",
        "`make errata`. `phiball verify --claim ID` searches for violations of the corrected statement, or",
        "shows how the search refutes the printed one.",
        "",
        "| id | where | what is true instead |",
        "|---|---|---|",
    ]
    for one in (*wrong, *silent):
        link = f"[{one.id}](#{one.id.lower()})"
        lines.append(f"| {link} | {plain(one.label)} | {plain(one.correction)} |")
    for section in sorted({one.section for one in wrong}):
        lines += ["", f"## Section {section}: {SECTIONS[section]}"]
        for one in (one for one in wrong if one.section == section):
            lines += ["", *_entry(one)]
    if silent:
        lines += ["", "## Without a counterexample", ""]
        lines += ["Errors that no run can show, by their nature."]
        for one in silent:
            lines += ["", *_head(one, one.title), "", f"**True instead.** {plain(one.correction)}"]
            lines += ["", f"**Not checked.** {plain(one.reason)}"]
    return "\n".join(lines) + "\n"


def write_errata(path: Path) -> Path:
    """Write ERRATA.md, and say where."""
    text = errata()  # before the file is touched
    path.write_text(text, encoding="utf-8")
    return path


def _head(one: Claim, title: str) -> list[str]:
    lines = [f"### {one.id}", "", f"**{plain(one.label)}.** {plain(title)}".rstrip()]
    if one.quote:
        lines += ["", f"> {plain(one.quote)}"]
    if one.formula:
        assumed = f" (assuming: {plain(one.assumptions)})" if one.assumptions else ""
        lines += ["", f"The paper states{assumed}", "", markdown_math(one.formula)]
    return lines


def _entry(one: Claim) -> list[str]:
    with use("numpy"):
        texts, stands = one.violated()
    if not stands:
        raise ValueError(f"the counterexample of {one.id} does not stand: {'; '.join(texts)}")
    # The words of a corrected claim say what is checked, which is the corrected statement.
    refuted = one.verdict is Verdict.REFUTED
    lines = _head(one, one.title if refuted or not (one.quote or one.formula) else "")
    lines += ["", "**Counterexample.** " + plain("; ".join(texts))]
    if one.correction:
        lines += ["", f"**{'True instead' if refuted else 'Corrected'}.** {plain(one.correction)}"]
    if one.corrected:
        lines += ["", markdown_math(one.corrected)]
    if not refuted:
        lines += ["", f"**Checked.** {plain(one.title)}"]
    return lines

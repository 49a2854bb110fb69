"""The words of the report: one word for each thing, in the terminal, HTML, Markdown, JSON and the errata."""

from __future__ import annotations

from phiball.backends import active
from phiball.verification.framework.claim import Claim
from phiball.verification.framework.evidence import Verdict
from phiball.verification.framework.result import Result
from phiball.verification.framework.runner import BEYOND, SECTIONS

TITLE = "What the paper states, and what is true"
PAPER = "Jie Wang, Rui Gao, Yao Xie: Regularization for Adversarial Robust Learning"
LINK = "https://arxiv.org/abs/2408.09672"
# What each field of `Result` is called. JSON has underscores for the spaces.
WORDS = {
    "id": "id",
    "name": "name",
    "label": "label",
    "section": "section",
    "title": "statement",
    "formula": "formula",
    "assumptions": "assumptions",
    "quote": "quote",
    "correction": "correction",
    "corrected": "corrected formula",
    "remark": "remark",
    "assessment": "assessment",
    "part_of": "part of",
    "verdict": "verdict",
    "recorded": "recorded verdict",
    "reason": "reason",
    "error_level": "error level",
    "violation": "largest violation",
    "tolerance": "tolerance",
    "note": "measured",
    "examples": "examples",
    "counterexamples": "counterexamples",
    "found": "smallest example found",
    "error": "error",
    "curves": "curves",
    "seconds": "seconds",
}
MEANINGS = {
    Verdict.HOLDS: "the statement passed every check, as the paper prints it",
    Verdict.CORRECTED: "what the paper prints has a counterexample; the corrected statement passed",
    Verdict.REFUTED: "the statement failed in the search, and has a counterexample",
    Verdict.UNCHECKED: "no run can check it; the reason is given",
    Verdict.UNDECIDED: "the run ended without a verdict",
}
_PLURALS = {Verdict.HOLDS: "hold", Verdict.CORRECTED: "hold as corrected"}


def full_name(claim: Claim | Result) -> str:
    """The id and the name of a claim, such as "A1 strong_duality"."""
    return f"{claim.id} {claim.name}"


def section_heading(section: str) -> str:
    """Such as "Section 3: Optimization algorithm"."""
    name = SECTIONS.get(section, "")
    return name if section == BEYOND else f"Section {section}: {name}"


def by_section(results: list[Result]) -> dict[str, list[Result]]:
    """The results of each section, in their order."""
    sections = dict.fromkeys(result.section for result in results)
    return {section: [r for r in results if r.section == section] for section in sections}


def counts(results: list[Result]) -> dict[Verdict, int]:
    """How many claims reached each verdict; verdicts that none reached are left out."""
    verdicts = [result.verdict for result in results]
    return {verdict: verdicts.count(verdict) for verdict in Verdict if verdict in verdicts}


def summary(results: list[Result], seconds: float) -> str:
    """One line: how many claims reached which verdict, and whether that is as recorded."""
    parts = [f"{n} {_PLURALS.get(v, v) if n > 1 else v}" for v, n in counts(results).items()]
    different = [full_name(result) for result in results if not result.as_recorded]
    close = f"verdicts NOT as recorded: {', '.join(different)}" if different else "all verdicts as recorded"
    claims = "claim" if len(results) == 1 else "claims"
    backend = active().name
    return f"{len(results)} {claims}: {', '.join(parts)}; {close} (backend {backend}, {seconds:.0f} s)"


def remarks(result: Result) -> dict[str, str]:
    """The texts that go with a verdict, by their words; those that are empty are left out."""
    texts = {WORDS["title"]: result.title}
    if result.assessment is not None:
        fault = result.assessment
        texts["kind"] = f"{fault.kind}; consequence: {fault.consequence}"
        texts["why"] = fault.why
    texts[WORDS["correction"]] = result.correction
    texts[WORDS["counterexamples"]] = "; ".join(result.counterexamples)
    texts[WORDS["remark"]] = result.remark
    texts[WORDS["reason"]] = result.reason
    if not result.as_recorded:
        measured = f"{WORDS['violation']} {result.violation:.3g}, {WORDS['tolerance']} {result.tolerance:.3g}"
        texts["DIFFERS"] = f"the {WORDS['recorded']} is {result.recorded}; {measured}"
    if not result.as_recorded or result.verdict is Verdict.REFUTED:
        texts[WORDS["found"]] = result.found
    texts[WORDS["error"]] = result.error
    return {word: text for word, text in texts.items() if text}

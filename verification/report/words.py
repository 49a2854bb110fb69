"""The words of the report: one word for each thing, in the terminal, HTML, Markdown, JSON and the errata."""

from __future__ import annotations

from math import isnan

from phiball.backends import active
from phiball.verification.framework.assessment import Assessment, Consequence, Kind
from phiball.verification.framework.claim import Claim
from phiball.verification.framework.evidence import Verdict
from phiball.verification.framework.result import Result
from phiball.verification.framework.runner import BEYOND, SECTIONS
from phiball.verification.report.entries import followers, of_the_paper, tally

TITLE = "The statements of the paper, checked by execution"
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
    "bound": "bound",
    "share": "share of the bound",
    "note": "measured",
    "searched": "searched",
    "examples": "examples",
    "counterexamples": "counterexamples",
    "found": "smallest example found",
    "error": "error",
    "curves": "curves",
    "seconds": "seconds",
    "source": "source",
    "oracles": "oracles",
}
MEANINGS = {
    Verdict.HOLDS: "the statement passed every check, as the paper prints it",
    Verdict.CORRECTED: "what the paper prints has a counterexample; the corrected statement passed",
    Verdict.REFUTED: "the statement failed in the search, and has a counterexample",
    Verdict.UNCHECKED: "no run can check it; the reason is given",
    Verdict.UNDECIDED: "the run ended without a verdict",
}
KINDS = {
    Kind.MISPRINT: "a slip of the pen: the text around it shows what is meant",
    Kind.IMPRECISE: "open to several readings, or short of what is meant",
    Kind.OPEN: "the paper leaves out what a check needs",
    Kind.ASSUMPTION: "true under a condition that is not stated",
    Kind.CONSTANT: "true with another constant, term or exponent",
    Kind.FALSE: "not true as it stands",
}
CONSEQUENCES = {
    Consequence.NONE: "read or written right, everything stays as printed",
    Consequence.REPAIR: "an argument has to be changed, its conclusion stands",
    Consequence.RESULT: "a theorem, algorithm, example or finding has to be stated otherwise",
}
LOOSE = 0.01
"""A bound of which less than this part was reached says little about the statement."""
_PLURALS = {
    Verdict.HOLDS: "hold",
    Verdict.CORRECTED: "hold as corrected",
    Kind.MISPRINT: "misprints",
    Kind.ASSUMPTION: "missing assumptions",
    Kind.CONSTANT: "constants or rates wrong",
}


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


def _counted(number: int, word: str) -> str:
    plurals = {key.value: plural for key, plural in _PLURALS.items()}
    return f"{number} {plurals.get(word, word) if number > 1 else word}"


def _claims(number: int) -> str:
    return f"{number} claim" if number == 1 else f"{number} claims"


def counts(results: list[Result]) -> list[str]:
    """How the statements of the paper stand, by kind of fault; and apart, those beyond it, by verdict."""
    lines = []
    if found := of_the_paper(results):
        claims = sum(len(entry.lines) for entry in found)
        parts = [_counted(number, word) for word, number in tally(found).items()]
        statements = "statement" if len(found) == 1 else "statements"
        text = f"The paper: {len(found)} {statements} ({_claims(claims)}): {', '.join(parts)}"
        if more := followers(found):
            text += f"; {len(more)} {'follows' if len(more) == 1 else 'follow'} from these"
        lines.append(text)
    if beyond := [result for result in results if result.section == BEYOND]:
        verdicts = [result.verdict for result in beyond]
        parts = [_counted(verdicts.count(v), v.value) for v in Verdict if v in verdicts]
        lines.append(f"Beyond the paper: {_claims(len(beyond))}: {', '.join(parts)}")
    return lines


def agreement(results: list[Result], seconds: float) -> str:
    """One line: whether the verdicts are as recorded, and the circumstances."""
    different = [full_name(result) for result in results if not result.as_recorded]
    close = f"Verdicts NOT as recorded: {', '.join(different)}" if different else "All verdicts as recorded"
    return f"{close} (backend {active().name}, {seconds:.0f} s)"


def summary(results: list[Result], seconds: float) -> str:
    """The counts, and whether the verdicts are as recorded, in a few sentences."""
    return ". ".join([*counts(results), agreement(results, seconds)])


def reading_of(fault: Assessment) -> str:
    """How an ambiguous sentence is read, and what its other readings yield; empty if it is as stated."""
    if fault.as_stated:
        return ""
    others = "; ".join(f"{other.sense}: {other.yields}" for other in fault.others)
    return f"one reading: {fault.reading}. Others: {others}"


def method(result: Result) -> str:
    """How a claim was checked: on searched examples, on fixed instances, or by statistics."""
    if isnan(result.violation):
        return ""
    number = f"{result.examples:,}".replace(",", "\N{NO-BREAK SPACE}")
    checks = f"{number} {'check' if result.examples == 1 else 'checks'}"
    if result.error_level:
        level = f"{result.error_level:.0e}".replace("e-0", "e-")
        return f"statistical: {checks} at an error level of {level} in all"
    return f"searched: {number} examples" if result.searched else f"fixed instances: {checks}"


def evidence(result: Result) -> str:
    """What the worst piece of evidence says, in words with numbers."""
    v, tol, bound, share = result.violation, result.tolerance, result.bound, result.share
    if isnan(v):
        return ""
    if v > tol:
        where = "" if isnan(bound) else f" the bound of {bound:.4g}"
        return (
            f"exceeds{where or ' what is allowed'} by {v:.4g}, of which {tol:.2g} could be rounding or noise"
        )
    if not isnan(share):
        loose = "; the bound is far from tight here" if share < LOOSE else ""
        return f"at most {100 * share:.3g} % of the bound was reached{loose}"
    if not isnan(bound):
        return f"{v + bound:.4g} measured, where the bound is {bound:.4g}"
    if v > 0:
        return f"off by {v:.2g} at most, where rounding or noise may explain {tol:.2g}"
    return "no difference at all" if v == 0 else f"a margin of {-v:.4g} was left"


def remarks(result: Result) -> dict[str, str]:
    """The texts that go with a verdict, by their words; those that are empty are left out."""
    texts = {WORDS["title"]: result.title}
    if (fault := result.assessment) is not None:
        texts["kind"] = fault.kind
        texts["consequence"] = fault.consequence
        texts["why"] = fault.why
        texts["reading"] = reading_of(fault)
    texts[WORDS["counterexamples"]] = "\n".join(result.counterexamples)
    texts[WORDS["correction"]] = result.correction
    texts[WORDS["remark"]] = result.remark
    texts[WORDS["reason"]] = result.reason
    if result.reason:
        texts[WORDS["note"]] = result.note
    if not result.as_recorded:
        texts["DIFFERS"] = f"the {WORDS['recorded']} is {result.recorded}; {evidence(result)}"
    if not result.as_recorded or result.verdict is Verdict.REFUTED:
        texts[WORDS["found"]] = result.found
    texts[WORDS["error"]] = result.error
    return {word: text for word, text in texts.items() if text}

"""The words of the report: one word for each thing, in the terminal, HTML, Markdown, JSON and the errata."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from math import isnan
from shlex import quote
from typing import Any

from phiball.backends import active
from phiball.verification.framework.assessment import Assessment, Consequence, Kind
from phiball.verification.framework.claim import Claim
from phiball.verification.framework.evidence import Verdict
from phiball.verification.framework.paper import BEYOND
from phiball.verification.framework.result import Result
from phiball.verification.report.entries import followers, of_the_paper, tally

_NAMES = {
    "title": "statement",
    "corrected": "corrected formula",
    "recorded": "recorded verdict",
    "violation": "largest violation",
    "note": "measured",
    "measured": "closest measurement",
    "closest": "closest to its bound",
    "found": "smallest example found",
    "rejected": "mutants rejected",
    "survived": "mutants not rejected",
}
WORDS = {f.name: _NAMES.get(f.name, f.name.replace("_", " ")) for f in fields(Result)}
"""What each field of `Result` is called. JSON has underscores for the spaces."""
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
LOOSE, VACUOUS = 0.1, 0.01
"""Bounds of which less than these parts were reached say little, or nothing, about the statement."""
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
        text = f"The paper: {len(found)} {statements} ({_claims(claims)}): "
        if more := followers(found):
            parts = [", ".join(parts), f"{len(more)} {'follows' if len(more) == 1 else 'follow'} from "]
            parts[1] += "these" if parts[0] else "others, which were not run"
            text += "; ".join(filter(None, parts))
        else:
            text += ", ".join(parts)
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


def method(result: Result, seed: int = 0) -> str:
    """How a claim was checked, with the number of examples; empty for what no run can check.

    A statistical claim also says its error level and the seed of the run.
    """
    if isnan(result.violation):
        return ""
    unit = "example" if result.searched else "check"
    what = f"{result.examples} {unit}{'' if result.examples == 1 else 's'}"
    if result.error_level:
        return f"statistical: {what} at an error level of {result.error_level:.2g} in all, seed {seed}"
    draws = ", expectations by enumeration of all draws" if result.enumerated else ""
    return f"{'searched' if result.searched else 'fixed instances'}: {what}{draws}"


def evidence(result: Result) -> str:
    """What the worst piece of evidence says, in words with numbers."""
    v, tol = result.violation, result.tolerance
    if isnan(v):
        return ""
    if v > tol:
        where = "what is allowed" if isnan(result.bound) else f"the bound of {result.bound:.4g}"
        return f"exceeds {where} by {v:.4g}, of which {tol:.2g} could be rounding or noise"
    if not isnan(result.share):
        return _reached(result)
    if v > 0:
        return f"off by {v:.2g} at most, where rounding or noise may explain {tol:.2g}"
    return "no difference at all" if v == 0 else f"a margin of {-v:.4g} was left"


def _reached(result: Result) -> str:
    """How much of its bound was reached; a bound of 1 is that of a ratio, which says so by itself."""
    numbers = "" if result.bound == 1 else f": {result.measured:.4g} measured, {result.bound:.4g} allowed"
    text = f"at most {100 * result.share:.3g} % of the bound was reached{numbers}"
    return f"{text}; a {looseness(result)} bound here" if looseness(result) else text


def looseness(result: Result) -> str:
    """What to call a bound that nothing comes near; empty for other bounds."""
    if result.share < VACUOUS:
        return "vacuous"
    return "loose" if result.share < LOOSE else ""


def mutants(result: Result) -> str:
    """How many of the faults that are registered with a claim it rejects; empty if they were not run."""
    if not (result.rejected or result.survived):
        return ""
    text = f"{len(result.rejected)} of {len(result.rejected) + len(result.survived)} rejected"
    return f"{text}; NOT rejected: {', '.join(result.survived)}" if result.survived else text


def all_mutants(results: list[Result]) -> str:
    """How many of all mutants were rejected, in a sentence; empty if none were run."""
    rejected, survived = (sum(len(getattr(r, name)) for r in results) for name in ("rejected", "survived"))
    if not rejected + survived:
        return ""
    return f"Mutants: {rejected} of {rejected + survived} planted faults are rejected by the claims on them"


def false_alarm(results: list[Result]) -> str:
    """The chance that true statements raise an alarm, in a sentence; empty without statistical claims."""
    levels = [result.error_level for result in results if result.error_level]
    if not levels:
        return ""
    count = "1 claim is" if len(levels) == 1 else f"{len(levels)} claims are"
    chance = f"{sum(levels):.2g} at most, the sum of the error levels"
    return f"{count} statistical; the chance that bad luck raises an alarm in a run is {chance}"


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
    texts["mutants"] = mutants(result)
    return {word: text for word, text in texts.items() if text}


def command(result: Result, about: Mapping[str, Any]) -> str:
    """The command that runs this claim again, as it was run here."""
    options = (" --deep" if about["deep"] else "") + (f" --seed {about['seed']}" if about["seed"] else "")
    where = f" --claims {quote(about['claims'])}" if about.get("claims") else ""
    return f"phiball verify{where} --claim {result.id}{options}"

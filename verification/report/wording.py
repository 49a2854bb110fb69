"""The wording of the report, shared by the terminal, HTML, Markdown, JSON and the errata."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
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
from phiball.verification.report.entries import Line, followers, of_the_paper, tally

_SPECIAL_NAMES = {
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
NAMES = {f.name: _SPECIAL_NAMES.get(f.name, f.name.replace("_", " ")) for f in fields(Result)}
"""The name of each field of `Result` in the report; in JSON, underscores replace the spaces."""
MEANINGS = {
    Verdict.HOLDS: "the statement passed every check as printed",
    Verdict.CORRECTED: "the printed statement has a counterexample; the corrected one passed every check",
    Verdict.REFUTED: "the statement failed a check; a counterexample is given",
    Verdict.UNCHECKED: "no computation can check the statement, for the reason given",
    Verdict.UNDECIDED: "the run did not reach a verdict",
}
KINDS = {
    Kind.MISPRINT: "the context shows the intended statement",
    Kind.IMPRECISE: "ambiguous or incomplete wording",
    Kind.OPEN: "the paper does not give enough detail for a check",
    Kind.ASSUMPTION: "true under an assumption that is not stated",
    Kind.CONSTANT: "true with another constant, term or exponent",
    Kind.FALSE: "not true as printed",
}
CONSEQUENCES = {
    Consequence.NONE: "once the sentence is corrected, nothing else changes",
    Consequence.REPAIR: "an argument changes, and its conclusion stands",
    Consequence.RESULT: "a theorem, algorithm, example or finding has to be restated",
}
SEVERITY = (
    "Errors are listed by severity: first errors that change a result, then errors that only require the "
    "repair of a proof, then errors without consequence. Within each group they are ordered by kind, from "
    "“false as stated” to “misprint”."
)
LOOSE, VACUOUS = 0.1, 0.01
"""A bound is called loose or vacuous if all measured values are below this fraction of it."""
# Words that are not capitalised at the beginning of a sentence.
_SYMBOLS = {"alpha", "eps", "eta", "gamma", "kappa", "log", "max", "mu", "nu", "phi", "rho", "sup", "theta"}
_PLURALS: dict[str, str] = {
    Verdict.HOLDS: "hold",
    Verdict.CORRECTED: "hold as corrected",
    Kind.MISPRINT: "misprints",
    Kind.ASSUMPTION: "missing assumptions",
    Kind.CONSTANT: "constants or rates wrong",
    "claim": "claims",
    "statement": "statements",
}


def full_name(claim: Claim | Result) -> str:
    """The id and the name of a claim, such as "A1 strong_duality"."""
    return f"{claim.id} {claim.name}"


def sentence(text: str) -> str:
    """The text as a sentence, with a full stop and a capital letter unless it begins with a symbol.

    >>> sentence("the value is D(mu)"), sentence("mu is unique."), sentence("f = (0, 1)")
    ('The value is D(mu).', 'mu is unique.', 'f = (0, 1).')
    """
    word = re.split(r"[\s,;:]", text, maxsplit=1)[0]
    is_word = word == "a" or (word.isalpha() and len(word) > 1 and word not in _SYMBOLS)
    start = text[:1].upper() if is_word else text[:1]
    return f"{start}{text[1:].rstrip('.')}." if text else ""


def by_section(results: list[Result]) -> dict[str, list[Result]]:
    """The results of each section, in their order."""
    sections = dict.fromkeys(result.section for result in results)
    return {section: [r for r in results if r.section == section] for section in sections}


def _counted(number: int, word: str) -> str:
    return f"{number} {word if number == 1 else _PLURALS.get(word, word)}"


def totals(results: Sequence[Line]) -> str:
    """The number of statements of the paper by outcome, as text; empty if there are no statements."""
    found = of_the_paper(results)
    if not found:
        return ""
    verdicts = [(entry.head.verdict, entry) for entry in found]
    heads = [entry.head for verdict, entry in verdicts if verdict is Verdict.REFUTED]
    refuted = [f"{head.id}: {head.label}" for head in heads]
    numbers = {
        "as printed": sum(entry.status == Verdict.HOLDS for entry in found),
        "with a correction": sum(
            verdict in (Verdict.HOLDS, Verdict.CORRECTED) and entry.status != Verdict.HOLDS
            for verdict, entry in verdicts
        ),
        f"refuted ({'; '.join(refuted)})": len(refuted),
        "not checkable": sum(verdict is Verdict.UNCHECKED for verdict, _ in verdicts),
        "undecided": sum(verdict is Verdict.UNDECIDED for verdict, _ in verdicts),
    }
    verbs = {"as printed": ("holds", "hold"), "with a correction": ("holds", "hold")}
    parts = [
        f"{number} {verbs.get(status, ('is', 'are'))[number > 1]} {status}"
        for status, number in numbers.items()
        if number
    ]
    return f"Of {_counted(len(found), 'statement')} of the paper, {_listed(parts)}"


def _listed(parts: Sequence[str]) -> str:
    return f"{', '.join(parts[:-1])} and {parts[-1]}" if len(parts) > 1 else parts[0]


def counts(results: list[Result]) -> list[str]:
    """The statements of the paper by kind of error, and the claims beyond it by verdict."""
    lines = []
    if found := of_the_paper(results):
        claims = sum(len(entry.lines) for entry in found)
        parts = [_counted(number, word) for word, number in tally(found).items()]
        text = ", ".join(parts)
        if more := followers(found):
            text += "; " if text else ""
            text += f"{len(more)} {'follows' if len(more) == 1 else 'follow'} from "
            text += "these" if parts else "statements that were not run"
        lines.append(f"By kind ({_counted(claims, 'claim')} on {_counted(len(found), 'statement')}): {text}")
    if beyond := [result for result in results if result.section == BEYOND]:
        lines.append(f"Beyond the paper: {by_verdict(beyond)}")
    return lines


def by_verdict(results: list[Result]) -> str:
    """The number of claims, in all and by verdict."""
    verdicts = [result.verdict for result in results]
    parts = [_counted(verdicts.count(v), v.value) for v in Verdict if v in verdicts]
    return f"{_counted(len(results), 'claim')}: {', '.join(parts)}"


def agreement(results: list[Result], seconds: float) -> str:
    """Whether the verdicts are as recorded, with the backend and the run time, in one line."""
    different = [full_name(result) for result in results if not result.as_recorded]
    text = f"Verdicts NOT as recorded: {', '.join(different)}" if different else "All verdicts as recorded"
    return f"{text} (backend {active().name}, {seconds:.0f} s)"


def summary(results: list[Result], seconds: float) -> str:
    """The totals, the counts by kind of error, and the agreement with the recorded verdicts."""
    return ". ".join(filter(None, [totals(results), *counts(results), agreement(results, seconds)]))


def reading_of(assessment: Assessment) -> str:
    """For an ambiguous sentence, the reading that is checked and the other readings; else empty."""
    if assessment.as_stated:
        return ""
    others = "; ".join(f"{other.sense} ({other.outcome})" for other in assessment.others)
    return f"{assessment.reading}. Other readings: {others}"


def method(result: Result, seed: int = 0) -> str:
    """How a claim was checked, with the number of examples; empty if it cannot be checked.

    For a statistical claim, also the error level and the seed.
    """
    if isnan(result.violation):
        return ""
    unit = "example" if result.searched else "check"
    number = f"{result.examples} {unit}{'' if result.examples == 1 else 's'}"
    if result.error_level:
        return f"statistical: {number} at a total error level of {result.error_level:.2g}, seed {seed}"
    draws = ", expectations by enumeration of all draws" if result.enumerated else ""
    return f"{'searched' if result.searched else 'fixed instances'}: {number}{draws}"


def evidence(result: Result) -> str:
    """The worst evidence as text; empty if there is none."""
    v, tol = result.violation, result.tolerance
    if isnan(v):
        return ""
    if v > tol:
        verb = "violated" if isnan(result.bound) else f"exceeds the bound of {result.bound:.4g}"
        return f"{verb} by {v:.4g}, more than the tolerance of {tol:.2g}"
    if not isnan(result.share):
        return _share(result)
    if v > 0:
        return f"the largest difference is {v:.2g}, within the tolerance of {tol:.2g}"
    return "no difference" if v == 0 else f"satisfied with a margin of {-v:.4g}"


def _share(result: Result) -> str:
    """The largest measured fraction of the bound; with the two numbers unless the bound is 1."""
    numbers = "" if result.bound == 1 else f" ({result.measured:.4g} of {result.bound:.4g})"
    text = f"the measured value is at most {100 * result.share:.3g} % of the bound{numbers}"
    return f"{text}, which is {looseness(result)} here" if looseness(result) else text


def looseness(result: Result) -> str:
    """The word "loose" or "vacuous" for a bound far above the measured values, else empty."""
    if result.share < VACUOUS:
        return "vacuous"
    return "loose" if result.share < LOOSE else ""


def mutants(result: Result) -> str:
    """The number of its mutants that a claim rejects; empty if they were not run."""
    if not (result.rejected or result.survived):
        return ""
    text = f"{len(result.rejected)} of {len(result.rejected) + len(result.survived)} rejected"
    return f"{text}; NOT rejected: {', '.join(result.survived)}" if result.survived else text


def all_mutants(results: list[Result]) -> str:
    """The number of mutants of all claims that were rejected; empty if none were run."""
    rejected, survived = (sum(len(getattr(r, name)) for r in results) for name in ("rejected", "survived"))
    if not rejected + survived:
        return ""
    return f"Mutants: {rejected} of {rejected + survived} are rejected"


def false_alarm(results: list[Result]) -> str:
    """The probability of a false alarm in a run; empty without statistical claims."""
    levels = [result.error_level for result in results if result.error_level]
    if not levels:
        return ""
    count = "1 claim is" if len(levels) == 1 else f"{len(levels)} claims are"
    chance = f"{sum(levels):.2g} (the sum of the error levels)"
    return f"{count} statistical; the probability of a false alarm in a run is at most {chance}"


def verdict_difference(result: Result) -> str:
    """Why the verdict differs from the recorded one; empty if it does not."""
    if result.as_recorded:
        return ""
    text = f"the {NAMES['recorded']} is {result.recorded}"
    if result.verdict is Verdict.HOLDS and result.recorded is Verdict.CORRECTED:
        return f"{text}, but the claim has no counterexample to the printed statement"
    if result.verdict is Verdict.UNDECIDED and result.counterexamples and not result.error:
        return (
            f"{text}, but a counterexample is invalid: it must violate the printed statement and satisfy the "
            "paper's assumptions"
        )
    return "; ".join(filter(None, [text, evidence(result)]))


def remarks(result: Result) -> dict[str, str]:
    """The texts shown below a verdict, by name; empty texts are omitted."""
    texts = {NAMES["title"]: result.title}
    if (assessment := result.assessment) is not None:
        texts["kind"] = assessment.kind
        texts["consequence"] = assessment.consequence
        texts["why"] = assessment.why
        texts["reading"] = reading_of(assessment)
    texts[NAMES["counterexamples"]] = "\n".join(result.counterexamples)
    texts[NAMES["correction"]] = result.correction
    texts[NAMES["remark"]] = result.remark
    texts[NAMES["reason"]] = result.reason
    if result.reason:
        texts[NAMES["note"]] = result.note
    texts["DIFFERS"] = verdict_difference(result)
    if not result.as_recorded or result.verdict is Verdict.REFUTED:
        texts[NAMES["found"]] = result.found
    texts[NAMES["error"]] = result.error
    texts["mutants"] = mutants(result)
    return {word: text for word, text in texts.items() if text}


def command(result: Result, about: Mapping[str, Any]) -> str:
    """The command that repeats the run of this claim."""
    options = (" --deep" if about["deep"] else "") + (f" --seed {about['seed']}" if about["seed"] else "")
    where = f" --claims {quote(about['claims'])}" if about.get("claims") else ""
    return f"phiball verify{where} --claim {result.id}{options}"

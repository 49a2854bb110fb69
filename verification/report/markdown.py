"""The report as a Markdown page."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from phiball.verification.framework.claim import Claim
from phiball.verification.framework.paper import Paper
from phiball.verification.framework.result import Result
from phiball.verification.report.entries import Entry, Line, entries, of_the_paper, rows
from phiball.verification.report.math import markdown_math
from phiball.verification.report.overview import TITLES, overview
from phiball.verification.report.quotes import quote_markdown
from phiball.verification.report.theorems import theorems
from phiball.verification.report.this_paper import THIS
from phiball.verification.report.wording import (
    NAMES,
    SEVERITY,
    all_mutants,
    by_section,
    command,
    counts,
    evidence,
    false_alarm,
    method,
    remarks,
    totals,
)


def plain(text: str) -> str:
    """The text with all Markdown markup escaped."""
    return re.sub(r"([\\`*_<|$~]|\](?=\())", r"\\\1", text)


def markdown_name(claim: Claim | Result) -> str:
    """The id and the name of a claim, the name as code."""
    return f"{plain(claim.id)} `{claim.name.replace('`', '')}`"


def quotation(quote: str, paper: Paper) -> str:
    """A quotation from the paper, on one line."""
    return f"> {quote_markdown(quote, paper, plain)}"


def theorem_table(found: Sequence[Entry[Line]], paper: Paper) -> list[str]:
    """A table of the theorems, propositions and lemmas: whether each holds as printed."""
    listed = theorems(found, paper)
    lines = ["", "| | holds as printed? | remarks |", "|---|---|---|"] if listed else []
    for theorem in listed:
        notes = plain("; ".join(theorem.notes))
        lines.append(f"| {plain(theorem.full_name)} | {theorem.answer} | {notes} |")
    return lines


def item_table(found: list[Entry[Line]], paper: Paper) -> list[str]:
    """A table of the items of the paper: their statements, and the most severe error of each item."""
    head = "| item | | statements | hold | most severe error | consequence | claims | claims on the proof |"
    lines = ["", SEVERITY, "", head, "|---" * 8 + "|"]
    for row in rows(found, paper):
        worst = row.worst
        consequence = worst.consequence if worst.kind else ""
        ids = " | ".join(", ".join(e.head.id for e in group) for group in (row.statement, row.asides))
        numbers = f"{len(row.entries)} | {row.holding}"
        item = f"{row.item.name} | {plain(row.item.title)}"
        lines.append(f"| {item} | {numbers} | {worst.status} | {consequence} | {ids} |")
    return lines


def to_markdown(results: list[Result], about: Mapping[str, Any], paper: Paper = THIS) -> str:
    """The report as Markdown: totals, theorems and corrections first, then every claim."""
    lines = [f"# {plain(paper.title)}", "", plain(paper.name)]
    found = of_the_paper(results)
    opening = overview(results, paper)
    if total := totals(results):
        lines += ["", plain(f"{total}. {opening.stands}".strip())]
    lines += theorem_table(found, paper)
    for consequence, corrections in opening.corrections.items():
        lines += ["", f"{TITLES[consequence]}:", ""]
        lines += [f"- {plain(label)}: {plain(text)} ({id_})" for label, id_, text in corrections]
    sums = (*counts(results), about["agreement"], all_mutants(results), false_alarm(results))
    for paragraph in filter(None, (opening.wording, *sums)):
        lines += ["", plain(paragraph)]
    if found:
        lines += item_table(found, paper)
    for section, members in by_section(results).items():
        lines += ["", f"## {plain(paper.section_heading(section))}"]
        for entry in entries(members):
            for depth, result in enumerate(entry.lines):
                mark = "###" if depth == 0 else "####"
                lines += ["", f"{mark} {markdown_name(result)}: {plain(result.label)}", ""]
                lines += _about(result, about, paper)
    return "\n".join(lines) + "\n"


def _about(result: Result, about: Mapping[str, Any], paper: Paper) -> list[str]:
    differs = "" if result.as_recorded else f" ({NAMES['recorded']}: {result.recorded})"
    lines = [f"- {NAMES['verdict']}: {result.verdict}{differs}"]
    for word, text in remarks(result).items():
        several = text.split("\n")
        lines += [f"- {word}: {plain(part)}" for part in several]
    for word, text in (("method", method(result, about["seed"])), ("evidence", evidence(result))):
        if text:
            lines.append(f"- {word}: {text}")
    if result.note and not result.reason:
        lines.append(f"- {NAMES['note']}: {plain(result.note)}")
    lines += [f"- {plain(curve.title)}: exponent {curve.fit}" for curve in result.curves]
    if result.assumptions:
        lines.append(f"- {NAMES['assumptions']}: {plain(result.assumptions)}")
    if result.source:
        lines.append(f"- {NAMES['source']}: `{result.source}`; `{command(result, about)}`")
    if result.quote:
        lines += ["", quotation(result.quote, paper)]
    for field in ("formula", "corrected"):
        if tex := getattr(result, field):
            lines += ["", f"{NAMES[field].capitalize()}:", "", markdown_math(tex)]
    return lines

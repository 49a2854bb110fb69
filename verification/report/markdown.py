"""The report as a Markdown page."""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import isnan
from typing import Any

from phiball.verification.framework.claim import Claim
from phiball.verification.framework.result import Result
from phiball.verification.report.math import markdown_math
from phiball.verification.report.words import TITLE, WORDS, by_section, remarks, section_heading


def plain(text: str) -> str:
    """Text in which Markdown sees no emphasis, code, link, table or formula."""
    return re.sub(r"([\\`*_<|$~]|\](?=\())", r"\\\1", text)


def markdown_name(claim: Claim | Result) -> str:
    """The id and the name of a claim, the name as code."""
    return f"{claim.id} `{claim.name}`"


def to_markdown(results: list[Result], about: Mapping[str, Any]) -> str:
    """The whole run as a page: a table of verdicts, then what there is to say of each claim."""
    columns = ("verdict", "violation", "tolerance", "examples")
    head = ["claim", WORDS["label"], *(WORDS[field] for field in columns)]
    lines = [f"# {TITLE}", "", about["summary"], "", f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for result in results:
        differs = "" if result.as_recorded else f" ({WORDS['recorded']}: {result.recorded})"
        violation = "" if isnan(result.violation) else f"{result.violation:.2g}"
        cells = (
            *(markdown_name(result), plain(result.label), f"{result.verdict}{differs}"),
            *(violation, f"{result.tolerance:.2g}", str(result.examples)),
        )
        lines.append(f"| {' | '.join(cells)} |")
    for section, members in by_section(results).items():
        lines += ["", f"## {section_heading(section)}"]
        for result in members:
            lines += ["", f"### {markdown_name(result)}: {plain(result.label)}", ""]
            lines += [f"- {word}: {plain(text)}" for word, text in remarks(result).items()]
            lines += [f"- {plain(curve.title)}: exponent {curve.fit}" for curve in result.curves]
            if result.assumptions:
                lines.append(f"- {WORDS['assumptions']}: {plain(result.assumptions)}")
            for field in ("formula", "corrected"):
                if tex := getattr(result, field):
                    lines += ["", f"{WORDS[field].capitalize()}:", "", markdown_math(tex)]
    return "\n".join(lines) + "\n"

"""The report as one self-contained HTML page, from page.html.j2, page.css and page.js."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from html import escape
from importlib.resources import files
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from phiball.verification.framework.assessment import Consequence, Kind
from phiball.verification.framework.comparison import Comparison
from phiball.verification.framework.evidence import Verdict
from phiball.verification.framework.paper import BEYOND, Paper
from phiball.verification.framework.result import Result
from phiball.verification.report import entries, wording
from phiball.verification.report.math import formula, prose
from phiball.verification.report.overview import TITLES, overview
from phiball.verification.report.plots import figure
from phiball.verification.report.quotes import quote_html
from phiball.verification.report.theorems import HoldsAsPrinted, theorems
from phiball.verification.report.this_paper import SOURCE, THIS

# The CSS class and the sign of each status of an entry, and of each `HoldsAsPrinted`.
_LOOKS = {
    Verdict.HOLDS.value: ("holds", "✓"),
    Kind.MISPRINT.value: ("misprint", "✎"),
    Kind.IMPRECISE.value: ("imprecise", "≈"),
    Kind.OPEN.value: ("open", "?"),
    Kind.ASSUMPTION.value: ("assumption", "+"),
    Kind.CONSTANT.value: ("constant", "≠"),
    Kind.FALSE.value: ("false", "✗"),
    Verdict.CORRECTED.value: ("assumption", "✎"),
    Verdict.REFUTED.value: ("false", "✗"),
    Verdict.UNCHECKED.value: ("open", "\N{EN DASH}"),
    Verdict.UNDECIDED.value: ("undecided", "!"),
    HoldsAsPrinted.YES.value: ("holds", "✓"),
    HoldsAsPrinted.CONSTANT.value: ("constant", "≠"),
    HoldsAsPrinted.CORRECTED.value: ("assumption", "✎"),
    HoldsAsPrinted.ASSUMPTION.value: ("assumption", "+"),
    HoldsAsPrinted.NO.value: ("false", "✗"),
    HoldsAsPrinted.UNDECIDED.value: ("undecided", "!"),
}


def to_html(
    results: list[Result],
    about: Mapping[str, Any],
    paper: Paper = THIS,
    comparisons: Sequence[Comparison] = (),
) -> str:
    """The report as HTML: totals, theorems, corrections, contents, then every entry in the paper's order.

    `comparisons`: the paper's own numbers beside ours.
    """
    environment = Environment(
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    ids = {result.id for result in results}
    code = str(about.get("code") or "")
    environment.filters |= {f.__name__: _html(f) for f in (formula, prose, figure)}
    environment.filters |= {
        "linked": _html(lambda text: _linked(text, ids)),
        "code": _html(lambda place: _code_link(place, code)),
        "quote_html": _html(lambda quote: quote_html(quote, paper)),
        "sentence": wording.sentence,
        "png": lambda picture: b64encode(picture).decode(),
        "full_name": wording.full_name,
        "smallest_example": _smallest_example,
        "command": lambda result: wording.command(result, about),
    }
    environment.globals |= {
        "wording": wording,
        "paper": paper,
        "looks": _LOOKS,
        "BEYOND": BEYOND,
        "NONE": Consequence.NONE,
        "HOLDS": Verdict.HOLDS,
        "entries_of": entries.entries,
        "titles": TITLES,
    }
    found = entries.of_the_paper(results)
    return environment.from_string(_text("page.html.j2")).render(
        results=results,
        different=[result for result in results if not result.as_recorded],
        overview=overview(results, paper),
        theorems=theorems(found, paper),
        comparisons=comparisons,
        rows=entries.rows(found, paper),
        tally=entries.tally(found),
        followers=entries.followers(found),
        statements=len(found),
        beyond=[result for result in results if result.section == BEYOND],
        about=about,
        source=SOURCE if paper is THIS else "",
        style=Markup(_text("page.css")),
        script=Markup(_text("page.js")),
    )


def _text(name: str) -> str:
    return files("phiball.verification.report").joinpath(name).read_text(encoding="utf-8")


def _html(function: Callable[[Any], str]) -> Callable[[Any], Markup]:
    """Wrap a function that returns HTML as a filter whose result is not escaped again."""
    return lambda value: Markup(function(value))


def _linked(text: str, ids: set[str]) -> str:
    """The text as HTML, with the ids of claims as links."""
    parts = re.split(r"(?<![\w-])([A-Z]\d+[a-z]?(?:-[a-z]+)?)(?![\w-])", text)
    return "".join(
        f'<a href="#claim-{part}">{part}</a>' if index % 2 and part in ids else prose(part)
        for index, part in enumerate(parts)
    )


def _code_link(place: str, template: str) -> str:
    """A location such as verification/oracles/exact_solver.py:26 as HTML, with a link if there is a template.

    If `place` has a name before the location, the name is shown. `template` is a URL with {path} and {line}.
    """
    name, _, at = place.rpartition(" ")
    path, _, line = at.rpartition(":")
    shown = escape(name or path)
    if not template:
        return f'<code title="{escape(at)}">{shown}</code>'
    target = template.replace("{path}", path).replace("{line}", line)
    return f'<a href="{escape(target)}" title="{escape(at)}"><code>{shown}</code></a>'


def _smallest_example(result: Result) -> str:
    """The example on which the statement failed, unless a counterexample already shows it."""
    is_shown = any(
        result.found.rpartition("the fixed instances: ")[2] in text for text in result.counterexamples
    )
    return "" if is_shown else result.found

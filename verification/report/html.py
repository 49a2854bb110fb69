"""The report as one HTML page that needs no network and no script: the data of page.html.j2."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.resources import files
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from phiball.verification.framework.evidence import Verdict
from phiball.verification.framework.result import Result
from phiball.verification.framework.runner import BEYOND, SECTIONS
from phiball.verification.report import words
from phiball.verification.report.math import formula, prose
from phiball.verification.report.plots import figure, number

# Of each verdict, the class of the style sheet and the sign.
_LOOKS = {
    Verdict.HOLDS: ("holds", "✓"),
    Verdict.CORRECTED: ("corrected", "✎"),
    Verdict.REFUTED: ("refuted", "✗"),
    Verdict.UNCHECKED: ("unchecked", "\N{EN DASH}"),
    Verdict.UNDECIDED: ("undecided", "!"),
}


def to_html(results: list[Result], about: Mapping[str, Any]) -> str:
    """The page: counts and contents, the claims in the order of the paper, the circumstances `about`."""
    environment = Environment(
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {f.__name__: _html(f) for f in (formula, prose, figure, number)}
    environment.filters |= {"full_name": words.full_name, "smallest_example": _smallest_example}
    environment.globals |= {"words": words, "looks": _LOOKS, "sections": SECTIONS, "BEYOND": BEYOND}
    return environment.from_string(_text("page.html.j2")).render(
        results=results,
        different=[result for result in results if not result.as_recorded],
        about=about,
        style=Markup(_text("page.css")),
    )


def _text(name: str) -> str:
    return files("phiball.verification.report").joinpath(name).read_text(encoding="utf-8")


def _html(function: Callable[[Any], str]) -> Callable[[Any], Markup]:
    """A function that returns HTML, as a filter whose result is not escaped again."""
    return lambda value: Markup(function(value))


def _smallest_example(result: Result) -> str:
    """The example on which the statement failed, unless the counterexample has said so."""
    return (
        ""
        if result.found.rpartition("the fixed instances: ")[2] in "; ".join(result.counterexamples)
        else result.found
    )

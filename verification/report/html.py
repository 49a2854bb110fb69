"""The report as one HTML page that needs no network and no script."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from html import escape
from importlib.resources import files
from math import isnan
from typing import Any

from phiball.verification.framework.claim import Result
from phiball.verification.framework.evidence import Verdict
from phiball.verification.framework.runner import SECTIONS
from phiball.verification.report.math import formula, prose
from phiball.verification.report.plots import figure, number

PAPER = "Jie Wang, Rui Gao, Yao Xie: Regularization for Adversarial Robust Learning"
LINK = "https://arxiv.org/abs/2408.09672"

# The word in classes, the sign, and what the verdict means.
_LOOKS = {
    Verdict.HOLDS: ("holds", "✓", "the statement passed every check, as the paper prints it"),
    Verdict.CORRECTED: ("corrected", "✎", "the printed one has a counterexample, the corrected one passed"),
    Verdict.REFUTED: ("refuted", "✗", "the statement failed in the search, and has a counterexample"),
    Verdict.UNCHECKED: ("unchecked", "\N{EN DASH}", "no run can check it; the reason is given"),
    Verdict.UNDECIDED: ("undecided", "!", "the run ended without a verdict"),
}

_WORDS = (
    "A violation is the amount by which an inequality fails; a negative one is what was left to spare. The "
    "worst is the largest beside its tolerance, which is what rounding, the noise of samples or a solver may "
    "explain. The error level is the chance that a true statement fails by bad luck. Exponents are fitted by "
    "least squares on logarithms, and stand with their 99 % confidence intervals."
)


def page(results: list[Result], about: Mapping[str, Any]) -> str:
    """The page: contents with verdict counts, the claims in the order of the paper, the circumstances."""
    style = files("phiball.verification.report").joinpath("page.css").read_text(encoding="utf-8")
    sections = sorted({r.section for r in results})
    body = [
        '<a class="skip" href="#claims">Skip to the claims</a>',
        "<header><h1>What the paper states, and what is true</h1>",
        f'<p class="paper"><a href="{LINK}">{PAPER}</a></p>',
        f"<p>{escape(str(about['summary']))}</p></header>",
        _alarm([r for r in results if not r.as_recorded]),
        _filters(results),
        '<nav aria-label="Contents"><h2>Contents</h2><ol class="contents">',
        *(_contents(section, [r for r in results if r.section == section]) for section in sections),
        '</ol></nav><main id="claims">',
        *(_section(section, [r for r in results if r.section == section]) for section in sections),
        "</main>",
        _foot(about),
    ]
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        '<link rel="icon" href="data:,">'  # browsers ask the server for one otherwise
        f"<title>What the paper states, and what is true</title><style>{style}</style></head>\n<body>"
        + "\n".join(part for part in body if part)
        + "</body></html>\n"
    )


def _anchor(result: Result) -> str:
    return f"claim-{result.id}"


def _name(section: str) -> str:
    name = escape(SECTIONS.get(section, ""))
    return name if section == max(SECTIONS) else f'<span class="number">{section}</span> {name}'


def _alarm(different: list[Result]) -> str:
    if not different:
        return ""
    items = "".join(
        f'<li><a href="#{_anchor(r)}">{escape(r.id)}</a> {escape(r.label)}: {r.verdict.value}, '
        f"recorded: {r.recorded.value}{'. ' + escape(r.error) if r.error else ''}</li>"
        for r in different
    )
    plural = "verdict differs" if len(different) == 1 else "verdicts differ"
    heading = f"{len(different)} {plural} from what is recorded"
    return f'<section class="alarm" role="alert"><h2>{heading}</h2><ul>{items}</ul></section>'


def _filters(results: list[Result]) -> str:
    """The counts, which also choose what is shown: radio buttons, and a rule of the style sheet each."""
    counts = {verdict: sum(1 for r in results if r.verdict is verdict) for verdict in Verdict}
    options = [("all", "", len(results), "all claims", "")]
    options += [(*_LOOKS[v][:2], n, v.value, _LOOKS[v][2]) for v, n in counts.items() if n]
    tiles = "".join(
        f'<input type="radio" name="show" id="show-{word}"{" checked" if word == "all" else ""}>'
        f'<label class="tile {word}" for="show-{word}" title="{escape(meaning)}">'
        f"<strong>{n}</strong> <span>{f'{sign} ' if sign else ''}{name}</span></label>"
        for word, sign, n, name, meaning in options
    )
    return f'<fieldset class="filters"><legend>Verdicts: choose what is shown</legend>{tiles}</fieldset>'


def _contents(section: str, results: list[Result]) -> str:
    chips = "".join(
        f'<a class="chip {_LOOKS[r.verdict][0]}{_differs(r)}" href="#{_anchor(r)}" '
        f'title="{escape(f"{r.label}: {r.verdict.value}")}">'
        f'<span aria-hidden="true">{_LOOKS[r.verdict][1]}</span> {escape(r.id)}</a>'
        for r in results
    )
    return f'<li><a class="to" href="#section-{section}">{_name(section)}</a><div>{chips}</div></li>'


def _section(section: str, results: list[Result]) -> str:
    claims = "".join(map(_claim, results))
    return f'<section class="part"><h2 id="section-{section}">{_name(section)}</h2>{claims}</section>'


def _differs(result: Result) -> str:
    return "" if result.as_recorded else " differs"


def _badge(verdict: Verdict) -> str:
    word, sign, _ = _LOOKS[verdict]
    return f'<span class="badge {word}"><span aria-hidden="true">{sign}</span> {verdict.value}</span>'


def _box(kind: str, heading: str, *parts: str) -> str:
    inside = "".join(filter(None, parts))
    return f'<div class="box {kind}"><h4>{heading}</h4>{inside}</div>' if inside else ""


def _words(text: str) -> str:
    return f"<p>{prose(text)}</p>" if text else ""


def _displayed(tex: str) -> str:
    return f'<div class="formula">{formula(tex)}</div>' if tex else ""


def _claim(r: Result) -> str:
    word = _LOOKS[r.verdict][0]
    printed = "The paper states" if r.quote else ""
    stated = [f"<blockquote><p>{prose(r.quote)}</p></blockquote>" if r.quote else "", _displayed(r.formula)]
    parts = [
        f'<article class="claim {word}{_differs(r)}" id="{_anchor(r)}"><header>'
        f'<h3><a class="id" href="#{_anchor(r)}">{escape(r.id)}</a> {prose(r.label)}</h3>'
        f"{_badge(r.verdict)}</header>",
        f'<p class="statement">{prose(r.title)}</p>',
        f'<p class="difference">The recorded verdict is: {r.recorded.value}</p>' if not r.as_recorded else "",
        _box("error", "Error", _words(r.error)),
        _box("stated", printed, *stated) if printed else _displayed(r.formula),
        f'<p class="assumes"><strong>Assumes</strong> {prose(r.assumptions)}</p>' if r.assumptions else "",
        _box("counter", "Counterexample", _words(r.counterexample)),
        _box("corrected", "Corrected", _words(r.correction), _displayed(r.corrected)),
        _box("counter", "Smallest example found", _words(_found(r))),
        _box("reason", "Why it is not checked", _words(r.reason)),
        f'<div class="plots">{"".join(map(figure, r.curves))}</div>' if r.curves else "",
        _evidence(r),
        "</article>",
    ]
    return "\n".join(part for part in parts if part)


def _found(r: Result) -> str:
    """The example on which the statement failed, unless the counterexample has said so."""
    return "" if r.found.rpartition("the fixed instances: ")[2] in r.counterexample else r.found


def _evidence(r: Result) -> str:
    if isnan(r.violation):
        return ""
    found: list[tuple[str, str]] = [
        ("worst violation", number(r.violation)),
        ("tolerance", number(r.tolerance)),
        ("examples", f"{r.examples:,}".replace(",", " ")),
    ]
    if r.error_level:
        found.append(("error level", number(r.error_level)))
    found.append(("time", f"{r.seconds:.1f} s"))
    if r.note and not r.found:
        found.append(("where it is worst", prose(r.note if len(r.note) <= 200 else f"{r.note[:199]}…")))
    cells = "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in found)
    return f'<dl class="evidence">{cells}</dl>'


def _foot(about: Mapping[str, Any]) -> str:
    effort = "deep: ten times the examples" if about["deep"] else "normal"
    rows: Iterable[tuple[str, Any]] = (
        ("run", f"{about['date']}, {about['seconds']:.0f} s"),
        ("backend", about["backend"]),
        ("seed", about["seed"]),
        ("effort", effort),
        ("revision", about["revision"]),
        ("machine", about["machine"]),
        ("versions", ", ".join(f"{name} {number}" for name, number in about["versions"].items())),
    )
    cells = "".join(
        f"<div><dt>{name}</dt><dd>{escape(str(v))}</dd></div>" for name, v in rows if v is not None
    )
    verdicts = "".join(f"<li>{_badge(verdict)} {looks[2]}</li>" for verdict, looks in _LOOKS.items())
    return (
        f'<footer><h2>How to read it</h2><ul class="legend">{verdicts}</ul><p>{_WORDS}</p>'
        f'<h2>Circumstances</h2><dl class="about">{cells}</dl></footer>'
    )

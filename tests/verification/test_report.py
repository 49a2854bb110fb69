"""The report of claims in the terminal, as JSON, Markdown and HTML, and the errata."""

import io
import json
import re
from dataclasses import fields, replace
from html.parser import HTMLParser
from typing import Any

import pytest
from rich.console import Console

from phiball.verification.framework.assessment import Consequence
from phiball.verification.framework.evidence import Evidence, Verdict
from phiball.verification.framework.paper import BEYOND, Paper
from phiball.verification.framework.result import Result
from phiball.verification.framework.suite import all_claims, find_claims
from phiball.verification.report import terminal
from phiball.verification.report.entries import entries, followers, of_the_paper, rows, tally
from phiball.verification.report.errata import errata
from phiball.verification.report.html import to_html
from phiball.verification.report.json import to_json
from phiball.verification.report.markdown import to_markdown
from phiball.verification.report.math import formula, mathml, prose
from phiball.verification.report.overview import overview
from phiball.verification.report.quotes import pieces, quote_html
from phiball.verification.report.report_files import circumstances
from phiball.verification.report.theorems import theorems
from phiball.verification.report.this_paper import SOURCE, THIS
from phiball.verification.report.wording import all_mutants, summary
from tests.support import paper
from tests.support.paths import ROOT
from tests.support.reports import CURVE, results, synthetic_claims

CLAIMS = all_claims()
FOUND = of_the_paper(CLAIMS)
RESULTS = results()
PROVENANCE = {"revision": "abc", "versions": {"numpy": "2.4", "torch": "2.13"}}
ABOUT = circumstances(RESULTS, seed=5, deep=False, seconds=12.3, provenance=PROVENANCE)
PAGE = to_html(RESULTS, ABOUT)

# --- Items and entries ----------------------------------------------------------------------------


def test_quotations_occur_in_the_paper() -> None:
    if (tex := paper.source()) is None:
        pytest.skip("PHIBALL_PAPER names no source of the paper")
    assert paper.digest() == SOURCE
    assert [c.id for c in CLAIMS if c.quote and not paper.is_quoted(c.quote, tex)] == []


def test_every_entry_is_listed_under_an_item_with_a_title() -> None:
    assert sum(len(row.entries) for row in rows(FOUND, THIS)) == len(FOUND)
    assert all(row.item.title for row in rows(FOUND, THIS))
    for label, name in {
        "Lemma EC.5 (IV), smoothness of a level": "Lemma EC.5",
        "Eq. (20a) and (20c), quadratic phi": "Eq. (20a)",
        "Theorem 9": None,
    }.items():
        item = THIS.item_of(label)
        assert (item.name if item else None) == name


def test_entries_group_readings_and_are_ranked_by_consequence() -> None:
    (entry,) = [entry for entry in FOUND if entry.head.id == "C4"]
    assert [line.id for line in entry.lines] == ["C4", "C4-gamma", "C4-gap", "C4-normalised"]
    assert entry.status == "imprecise"
    assert [alone.head.id for alone in entries(find_claims("C4-gamma"))] == ["C4-gamma"]
    assert sum(len(entry.lines) for entry in FOUND) == sum(claim.section != BEYOND for claim in CLAIMS)
    assert sum(tally(FOUND).values()) + len(followers(FOUND)) == len(FOUND)  # each entry is counted once
    assert {entry.head.id for entry in followers(FOUND)} == {"C4", "E6-kinked", "F4", "G6", "H4"}
    by_name = {row.item.name: row for row in rows(FOUND, THIS)}
    row = by_name["Proposition 1"]
    assert (row.worst.head.id, row.worst.status) == ("B1", "missing assumption")
    # B4 is false, but concerns only the proof.
    assert [entry.head.id for entry in row.asides] == ["B4", "B7-mean", "B6"]
    assert by_name["Example 2"].worst.status == "holds"


def test_overview_lists_each_error_under_its_consequence() -> None:
    opening = overview(CLAIMS)
    listed = {c: {correction.id for correction in found} for c, found in opening.corrections.items()}
    listed[Consequence.NONE] = set(re.findall(r"[A-Z]\d+[a-z]?(?:-[a-z]+)?(?=[,)])", opening.wording))
    for consequence in Consequence:
        expected = {entry.head.id for entry in FOUND if entry.kind and entry.consequence is consequence}
        assert listed[consequence] == expected
    assert opening.stands
    assert overview(CLAIMS[1:]).stands == ""


def test_theorems_hold_as_printed_or_with_a_stated_change() -> None:
    found = {theorem.item.name: theorem for theorem in theorems(FOUND, THIS)}
    answers = {name: theorem.answer for name, theorem in found.items()}
    assert answers["Theorem 1"] == "(I): with one more assumption; (II): yes"
    assert answers["Theorem 2"].startswith("yes")  # only constants in its proof differ
    assert answers["Proposition 1"] == "with one more assumption"
    assert answers["Proposition 2"] == answers["Theorem 3"] == answers["Proposition 5"] == "yes"
    assert answers["Proposition 3"].startswith("(I): no; (II, III for RT-MLMC): with another constant; ")
    assert "B4" in found["Proposition 1"].proof
    assert any(text.endswith("(A1)") for text in found["Theorem 1"].notes)
    changed = [replace(r, verdict=Verdict.REFUTED) if r.id == "D1" else r for r in RESULTS]
    first, second = (theorem.answer for theorem in theorems(of_the_paper(changed), Paper("x")))
    assert (first, second) == ("(I): not decided in this run; (II): yes", "no")
    badge = '<span class="badge false"><span aria-hidden="true">✗</span> no</span>'
    assert badge in to_html(RESULTS, ABOUT, Paper("x"))
    part = '<span class="parts">(I):</span> <span class="badge undecided">'
    assert part in to_html(changed, ABOUT, Paper("x"))


# --- Formulas -------------------------------------------------------------------------------------


def test_formulas_and_quotations_of_all_claims_are_converted() -> None:
    for claim in CLAIMS:
        quoted = pieces(claim.quote, THIS)
        for tex in (claim.formula, claim.corrected, *(text for text, is_math in quoted if is_math)):
            assert not tex or mathml(tex) is not None, (claim.id, tex)
        assert not any("\\" in text for text, is_math in quoted if not is_math), claim.id
    assert formula(r"\nosuchcommand x").startswith("<code>\\")
    shown = quote_html(
        r"by Lemma~\ref{Lemma:phi:div}\ref{Assumption:chi2}, \eqref{Eq:G:ell} & \emph{so}", THIS
    )
    assert shown == "by Lemma EC.3(I), (12) &amp; so"
    shown = prose("L_f^2 e^(4B/eta) - max_{z in Z} cressie_read(2) <= <b>")
    minus = "\N{MINUS SIGN} max<sub>z in Z</sub> cressie_read(2) ≤ &lt;b&gt;"
    assert shown == f"L<sub>f</sub><sup>2</sup> e<sup>4B/η</sup> {minus}"
    with pytest.raises(ValueError, match="label is 'nonsense', which the paper does not have"):
        THIS.reference("nonsense")


# --- Words and files ------------------------------------------------------------------------------


def _terminal_output(verbose: bool) -> str:
    file = io.StringIO()
    console = Console(file=file, width=80)
    with terminal.ResultTable(console, len(RESULTS), verbose=verbose) as table:
        for result in RESULTS:
            table.add(result)
    terminal.print_summary([claim.failed("not run") for claim in CLAIMS], console)
    terminal.list_claims(synthetic_claims(), console)
    return file.getvalue()


def test_terminal_shows_only_problems_and_a_summary_unless_verbose() -> None:
    text = _terminal_output(verbose=False)
    lines = text.splitlines()
    assert lines[0] == "Section 3: Optimization algorithm: 3 claims: 1 holds, 1 holds as corrected, 1 refuted"
    assert sum(line.startswith("    DIFFERS: the recorded verdict is holds") for line in lines) == 2
    assert not any(line.startswith(("    reason", "    consequence")) for line in lines)
    lines = _terminal_output(verbose=True).splitlines()
    for line in (
        "    reason: no data",
        "    error: ZeroDivisionError: by <nought>",
        "    consequence: the result changes",
        "Section 3: Optimization algorithm",
    ):
        assert line in lines
    assert sum(line.startswith("    DIFFERS: the recorded verdict is holds") for line in lines) == 2
    assert re.search(r"Theorem 1 \(Strong Duality\) +not decided in this run", text)
    text = summary(RESULTS, 1.0)
    assert text.startswith("Of 4 statements of the paper, 1 holds as printed, 1 holds with a correction, ")
    assert (
        ", 1 is refuted (G1: Lemma 9) and 1 is not checkable. By kind (5 claims on 4 statements): 1 holds, "
        in text
    )
    assert "; 1 follows from these. Beyond the paper: 2 claims: 1 refuted, 1 not reached. " in text
    assert "Verdicts NOT as recorded: G2-sharp differs, G3-sharp breaks" in text


def test_json_is_strict_and_complete() -> None:
    def refuse(word: str) -> None:
        raise AssertionError(word)

    data: dict[str, Any] = json.loads(to_json(RESULTS, ABOUT), parse_constant=refuse)
    by_id = {row["id"]: row for row in data["claims"]}
    assert by_id["S9"]["largest_violation"] is None
    assert by_id["G1"]["largest_violation"] == "inf"
    assert (by_id["D1"]["name"], by_id["D1"]["statement"]) == ("rate", "The bias falls like 2^-l <= 1.")
    assert by_id["D1"]["curves"][0]["fit"]["slope"] == CURVE.fit.slope
    assert len(by_id["D1"]) == len(fields(Result)) + 1
    assert data["beyond"] == {"refuted": 1, "not reached": 1}
    assert (data["seed"], data["revision"]) == (5, "abc")
    assert data["entries"][1]["claims"] == ["D2", "D2-strict"]


def test_markdown_escapes_text_and_keeps_formulas() -> None:
    text = to_markdown(RESULTS, ABOUT)
    for part in (
        r"phi\* is convex; mu\* need not be unique",
        r"\lbrace \mu : \phi^*(\mu) \lt \infty\rbrace",
        "refuted (recorded verdict: holds)",
        "\n#### D2-strict `strictly`: ",
        r"> $\phi^*$ is \<strictly> convex",
        r"bias \<of> the estimate: exponent",
    ):
        assert part in text
    run = replace(RESULTS[0], rejected=("a", "b"), survived=("doubles",))
    assert "mutants: 2 of 3 rejected; NOT rejected: doubles" in to_markdown([run], ABOUT)
    assert all_mutants([run, *RESULTS]) == "Mutants: 2 of 3 are rejected"


# --- The page -------------------------------------------------------------------------------------


class _Tags(HTMLParser):
    """Collects the tags and attributes of a page, and checks that all tags are closed."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.feed(page)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in ("meta", "link", "input", "wbr", "img"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_page_is_well_formed_self_contained_and_complete() -> None:
    page = _Tags(PAGE)
    ids = [str(value) for name, value in page.attributes if name == "id"]
    assert len(ids) == len(set(ids))
    targets = [str(value) for name, value in page.attributes if name in ("href", "for", "src")]
    assert {t.removeprefix("#") for t in targets if not t.startswith(("http", "data:"))} <= set(ids)
    assert page.tags.count("article") == len(RESULTS) - 1  # one is part of another claim's entry
    assert page.tags.count("circle") == len(CURVE.x) + 1  # one is in the legend
    assert not any(outside in PAGE for outside in ("src=", "url(", "@import"))
    for words in (
        "2 verdicts differ from the recorded verdict",
        "L<sub>f</sub>-Lipschitz &amp; bounded",
        "Reading checked</h4><p>Convex is strictly convex.",
        "φ* is &lt;closed&gt;",
        'Follows from <a href="#claim-D2">D2</a>.',
        "phiball verify --claim D2 --seed 5",
        "Exceeds the bound of 2 by 1",
        "f = (0, 1): 1 | not 0.",
        "is &lt;strictly&gt; convex</p>",
        "ZeroDivisionError: by &lt;nought&gt;",
        "statistical: 1 check at a total error level of 1e-06, seed 5",
        f"{CURVE.fit.low:.3f}".replace("-", "\N{MINUS SIGN}"),
        "numpy 2.4, torch 2.13",
    ):
        assert words in PAGE, words


@pytest.mark.parametrize(
    "text", ["<script>a()</script><img src=x onerror=b()>\" onclick='c()'", r"\href{javascript:d()}{x}"]
)
def test_hostile_texts_are_escaped(text: str) -> None:
    words: Any = {f.name: text for f in fields(Result) if f.type == "str" and f.name != "section"}
    shown = [
        replace(result, **words, curves=(replace(CURVE, title=text, y_label=text),)) for result in RESULTS
    ]
    about = {**ABOUT, "backend": text, "machine": text, "versions": {text: text}}
    page, harmless = _Tags(to_html(shown, about)), _Tags(PAGE)
    assert set(page.tags) <= {*harmless.tags, "code"}
    assert {name for name, _ in page.attributes} <= {*(name for name, _ in harmless.attributes), "title"}
    links = [value for name, value in page.attributes if name in ("href", "src")]
    assert all(link and link.startswith(("#", "https://arxiv.org/", "data:,")) for link in links)
    markdown = re.sub("`[^`]*`", "", to_markdown(shown, about))
    assert not re.search(r"(?<!\\)<(script|img)\b", markdown)


# --- The errata -----------------------------------------------------------------------------------


@pytest.mark.slow
def test_errata_are_current() -> None:
    """`make errata` writes ERRATA.md, with numbers rounded so that all machines agree."""
    assert (ROOT / "verification" / "ERRATA.md").read_text(encoding="utf-8") == errata()


def test_errata_list_corrections_with_counterexamples() -> None:
    text = errata(synthetic_claims())
    heads = ["G1 `refuted`", "D2 `corrected`", "D2-strict `strictly`", "S9 `silent`"]
    assert re.findall(r"^####? (.+)$", text, re.MULTILINE) == heads
    assert re.findall("^## (.+)$", text, re.MULTILINE) == [
        "Results to restate",
        "Proofs to repair; their results stand",
        "Corrections without consequence",
    ]
    assert "| false as stated (follows from D2) |" in text
    assert r"**Counterexample.** f = (0, 1): 1 \| not 0" in text
    assert r"**Correction.** phi\* is convex" in text
    assert "**Not checkable.** No data." in text
    corrected = synthetic_claims()[1]
    corrected.counterexample(margin=0.5)(lambda: Evidence(0.1, 0.0, "weak"))
    with pytest.raises(ValueError, match=r"a counterexample of D2 corrected is invalid; .*weak"):
        errata([corrected])

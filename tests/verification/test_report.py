"""The report: the table, JSON, Markdown, the page and the errata."""

from __future__ import annotations

import io
import json
import re
from collections import Counter
from dataclasses import fields, replace
from html.parser import HTMLParser
from typing import Any

import pytest
from rich.console import Console

from phiball.verification.framework.evidence import Evidence
from phiball.verification.framework.result import Result
from phiball.verification.framework.runner import all_claims
from phiball.verification.report import terminal
from phiball.verification.report.errata import errata
from phiball.verification.report.files import circumstances
from phiball.verification.report.html import to_html
from phiball.verification.report.json import from_json, to_json
from phiball.verification.report.markdown import plain, to_markdown
from phiball.verification.report.plots import _ticks, figure, number
from phiball.verification.report.words import (
    WORDS,
    full_name,
    remarks,
    summary,
)
from tests.support.paths import ROOT
from tests.support.reports import CURVE, made_up, results

RESULTS = results()
VERSIONS = {"numpy": "2.4", "torch": "2.13"}
ABOUT = circumstances(
    RESULTS, seed=5, deep=False, seconds=12.3, provenance={"revision": "abc", "versions": VERSIONS}
)
PAGE = to_html(RESULTS, ABOUT)


# --- The terminal ---------------------------------------------------------------------------------


def printed(*, is_terminal: bool, width: int = 80) -> str:
    console = Console(file=io.StringIO(), force_terminal=is_terminal, width=width, color_system=None)
    with terminal.Table(console, len(RESULTS)) as table:
        for done, result in enumerate(RESULTS, 1):
            table.add(result)
            table.progress(done, made_up())
    file = console.file
    assert isinstance(file, io.StringIO)
    return file.getvalue()


def test_table_is_grouped_by_section() -> None:
    lines = printed(is_terminal=False).splitlines()
    heads = ["Section 3: Optimization algorithm", "Section 4: Regularization effects"]
    heads += ["Section 6: Numerical study", "Beyond the paper"]
    assert [line for line in lines if line in heads] == heads
    (row,) = [line for line in lines if " D2 " in line and line.startswith("holds")]
    assert row.split()[:4] == ["holds", "as", "corrected", "1"]
    assert row.endswith("D2 corrected: Proposition 9 (II)")
    assert "    reason: no data" in lines
    assert "    error: ZeroDivisionError: by <nought>" in lines
    for line in ("kind: imprecise", "consequence: the result changes", "why: It fails for f = (0, 1)."):
        assert f"    {line}" in lines
    assert (
        "    DIFFERS: the recorded verdict is holds; exceeds what is allowed by 1, of which 0.5"
        in "\n".join(lines)
    )
    assert len([line for line in lines if line.startswith("    DIFFERS: the recorded verdict is holds")]) == 2


def test_table_wraps_on_a_narrow_terminal() -> None:
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", printed(is_terminal=True, width=50))
    assert max(len(line.split("\r")[-1]) for line in text.splitlines()) <= 50
    assert "running D1 rate, D2 corrected," in text


def test_summary_counts_what_cannot_be_checked() -> None:
    text = summary(RESULTS, 1.0)
    assert text.startswith("The paper: 4 statements (5 claims): 1 holds, 1 imprecise, 1 not reproducible ")
    assert "; 1 follows from these. Beyond the paper: 2 claims: 1 refuted, 1 not reached. " in text
    assert "Verdicts NOT as recorded: G2-sharp differs, G3-sharp breaks" in text
    assert summary([RESULTS[0]], 1.0).startswith("The paper: 1 statement (1 claim): 1 holds. All verdicts as")


def test_summary_is_by_item_only_where_the_paper_is_whole() -> None:
    def shown(results: list[Result]) -> str:
        console = Console(file=io.StringIO(), width=200)
        terminal.print_summary(results, console)
        file = console.file
        assert isinstance(file, io.StringIO)
        return file.getvalue()

    assert shown(RESULTS).strip().startswith("The paper: 4 statements")
    text = shown([entry.failed("not run") for entry in all_claims()])
    assert re.search(
        r"^Theorem 1 Strong Duality +0 of 2 +missing assumption; the result changes$", text, re.M
    )
    assert "All main results stand." in text


def test_list_is_grouped_where_there_are_several_sections() -> None:
    console = Console(file=io.StringIO(), width=200)
    terminal.list_claims(made_up(), console)
    file = console.file
    assert isinstance(file, io.StringIO)
    lines = file.getvalue().splitlines()
    assert lines[0] == "Section 3: Optimization algorithm"
    assert lines[1].split()[:3] == ["D1", "rate", "holds"]
    assert "Beyond the paper" in lines


# --- The words ------------------------------------------------------------------------------------


def test_every_field_of_a_result_has_one_word_that_all_reports_use() -> None:
    assert set(WORDS) == {field.name for field in fields(Result)}
    assert len(set(WORDS.values())) == len(WORDS)
    (row, *_) = json.loads(to_json(RESULTS, ABOUT))["claims"]
    assert {word.replace(" ", "_") for word in WORDS.values()} | {"as_recorded"} == set(row)
    page, text = PAGE.lower(), to_markdown(RESULTS, ABOUT)
    for word in ("correction", "assumptions", "recorded verdict", "measured", "remark"):
        assert word in WORDS.values()
        assert word in page
        assert word in text
    for result in RESULTS:
        others = ("DIFFERS", "kind", "consequence", "why", "reading", "mutants")
        assert all(word in (*WORDS.values(), *others) for word in remarks(result))
        assert full_name(result) in PAGE
        assert f"### {result.id} `{result.name}`: " in text


# --- Files ----------------------------------------------------------------------------------------


def test_json_round_trip() -> None:
    text = to_json(RESULTS, ABOUT)
    back = from_json(text)
    assert [replace(r, violation=0.0) for r in back] == [replace(r, violation=0.0) for r in RESULTS]
    assert [str(r.violation) for r in back] == [str(r.violation) for r in RESULTS]
    assert to_json(back, ABOUT) == text


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "1", "{}", '{"claims": 1}', '{"claims": [{}]}', '{"claims": ["a"]}', "[" * 100_000],
)
def test_json_of_something_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="the text is no report"):
        from_json(text)


def test_json_has_no_nan_and_the_fitted_exponents() -> None:
    def refuse(word: str) -> None:
        raise AssertionError(word)

    data: dict[str, Any] = json.loads(to_json(RESULTS, ABOUT), parse_constant=refuse)
    rows = {row["id"]: row for row in data["claims"]}
    assert rows["S9"]["largest_violation"] is None
    assert rows["G1"]["largest_violation"] == "inf"
    assert (rows["D1"]["name"], rows["D1"]["statement"]) == ("rate", "The bias falls like 2^-l <= 1.")
    (curve,) = rows["D1"]["curves"]
    assert curve["fit"]["slope"] == CURVE.fit.slope
    assert curve["fit"]["low"] < curve["fit"]["slope"] < curve["fit"]["high"]
    assert tuple(curve["bound"]) == CURVE.bound
    assert (data["seed"], data["deep"], data["seconds"]) == (5, False, 12.3)
    assert {"backend", "machine", "revision", "versions", "date", "summary"} <= data.keys()
    assert data["paper"] == {
        "holds": 1,
        "imprecise": 1,
        "not reproducible from what is given": 1,
        "follow from these": 1,
    }
    assert data["beyond"] == {"refuted": 1, "not reached": 1}
    assert data["entries"][1] == {
        "claims": ["D2", "D2-strict"],
        "standing": "imprecise",
        "consequence": "the proof needs a repair and the result stands",
        "follows": [],
    }
    assert data["items"] == data["overview"] == []  # the made-up items are not those of the paper


def test_markdown_shows_statements_and_formulas_unharmed() -> None:
    text = to_markdown(RESULTS, ABOUT)
    assert "## Section 3: Optimization algorithm" in text
    assert r"phi\* is convex; mu\* need not be unique" in text
    assert r"\lbrace \mu : \phi^*(\mu) \lt \infty\rbrace" in text
    assert "refuted (recorded verdict: holds)" in text
    assert "\n#### D2-strict `strictly`: " in text
    assert r"> $\phi^*$ is \<strictly> convex" in text
    assert (
        "- reading: one reading: convex is strictly convex. Others: convex is convex: true & well known"
        in text
    )
    assert r"bias \<of> the estimate: exponent" in text
    assert "| 1 | not 0" not in text


@pytest.mark.parametrize(
    ("text", "shown"),
    [("a*b*c", r"a\*b\*c"), ("x_1 | y", r"x\_1 \| y"), ("[0, 1](x)", r"[0, 1\](x)"), ("$5 <b>", r"\$5 \<b>")],
)
def test_words_stay_words_in_markdown(text: str, shown: str) -> None:
    assert plain(text) == shown


# --- The page -------------------------------------------------------------------------------------


class _Reader(HTMLParser):
    VOID = frozenset({"meta", "link", "input", "wbr"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: Counter[str] = Counter()
        self.ids: list[str] = []
        self.targets: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in self.VOID:
            self.open.append(tag)
        self.tags[tag] += 1
        for name, value in attrs:
            if name == "id":
                self.ids.append(str(value))
            if name in ("href", "for", "src"):
                self.targets.append(str(value))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def read(text: str) -> _Reader:
    reader = _Reader()
    reader.feed(text)
    return reader


def test_page_is_well_formed_and_needs_nothing_else() -> None:
    reader = read(PAGE)
    assert reader.open == []
    assert len(reader.ids) == len(set(reader.ids))
    inner = {
        target.removeprefix("#") for target in reader.targets if not target.startswith(("http", "data:"))
    }
    assert inner <= set(reader.ids)
    assert reader.tags["script"] == 1  # the search; the page is whole without it
    assert "src=" not in PAGE
    assert "url(" not in PAGE
    assert "@import" not in PAGE


def test_page_says_everything_of_a_claim() -> None:
    reader = read(PAGE)
    assert reader.tags["article"] == len(RESULTS) - 1  # one is a line of another's entry
    assert reader.tags["figure"] == 1
    assert PAGE.count('<div class="formula"><math') == 3  # one of four formulas does not convert
    assert re.search(r"<blockquote><p><math.*?</math> is &lt;strictly&gt; convex</p>", PAGE)
    assert r"<code>\frac{1</code>" in PAGE
    for words in (
        "L<sub>f</sub>-Lipschitz &amp; bounded",
        "μ* is not &lt;unique&gt;.",
        "One reading</h4><p>convex is strictly convex.",
        "<li>convex is convex: true &amp; well known</li>",
        "φ* is &lt;closed&gt;",
        'Follows from <a href="#claim-D2">D2</a>.',
        "phiball verify --claim D2 --seed 5",
        "Exceeds the bound of 2 by 1",
        "f = (0, 1): 1 | not 0",
        "μ* need not be unique",
        "ZeroDivisionError: by &lt;nought&gt;",
        "no data",
        "statistical: 1 check at an error level of 1e-6 in all, seed 5",
        "1 claim is statistical; the chance that bad luck raises an alarm in a run is 1e-6 at most",
        f"{CURVE.fit.low:.3f}".replace("-", "\N{MINUS SIGN}"),
        "the paper&#x27;s bound G 2<sup>\N{MINUS SIGN}l</sup>",
        ABOUT["machine"],
        "<dt>seed</dt><dd>5</dd>",
        "numpy 2.4, torch 2.13",
        "Lemma 11: not reached; recorded verdict: holds; error: ZeroDivisionError: by &lt;nought&gt;",
    ):
        assert words in PAGE, words


def test_differences_stand_at_the_top() -> None:
    alarm = PAGE.index('class="alarm"')
    assert alarm < PAGE.index("Contents")
    assert "2 verdicts differ from the recorded verdict" in PAGE
    good = [result for result in RESULTS if result.as_recorded]
    assert 'class="alarm"' not in to_html(good, circumstances(good, seed=0, deep=False, seconds=1.0))


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0.0, "0"),
        (-0.0, "0"),
        (-0.25, "\N{MINUS SIGN}0.25"),
        (12345.678, "12346"),
        (1.5e-16, "1.5 \N{MULTIPLICATION SIGN} 10<sup>\N{MINUS SIGN}16</sup>"),
        (-1e-6, "\N{MINUS SIGN}10<sup>\N{MINUS SIGN}6</sup>"),
        (float("-inf"), "\N{MINUS SIGN}inf"),
    ],
)
def test_numbers_on_the_page(value: float, shown: str) -> None:
    assert number(value) == shown


@pytest.mark.parametrize(("low", "high"), [(1.0, 256.0), (1e-9, 3.0), (2.0, 3.0), (4.0, 4.1), (1e-30, 1e30)])
def test_ticks_lie_in_the_range(low: float, high: float) -> None:
    ticks = _ticks(low, high)
    assert 2 <= len(ticks) <= 7
    assert all(low <= tick <= high * (1 + 1e-9) for tick in ticks)


def test_figure_draws_every_point_and_lists_it() -> None:
    text = figure(CURVE)
    assert text.count("<circle") == len(CURVE.x) + 1  # one is in the key
    assert text.count("<tr>") == len(CURVE.x) + 1
    assert "bias &lt;of&gt; the estimate" in text
    constant = replace(CURVE, y=(1.0,) * 5, bound=(1.0,) * 5)
    assert "nan" not in figure(constant)


# --- The errata -----------------------------------------------------------------------------------


@pytest.mark.slow
def test_errata_are_current() -> None:
    """`make errata` writes the file; it holds no number that another machine would round otherwise."""
    assert (ROOT / "verification" / "ERRATA.md").read_text(encoding="utf-8") == errata()


def test_errata_show_what_is_wrong_and_no_more() -> None:
    text = errata(made_up())
    heads = ["G1 `refuted`", "D2 `corrected`", "D2-strict `strictly`", "S9 `silent`"]
    assert re.findall(r"^####? (.+)$", text, re.MULTILINE) == heads
    parts = [
        "False as stated",
        "Imprecise, or open to several readings",
        "Not reproducible from what is given",
    ]
    assert re.findall(r"^## (.+)$", text, re.MULTILINE) == parts
    assert "| the result changes (follows from D2) |" in text
    assert "**One reading.** convex is strictly convex. Others: convex is convex: true & well known." in text
    assert "| [D2 `corrected`](#d2-corrected) | Proposition 9 (II) |" in text
    assert r"> $\phi^*$ is \<strictly> convex" in text
    assert r"**Counterexample.** f = (0, 1): 1 \| not 0" in text
    assert r"**Correction.** phi\* is convex" in text
    assert "**Correction.** nothing." in text
    assert "**Not checkable.** no data." in text
    assert r"\lbrace \mu : \phi^*(\mu) \lt \infty\rbrace" in text


def test_errata_refuse_a_counterexample_that_does_not_stand() -> None:
    corrected = made_up()[1]
    corrected.counterexample(margin=0.5)(lambda: Evidence(0.1, 0.0, "weak"))
    with pytest.raises(ValueError, match=r"the counterexample of D2 corrected does not stand: .*weak"):
        errata([corrected])

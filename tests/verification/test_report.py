"""The report: the table, JSON, Markdown, the page and the errata."""

from __future__ import annotations

import io
import json
import re
from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import pytest
from rich.console import Console

from phiball.verification.framework.evidence import Evidence
from phiball.verification.report import terminal as report
from phiball.verification.report.errata import errata
from phiball.verification.report.files import from_json, markdown, plain, record, to_json
from phiball.verification.report.html import page
from phiball.verification.report.plots import _ticks, figure, number
from tests.support.paths import ROOT
from tests.support.reports import CURVE, made_up, results

RESULTS = results()
ABOUT = record(RESULTS, seed=5, deep=False, seconds=12.3)
PAGE = page(RESULTS, ABOUT)


# --- The terminal ---------------------------------------------------------------------------------


def printed(*, terminal: bool, width: int = 80) -> str:
    console = Console(file=io.StringIO(), force_terminal=terminal, width=width, color_system=None)
    with report.Table(console, len(RESULTS)) as table:
        for done, result in enumerate(RESULTS, 1):
            table.add(result)
            table.progress(done, ["D1", "D2", "D3", "D4"])
    file = console.file
    assert isinstance(file, io.StringIO)
    return file.getvalue()


def test_table_is_grouped_by_section() -> None:
    lines = printed(terminal=False).splitlines()
    heads = ["Section 3: Optimization algorithm", "Section 4: Regularization effects"]
    heads += ["Section 6: Numerical study", "Beyond the paper"]
    assert [line for line in lines if line in heads] == heads
    (row,) = [line for line in lines if line.startswith("D2 ")]
    assert row.split()[:4] == ["D2", "holds", "as", "corrected"]
    assert row.endswith("Proposition 9 (II)")
    assert "    not checked: no data" in lines
    assert "    error: ZeroDivisionError: by <nought>" in lines
    differs = [
        line for line in lines if line.startswith("    DIFFERS: the recorded verdict is: holds; measured")
    ]
    assert len(differs) == 2


def test_table_wraps_on_a_narrow_terminal() -> None:
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", printed(terminal=True, width=50))
    assert max(len(line.split("\r")[-1]) for line in text.splitlines()) <= 50
    assert "running D1, D2, D3, …" in text


def test_summary_counts_what_cannot_be_checked() -> None:
    text = report.summary(RESULTS, 1.0)
    assert "1 not checkable" in text
    assert "1 without a verdict" in text
    assert "verdicts NOT as recorded: G2-sharp, G3-sharp" in text


def test_list_is_grouped_where_there_are_several_sections() -> None:
    console = Console(file=io.StringIO(), width=200)
    report.list_claims(made_up(), console)
    file = console.file
    assert isinstance(file, io.StringIO)
    lines = file.getvalue().splitlines()
    assert lines[0] == "Section 3: Optimization algorithm"
    assert lines[1].split()[0] == "D1"


# --- Files ----------------------------------------------------------------------------------------


def test_json_round_trip() -> None:
    text = to_json(RESULTS, ABOUT)
    back = from_json(text)
    assert [replace(r, violation=0.0) for r in back] == [replace(r, violation=0.0) for r in RESULTS]
    assert [str(r.violation) for r in back] == [str(r.violation) for r in RESULTS]
    assert to_json(back, ABOUT) == text


def test_json_has_no_nan_and_the_fitted_exponents() -> None:
    def refuse(word: str) -> None:
        raise AssertionError(word)

    data: dict[str, Any] = json.loads(to_json(RESULTS, ABOUT), parse_constant=refuse)
    rows = {row["id"]: row for row in data["claims"]}
    assert rows["S9"]["violation"] is None
    assert rows["G1"]["violation"] == "inf"
    (curve,) = rows["D1"]["curves"]
    assert curve["fit"]["slope"] == CURVE.fit.slope
    assert curve["fit"]["low"] < curve["fit"]["slope"] < curve["fit"]["high"]
    assert tuple(curve["bound"]) == CURVE.bound
    assert (data["seed"], data["deep"], data["seconds"]) == (5, False, 12.3)
    assert {"backend", "machine", "revision", "versions", "date", "summary"} <= data.keys()


def test_markdown_shows_statements_and_formulas_unharmed() -> None:
    text = markdown(RESULTS, ABOUT)
    assert "## 3: Optimization algorithm" in text
    assert r"phi\* is convex; mu\* need not be unique" in text
    assert r"\lbrace \mu : \phi^*(\mu) \lt \infty\rbrace" in text
    assert "refuted (recorded: holds)" in text
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
    assert reader.tags["script"] == 0
    assert "src=" not in PAGE
    assert "url(" not in PAGE
    assert "@import" not in PAGE


def test_page_says_everything_of_a_claim() -> None:
    reader = read(PAGE)
    assert reader.tags["article"] == len(RESULTS)
    assert reader.tags["figure"] == 1
    assert PAGE.count('<div class="formula"><math') == 3  # one of four formulas does not convert
    assert r"<code>\frac{1</code>" in PAGE
    for words in (
        "L<sub>f</sub>-Lipschitz &amp; bounded",
        "φ* is &lt;strictly&gt; convex",
        "f = (0, 1): 1 | not 0",
        "μ* need not be unique",
        "ZeroDivisionError: by &lt;nought&gt;",
        "no data",
        "10<sup>\N{MINUS SIGN}6</sup>",
        f"{CURVE.fit.low:.3f}".replace("-", "\N{MINUS SIGN}"),
        "the paper&#x27;s bound G 2<sup>\N{MINUS SIGN}l</sup>",
        ABOUT["machine"],
        "<dt>seed</dt><dd>5</dd>",
    ):
        assert words in PAGE, words


def test_differences_stand_at_the_top() -> None:
    alarm = PAGE.index('class="alarm"')
    assert alarm < PAGE.index("Contents")
    assert "2 verdicts differ from what is recorded" in PAGE
    good = [result for result in RESULTS if result.as_recorded]
    assert 'class="alarm"' not in page(good, record(good, seed=0, deep=False, seconds=1.0))


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


def test_errata_are_current() -> None:
    """`make errata` writes the file; it holds no number that another machine would round otherwise."""
    assert (ROOT / "verification" / "ERRATA.md").read_text(encoding="utf-8") == errata()


def test_errata_show_what_is_wrong_and_no_more() -> None:
    text = errata(made_up())
    assert re.findall(r"^### (\S+)$", text, re.MULTILINE) == ["D2", "G1", "S9"]
    assert r"> phi\* is \<strictly> convex" in text
    assert r"**Counterexample.** f = (0, 1): 1 \| not 0" in text
    assert "**Corrected.**" in text
    assert "**True instead.** nothing" in text
    assert "**Not checked.** no data" in text
    assert r"\lbrace \mu : \phi^*(\mu) \lt \infty\rbrace" in text


def test_errata_refuse_a_counterexample_that_does_not_stand() -> None:
    one = made_up()[1]
    one.counterexample(margin=0.5)(lambda: Evidence(0.1, 0.0, "weak"))
    with pytest.raises(ValueError, match=r"the counterexample of D2 does not stand: .*weak"):
        errata([one])

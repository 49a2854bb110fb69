"""The page of the report in a real browser: nothing is cut off, empty or complained of."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from phiball.verification.framework.result import Result
from phiball.verification.framework.runner import all_claims
from phiball.verification.report.entries import entries
from phiball.verification.report.files import circumstances
from phiball.verification.report.html import to_html
from tests.support.browser import Browser, find_browser
from tests.support.reports import results

pytestmark = pytest.mark.slow

# Sizes of what must be seen, and all that sticks out of the page and is not scrolled inside it.
MEASURE = """(() => {
  const box = e => e.getBoundingClientRect();
  const sizes = s => [...document.querySelectorAll(s)].map(e => [box(e).width, box(e).height]);
  const wide = document.documentElement.clientWidth;
  const scrolls = e => e && (getComputedStyle(e).overflowX === 'auto' || scrolls(e.parentElement));
  return {
    wide,
    scroll: document.documentElement.scrollWidth,
    out: [...document.querySelectorAll('main *, nav *, footer *')]
      .filter(e => box(e).right > wide + 1 && !scrolls(e)).map(e => e.outerHTML.slice(0, 200)),
    formulas: sizes('.formula'), inside: sizes('.formula > :not(wbr)'), plots: sizes('svg.plot'),
    badges: sizes('.badge'), articles: document.querySelectorAll('article').length,
    paint: [...document.querySelectorAll('.badge')].map(
      e => [getComputedStyle(e).color, getComputedStyle(e).backgroundColor]),
    ground: getComputedStyle(document.body).backgroundColor,
  };
})()"""


def drawn() -> list[Result]:
    """Made-up results, and all claims as they would look if their runs were lost: texts and formulas."""
    made_up = [replace(r, id=f"X{r.id}", part_of=r.part_of and f"X{r.part_of}") for r in results()]
    return [*made_up, *(claim.failed("not run") for claim in all_claims())]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    program = find_browser()
    if program is None:
        pytest.skip("chromium: not installed")
    with Browser(program, tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "claims.html"
    shown = drawn()
    about = circumstances(shown, seed=0, deep=False, seconds=1.0)
    path.write_text(to_html(shown, about), encoding="utf-8")
    return path


def luminance(colour: str) -> float:
    """Of a colour such as rgb(1, 2, 3), as WCAG defines it."""
    parts = [float(v) / 255 for v in colour[colour.index("(") + 1 : -1].split(",")[:3]]
    r, g, b = (v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in parts)
    return 0.2126 * r + 0.7152 * g + 0.0722 * b


def contrast(ink: str, ground: str) -> float:
    dark, light = sorted((luminance(ink), luminance(ground)))
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_page_looks_as_it_should(browser: Browser, written: Path, width: int, dark: bool) -> None:
    browser.complaints.clear()
    browser.show(written, width=width, dark=dark)
    seen: dict[str, Any] = browser.evaluate(MEASURE)
    assert browser.complaints == []
    assert seen["scroll"] <= seen["wide"] <= width
    assert seen["out"] == []
    assert seen["articles"] == len(entries(drawn()))
    assert len(seen["badges"]) >= seen["articles"]
    assert len(seen["plots"]) == 1 + 5  # a curve, and the densities of five examples
    assert len(seen["inside"]) >= len(seen["formulas"]) > 100
    for kind in ("formulas", "inside", "plots", "badges"):
        assert min(min(size) for size in seen[kind]) > 4, kind
    assert (luminance(seen["ground"]) < 0.1) == dark
    # 4.5 is what accessible small text needs.
    assert min(contrast(*pair) for pair in seen["paint"]) >= 4.5


SHOWN = "[...document.querySelectorAll('article')].filter(e => e.offsetParent).map(e => e.%s)"


def test_kinds_choose_what_is_shown(browser: Browser, written: Path) -> None:
    browser.show(written, width=1280)
    for kind in ("misprint", "false", "assumption", "imprecise", "open", "constant", "holds"):
        browser.evaluate(f"document.querySelector('label.{kind}').click()")
        assert {name.split()[1] for name in browser.evaluate(SHOWN % "className")} == {kind}
    browser.evaluate("document.querySelector('label.all').click()")
    assert len(browser.evaluate(SHOWN % "id")) == len(entries(drawn()))


def test_search_finds_words_in_any_order(browser: Browser, written: Path) -> None:
    browser.show(written, width=1280)
    browser.complaints.clear()
    for words, found in (("residual OUTPUT", {"claim-C3"}), ("no such words", set()), ("", None)):
        browser.evaluate(
            f"{{ const e = document.getElementById('search'); e.value = {words!r};"
            " e.dispatchEvent(new Event('input')) }"
        )
        shown = set(browser.evaluate(SHOWN % "id"))
        assert shown == found if found is not None else len(shown) == len(entries(drawn()))
        assert browser.evaluate("document.getElementById('hits').value.length > 0") == bool(words)
    assert browser.complaints == []


def test_jumps_are_instant_and_paper_shows_everything(browser: Browser, written: Path) -> None:
    browser.show(written, width=1280)
    there = "(location.hash = '#claim-C3', document.getElementById('claim-C3').getBoundingClientRect().top)"
    assert abs(browser.evaluate(there)) < 60
    browser.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert browser.evaluate("[...document.querySelectorAll('details.more')].every(e => e.open)")
    browser.ask("Emulation.setEmulatedMedia", media="print")
    assert browser.evaluate("getComputedStyle(document.querySelector('nav')).display") == "none"
    assert browser.evaluate("getComputedStyle(document.querySelector('.items')).display") != "none"
    browser.ask("Emulation.setEmulatedMedia", media="")


def test_what_the_page_complains_of_is_heard(browser: Browser, tmp_path: Path) -> None:
    bad = tmp_path / "bad.html"
    bad.write_text("<body><div style='width:3000px'>x</div><script>console.error('oh'); nosuch()</script>")
    browser.complaints.clear()
    browser.show(bad, width=390)
    assert len(browser.complaints) == 2
    assert browser.evaluate("document.documentElement.scrollWidth") > 390

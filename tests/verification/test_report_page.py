"""In a browser, the report page has no overflow, empty elements or console errors."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from phiball.verification.framework.suite import all_claims
from phiball.verification.report.entries import entries
from phiball.verification.report.html import to_html
from phiball.verification.report.report_files import circumstances
from tests.support.browser import Browser, find_browser
from tests.support.reports import results

# Returns the elements that overflow the page and the smallest sizes of elements that must be visible.
MEASURE = """(() => {
  const box = e => e.getBoundingClientRect();
  const sizes = e => [box(e).width, box(e).height];
  const least = s => Math.min(...[...document.querySelectorAll(s)].flatMap(sizes));
  const wide = document.documentElement.clientWidth;
  const scrolls = e => e && (getComputedStyle(e).overflowX === 'auto' || scrolls(e.parentElement));
  return {
    out: [...document.querySelectorAll('main *, nav *, footer *')]
      .filter(e => box(e).right > wide + 1 && !scrolls(e)).map(e => e.outerHTML.slice(0, 200)),
    least: ['.formula', '.formula > :not(wbr)', 'svg.plot', '.badge'].map(least),
    articles: document.querySelectorAll('article').length,
  };
})()"""
SHOWN = "[...document.querySelectorAll('article')].filter(e => e.offsetParent).map(e => e.%s)"
SEARCH = """{ const e = document.getElementById('search'); e.value = 'residual OUTPUT';
  e.dispatchEvent(new Event('input')) }"""


@pytest.mark.slow
def test_page_fits_the_browser_and_its_filters_and_search_work(tmp_path: Path) -> None:
    if (program := find_browser()) is None:
        pytest.skip("chromium: not installed")
    made_up = [replace(r, id=f"X{r.id}", part_of=r.part_of and f"X{r.part_of}") for r in results()]
    shown = [*made_up, *(claim.failed("not run") for claim in all_claims())]
    page = tmp_path / "claims.html"
    page.write_text(to_html(shown, circumstances(shown, seed=0, deep=False, seconds=1.0)), encoding="utf-8")
    with Browser(program, tmp_path / "profile") as browser:
        for width, dark in ((390, True), (1280, False)):
            browser.show(page, width=width, dark=dark)
            seen: dict[str, Any] = browser.evaluate(MEASURE)
            assert seen["out"] == []
            assert min(seen["least"]) > 4
            assert seen["articles"] == len(entries(shown))
        for kind in ("misprint", "false", "holds"):
            browser.evaluate(f"document.querySelector('label.{kind}').click()")
            assert {name.split()[1] for name in browser.evaluate(SHOWN % "className")} == {kind}
        browser.evaluate("document.querySelector('label.all').click()")
        browser.evaluate(SEARCH)
        assert browser.evaluate(SHOWN % "id") == ["claim-C3"]
        assert browser.complaints == []

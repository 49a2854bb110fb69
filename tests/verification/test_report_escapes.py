"""Pages of claims that someone else has written: whatever their texts hold, it is shown and not run."""

from __future__ import annotations

import re
from dataclasses import fields, replace
from html.parser import HTMLParser

import pytest

from phiball.verification.framework.result import Result
from phiball.verification.report.files import circumstances
from phiball.verification.report.html import to_html
from phiball.verification.report.markdown import to_markdown
from tests.support.reports import CURVE, results

RESULTS = results()
ABOUT = circumstances(
    RESULTS, seed=5, deep=False, seconds=12.3, provenance={"revision": "abc", "versions": {}}
)
PAGE = to_html(RESULTS, ABOUT)
HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)>\" onclick='alert(3)' &lt;b&gt; [red]"


class _Tags(HTMLParser):
    """The tags of a page and their attributes."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: list[tuple[str, str | None]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += attrs


@pytest.mark.parametrize("text", [HOSTILE, f"${HOSTILE}$", r"\href{javascript:alert(4)}{x}"])
def test_pages_escape_what_they_show(text: str) -> None:
    """Names, statements, examples and errors of claims that someone else has written."""
    words = {f.name: text for f in fields(Result) if f.type == "str" and f.name != "section"}
    curve = replace(CURVE, **{f.name: text for f in fields(CURVE) if isinstance(getattr(CURVE, f.name), str)})
    results = [replace(result, **words, curves=(curve,)) for result in RESULTS]
    about = {**ABOUT, "summary": text, "backend": text, "machine": text, "versions": {text: text}}
    page, plain_page = _Tags(to_html(results, about)), _Tags(PAGE)
    assert page.tags <= plain_page.tags | {"code"}
    assert {name for name, _ in page.attributes} <= {name for name, _ in plain_page.attributes} | {"title"}
    links = [value for name, value in page.attributes if name in ("href", "src")]
    assert all(link and link.startswith(("#", "https://arxiv.org/", "data:,")) for link in links)
    markdown = re.sub("`[^`]*`", "", to_markdown(results, about))
    assert not re.search(r"(?<!\\)<(script|img|b)\b", markdown)

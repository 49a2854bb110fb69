"""What may be wrong with the reference pages, found in their HTML and in the docstrings they show."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from importlib import import_module
from pathlib import Path
from urllib.parse import unquote, urldefrag


class _Anchors(HTMLParser):
    """The ids and the links of a page, and what it loads."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: set[str] = set()
        self.loaded: set[str] = set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        for name, value in attributes:
            if name == "id":
                self.ids.add(value or "")
            elif name == "href" and tag == "a":
                self.links.add(value or "")
            elif name in ("src", "href"):
                self.loaded.add(value or "")


def names_on(path: Path) -> set[str]:
    """The names that have a section of their own on a page."""
    return _Anchors(path).ids


def broken_links(site: Path) -> list[str]:
    """Every link to a page or a section that does not exist, with the page that has it."""
    pages = {path.resolve(): _Anchors(path) for path in site.rglob("*.html")}
    broken = []
    for path, anchors in pages.items():
        for link in anchors.links:
            target, section = urldefrag(link)
            if re.match(r"[a-z]+:", target):
                continue
            page = pages.get((path.parent / unquote(target)).resolve() if target else path)
            if page is None or (section and unquote(section) not in page.ids):
                broken.append(f"{path.name}: {link}")
    return sorted(broken)


def network_loads(site: Path) -> list[str]:
    """Everything that a page would load from the network."""
    return [link for path in site.rglob("*.html") for link in _Anchors(path).loaded if "//" in link[:8]]


def without_example(docstrings: dict[str, str]) -> list[str]:
    """The names whose docstring shows no example."""
    return [name for name, text in docstrings.items() if not re.search(r"^\s*>>> ", text, re.M)]


def unknown_references(docstrings: dict[str, str]) -> list[str]:
    """Every `phiball.x.y` in a docstring that cannot be imported, with the name that has the docstring."""
    pattern = re.compile(r"`(phiball(?:\.\w+)+)(?:\([^`]*\))?`")
    references = {(name, path) for name, text in docstrings.items() for path in pattern.findall(text)}
    return sorted(f"{name}: {path}" for name, path in references if not _exists(path))


def _exists(path: str) -> bool:
    parts = path.split(".")
    for end in range(len(parts), 0, -1):
        try:
            value = import_module(".".join(parts[:end]))
        except ModuleNotFoundError:
            continue
        for part in parts[end:]:
            if not hasattr(value, part):
                return False
            value = getattr(value, part)
        return True
    return False

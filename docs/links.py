"""Check the links of the built site: `python docs/links.py site`."""

from __future__ import annotations

import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag


class Page(HTMLParser):
    """The ids and links of a page, and the files that it loads."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: set[str] = set()
        self.loaded: set[str] = set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        """Collect the ids, links and loaded files of a tag."""
        for name, value in attributes:
            target = {"id": self.ids, "src": self.loaded}.get(name)
            if name == "href":
                target = self.links if tag == "a" else self.loaded
            if target is not None:
                target.add(value or "")


def broken_links(site: Path) -> list[str]:
    """Links to a file or section that does not exist, and files from the network, each with its page."""
    pages = {path.resolve(): Page(path) for path in site.rglob("*.html") if "_static" not in path.parts}
    broken = []
    for path, page in pages.items():
        name = path.relative_to(site.resolve()).as_posix()
        for link in sorted(page.links | page.loaded):
            target, section = urldefrag(link)
            if re.match(r"[a-z]+:|//", target):
                broken += [f"{name}: loads {link}"] if link in page.loaded and target[:5] != "data:" else []
                continue
            file = (path.parent / unquote(target.partition("?")[0])).resolve() if target else path
            found = pages.get(file)
            if not file.exists() or (section and found and unquote(section) not in found.ids):
                broken.append(f"{name}: {link}")
    return broken


if __name__ == "__main__":
    failures = broken_links(Path(sys.argv[1]))
    sys.exit("\n".join(["broken links:", *failures]) if failures else 0)

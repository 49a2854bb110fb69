"""The API pages document every public name with an example, and their links and formulas work."""

import doctest
import re
import shutil
from html.parser import HTMLParser
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urldefrag

import pytest

from phiball.refimpl.printing import one_line
from tests.support.paths import ROOT

pytestmark = pytest.mark.slow
pytest.importorskip("pdoc", reason="pdoc: not installed")


def load_builder() -> Any:
    spec = spec_from_file_location("build_docs", ROOT / "docs" / "build.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


builder = load_builder()
PACKAGES = [name for name in builder.PAGES if name.startswith(("phiball.refimpl", "phiball.backends"))]
PACKAGES += ["phiball.verification"]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    builder.build(folder)
    return folder


class Anchors(HTMLParser):
    """The ids and links of a page, and the files that it loads."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: set[str] = set()
        self.loaded: set[str] = set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        for name, value in attributes:
            target = {"id": self.ids, "src": self.loaded}.get(name)
            if name == "href":
                target = self.links if tag == "a" else self.loaded
            if target is not None:
                target.add(value or "")


def broken_links(site: Path) -> list[str]:
    """Links to a page or section that does not exist, each with the name of its page."""
    pages = {path.resolve(): Anchors(path) for path in site.rglob("*.html")}
    broken = []
    for path, anchors in pages.items():
        for link in anchors.links:
            target, section = urldefrag(link)
            if re.match(r"[a-z]+:", target):
                continue
            page = pages.get((path.parent / unquote(target)).resolve() if target else path)
            if page is None or (section and unquote(section) not in page.ids):
                broken.append(f"{path.name}: {link}")
    return broken


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_name_is_documented_with_an_example(package: str, site: Path) -> None:
    page = builder.Page(import_module(package))
    names = set(page.obj.__all__)
    assert names <= Anchors(site / f"{package.replace('.', '/')}.html").ids
    assert [name for name in names if not page.members[name].docstring] == []
    results = {name for name in names if getattr(getattr(page.obj, name), "__repr__", None) is one_line}
    assert [name for name in names - results if ">>> " not in page.members[name].docstring] == []
    methods = [
        member
        for cls in page.classes
        for member in cls.own_members
        if not member.name.startswith("_") and (member.kind == "function" or isinstance(member.obj, property))
    ]
    assert [method.fullname for method in methods if not method.docstring] == []


def test_doctests_of_constants_and_of_the_package_pass() -> None:
    """pytest collects neither: constants have no docstring at run time, and `testpaths` omits __init__.py."""
    texts = {"phiball": import_module("phiball").__doc__ or ""}
    for package in PACKAGES:
        page = builder.Page(import_module(package))
        texts |= {member.fullname: member.docstring for member in page.variables}
    parser, runner = doctest.DocTestParser(), doctest.DocTestRunner()
    for name, text in texts.items():
        scope = dict(vars(import_module(name.rpartition(".")[0] or name)))
        runner.run(parser.get_doctest(text, scope, name, None, None))
    assert runner.tries > 5
    assert runner.failures == 0


def test_links_exist_and_a_broken_link_is_found(site: Path, tmp_path: Path) -> None:
    assert broken_links(site) == []
    copy = tmp_path / "site"
    shutil.copytree(site, copy)
    with (copy / "phiball.html").open("a", encoding="utf-8") as page:
        page.write('<a href="phiball/refimpl.html#no_such_name">here</a>')
    assert broken_links(copy) == ["phiball.html: phiball/refimpl.html#no_such_name"]


def test_formulas_are_rendered_and_pages_load_nothing_from_the_network(site: Path) -> None:
    pages = "".join(path.read_text(encoding="utf-8") for path in site.rglob("*.html"))
    shown = re.sub(r"<(pre|code|script)\b.*?</\1>", "", pages, flags=re.S)
    assert shown.count("<math") > 20
    assert re.findall(r"\$[^$\n<]{1,60}\$|xformula\d", shown) == []
    loaded = [link for path in site.rglob("*.html") for link in Anchors(path).loaded]
    assert [link for link in loaded if "//" in link[:8]] == []

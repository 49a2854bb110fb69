"""The reference pages are built, and show every public name with an example and working links."""

from __future__ import annotations

import doctest
import re
import shutil
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest

from tests.support.doc_pages import (
    broken_links,
    names_on,
    network_loads,
    unknown_references,
    without_example,
)
from tests.support.paths import ROOT

pytestmark = pytest.mark.slow

pytest.importorskip("pdoc", reason="pdoc: not installed")
PACKAGES = ("phiball.refimpl", "phiball.refimpl.types", "phiball.backends", "phiball.verification")


def _load_builder() -> Any:
    spec = spec_from_file_location("build_docs", ROOT / "docs" / "build.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


builder = _load_builder()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    builder.build(folder)
    return folder


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SystemExit, match=r"file/site cannot be written: \[Errno 20\] Not a directory"):
        builder.main(tmp_path / "file" / "site")


def page_of(package: str, site: Path) -> Path:
    return site / f"{package.replace('.', '/')}.html"


def public_docstrings(package: str) -> dict[str, str]:
    """The docstring of each public name of a package, constants included."""
    page = builder.Page(import_module(package))
    return {name: page.members[name].docstring for name in page.obj.__all__}


def missing_names(package: str, site: Path) -> list[str]:
    return sorted(set(import_module(package).__all__) - names_on(page_of(package, site)))


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_name_is_on_its_page(package: str, site: Path) -> None:
    assert missing_names(package, site) == []


def test_the_names_of_the_root_are_on_a_page(site: Path) -> None:
    phiball = import_module("phiball")
    names = {name for name in dir(phiball) if not name.startswith("_")}
    names -= {"TYPE_CHECKING", "annotations", "import_module"}
    pages = ("phiball.refimpl", "phiball.backends", "phiball.experiments.robustness")
    shown = set().union(*(names_on(page_of(page, site)) for page in pages))
    assert names - shown == {"backends", "experiments", "refimpl", "verification"}


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_name_has_an_example(package: str) -> None:
    assert without_example(public_docstrings(package)) == []


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_method_has_a_docstring(package: str) -> None:
    page = builder.Page(import_module(package))
    methods = [
        member
        for cls in page.classes
        for member in cls.own_members
        if not member.name.startswith("_") and (member.kind == "function" or isinstance(member.obj, property))
    ]
    assert [method.fullname for method in methods if not method.docstring] == []


def test_examples_that_pytest_does_not_collect_run() -> None:
    """Those of constants, which have no docstring at run time, and those of the root."""
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


def test_links_lead_somewhere(site: Path) -> None:
    assert broken_links(site) == []
    assert {
        f"{name}: {problem}" for name in PACKAGES for problem in unknown_references(docstrings(name))
    } == set()


def docstrings(package: str) -> dict[str, str]:
    """The docstrings of a package, of its public names and of their methods."""
    page = builder.Page(import_module(package))
    members = [*page.members.values(), *(member for cls in page.classes for member in cls.own_members)]
    return {package: page.docstring} | {member.fullname: member.docstring for member in members}


def test_formulas_are_rendered_without_the_network(site: Path) -> None:
    pages = "".join(path.read_text(encoding="utf-8") for path in site.rglob("*.html"))
    shown = re.sub(r"<(pre|code|script)\b.*?</\1>", "", pages, flags=re.S)
    assert shown.count("<math") > 20
    assert re.findall(r'<span class="(?:display|inline)"><code>.*?</code>', pages) == []  # not converted
    assert re.findall(r"\$[^$\n<]{1,60}\$|xformula\d", shown) == []
    assert network_loads(site) == []


def test_the_bars_of_a_formula_survive_a_table() -> None:
    assert builder.first_line("A $|x|$ | b\nrest") == r"A $|x|$ \| b"


# --- the checks themselves can fail ---------------------------------------------------------------


def test_a_name_without_an_example_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    refimpl: Any = import_module("phiball.refimpl")
    monkeypatch.setattr(refimpl.worst_case, "__doc__", "Solve the inner problem.")
    assert without_example(public_docstrings("phiball.refimpl")) == ["worst_case"]


def test_a_name_that_is_not_on_the_page_is_found(monkeypatch: pytest.MonkeyPatch, site: Path) -> None:
    backends: Any = import_module("phiball.backends")
    monkeypatch.setattr(backends, "__all__", [*backends.__all__, "forgotten"])
    assert missing_names("phiball.backends", site) == ["forgotten"]


@pytest.mark.parametrize("link", ["refimpl.html", "phiball/refimpl.html#no_such_name", "#nowhere"])
def test_a_broken_link_is_found(link: str, site: Path, tmp_path: Path) -> None:
    copy = tmp_path / "site"
    shutil.copytree(site, copy)
    page = copy / "phiball.html"
    page.write_text(page.read_text(encoding="utf-8") + f'<a href="{link}">here</a>', encoding="utf-8")
    assert broken_links(copy) == [f"phiball.html: {link}"]


def test_a_reference_to_nothing_is_found() -> None:
    text = "See `phiball.refimpl.worst_case`, `phiball.refimpl.Ball.sample` and `phiball.refimpl.best_case`."
    assert unknown_references({"f": text}) == ["f: phiball.refimpl.best_case"]


def test_what_comes_from_the_network_is_found(tmp_path: Path) -> None:
    page = '<script src="https://cdn.example/x.js"></script><link href="//x.example/y.css">'
    (tmp_path / "page.html").write_text(page, encoding="utf-8")
    assert len(network_loads(tmp_path)) == 2

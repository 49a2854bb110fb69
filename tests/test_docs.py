"""The site documents every public name with an example, and its links and formulas work."""

import doctest
import os
import re
import subprocess
import sys
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest

import phiball
from phiball.refimpl.printing import one_line
from tests.support.paths import ROOT

pytestmark = pytest.mark.slow
pytest.importorskip("sphinx_gallery", reason="sphinx-gallery: not installed")
RETURNED = {"BestWithin", "RobustScorer", "RobustnessReport"}  # by functions, whose docstrings have examples
NAMESPACES = ["phiball", *(f"phiball.{name}" for name in ("backends", "verification", *phiball._NAMESPACES))]


def load(name: str) -> Any:
    spec = spec_from_file_location(f"docs_{name}", ROOT / "docs" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


links = load("links")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, with one script of the gallery executed."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-d", str(folder / "trees")]
    command += [str(ROOT / "docs"), str(folder / "html")]
    environment = {**os.environ, "PHIBALL_GALLERY": "budget_price"}
    fcntl = pytest.importorskip("fcntl", reason="fcntl: not on this system")
    with (ROOT / "docs/conf.py").open() as lock:  # the build writes into docs/, so one process at a time
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return folder / "html"


def test_links_exist_and_a_broken_link_is_found(site: Path) -> None:
    claims = {f"claim-{claim.id}" for claim in import_module("phiball.verification").all_claims()}
    # `phiball verify` writes claims.html, which the site of this test does not have.
    broken = [line.rpartition("claims.html") for line in links.broken_links(site)]
    assert [line for line in broken if not line[1] or line[2].removeprefix("#") not in claims | {""}] == []
    (site / "bad.html").write_text('<a href="index.html#nothing">a</a><img src="https://b/c">', "utf-8")
    found = sorted(line for line in links.broken_links(site) if line.startswith("bad.html"))[::-1]
    (site / "bad.html").unlink()
    assert found == ["bad.html: loads https://b/c", "bad.html: index.html#nothing"]


@pytest.mark.parametrize("namespace", NAMESPACES)
def test_every_public_name_is_documented_with_an_example(namespace: str, site: Path) -> None:
    module = import_module(namespace)
    top = set() if namespace == "phiball" else set(phiball.__all__)  # type: ignore[attr-defined]
    names = set(module.__all__) - top
    assert {f"{namespace}.{name}" for name in names} <= links.Page(site / f"api/{namespace}.html").ids
    objects = {name: getattr(module, name) for name in names}
    documented = {name: value for name, value in objects.items() if callable(value) and value is not Any}
    assert [name for name, value in documented.items() if not value.__doc__] == []
    results = RETURNED | {
        name for name, value in documented.items() if getattr(value, "__repr__", None) is one_line
    }
    assert [name for name in set(documented) - results if ">>> " not in documented[name].__doc__] == []


def test_doctests_of_constants_and_of_the_package_pass() -> None:
    """pytest collects neither: constants have no docstring at run time, and `testpaths` omits __init__.py."""
    docs = load("docstrings")
    parser, runner = doctest.DocTestParser(), doctest.DocTestRunner()
    runner.run(parser.get_doctest(phiball.__doc__ or "", {}, "phiball", None, None))
    for namespace in NAMESPACES:
        module = import_module(namespace)
        for name in module.__all__:
            text = "\n".join(docs.attribute_docs(name))
            runner.run(
                parser.get_doctest(text, {**vars(module), name: getattr(module, name)}, name, None, None)
            )
    assert runner.tries > 5
    assert runner.failures == 0


def test_formulas_are_rendered(site: Path) -> None:
    pages = "".join(path.read_text(encoding="utf-8") for path in site.rglob("*.html"))
    shown = re.sub(r"<(pre|code|script)\b.*?</\1>", "", pages, flags=re.DOTALL)
    assert shown.count("<math") > 20
    assert re.findall(r"\$[^$\n<]{1,60}\$", shown) == []
    text = re.sub(r"<[^>]+>", "", shown)
    assert re.findall(r".*(?:mathbb|qquad|frac\{|\\\\).*", text) == []

"""Build the API pages: `make docs`, or `python docs/build.py FOLDER`.

The page of a package has an index with one line per public name, followed by the docstrings of these names.
LaTeX between dollar signs becomes MathML, so that the pages load nothing from the network.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, cached_property
from importlib import import_module
from inspect import getsource
from pathlib import Path
from types import ModuleType
from typing import Any

import pdoc
import pdoc.render
import pdoc.render_helpers
import pdoc.search

from phiball.backends.files import write_text_atomic
from phiball.verification.report.math import formula

_NAMESPACES = ("inner", "distributions", "sampling", "risk", "training")
_NAMESPACES += ("optimize", "theory", "qlearning", "causal", "linear", "certify")
PAGES = (
    "phiball",
    "phiball.refimpl",
    *(f"phiball.refimpl.{name}" for name in _NAMESPACES),
    "phiball.refimpl.types",
    "phiball.backends",
    "phiball.verification",
    "phiball.experiments",
    "phiball.experiments.robustness",
)
# Group 1 matches code, which is kept; groups 2 and 3 match displayed and inline LaTeX.
_MATH = re.compile(r"(`[^`]*`|^ *(?:>>>|\.\.\.).*$)|\$\$(.+?)\$\$|\$(?! )([^$\n]+?)(?<! )\$", re.S | re.M)


def public_names(package: ModuleType) -> dict[str, str]:
    """Return the public names of a package, each with the module that defines it."""
    if package.__name__ == "phiball":  # an overview page; the names are on the pages of their packages
        return {}
    stub = Path(str(package.__file__)).with_suffix(".pyi")  # for a package that imports names on first use
    tree = ast.parse(stub.read_text(encoding="utf-8") if stub.exists() else getsource(package))
    imports = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    origin = {alias.name: str(node.module) for node in imports for alias in node.names}
    return {name: origin.get(name, package.__name__) for name in getattr(package, "__all__", ())}


class Page(pdoc.doc.Module):
    """The page of a package: a table with one line per public name, then the docstrings of these names."""

    @cached_property
    def _member_objects(self) -> dict[str, Any]:
        if not hasattr(self.obj, "__all__"):
            return {} if self.modulename == "phiball" else super()._member_objects
        return {name: getattr(self.obj, name) for name in public_names(self.obj)}

    @cached_property
    def _var_docstrings(self) -> dict[str, str]:
        modules = {self.modulename, *public_names(self.obj).values()}
        texts: dict[str, str] = {}
        for module in modules:
            texts |= pdoc.doc_ast.walk_tree(import_module(module)).var_docstrings
        return texts

    @cached_property
    def submodules(self) -> list[pdoc.doc.Module]:
        return [make_page(name) for name in PAGES if name.rpartition(".")[0] == self.modulename]

    @cached_property
    def docstring(self) -> str:
        text: str = super().docstring
        names = public_names(self.obj)
        rows = [f"| `{name}` | {first_line(self.members[name].docstring)} |" for name in names]
        table = ["", "## Public names", "", "| name | what it is |", "| --- | --- |", *rows] if rows else []
        return "\n".join([text, *table])


@contextmanager
def named_aliases() -> Iterator[None]:
    """Make signatures show `Array`, `Loss` and `Gradient` as links in the block, not as definitions."""
    types = "phiball.refimpl.types"
    owners = {"Array": "phiball.backends", "Loss": types, "Gradient": types}
    before = []
    for module in [module for name, module in sys.modules.items() if name.startswith("phiball.")]:
        for alias, owner in owners.items():
            if alias in vars(module) and module.__name__ != owner:
                before.append((module, alias, getattr(module, alias)))
                setattr(module, alias, type(alias, (), {"__module__": owner}))
    try:
        yield
    finally:
        for module, alias, value in before:
            setattr(module, alias, value)


@cache
def make_page(name: str) -> Page:
    """Return the page of a module."""
    return Page(import_module(name))


def first_line(text: str | None) -> str:
    """Return the first line of a docstring as a cell of a Markdown table."""
    line = (text or "").strip().partition("\n")[0]
    return re.sub(r"\$[^$]*\$|\|", lambda match: r"\|" if match[0] == "|" else match[0], line)


def to_html(markdown: str) -> str:
    """Convert Markdown to HTML, with LaTeX as MathML."""
    formulas: list[str] = []

    def keep(match: re.Match[str]) -> str:
        code, display, inline = match.groups()
        if code:
            return code
        rendered = formula(display or inline)
        if inline:
            rendered = rendered.replace(' displaystyle="true"', "")
        formulas.append(f'<span class="{"display" if display else "inline"}">{rendered}</span>')
        return f"xformula{len(formulas) - 1}x"  # a placeholder that Markdown leaves unchanged

    html = pdoc.render_helpers.to_html(_MATH.sub(keep, markdown))
    filled = type(html)(re.sub(r"xformula(\d+)x", lambda match: formulas[int(match[1])], html))
    filled.toc_html = html.toc_html  # type: ignore[attr-defined]
    return filled


def build(folder: Path) -> list[Path]:
    """Write all pages into `folder`, and return the files."""
    folder.mkdir(parents=True, exist_ok=True)  # first: if it fails, no page was rendered in vain
    pdoc.render.env.filters["to_html"] = to_html
    pdoc.search.to_html = to_html  # type: ignore
    pdoc.render.configure(docformat="markdown", template_directory=Path(__file__).parent / "templates")
    pages = {name: make_page(name) for name in PAGES}
    with named_aliases():
        texts = {
            f"{name.replace('.', '/')}.html": pdoc.render.html_module(shown, pages)
            for name, shown in pages.items()
        }
        texts["index.html"] = pdoc.render.html_index(pages)
        texts["search.js"] = pdoc.render.search_index(pages)
    for name, text in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        write_text_atomic(folder / name, text)
    return [folder / name for name in texts]


def main(target: Path) -> None:
    """Write all pages into `target`; exit with a one-line message if that fails."""
    try:
        build(target)
    except OSError as error:
        sys.exit(f"{target} cannot be written: {error}")
    print(f"open {target / 'index.html'}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "site"))

"""Build the reference pages: `make docs`, or `python docs/build.py FOLDER`.

One page per package shows its public names with their docstrings, after an index with one line per name.
LaTeX between dollar signs becomes MathML, so that the pages need no network.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, cached_property
from importlib import import_module
from inspect import getsource, isfunction
from pathlib import Path
from types import ModuleType
from typing import Any

import pdoc
import pdoc.render
import pdoc.render_helpers
import pdoc.search

from phiball.backends.files import write_whole
from phiball.verification.report.math import formula

PAGES = (
    "phiball",
    "phiball.refimpl",
    "phiball.refimpl.types",
    "phiball.backends",
    "phiball.verification",
    "phiball.experiments",
    "phiball.experiments.robustness",
)
# The reading order of the files and folders of refimpl.
ORDER = (
    "inner.worst_case",
    "inner",
    "distributions",
    "risk.robust_risk",
    "risk",
    "training.regularized_loss",
    "sampling",
    "training.sgd",
    "training",
    "theory.regularizers",
    "theory",
    "attacks",
    "causal",
    "qlearning",
)
_MATH = re.compile(r"(`[^`]*`|^ *(?:>>>|\.\.\.).*$)|\$\$(.+?)\$\$|\$(?! )([^$\n]+?)(?<! )\$", re.S | re.M)


def public_names(package: ModuleType) -> dict[str, str]:
    """The public names of a package, each with the module that defines it, in reading order."""
    if package.__name__ == "phiball":  # an overview; its names are shown where they are defined
        return {}
    stub = Path(str(package.__file__)).with_suffix(".pyi")  # of a package that loads its names on first use
    tree = ast.parse(stub.read_text(encoding="utf-8") if stub.exists() else getsource(package))
    imports = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    origin = {alias.name: str(node.module) for node in imports for alias in node.names}
    names = {name: origin.get(name, package.__name__) for name in getattr(package, "__all__", ())}
    return dict(sorted(names.items(), key=lambda item: _place(package, item[1], item[0])))


def _place(package: ModuleType, module: str, name: str) -> tuple[int, str, int]:
    """Where a name stands: by `ORDER`, then by module, then by line."""
    part = module.removeprefix(f"{package.__name__}.")
    places = [n for n, start in enumerate(ORDER) if f"{part}.".startswith(f"{start}.")]
    return (*places, len(ORDER))[0], module, _lines(module).get(name, 0)


@cache
def _lines(module: str) -> dict[str, int]:
    """The line on which each top-level name of a module is defined."""
    lines = {}
    for node in ast.parse(getsource(import_module(module))).body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            lines[node.name] = node.lineno
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            lines |= {target.id: node.lineno for target in targets if isinstance(target, ast.Name)}
    return lines


def result_types(package: ModuleType) -> dict[str, type]:
    """The types that public functions and methods return, and that the package does not export."""
    exported = [getattr(package, name) for name in public_names(package)]
    classes = [x for x in exported if isinstance(x, type)]
    functions = [x for x in exported if isfunction(x)]
    functions += [f for c in classes for name, f in vars(c).items() if isfunction(f) and name[0] != "_"]
    returned = (f.__globals__.get(str(f.__annotations__.get("return"))) for f in functions)
    types = {t for t in returned if isinstance(t, type) and t.__module__.startswith(package.__name__)}
    ordered = sorted(types - set(classes), key=lambda t: _place(package, t.__module__, t.__name__))
    return {t.__name__: t for t in ordered}


class Page(pdoc.doc.Module):
    """The page of a package: its public names, and the types that they return."""

    @cached_property
    def _member_objects(self) -> dict[str, Any]:
        if not hasattr(self.obj, "__path__"):
            return super()._member_objects
        return {name: getattr(self.obj, name) for name in public_names(self.obj)} | result_types(self.obj)

    @cached_property
    def _var_docstrings(self) -> dict[str, str]:
        modules = {self.modulename, *public_names(self.obj).values()}
        texts: dict[str, str] = {}
        for module in modules:
            texts |= pdoc.doc_ast.walk_tree(import_module(module)).var_docstrings
        return texts

    @cached_property
    def submodules(self) -> list[pdoc.doc.Module]:
        return [page(name) for name in PAGES if name.rpartition(".")[0] == self.modulename]

    @cached_property
    def docstring(self) -> str:
        text: str = super().docstring
        return "\n\n".join([text, *(f"## {title}\n\n{table}" for title, table in self._index())])

    def _index(self) -> Iterator[tuple[str, str]]:
        """A table of the names of each folder, with the folder's title."""
        groups: dict[str, list[str]] = {}
        for name, module in public_names(self.obj).items():
            part = module.removeprefix(f"{self.modulename}.").partition(".")[0]
            folder = import_module(f"{self.modulename}.{part}") if part in ORDER else self.obj
            title = "Public names" if folder is self.obj else first_line(folder.__doc__).rstrip(".")
            groups.setdefault(title.partition(":")[0], []).append(name)
        if results := list(result_types(self.obj)) if hasattr(self.obj, "__path__") else []:
            groups["Result types"] = results
        for title, names in groups.items():
            rows = [f"| `{name}` | {first_line(self.members[name].docstring)} |" for name in names]
            yield title, "\n".join(["| name | what it is |", "| --- | --- |", *rows])


@contextmanager
def named_aliases() -> Iterator[None]:
    """Make signatures show `Array`, `Loss` and `Gradient` as links, and not what these stand for."""
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
def page(name: str) -> Page:
    """The page of the module of that name."""
    return Page(import_module(name))


def first_line(text: str | None) -> str:
    """The first line of a docstring, fit for a cell of a Markdown table."""
    line = (text or "").strip().partition("\n")[0]
    return re.sub(r"\$[^$]*\$|\|", lambda match: r"\|" if match[0] == "|" else match[0], line)


def to_html(markdown: str) -> str:
    """Markdown as HTML, with its LaTeX as MathML."""
    formulas: list[str] = []

    def keep(match: re.Match[str]) -> str:
        code, display, inline = match.groups()
        if code:
            return code
        rendered = formula(display or inline)
        if inline:
            rendered = rendered.replace(' displaystyle="true"', "")
        formulas.append(f'<span class="{"display" if display else "inline"}">{rendered}</span>')
        return f"xformula{len(formulas) - 1}x"  # Markdown would take the signs of a formula for its own

    html = pdoc.render_helpers.to_html(_MATH.sub(keep, markdown))
    filled = type(html)(re.sub(r"xformula(\d+)x", lambda match: formulas[int(match[1])], html))
    filled.toc_html = html.toc_html  # type: ignore[attr-defined]
    return filled


def build(folder: Path) -> list[Path]:
    """Write all pages into `folder`, and return the files."""
    folder.mkdir(parents=True, exist_ok=True)  # one that cannot be made is told before the work
    pdoc.render.env.filters["to_html"] = to_html
    pdoc.search.to_html = to_html  # type: ignore
    pdoc.render.configure(docformat="markdown", template_directory=Path(__file__).parent / "templates")
    pages = {name: page(name) for name in PAGES}
    with named_aliases():
        texts = {
            f"{name.replace('.', '/')}.html": pdoc.render.html_module(shown, pages)
            for name, shown in pages.items()
        }
        texts["index.html"] = pdoc.render.html_index(pages)
        texts["search.js"] = pdoc.render.search_index(pages)
    for name, text in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        write_whole(folder / name, text)
    return [folder / name for name in texts]


def main(target: Path) -> None:
    """Write all pages, or say in one line why they cannot be written."""
    try:
        build(target)
    except OSError as error:
        sys.exit(f"{target} cannot be written: {error}")
    print(f"open {target / 'index.html'}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "site"))

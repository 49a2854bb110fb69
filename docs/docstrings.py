"""Docstrings are Markdown with LaTeX between dollar signs; Sphinx reads reStructuredText."""

from __future__ import annotations

import re
import sys
from functools import cache

from sphinx.pycode import ModuleAnalyzer

# Code is kept, formulas become roles, and other text is escaped.
_SPAN = re.compile(r"(`[^`]*`)|\$(?! )([^$]+?)(?<! )\$|([*_|\\])")


@cache
def _all_attribute_docs() -> dict[str, list[str]]:
    skipped = ("numba", "phiball.tests")  # pytest may import the tests as a part of the package
    modules = [name for name in sorted(sys.modules) if name.startswith("phiball.")]
    modules = [name for name in modules if not any(part in name for part in skipped)]
    return {
        attribute: lines
        for module in modules
        if sys.modules[module].__file__
        for (scope, attribute), lines in ModuleAnalyzer.for_module(module).find_attr_docs().items()
        if not scope
    }


def attribute_docs(name: str) -> list[str]:
    """Return the lines of the string below the definition of a public constant."""
    return [*_all_attribute_docs().get(name, []), ""]


def _inline(text: str) -> str:
    def convert(match: re.Match[str]) -> str:
        code, tex, mark = match.groups()
        if code:
            return f"`{code}`" if re.search(r"[^\w.]", code[1:-1]) else code
        return f":math:`{tex}`" if tex else "\\" + mark

    return _SPAN.sub(convert, text)


def to_rst(lines: list[str]) -> list[str]:
    """Convert the lines of a docstring: formulas, lists, and characters with a meaning."""
    parts = re.split(r"\$\$(.+?)\$\$", "\n".join(lines), flags=re.DOTALL)
    converted: list[str] = []
    for i, part in enumerate(parts):
        formula = ["", ".. math::", "", f"   {' '.join(part.split())}", ""]
        converted += formula if i % 2 else _text_to_rst(part)
    return [*converted, ""]


def _text_to_rst(text: str) -> list[str]:
    converted: list[str] = []
    paragraph: list[str] = []

    def flush() -> None:
        converted.extend(_inline("\n".join(paragraph)).split("\n") if paragraph else [])
        paragraph.clear()

    example = False
    for line in text.split("\n"):
        if line.startswith(">>>"):
            flush()
            example = True
        example = example and bool(line.strip())
        if example:
            converted.append(line)
            continue
        if re.match(r" *- ", line) and paragraph and not re.match(r" *(- |  |$)", paragraph[-1]):
            paragraph.append("")
        paragraph.append(line)
    flush()
    return converted

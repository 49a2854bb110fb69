"""Quotations from the LaTeX source of the paper, as HTML and as Markdown."""

from __future__ import annotations

import re
from collections.abc import Callable
from html import escape

from phiball.verification.framework.paper import Paper
from phiball.verification.report.math import inline_markdown, mathml

# Macros of the paper, and commands that latex2mathml does not support.
_MACROS = {
    r"\bE": r"\mathbb{E}",
    r"\bP": r"\mathbb{P}",
    r"\hP": r"\widehat{\mathbb{P}}",
    r"\cP": r"\mathcal{P}",
    r"\cZ": r"\mathcal{Z}",
    r"\cO": r"\mathcal{O}",
    r"\tO": r"\widetilde{\mathcal{O}}",
    r"\Proj": r"\mathrm{Proj}",
    r"\SG": r"\mathrm{SG}",
    r"\RTMLMC": r"\text{RT-MLMC}",
    r"\esssup": r"\operatorname{ess\,sup}",
    r"\nout": r"n^{o}",
    r"\diff": "d",
    r"\limits": "",
    r"\Big": "",
    r"\big": "",
    r"\textbf{1}": r"\mathbf{1}",
    r"\textsf{1}": r"\mathbf{1}",
}
_COMMANDS = re.compile("|".join(re.escape(m) + ("" if m[-1] == "}" else "(?![A-Za-z])") for m in _MACROS))


def pieces(quote: str, paper: Paper) -> list[tuple[str, bool]]:
    """The quotation split into text and formulas; the flag marks the formulas."""
    parts = [(part, index % 2 == 1) for index, part in enumerate(quote.split("$"))]
    return [(_formula(part, paper) if math else _text(part, paper), math) for part, math in parts if part]


def _text(tex: str, paper: Paper) -> str:
    tex = tex.replace("~", " ")
    tex = re.sub(r"\\(eq)?ref\{([^{}]*)\}", lambda m: _reference(m[2], bool(m[1]), paper), tex)
    return re.sub(r"\\(?:textbf|emph)\{([^{}]*)\}", r"\1", tex)


def _formula(tex: str, paper: Paper) -> str:
    tex = _COMMANDS.sub(lambda m: f"{_MACROS[m[0]]} ", tex.replace("~", " "))

    def name(found: re.Match[str]) -> str:
        return r"\text{" + _reference(found[1], True, paper).replace("phi", "φ") + "}"

    return re.sub(r"\\eqref\{([^{}]*)\}", name, tex).strip()


def _reference(label: str, brackets: bool, paper: Paper) -> str:
    """The number of the item with this LaTeX label, in parentheses if `brackets`."""
    number = paper.reference(label)
    return f"({number})" if brackets and not number.startswith("(") else number


def quote_html(quote: str, paper: Paper) -> str:
    """The quotation as HTML, with formulas as MathML."""
    return _joined(quote, paper, escape, lambda tex: mathml(tex) or f"<code>{escape(tex)}</code>")


def quote_markdown(quote: str, paper: Paper, plain: Callable[[str], str]) -> str:
    """The quotation as Markdown; `plain` escapes its text."""
    return _joined(quote, paper, plain, inline_markdown)


def _joined(quote: str, paper: Paper, text: Callable[[str], str], formula: Callable[[str], str]) -> str:
    """The quotation, with its text converted by `text` and its formulas by `formula`."""
    return "".join(formula(part) if is_math else text(part) for part, is_math in pieces(quote, paper))

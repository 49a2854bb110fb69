"""Formulas for the report: LaTeX as MathML and as Markdown, and ASCII formulas as HTML."""

from __future__ import annotations

import re
from functools import cache
from html import escape
from unicodedata import lookup
from xml.etree import ElementTree as ET

from latex2mathml.converter import convert

# Markdown interprets "<", ">" and a backslash before punctuation; these commands of letters replace them.
_LETTERS = {
    r"\|": r"\Vert",
    r"\{": r"\lbrace",
    r"\}": r"\rbrace",
    r"\,": r"\thinspace",
    r"\:": r"\medspace",
    r"\;": r"\thickspace",
    r"\!": r"\negthinspace",
    r"\\": r"\cr",
    "<": r"\lt",
    ">": r"\gt",
}
# The number of children that a MathML element must have.
_CHILDREN = dict.fromkeys(("mfrac", "mroot", "msub", "msup", "munder", "mover"), 2)
_CHILDREN |= dict.fromkeys(("msubsup", "munderover"), 3)
_INDEX_BELOW = re.compile("(lim|max|min|sup|inf|limsup|liminf|argmin|argmax|ess ?sup|∑|∏)")
_RELATIONS = "=≠≤≥<>≪≫⇒⇔→↦\N{TILDE OPERATOR}≈∈⊆"
_FENCES = "()[]{}|‖⌈⌉⌊⌋"
_GAP = "\N{THIN SPACE}"
MINUS = "\N{MINUS SIGN}"
_INSIDE = r"((?:[^()]|\([^()]*\))*)"  # the inside of brackets, nested at most once


@cache
def mathml(tex: str) -> str | None:
    """A displayed formula as MathML, in pieces that allow line breaks; None if it cannot be converted."""
    try:
        root = ET.fromstring(convert(_prepared(tex), display="block").replace(" xmlns=", " data-ns="))
    except Exception:  # the converter raises many types of errors; the report shows the source instead
        return None
    root.attrib.pop("data-ns", None)
    for node in root.iter():
        # The converter leaves unknown commands as text, or drops them. Links are not allowed in formulas.
        if (node.text or "").startswith("\\") or len(node) != _CHILDREN.get(node.tag, len(node)):
            return None
        if "href" in node.attrib:
            return None
        _polish(node)
    row = root[0] if len(root) == 1 and root[0].tag == "mrow" else root
    return "<wbr>".join(map(_piece, _pieces(list(row))))


def _pieces(nodes: list[ET.Element]) -> list[list[ET.Element]]:
    """Split a row before relations and after wide spaces, except within brackets."""
    pieces: list[list[ET.Element]] = [[]]
    depth = 0
    for node in nodes:
        sign = (node.text or "") if node.tag == "mo" else ""
        if depth == 0 and sign in _RELATIONS and sign and pieces[-1]:
            node.set("form", "infix")  # browsers treat the first sign of a row as a prefix
            pieces.append([])
        depth += (sign in "([{" and sign != "") - (sign in ")]}" and sign != "")
        pieces[-1].append(node)
        if depth == 0 and node.tag == "mspace" and node.get("width") in ("1em", "2em"):
            pieces.append([])
    return [piece for piece in pieces if piece]


def _piece(nodes: list[ET.Element]) -> str:
    piece = ET.Element("math", displaystyle="true")
    ET.SubElement(piece, "mrow").extend(nodes)
    return ET.tostring(piece, encoding="unicode")


def _prepared(tex: str) -> str:
    """Rewrite LaTeX that the converter misreads."""
    tex = re.sub(r"\\(mathbb|mathbf|mathcal|mathrm)\s*(?![\s{])(\w)", r"\\\1{\2}", " ".join(tex.split()))
    tex = re.sub(r"\\log((?:[_^]\w)?)\s*(?=\\frac)", r"\\log\1\\,", tex)
    tex = re.sub(r"\\(arg)\s*\\(min|max)(?![A-Za-z])", r"\\operatorname{\1\2}", tex)

    def name(found: re.Match[str]) -> str:
        return "\\operatorname{" + re.sub(r"\\[,; ]|\s", "GAP", found[1]) + "}"

    return re.sub(r"\\operatorname\*?\{([^{}]*)\}", name, tex)


def _polish(node: ET.Element) -> None:
    """Correct the element and attributes of a sign, which determine its spacing in browsers."""
    text = node.text or ""
    if node.tag == "mo" and "GAP" in text:
        text = node.text = text.replace("GAP", _GAP)
    if node.tag == "mi" and text == "~":
        node.tag, node.text = "mo", "\N{TILDE OPERATOR}"
    elif node.tag == "mi" and text in _FENCES and text:
        node.tag = "mo"
        node.set("stretchy", "false")
    elif node.tag == "mo" and (text == "/" or (text in ("|", "‖") and node.get("stretchy") == "false")):
        node.set("lspace", "0")
        node.set("rspace", "0")
    elif node.tag == "mo" and text == "∞":
        node.tag = "mi"
    elif node.tag == "mn" and node.get("mathvariant") == "bold" and text.isdecimal():
        node.text = "".join(chr(0x1D7CE + int(digit)) for digit in text)  # browsers ignore mathvariant
    elif node.tag in ("msub", "msubsup") and _INDEX_BELOW.fullmatch((node[0].text or "").replace("GAP", " ")):
        node.tag = {"msub": "munder", "msubsup": "munderover"}[node.tag]
    if node.tag == "mo" and text.replace(_GAP, "").isalpha() and len(text) > 1:
        node.set("lspace", "0.17em")
        node.set("rspace", "0.17em")


def _greek(word: re.Match[str]) -> str:
    """The Greek letter that the word names, or else the word."""
    name = "epsilon" if word[0] == "eps" else word[0].replace("ambda", "amda")
    case = "CAPITAL" if name[0].isupper() else "SMALL"
    try:
        return lookup(f"GREEK {case} LETTER {name}")
    except KeyError:
        return word[0]


def prose(text: str) -> str:
    """Text with ASCII formulas such as "L_f^2 <= phi*(mu)", as HTML with signs, indices and powers."""
    text = escape(text)
    text = re.sub(r"(?<![A-Za-z])[A-Za-z]+(?![A-Za-z])", _greek, text)
    for plain, sign in {"&lt;=": "≤", "&gt;=": "≥", "-&gt;": "→", " - ": f" {MINUS} "}.items():
        text = text.replace(plain, sign)
    text = re.sub(rf"\babs\({_INSIDE}\)", r"|\1|", text)
    text = re.sub(r"\bsqrt\(", "√(", text)
    # A single letter or a bracket takes an index; longer words with an underscore are names.
    text = re.sub(r"(?<=[\w)])_\{([^{}]+)\}", r"<sub>\1</sub>", text)
    text = re.sub(r"((?<!\w)\w|\))_(\w+|[+*])", r"\1<sub>\2</sub>", text)
    power = rf"\^(?:\({_INSIDE}\)|\{{([^{{}}]*)\}}|(-?\w+(?:\.\d+)?|\*))"
    text = re.sub(rf"(?<=[\w)\]>|]){power}", r"<sup>\1\2\3</sup>", text)
    return re.sub(r"(?<=[\s(,=\[])-(?=[\d.\w√|])", MINUS, text.replace("<sup>-", f"<sup>{MINUS}"))


def formula(tex: str) -> str:
    """A displayed formula as HTML: MathML, or the source if it cannot be converted."""
    return mathml(tex) or f"<code>{escape(tex)}</code>"


def _escaped(tex: str) -> str:
    """LaTeX without characters that Markdown interprets."""
    marks = "|".join(map(re.escape, _LETTERS))
    return " ".join(re.sub(marks, lambda mark: f"{_LETTERS[mark[0]]} ", tex).split())


def markdown_math(tex: str) -> str:
    """A displayed formula as Markdown."""
    return f"$$\n{_escaped(tex)}\n$$"


def inline_markdown(tex: str) -> str:
    """A formula within a line of Markdown."""
    return f"${_escaped(tex)}$"

"""Formulas for the report: LaTeX to MathML, and LaTeX that survives Markdown."""

from __future__ import annotations

import re
from functools import cache
from html import escape
from unicodedata import lookup
from xml.etree import ElementTree as ET

from latex2mathml.converter import convert

# Markdown reads a backslash before a punctuation mark, and "<", as its own.
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
_CHILDREN = dict.fromkeys(("mfrac", "mroot", "msub", "msup", "munder", "mover"), 2)
_CHILDREN |= dict.fromkeys(("msubsup", "munderover"), 3)
_BELOW = re.compile("(lim|max|min|sup|inf|limsup|liminf|argmin|argmax|ess ?sup|∑|∏)")
_RELATIONS = "=≠≤≥<>≪≫⇒⇔→↦\N{TILDE OPERATOR}≈∈⊆"
_FENCES = "()[]{}|‖⌈⌉⌊⌋"
_GAP = "\N{THIN SPACE}"
MINUS = "\N{MINUS SIGN}"
_INSIDE = r"((?:[^()]|\([^()]*\))*)"  # what stands in brackets, with brackets in it or not


@cache
def mathml(tex: str) -> str | None:
    """A displayed formula as MathML, in pieces between which a line may end; None if it does not convert."""
    try:
        root = ET.fromstring(convert(_prepared(tex), display="block").replace(" xmlns=", " data-ns="))
    except Exception:  # the converter has many errors, and a report is no place to stop at one
        return None
    root.attrib.pop("data-ns", None)
    for node in root.iter():
        # What the converter does not know it leaves as text, or leaves out. A formula is no link.
        if (node.text or "").startswith("\\") or len(node) != _CHILDREN.get(node.tag, len(node)):
            return None
        if "href" in node.attrib:
            return None
        _polish(node)
    row = root[0] if len(root) == 1 and root[0].tag == "mrow" else root
    return "<wbr>".join(map(_piece, _pieces(list(row))))


def _pieces(nodes: list[ET.Element]) -> list[list[ET.Element]]:
    """A row cut before its relations and after its wide spaces, but not within brackets."""
    pieces: list[list[ET.Element]] = [[]]
    depth = 0
    for node in nodes:
        sign = (node.text or "") if node.tag == "mo" else ""
        if depth == 0 and sign in _RELATIONS and sign and pieces[-1]:
            node.set("form", "infix")  # first in its row it would be taken for a prefix
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
    """Spellings that the converter takes amiss, in those that it knows."""
    tex = re.sub(r"\\(mathbb|mathbf|mathcal|mathrm)\s*(?![\s{])(\w)", r"\\\1{\2}", " ".join(tex.split()))
    tex = re.sub(r"\\log((?:[_^]\w)?)\s*(?=\\frac)", r"\\log\1\\,", tex)
    tex = re.sub(r"\\(arg)\s*\\(min|max)(?![A-Za-z])", r"\\operatorname{\1\2}", tex)

    def name(found: re.Match[str]) -> str:
        return "\\operatorname{" + re.sub(r"\\[,; ]|\s", "GAP", found[1]) + "}"

    return re.sub(r"\\operatorname\*?\{([^{}]*)\}", name, tex)


def _polish(node: ET.Element) -> None:
    """Give each sign the role that it has, as browsers space it by that."""
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
        node.text = "".join(chr(0x1D7CE + int(digit)) for digit in text)  # bold by another sign alone
    elif node.tag in ("msub", "msubsup") and _BELOW.fullmatch((node[0].text or "").replace("GAP", " ")):
        node.tag = {"msub": "munder", "msubsup": "munderover"}[node.tag]
    if node.tag == "mo" and text.replace(_GAP, "").isalpha() and len(text) > 1:
        node.set("lspace", "0.17em")
        node.set("rspace", "0.17em")


def _letter(word: re.Match[str]) -> str:
    """The Greek letter of that name, if there is one."""
    name = "epsilon" if word[0] == "eps" else word[0].replace("ambda", "amda")
    case = "CAPITAL" if name[0].isupper() else "SMALL"
    try:
        return lookup(f"GREEK {case} LETTER {name}")
    except KeyError:
        return word[0]


def prose(text: str) -> str:
    """Words with formulas in plain letters, as HTML: "L_f^2 <= phi*(mu)" with signs, indices and powers."""
    text = escape(text)
    text = re.sub(r"(?<![A-Za-z])[A-Za-z]+(?![A-Za-z])", _letter, text)
    for plain, sign in {"&lt;=": "≤", "&gt;=": "≥", "-&gt;": "→", " - ": f" {MINUS} "}.items():
        text = text.replace(plain, sign)
    text = re.sub(rf"\babs\({_INSIDE}\)", r"|\1|", text)
    text = re.sub(r"\bsqrt\(", "√(", text)
    # A single letter or a bracket has an index; longer words with a low line are names.
    text = re.sub(r"(?<=[\w)])_\{([^{}]+)\}", r"<sub>\1</sub>", text)
    text = re.sub(r"((?<!\w)\w|\))_(\w+|[+*])", r"\1<sub>\2</sub>", text)
    power = rf"\^(?:\({_INSIDE}\)|\{{([^{{}}]*)\}}|(-?\w+(?:\.\d+)?|\*))"
    text = re.sub(rf"(?<=[\w)\]>|]){power}", r"<sup>\1\2\3</sup>", text)
    return re.sub(r"(?<=[\s(,=\[])-(?=[\d.\w√|])", MINUS, text.replace("<sup>-", f"<sup>{MINUS}"))


def formula(tex: str) -> str:
    """A displayed formula as HTML: MathML, or else its source."""
    return mathml(tex) or f"<code>{escape(tex)}</code>"


def _spelled(tex: str) -> str:
    """LaTeX in which Markdown sees no mark of its own."""
    marks = "|".join(map(re.escape, _LETTERS))
    return " ".join(re.sub(marks, lambda mark: f"{_LETTERS[mark[0]]} ", tex).split())


def markdown_math(tex: str) -> str:
    """A displayed formula as Markdown."""
    return f"$$\n{_spelled(tex)}\n$$"


def inline_markdown(tex: str) -> str:
    """A formula within a line of Markdown."""
    return f"${_spelled(tex)}$"

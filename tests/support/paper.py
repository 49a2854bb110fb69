"""The paper's source, where it is at hand: its text for quotations, and the numbers of its items."""

from __future__ import annotations

import json
import os
import re
from functools import cache
from hashlib import sha256
from pathlib import Path

from phiball.verification.framework.paper import Item

ELLIPSIS = "[...]"
_NEAR = 4000  # characters between the pieces of one quotation, at most


@cache
def source() -> str | None:
    """The LaTeX source that the environment variable PHIBALL_PAPER names, without comments."""
    path = os.environ.get("PHIBALL_PAPER", "")
    return without_comments(Path(path).read_text(encoding="utf-8")) if path else None


def digest() -> str:
    """The SHA-256 of that source, as it lies on the disk."""
    return sha256(Path(os.environ["PHIBALL_PAPER"]).read_bytes()).hexdigest()


def without_comments(tex: str) -> str:
    """The source as TeX reads it, without what follows a percent sign on its line."""
    return re.sub(r"(?<!\\)%.*", "", tex)


def bare(tex: str) -> str:
    """LaTeX without what is not seen: spaces, labels, the signs that open and close mathematics."""
    return re.sub(r"\\label\{[^{}]*\}|\\\[|\\\]|[$&~\s]", "", tex)


def is_quoted(quote: str, tex: str) -> bool:
    """Whether every piece of the quotation stands in the text, in their order and close to one another."""
    text, pieces = bare(tex), [bare(piece) for piece in quote.split(ELLIPSIS)]
    if not all(pieces):
        return False
    start = text.find(pieces[0])
    while start >= 0:
        at = start
        for piece in pieces[1:]:
            at = text.find(piece, at + 1, start + _NEAR)
            if at < 0:
                break
        else:
            return True
        start = text.find(pieces[0], start + 1)
    return False


# --- Numbers --------------------------------------------------------------------------------------

_NUMBERED = ("theorem", "lemma", "proposition", "assumption", "example", "remark", "definition", "algorithm")
_EQUATIONS = ("equation", "align", "multline")
_ROMAN = ("I", "II", "III", "IV", "V")
_LEVELS = ("section", "subsection", "subsubsection")
_TOKEN = re.compile(
    r"\\(?P<level>section|subsection|subsubsection)\{|\\begin\{(?P<begin>[a-z]+\*?)\}|\\end\{(?P<end>[a-z]+\*?)\}"
    r"|\\label\{(?P<label>[^{}]*)\}|\\tag(?P<star>\*?)\{(?P<tag>(?:[^{}]|\{[^{}]*\})*)\}|(?P<none>\\nonumber)"
    r"|(?P<line>\\\\)|\\caption(?:of\{(?P<float>table|figure)\})?(?P<caption>\{)|(?P<companion>\\ECSwitch)"
    r"|(?P<part>\\item(?![a-z]))"
)


class _Numbering:
    """The counters of the class informs4: one for each environment, and EC. before those of the companion."""

    def __init__(self, tex: str) -> None:
        self.tex = tex[tex.index(r"\begin{document}") :]
        self.items: list[Item] = []
        self.labels: dict[int, list[str]] = {}
        self.prefix = ""
        self.counts: dict[str, int] = {}
        self.sections = [0, 0, 0]
        self.letters: int | None = None  # of the subequations that are open
        self.open: list[tuple[str, int | None]] = []  # environments, each with the item that it is
        self.row: list[str] = []  # the labels of the line of an equation
        self.tag: str | None = None
        self.numbered = True
        self.part = 0  # of the list that is open

    def add(self, name: str, title: str = "") -> int:
        section = self.section if not name.startswith("Section") else name
        self.items.append(Item(name, title, (), section))
        return len(self.items) - 1

    @property
    def section(self) -> str:
        numbers = ".".join(str(n) for n in self.sections[:2] if n)
        return f"Section {self.prefix}{numbers}"

    def next(self, kind: str) -> str:
        self.counts[kind] = self.counts.get(kind, 0) + 1
        prefix = "" if kind == "algorithm" else self.prefix
        return f"{kind.capitalize()} {prefix}{self.counts[kind]}"

    def end_of_line(self) -> None:
        """One line of an equation has ended."""
        if self.numbered:
            if self.tag is None and self.letters is None:
                self.counts["equation"] = self.counts.get("equation", 0) + 1
            number = f"{self.prefix}{self.counts.get('equation', 0)}"
            if self.letters is not None:
                self.letters += 1
                number += "abcdefgh"[self.letters - 1]
            at = self.add(f"Eq. ({plain(self.tag or number)})")
            self.labels[at] = list(self.row)
        self.row, self.tag, self.numbered = [], None, True

    def read(self) -> list[Item]:
        at_section = 0
        for token in _TOKEN.finditer(self.tex):
            inside = next((name for name, _ in reversed(self.open) if name in _EQUATIONS), None)
            if level := token["level"]:
                depth = _LEVELS.index(level)
                self.sections[depth:] = [self.sections[depth] + 1, *[0] * (2 - depth)]
                numbers = ".".join(map(str, self.sections[: depth + 1]))
                title = plain(_braces(self.tex, token.end() - 1))
                at_section = self.add(f"Section {self.prefix}{numbers}", title)
            elif token["companion"]:
                self.prefix, self.counts, self.sections = "EC.", {}, [0, 0, 0]
            elif begin := token["begin"]:
                item = None
                if begin in _NUMBERED:
                    item = self.add(self.next(begin), _optional(self.tex, token.end(), begin))
                elif begin == "subequations":
                    self.counts["equation"] = self.counts.get("equation", 0) + 1
                    self.letters = 0
                    item = self.add(f"Eq. ({self.prefix}{self.counts['equation']})")
                elif begin == "enumerate":
                    self.part = 0
                self.open.append((begin, item))
            elif token["part"]:
                self.part += 1
            elif token["caption"]:
                kind = token["float"] or next((n for n, _ in self.open if n in ("figure", "table")), None)
                if kind:
                    item = self.add(self.next(kind))
                    self.open = [(n, item if n == kind else i) for n, i in self.open]
            elif (label := token["label"]) is not None:
                if inside:
                    self.row.append(label)
                elif not any(name in ("equation*", "align*") for name, _ in self.open):
                    item = next((i for _, i in reversed(self.open) if i is not None), at_section)
                    if self.open and self.open[-1][0] == "enumerate":
                        item = self.add(f"{self.items[item].name} ({_ROMAN[self.part - 1]})")
                    self.labels.setdefault(item, []).append(label)
            elif token["tag"] is not None and inside:
                self.tag, self.numbered = token["tag"], self.numbered and not token["star"]
            elif token["none"] and inside:
                self.numbered = False
            elif token["line"] and inside == "align" and self.open[-1][0] == "align":
                self.end_of_line()
            if end := token["end"]:
                if end in _EQUATIONS:
                    self.end_of_line()
                if end == "subequations":
                    self.letters = None
                while self.open and self.open.pop()[0] != end:
                    continue
        return [item._replace(labels=tuple(self.labels.get(k, ()))) for k, item in enumerate(self.items)]


def numbering(tex: str) -> list[Item]:
    """The numbered items of a source without comments, in their order."""
    items = _Numbering(tex).read()
    numbers = {label: item.name for item in items for label in item.labels}
    titles = [
        re.sub(r"(\w+) \\ref\{([^{}]*)\}", lambda m: numbers.get(m[2], m[0]), item.title) for item in items
    ]
    return [item._replace(title=title) for item, title in zip(items, titles, strict=True)]


def plain(tex: str) -> str:
    """A title in words: without cited sources, and with the names of Greek letters."""
    tex = re.sub(r"(?:\w+ \d+ in )?\{?\\citep(?:\[[^]]*\])?\{[^{}]*\}\}?", "", tex.replace("~", " "))
    tex = re.sub(r"\\texorpdfstring\{([^{}]*)\}\{[^{}]*\}", r"\1", tex)
    tex = re.sub(r"\$\\(phi|infty)\$", r"\1", tex)
    return " ".join(re.sub(r"\{?(?:Corollary|Lemma) \d+ in|^\{+\}*$", "", tex.strip()).split())


def _braces(tex: str, start: int) -> str:
    depth = 0
    for at in range(start, len(tex)):
        depth += (tex[at] == "{") - (tex[at] == "}")
        if depth == 0:
            return tex[start + 1 : at]
    return ""


def _optional(tex: str, start: int, kind: str) -> str:
    """What stands in square brackets behind the beginning of an environment, but for where it may float."""
    if kind == "algorithm" or not tex[start:].lstrip().startswith("["):
        return ""
    start = tex.index("[", start)
    depth = 0
    for at in range(start, len(tex)):
        depth += (tex[at] in "{") - (tex[at] in "}")
        if tex[at] == "]" and depth == 0:
            return plain(tex[start + 1 : at])
    return ""


if __name__ == "__main__":  # python -m tests.support.paper > verification/report/paper_items.json
    if (text := source()) is None:
        raise SystemExit("PHIBALL_PAPER names no source of the paper")
    rows = ",\n".join(f"  {json.dumps(item)}" for item in numbering(text))
    print(f'{{\n "source": "{digest()}",\n "items": [\n{rows}\n ]\n}}')

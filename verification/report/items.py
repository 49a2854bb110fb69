"""The numbered items of the paper, by the names that its PDF shows and by the labels of its source."""

from __future__ import annotations

import re
from typing import NamedTuple

from phiball.verification.report.paper_items import ITEMS

_NAME = re.compile(
    r"(?:Section|Definition|Theorem|Lemma|Proposition|Example|Assumption|Remark|Algorithm|Table|Figure)"
    r" (?:EC\.)?\d+(?:\.\d+)*|Eq\. \([\w.-]+\)"
)


_CAPTIONS = {
    "Algorithm 2": "bisection search",
    "Assumption 3": "chi-square and inverse distribution function",
    "Table 1": "hyper-parameters for convex losses",
    "Table 2": "hyper-parameters for smooth losses",
    "Proposition 4": "the bound by covering numbers",
    "Proposition 5": "covering numbers of robust losses",
    "Remark 5": "comparison with earlier bounds",
    "Lemma EC.1": "projected SGD, convex losses",
    "Lemma EC.2": "projected SGD, smooth losses",
    "Lemma EC.3": "the inner problem and its dual",
    "Lemma EC.4": "the mass of a random half",
    "Lemma EC.5": "levels of the entropic risk",
    "Proposition EC.2": "linearisation of the loss",
}


class Item(NamedTuple):
    """A section, theorem, equation and so on: its name in the PDF, title, LaTeX labels and section.

    >>> Item("Theorem 1", "Strong Duality", ("Thm:strong:dual:general",), "Section 2").number
    '1'
    """

    name: str
    title: str
    labels: tuple[str, ...]
    section: str

    @property
    def number(self) -> str:
        """What a reference to it prints, such as 1, EC.3 or (I)."""
        return self.name.rpartition(" ")[2]


_ITEMS = [Item(*row) for row in ITEMS]
_BY_NAME = {item.name: item for item in _ITEMS}
_BY_LABEL = {label: item for item in _ITEMS for label in item.labels}
_PLACES = {item.name: place for place, item in enumerate(_ITEMS)}


def item_of(label: str) -> Item | None:
    """The item that the label of a claim names first; None for what the paper does not number.

    >>> item_of("Proof of Theorem 2").title
    'Complexity for Nonsmooth Convex Loss'
    """
    found = _NAME.search(label)
    return _BY_NAME.get(found[0]) if found else None


def heading_of(item: Item) -> Item:
    """The item under which the table of results lists it: an equation is listed under its section."""
    return _BY_NAME[item.section] if item.name.startswith("Eq.") else item


def caption_of(item: Item) -> str:
    """The title of an item, or a few words of ours for one that has none."""
    return item.title or _CAPTIONS.get(item.name, "")


def order_of(item: Item) -> int:
    """Its place in the paper."""
    return _PLACES[item.name]


def reference(label: str) -> str:
    r"""What \ref prints for a LaTeX label; ValueError for one that the paper does not have.

    >>> reference("Lemma:phi:div"), reference("Assumption:chi2")
    ('EC.3', '(I)')
    """
    if label not in _BY_LABEL:
        raise ValueError(f"label is {label!r}, which the paper does not have")
    return _BY_LABEL[label].number

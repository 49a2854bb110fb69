"""The paper whose statements are claims: its title, sections and numbered items."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

BEYOND = "beyond"
"""The section of claims that the paper does not state."""
_NAME = re.compile(
    r"(?:Section|Definition|Theorem|Lemma|Proposition|Corollary|Example|Assumption|Remark|Algorithm|Table|Figure)"
    r" (?:EC\.)?\d+(?:\.\d+)*|Eq\. \([\w.-]+\)"
)


class Item(NamedTuple):
    """A section, theorem, equation or other item: its name in the PDF, title, LaTeX labels and section.

    >>> Item("Theorem 1", "Strong Duality", ("Thm:strong:dual:general",), "Section 2").number
    '1'
    """

    name: str
    title: str
    labels: tuple[str, ...]
    section: str

    @property
    def number(self) -> str:
        """The number that a reference prints, such as 1, EC.3 or (I)."""
        return self.name.rpartition(" ")[2]


@dataclass(frozen=True, eq=False)
class Paper:
    """The description of a paper in a report.

    Arguments:
    - `name`: authors and title.
    - `link`: a URL.
    - `title`: the heading of the report.
    - `sections`: section numbers and names, in order.
    - `items`: all numbered items in order; by default the items that the labels of claims name.

    >>> paper = Paper("A. Author: On squares", sections={"1": "Squares"})
    >>> paper.section_heading("1"), paper.item_of("Theorem 2 (I), the bound").name
    ('Section 1: Squares', 'Theorem 2')
    """

    name: str
    link: str = ""
    title: str = "The statements of the paper, checked by execution"
    sections: Mapping[str, str] = field(default_factory=dict)
    items: tuple[Item, ...] = ()

    @cached_property
    def _by_name(self) -> dict[str, Item]:
        return {item.name: item for item in self.items}

    def item_of(self, label: str) -> Item | None:
        """Return the first item that a claim's label names; None if it names no numbered item."""
        found = _NAME.search(label)
        if found is None or self.items:
            return self._by_name.get(found[0]) if found else None
        return Item(found[0], "", (), "")

    def heading_of(self, item: Item) -> Item:
        """Return the item under which the table of results lists this one: for an equation, its section."""
        return self._by_name.get(item.section, item) if item.name.startswith("Eq.") else item

    def order_of(self, item: Item) -> int:
        """Return the position of the item in the paper; 0 if the paper lists no items."""
        return list(self._by_name).index(item.name) if self.items else 0

    def reference(self, label: str) -> str:
        r"""Return what \ref prints for a LaTeX label. Raises ValueError if no listed item has this label."""
        for item in self.items:
            if label in item.labels:
                return item.number
        if self.items:
            raise ValueError(f"label is {label!r}, which the paper does not have")
        return label

    def section_heading(self, section: str) -> str:
        """Return a heading such as "Section 3: Optimization algorithm"."""
        name = self.sections.get(section, "Beyond the paper" if section == BEYOND else "")
        if not section[:1].isdigit():
            return name or section
        return f"Section {section}: {name}" if name else f"Section {section}"

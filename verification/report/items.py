"""A numbered item of the paper."""

from __future__ import annotations

from typing import NamedTuple


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

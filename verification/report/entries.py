"""The entries of the report: one per sentence of the paper, grouped by item of the paper."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from phiball.verification.framework.assessment import Assessment, Consequence, Kind
from phiball.verification.framework.claim import Claim
from phiball.verification.framework.evidence import Verdict
from phiball.verification.framework.paper import BEYOND, Item, Paper
from phiball.verification.framework.result import Result

Line = TypeVar("Line", Claim, Result)


@dataclass(frozen=True)
class Entry(Generic[Line]):
    """The claims about one sentence: the first states it, the others are parts or readings of it."""

    lines: tuple[Line, ...]

    @property
    def head(self) -> Line:
        """The claim that states the sentence."""
        return self.lines[0]

    @property
    def assessments(self) -> list[Assessment]:
        """The assessments of its claims, most severe first."""
        found = [line.assessment for line in self.lines if line.assessment is not None]
        return sorted(found, key=lambda assessment: assessment.severity, reverse=True)

    @property
    def kind(self) -> Kind | None:
        """The kind of the most severe error; None if the sentence has no error."""
        return self.assessments[0].kind if self.assessments else None

    @property
    def consequence(self) -> Consequence:
        """The consequence of the most severe error."""
        return self.assessments[0].consequence if self.assessments else Consequence.NONE

    @property
    def follows(self) -> tuple[str, ...]:
        """The ids of the claims whose errors cause this one, which is then not counted as another error."""
        return self.assessments[0].follows if self.assessments else ()

    @property
    def status(self) -> str:
        """The kind of its most severe error, or else the verdict of its head."""
        return self.kind or self.head.verdict

    @property
    def severity(self) -> tuple[bool, int, int, bool]:
        """Sort key: whether a verdict differs from the recorded one, then consequence, kind and verdict."""
        differs = any(line.verdict is not line.recorded for line in self.lines)
        consequence, kind = self.assessments[0].severity if self.assessments else (-1, -1)
        return differs, consequence, kind, self.status != Verdict.HOLDS


def entries(lines: Iterable[Line]) -> list[Entry[Line]]:
    """Group claims into entries, in order; a part whose first claim is absent is an entry by itself."""
    found: dict[str, list[Line]] = {}
    lines = list(lines)
    heads = {line.id for line in lines if not line.part_of}
    for line in lines:
        found.setdefault(line.part_of if line.part_of in heads else line.id, []).append(line)
    return [Entry(tuple(sorted(group, key=lambda line: bool(line.part_of)))) for group in found.values()]


def of_the_paper(lines: Sequence[Line]) -> list[Entry[Line]]:
    """The entries about statements of the paper, without the claims beyond it."""
    return entries(line for line in lines if line.section != BEYOND)


def tally(found: Sequence[Entry[Line]]) -> dict[str, int]:
    """The number of entries that hold, and that have each kind of error, most severe first.

    Entries that follow from others are not counted; see `followers`.
    """
    statuses = [entry.status for entry in found if not entry.follows]
    order = [Verdict.HOLDS.value, *(kind.value for kind in reversed(Kind)), *(v.value for v in Verdict)]
    return {name: statuses.count(name) for name in dict.fromkeys(order) if name in statuses}


def followers(found: Sequence[Entry[Line]]) -> list[Entry[Line]]:
    """The entries whose errors follow from errors in other entries."""
    return [entry for entry in found if entry.follows]


@dataclass(frozen=True)
class Row(Generic[Line]):
    """The entries on one item of the paper, most severe error first."""

    item: Item
    entries: tuple[Entry[Line], ...]

    @property
    def statement(self) -> list[Entry[Line]]:
        """The entries about the item itself."""
        return [entry for entry in self.entries if not is_aside(entry.head.label)]

    @property
    def asides(self) -> list[Entry[Line]]:
        """The entries about its proof or discussion."""
        return [entry for entry in self.entries if is_aside(entry.head.label)]

    @property
    def worst(self) -> Entry[Line]:
        """The entry with the most severe error in the item itself, or else in its proof or discussion."""
        return (self.statement or self.asides)[0]

    @property
    def holding(self) -> int:
        """The number of entries that hold as printed."""
        return sum(entry.status == Verdict.HOLDS for entry in self.entries)


def is_aside(label: str) -> bool:
    """Whether a label names the proof or the discussion of an item, and not the item itself.

    >>> is_aside("Proof of Theorem 2"), is_aside("Proposition 3, proof of (II)"), is_aside("Theorem 2, cost")
    (True, True, False)
    """
    label = label.casefold()
    return "proof of" in label or "discussion of" in label


def rows(found: Sequence[Entry[Line]], paper: Paper) -> list[Row[Line]]:
    """The entries by item (theorem, algorithm, section and so on), in the order of the paper."""
    groups: dict[Item, list[Entry[Line]]] = {}
    for entry in found:
        if (item := paper.item_of(entry.head.label)) is not None:
            groups.setdefault(paper.heading_of(item), []).append(entry)
    return [
        Row(item, tuple(sorted(groups[item], key=lambda entry: entry.severity, reverse=True)))
        for item in sorted(groups, key=paper.order_of)
    ]

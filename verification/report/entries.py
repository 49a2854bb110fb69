"""The entries of the report: one for each sentence of the paper, and what they add up to."""

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
    """The claims on one sentence: the first is its head, the others are parts and readings of it."""

    lines: tuple[Line, ...]

    @property
    def head(self) -> Line:
        """The claim that states the sentence."""
        return self.lines[0]

    @property
    def faults(self) -> list[Assessment]:
        """What is wrong with its lines, the severest first."""
        faults = [line.assessment for line in self.lines if line.assessment is not None]
        return sorted(faults, key=lambda fault: fault.severity, reverse=True)

    @property
    def kind(self) -> Kind | None:
        """The kind of the severest fault; None where nothing is wrong."""
        return self.faults[0].kind if self.faults else None

    @property
    def consequence(self) -> Consequence:
        """What follows from the severest fault."""
        return self.faults[0].consequence if self.faults else Consequence.NONE

    @property
    def follows(self) -> tuple[str, ...]:
        """The claims whose faults its own comes from; such an entry is not counted again."""
        return self.faults[0].follows if self.faults else ()

    @property
    def standing(self) -> str:
        """One word for it: the severest kind of its faults, or else the verdict of its head."""
        return self.kind or self.head.verdict


def entries(lines: Iterable[Line]) -> list[Entry[Line]]:
    """The lines as entries, in their order; a part whose head is missing is an entry of its own."""
    found: dict[str, list[Line]] = {}
    lines = list(lines)
    heads = {line.id for line in lines if not line.part_of}
    for line in lines:
        found.setdefault(line.part_of if line.part_of in heads else line.id, []).append(line)
    return [Entry(tuple(sorted(group, key=lambda line: bool(line.part_of)))) for group in found.values()]


def of_the_paper(lines: Sequence[Line]) -> list[Entry[Line]]:
    """The entries on what the paper states."""
    return entries(line for line in lines if line.section != BEYOND)


def tally(found: Sequence[Entry[Line]]) -> dict[str, int]:
    """How many entries hold, and how many have which kind of fault, the severest last.

    Those that follow from others are left out; `followers` counts them.
    """
    standings = [entry.standing for entry in found if not entry.follows]
    order = [Verdict.HOLDS.value, *(kind.value for kind in Kind), *(v.value for v in Verdict)]
    return {name: standings.count(name) for name in dict.fromkeys(order) if name in standings}


def followers(found: Sequence[Entry[Line]]) -> list[Entry[Line]]:
    """The entries whose faults follow from those of others."""
    return [entry for entry in found if entry.follows]


@dataclass(frozen=True)
class Row(Generic[Line]):
    """The entries on one item of the paper."""

    item: Item
    entries: tuple[Entry[Line], ...]

    @property
    def severest(self) -> Entry[Line]:
        """The entry with the severest fault; without faults, one that does not hold, if there is one."""
        least = (-1, -1)
        return max(
            self.entries,
            key=lambda e: (e.faults[0].severity if e.faults else least, e.standing != Verdict.HOLDS),
        )

    @property
    def holding(self) -> int:
        """How many of the entries hold as printed."""
        return sum(entry.standing == Verdict.HOLDS for entry in self.entries)


def rows(found: Sequence[Entry[Line]], paper: Paper) -> list[Row[Line]]:
    """The entries by theorem, proposition, algorithm and section, in the order of the paper."""
    groups: dict[Item, list[Entry[Line]]] = {}
    for entry in found:
        if (item := paper.item_of(entry.head.label)) is not None:
            groups.setdefault(paper.heading_of(item), []).append(entry)
    return [Row(item, tuple(groups[item])) for item in sorted(groups, key=paper.order_of)]

"""Theorems, propositions and lemmas: whether each part holds as printed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic

from phiball.verification.framework.assessment import Kind
from phiball.verification.framework.evidence import Verdict
from phiball.verification.framework.paper import Item, Paper
from phiball.verification.report.entries import Entry, Line, rows

_NAMES = ("Theorem", "Proposition", "Lemma", "Corollary")


class HoldsAsPrinted(StrEnum):
    """The answer to "does it hold as printed?", from best to worst.

    >>> HoldsAsPrinted.ASSUMPTION.value
    'with one more assumption'
    """

    YES = "yes"
    CONSTANT = "with another constant"
    CORRECTED = "as corrected"
    ASSUMPTION = "with one more assumption"
    OPEN = "not checkable"
    NO = "no"
    UNDECIDED = "not decided in this run"


_BY_KIND = {
    Kind.MISPRINT: HoldsAsPrinted.YES,
    Kind.IMPRECISE: HoldsAsPrinted.YES,
    Kind.OPEN: HoldsAsPrinted.OPEN,
    Kind.ASSUMPTION: HoldsAsPrinted.ASSUMPTION,
    Kind.CONSTANT: HoldsAsPrinted.CONSTANT,
    Kind.FALSE: HoldsAsPrinted.NO,
}
_BY_VERDICT = {
    Verdict.HOLDS: HoldsAsPrinted.YES,
    Verdict.CORRECTED: HoldsAsPrinted.CORRECTED,
    Verdict.REFUTED: HoldsAsPrinted.NO,
    Verdict.UNCHECKED: HoldsAsPrinted.OPEN,
    Verdict.UNDECIDED: HoldsAsPrinted.UNDECIDED,
}


@dataclass(frozen=True)
class Theorem(Generic[Line]):
    """A theorem, proposition or lemma, and whether it holds as printed.

    - `parts`: for each answer, from the worst to the best, the parts of the theorem that have it, such as
      "(I) and (III)"; an empty text if there is only one answer.
    - `corrections`: the part, the correction and the id of each claim whose answer is not "yes".
    - `wording`: the ids of misprints and imprecise sentences in the theorem.
    - `proof`: the ids of errors in its proof or discussion.
    """

    item: Item
    parts: dict[HoldsAsPrinted, str]
    corrections: tuple[tuple[str, str, str], ...]
    wording: tuple[str, ...]
    proof: tuple[str, ...]

    @property
    def full_name(self) -> str:
        """Its name with its title, such as "Theorem 1 (Strong Duality)"."""
        return f"{self.item.name} ({self.item.title})" if self.item.title else self.item.name

    @property
    def answer(self) -> str:
        """All answers in one phrase, such as "(I): with one more assumption; (II): yes"."""
        return "; ".join(f"{parts}: {answer}" if parts else answer for answer, parts in self.parts.items())

    @property
    def notes(self) -> list[str]:
        """The corrections, then the claims about its wording and its proof, as text."""
        found = [
            f"{part}: {text} ({id_})" if part else f"{text} ({id_})" for part, text, id_ in self.corrections
        ]
        if self.wording:
            found.append(f"wording: {', '.join(self.wording)}")
        if self.proof:
            found.append(f"proof: {', '.join(self.proof)}")
        return found


def theorems(found: Sequence[Entry[Line]], paper: Paper) -> list[Theorem[Line]]:
    """The theorems, propositions and lemmas among the items of the entries, in the order of the paper."""
    return [
        _theorem(row.item, row.statement, row.asides)
        for row in rows(found, paper)
        if row.item.name.startswith(_NAMES) and row.statement
    ]


def answer_of(entry: Entry[Line]) -> HoldsAsPrinted:
    """Whether a sentence holds as printed, by its verdict and its assessment."""
    if any(line.verdict is not line.recorded for line in entry.lines):
        return HoldsAsPrinted.UNDECIDED
    return _BY_KIND[entry.kind] if entry.kind else _BY_VERDICT[entry.head.verdict]


def _theorem(item: Item, statement: Sequence[Entry[Line]], asides: Sequence[Entry[Line]]) -> Theorem[Line]:
    """Group the entries on an item by answer; `asides` are the entries on its proof or discussion."""
    by_answer: dict[HoldsAsPrinted, list[Entry[Line]]] = {}
    for entry in statement:
        by_answer.setdefault(answer_of(entry), []).append(entry)
    several = len(by_answer) > 1
    order = sorted(by_answer, key=list(HoldsAsPrinted).index, reverse=True)
    return Theorem(
        item,
        {answer: _parts(item, by_answer[answer]) if several else "" for answer in order},
        tuple(
            (_part(item, entry), _correction(entry), entry.head.id)
            for answer in order
            for entry in by_answer[answer]
            if answer is not HoldsAsPrinted.YES
        ),
        tuple(e.head.id for e in by_answer.get(HoldsAsPrinted.YES, []) if e.kind),
        tuple(e.head.id for e in asides if e.kind),
    )


def _part(item: Item, entry: Entry[Line]) -> str:
    """The part of the item that an entry is about, such as "(I)"; empty for the whole."""
    return entry.head.label.removeprefix(item.name).strip(" ,")


def _parts(item: Item, found: Sequence[Entry[Line]]) -> str:
    return " and ".join(sorted({part for entry in found if (part := _part(item, entry))}))


def _correction(entry: Entry[Line]) -> str:
    texts = [line.correction or line.reason for line in entry.lines if line.assessment is not None]
    return next(filter(None, texts), entry.head.verdict)

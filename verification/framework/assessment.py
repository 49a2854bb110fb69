"""Errors in statements: their kind, their consequence, and how an ambiguous sentence was read."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple


class Kind(StrEnum):
    """The kind of error in a printed statement, from the mildest to the most severe.

    >>> [kind.name for kind in Kind]
    ['MISPRINT', 'IMPRECISE', 'OPEN', 'ASSUMPTION', 'CONSTANT', 'FALSE']
    """

    MISPRINT = "misprint"  # the context shows the intended statement
    IMPRECISE = "imprecise"  # ambiguous or incomplete
    OPEN = "not reproducible from what is given"  # the paper omits details that a check needs
    ASSUMPTION = "missing assumption"  # true under a condition that is not stated
    CONSTANT = "constant or rate wrong"  # true with another constant, term or exponent
    FALSE = "false as stated"


class Consequence(StrEnum):
    """The consequence of an error for the paper's results.

    >>> [consequence.name for consequence in Consequence]
    ['NONE', 'REPAIR', 'RESULT']
    """

    NONE = "none"  # once corrected, everything else stands as printed
    REPAIR = "the proof needs a repair and the result stands"
    RESULT = "the result changes"  # a theorem, algorithm, example or finding must be restated


class Reading(NamedTuple):
    """One reading of an ambiguous sentence, and whether the sentence is then true.

    >>> Reading("log is the logarithm to base 2", "true after rounding up").outcome
    'true after rounding up'
    """

    sense: str
    outcome: str


@dataclass(frozen=True)
class Assessment:
    """The assessment of a statement that does not hold as printed.

    Arguments:
    - `kind`: the kind of error.
    - `consequence`: its consequence for the paper's results.
    - `why`: the reason in one sentence.
    - `follows`: ids of the claims whose errors cause this one, so that it is not counted as another error.
    - `reading`: if the sentence is ambiguous, the reading that is checked.
    - `others`: the other readings of the sentence; given if and only if `reading` is given.

    >>> assessment = Assessment(Kind.MISPRINT, Consequence.NONE, "The index l should be L.")
    >>> assessment.as_stated
    True
    """

    kind: Kind
    consequence: Consequence
    why: str
    follows: tuple[str, ...] = ()
    reading: str = ""
    others: tuple[Reading, ...] = ()

    def __post_init__(self) -> None:
        if bool(self.reading) != bool(self.others):
            raise ValueError(
                f"reading is {self.reading!r} and others is {self.others!r}; expected both or neither"
            )

    @property
    def as_stated(self) -> bool:
        """Whether the sentence is unambiguous and was checked as it stands."""
        return not self.reading

    @property
    def severity(self) -> tuple[int, int]:
        """Sort key: the consequence, then the kind; larger is more severe."""
        return list(Consequence).index(self.consequence), list(Kind).index(self.kind)

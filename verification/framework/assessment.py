"""How a statement errs: the kind of the fault, what follows from it, and how its sentence was read."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple


class Kind(StrEnum):
    """What is wrong with a printed statement, from the mildest kind to the severest.

    >>> list(Kind)[0].value, max(Kind.MISPRINT, Kind.FALSE, key=list(Kind).index).value
    ('misprint', 'false as stated')
    """

    MISPRINT = "misprint"  # a slip of the pen: the text around it shows what is meant
    IMPRECISE = "imprecise"  # open to several readings, or short of what is meant
    OPEN = "not reproducible from what is given"  # the paper leaves out what a check needs
    ASSUMPTION = "missing assumption"  # true under a condition that is not stated
    CONSTANT = "constant or rate wrong"  # true with another constant, term or exponent
    FALSE = "false as stated"


class Consequence(StrEnum):
    """What a fault means for the paper's results.

    >>> [consequence.name for consequence in Consequence]
    ['NONE', 'REPAIR', 'RESULT']
    """

    NONE = "none"  # read or written right, everything stays as printed
    REPAIR = "the proof needs a repair and the result stands"
    RESULT = "the result changes"  # a theorem, algorithm, example or finding is to be stated otherwise


class Reading(NamedTuple):
    """One sense of a sentence that has several, and what the statement yields in it.

    >>> Reading("log is the logarithm to base 2", "true once it is rounded up").yields
    'true once it is rounded up'
    """

    sense: str
    yields: str


@dataclass(frozen=True)
class Assessment:
    """The fault of a statement that does not hold as printed.

    Arguments:
    - `kind`, `consequence`: what is wrong, and what follows from it.
    - `why`: the reason in one sentence.
    - `follows`: the ids of the claims whose faults it comes from; such a fault is not counted again.
    - `reading`: how an ambiguous sentence is read here. Empty if the statement is checked as it stands.
    - `others`: its other readings.

    >>> fault = Assessment(Kind.MISPRINT, Consequence.NONE, "the index is l, and should be L")
    >>> fault.as_stated
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
        """Whether the sentence was checked as it stands, and not in one of several readings."""
        return not self.reading

    @property
    def severity(self) -> tuple[int, int]:
        """The place of its consequence among consequences, then that of its kind: the larger, the severer."""
        return list(Consequence).index(self.consequence), list(Kind).index(self.kind)

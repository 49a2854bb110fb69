"""The outcome of one run of a claim."""

from __future__ import annotations

from dataclasses import dataclass
from math import nan

from phiball.verification.framework.evidence import Curve, Verdict
from phiball.verification.framework.metadata import Metadata


@dataclass(frozen=True, kw_only=True)
class Result(Metadata):
    """The outcome of one run of a claim: the fields of its `Metadata`, and these.

    - `verdict` was reached by execution; the recorded one is what the claim expects.
    - `violation`, `tolerance` and `note` are those of the worst evidence (the failing one, if one failed).
    - `measured` came closest to its `bound`, of all evidence that compares with one, as `closest` says; NaN
      without bounds.
    - `searched` says whether examples were drawn, `enumerated` whether expectations are sums over all draws.
    - `counterexamples`: those of the printed statement, with their numbers as computed.
    - `found`: the smallest example on which the statement itself fails.
    - `error`: why no verdict was reached, if something other than a violation stopped the run.
    - `curves`: what was measured over scales, with the bounds stated.
    - `source`: where the claim stands, such as verification/claims/section2/duality.py:52; `oracles`: the
      functions that judge it.
    - `rejected`, `survived`: the mutants with which the verdict was not reached, and the others; both are
      empty where they were not run.

    >>> from phiball.verification import find
    >>> find("C7")[0].run().verdict.value
    'holds as corrected'
    """

    verdict: Verdict
    violation: float = nan
    tolerance: float = 0.0
    note: str = ""
    measured: float = nan
    bound: float = nan
    closest: str = ""
    searched: bool = False
    enumerated: bool = False
    examples: int = 0
    counterexamples: tuple[str, ...] = ()
    found: str = ""
    error: str = ""
    curves: tuple[Curve, ...] = ()
    seconds: float = 0.0
    source: str = ""
    oracles: tuple[str, ...] = ()
    rejected: tuple[str, ...] = ()
    survived: tuple[str, ...] = ()

    def __repr__(self) -> str:
        numbers = f"violation={self.violation:.3g}, tolerance={self.tolerance:.3g}, examples={self.examples}"
        return f"Result({self.id} {self.name}: {self.verdict}, {numbers})"

    @property
    def share(self) -> float:
        """The part of its bound that the closest evidence reached; NaN without bounds."""
        return self.measured / self.bound if self.bound > 0 else nan

    @property
    def as_recorded(self) -> bool:
        """Whether the verdict reached is the recorded one."""
        return self.verdict is self.recorded

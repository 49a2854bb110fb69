"""The outcome of one run of a claim."""

from __future__ import annotations

from dataclasses import dataclass
from math import nan

from phiball.verification.framework.assessment import Assessment
from phiball.verification.framework.evidence import Curve, Verdict


@dataclass(frozen=True)
class Result:
    """The outcome of one run of a claim.

    - `name`: that of the statement's function; with `id` it names the claim to a user: A1 strong_duality.
    - `verdict` was reached by execution, `recorded` is what the claim expects.
    - `violation`, `tolerance` and `note` are those of the worst evidence (the failing one, if one failed).
    - `measured` came closest to its `bound`, of all evidence that compares with one, as `closest` says; NaN
      without bounds. `shares` counts all of it by the share of the bound that was measured, in equal steps
      from 0 to 1.
    - `searched` says whether examples were drawn, `enumerated` whether expectations are sums over all draws.
    - `rejected`, `survived`: the registered faults with which the verdict was not reached, and the others;
      both are empty where they were not run.
    - `counterexamples`: those of the printed statement, with their numbers as computed.
    - `assessment`: the kind of fault, what follows from it, and the reading; None where nothing is wrong.
    - `part_of`: the id of the claim on the same sentence of the paper, of which this is another line.
    - `found`: the smallest example on which the statement itself fails.
    - `error`: why no verdict was reached, if something other than a violation stopped the run.
    - `error_level`: the chance that a true statement fails by bad luck; 0 for what is not statistical.
    - `reason`: why the statement cannot be checked, if that is the verdict.
    - `curves`: what was measured over scales, with the bounds stated.
    - `source`: where the claim stands, such as verification/claims/section2/duality.py:52; `oracles`: the
      functions that judge it.

    The texts are those of `claim`.

    >>> from phiball.verification import find
    >>> find("C7")[0].run().verdict.value
    'holds as corrected'
    """

    id: str
    name: str
    label: str
    section: str
    title: str
    formula: str
    assumptions: str
    quote: str
    correction: str
    corrected: str
    remark: str
    assessment: Assessment | None
    part_of: str
    verdict: Verdict
    recorded: Verdict
    reason: str
    error_level: float
    violation: float
    tolerance: float
    note: str
    measured: float
    bound: float
    closest: str
    shares: tuple[int, ...]
    searched: bool
    enumerated: bool
    examples: int
    counterexamples: tuple[str, ...]
    found: str
    error: str
    curves: tuple[Curve, ...]
    seconds: float
    source: str
    oracles: tuple[str, ...]
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

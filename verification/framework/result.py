"""The outcome of one run of a claim."""

from __future__ import annotations

from dataclasses import dataclass

from phiball.verification.framework.assessment import Assessment
from phiball.verification.framework.evidence import Curve, Verdict


@dataclass(frozen=True)
class Result:
    """The outcome of one run of a claim.

    - `name`: that of the statement's function; with `id` it names the claim to a user: A1 strong_duality.
    - `verdict` was reached by execution, `recorded` is what the claim expects.
    - `violation`, `tolerance`, `bound` and `note` are those of the worst evidence (the failing one, if one
      failed); `share` is the largest part of a bound that any evidence reached, NaN without bounds.
    - `searched` says whether examples were drawn.
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
    bound: float
    share: float
    note: str
    searched: bool
    examples: int
    counterexamples: tuple[str, ...]
    found: str
    error: str
    curves: tuple[Curve, ...]
    seconds: float
    source: str
    oracles: tuple[str, ...]

    def __repr__(self) -> str:
        numbers = f"violation={self.violation:.3g}, tolerance={self.tolerance:.3g}, examples={self.examples}"
        return f"Result({self.id} {self.name}: {self.verdict}, {numbers})"

    @property
    def as_recorded(self) -> bool:
        """Whether the verdict reached is the recorded one."""
        return self.verdict is self.recorded

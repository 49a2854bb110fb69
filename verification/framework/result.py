"""The description of a statement, and the result of running its claim."""

from dataclasses import dataclass, fields
from math import nan
from typing import Any

from phiball.verification.framework.assessment import Assessment
from phiball.verification.framework.evidence import Curve, Verdict


@dataclass(frozen=True, kw_only=True)
class Metadata:
    """The description of a statement of the paper.

    - `label`: the paper's name for the statement; `id`: a short one of ours.
    - `name`, `title`: the name of the statement's function, and the first line of its docstring.
    - `section`: a section of the paper, or "beyond".
    - `recorded`: the verdict that a run must reach.
    - `formula`: the statement in LaTeX; `assumptions`: what it assumes, in words.
    - Where the paper errs: `quote`, a few of its words; `correction`, what is true instead, in words;
      `corrected`, that in LaTeX; `assessment`, the kind of fault and what follows from it.
    - `remark`: what else a reader should know.
    - `part_of`: the id of another claim on the same sentence; the report shows both as lines of one entry.
    - `reason`: why the statement cannot be checked, if that is the verdict.
    - `error_level`: of a statistical claim, the probability that a true statement fails it; otherwise 0.

    >>> from phiball.verification import find_claims
    >>> find_claims("A1")[0].metadata()["name"]
    'strong_duality'
    """

    label: str
    id: str
    name: str
    title: str
    section: str
    recorded: Verdict
    formula: str = ""
    assumptions: str = "nothing beyond the definitions"
    quote: str = ""
    correction: str = ""
    corrected: str = ""
    remark: str = ""
    assessment: Assessment | None = None
    part_of: str = ""
    reason: str = ""
    error_level: float = 0.0

    def metadata(self) -> dict[str, Any]:
        """The fields of `Metadata` with their values, as keyword arguments."""
        return {field.name: getattr(self, field.name) for field in fields(Metadata)}


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

    >>> from phiball.verification import find_claims
    >>> find_claims("C7")[0].run().verdict.value
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

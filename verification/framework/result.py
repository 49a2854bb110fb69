"""The description of a statement, and the result of running its claim."""

from dataclasses import dataclass, fields
from math import nan
from typing import Any

from phiball.verification.framework.assessment import Assessment
from phiball.verification.framework.evidence import Curve, Verdict


@dataclass(frozen=True, kw_only=True)
class Metadata:
    """The description of a statement of the paper.

    - `label`: the paper's name for the statement.
    - `id`: our short name.
    - `name`, `title`: the name of the statement's function, and the first line of its docstring.
    - `section`: a section of the paper, or "beyond".
    - `recorded`: the verdict that a run must reach.
    - `formula`: the printed statement in LaTeX.
    - `assumptions`: the assumptions of the statement, in words.
    - `quote`: the paper's words, if the statement does not hold as printed.
    - `correction`, `corrected`: the true statement in words, and in LaTeX.
    - `assessment`: the kind of error and its consequence.
    - `remark`: anything else that a reader should know.
    - `part_of`: the id of another claim about the same sentence, to show both in one entry of the report.
    - `reason`: why the statement cannot be checked; empty if it can.
    - `error_level`: the probability that a statistical claim fails although it is true; 0 for other claims.

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
        """The fields of `Metadata` and their values, as keyword arguments."""
        return {field.name: getattr(self, field.name) for field in fields(Metadata)}


@dataclass(frozen=True, kw_only=True)
class Result(Metadata):
    """The result of running a claim: its `Metadata`, and these fields.

    - `verdict`: the verdict of the run, which may differ from the recorded one.
    - `violation`, `tolerance`, `note`: the fields of the worst evidence, or of the evidence that failed.
    - `measured`, `bound`, `closest`: the measured number, the bound and the note of the evidence that comes
      closest to its bound; NaN and empty if no evidence has a bound.
    - `searched`: whether Hypothesis drew the examples.
    - `enumerated`: whether expectations are exact sums over all draws of an estimator.
    - `examples`: the number of examples.
    - `counterexamples`: the counterexamples to the printed statement, with computed numbers.
    - `found`: the smallest example found on which the checked statement fails.
    - `error`: the error that stopped the run, if any.
    - `curves`: measurements over scales, with the stated bounds.
    - `seconds`: the run time.
    - `source`: the location of the claim, such as verification/claims/section2/duality.py:52.
    - `oracles`: the oracles that the claim calls.
    - `rejected`, `survived`: the mutants that the claim rejects, and the others; empty if no mutant was run.

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
        """`measured` as a fraction of `bound`; NaN if there is no positive bound."""
        return self.measured / self.bound if self.bound > 0 else nan

    @property
    def as_recorded(self) -> bool:
        """Whether the verdict is the recorded one."""
        return self.verdict is self.recorded

"""The description of a statement, which a claim and its results share."""

from dataclasses import dataclass, fields
from typing import Any

from phiball.verification.framework.assessment import Assessment
from phiball.verification.framework.evidence import Verdict


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

    >>> from phiball.verification import find
    >>> find("A1")[0].metadata()["name"]
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

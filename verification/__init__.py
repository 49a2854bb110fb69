"""The paper's statements as executable claims, and their report.

`phiball verify` runs them from the command line; `run` does so from Python. Each claim is searched for
violations and reaches a `Verdict`. `verify_solver` applies the claims about the inner problem to a solver of
your own.
"""

from importlib.util import find_spec

if find_spec("hypothesis") is None:
    raise ImportError(
        "phiball.verification needs hypothesis, which is not installed: pip install 'phiball[verify]', "
        "or '.[verify]' in a clone",
        name="hypothesis",
    )

from phiball.verification.framework.assessment import Assessment, Consequence, Kind, Reading
from phiball.verification.framework.claim import Claim, claim, unchecked
from phiball.verification.framework.evidence import Curve, Evidence, Quantity, Verdict
from phiball.verification.framework.metadata import Metadata
from phiball.verification.framework.paper import Paper
from phiball.verification.framework.result import Result
from phiball.verification.framework.runner import all_claims, find, run
from phiball.verification.solver_check.report import Outcome, SolverCheck, SolverReport
from phiball.verification.solver_check.verify_solver import verify_solver

__all__ = [
    "Assessment",
    "Claim",
    "Consequence",
    "Curve",
    "Evidence",
    "Kind",
    "Metadata",
    "Outcome",
    "Paper",
    "Quantity",
    "Reading",
    "Result",
    "SolverCheck",
    "SolverReport",
    "Verdict",
    "all_claims",
    "claim",
    "find",
    "run",
    "unchecked",
    "verify_solver",
]

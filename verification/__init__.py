"""The paper's statements as executable claims, and the report of their verdicts.

`phiball verify` runs the claims from the command line, `run_claims` from Python. A run searches for
counterexamples to each claim and reaches a `Verdict`. `verify_solver` applies the claims about the inner
problem to your own solver.
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
from phiball.verification.framework.evidence import Curve, Evidence, Fit, Quantity, Verdict
from phiball.verification.framework.paper import Item, Paper
from phiball.verification.framework.result import Metadata, Result
from phiball.verification.framework.suite import all_claims, find_claims, run_claims
from phiball.verification.solver_check.solver_report import Outcome, SolverCheck, SolverReport
from phiball.verification.solver_check.verify_solver import verify_solver

__all__ = [
    "Assessment",
    "Claim",
    "Consequence",
    "Curve",
    "Evidence",
    "Fit",
    "Item",
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
    "find_claims",
    "run_claims",
    "unchecked",
    "verify_solver",
]

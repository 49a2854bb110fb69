"""The paper's statements as executable claims, and their report."""

from phiball.verification.claims import Claim, Result, claim, unchecked
from phiball.verification.evidence import Curve, Evidence, Verdict
from phiball.verification.runner import all_claims, find, run
from phiball.verification.solver import verify_solver
from phiball.verification.solver_report import Outcome, SolverCheck, SolverReport

__all__ = [
    "Claim",
    "Curve",
    "Evidence",
    "Outcome",
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

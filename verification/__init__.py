"""The paper's statements as executable claims, and their report."""

from phiball.verification.claims import Claim, Result, claim, unchecked
from phiball.verification.evidence import Curve, Evidence, Verdict
from phiball.verification.runner import all_claims, find, run

__all__ = [
    "Claim",
    "Curve",
    "Evidence",
    "Result",
    "Verdict",
    "all_claims",
    "claim",
    "find",
    "run",
    "unchecked",
]

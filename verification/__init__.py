"""The paper's statements as executable claims, and their report."""

from phiball.verification.claims import Claim, Evidence, Result, Verdict, claim
from phiball.verification.runner import all_claims, find, run

__all__ = ["Claim", "Evidence", "Result", "Verdict", "all_claims", "claim", "find", "run"]

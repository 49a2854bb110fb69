"""Claims, evidence, and running claims to reach verdicts."""

"""Claims, evidence, and the runner that reaches verdicts."""

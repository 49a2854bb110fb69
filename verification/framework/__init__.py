"""Claims, their evidence, and how a run reaches a verdict."""

"""Section 6.2: robust Q-learning on a table."""

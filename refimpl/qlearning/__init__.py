"""Robust Q-learning on a table: Section 6.2."""

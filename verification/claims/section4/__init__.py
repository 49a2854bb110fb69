"""Statements of Section 4."""

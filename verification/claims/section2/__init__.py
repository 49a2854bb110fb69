"""Statements of Section 2."""

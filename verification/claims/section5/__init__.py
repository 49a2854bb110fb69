"""Statements of Section 5."""

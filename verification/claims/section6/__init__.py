"""Statements of Section 6."""

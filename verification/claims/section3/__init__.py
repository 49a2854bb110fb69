"""Statements of Section 3."""

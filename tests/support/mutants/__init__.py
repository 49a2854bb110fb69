"""Mutation testing: plant a fault, run the tests that reach it, and see whether one of them fails.

`python -m tests.support.mutants --help`, or `make mutants`.
"""

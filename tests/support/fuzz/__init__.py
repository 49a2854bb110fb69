"""Fuzzing: a million inputs through the public names, judged in extended precision.

`python -m tests.support.fuzz --help`, or `make fuzz`.
"""

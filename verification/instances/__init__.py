"""Inputs of claims: problems, distributions, losses, decision processes, printed algorithms, mutants."""

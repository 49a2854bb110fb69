"""The inner problem: divergences, what follows from them, and the solvers."""

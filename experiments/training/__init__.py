"""The training loop, methods and networks that studies and benchmarks share."""

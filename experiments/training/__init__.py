"""Training loops, methods and networks that studies and benchmarks share."""

"""Benchmarks: speed, accuracy, growth of time and memory."""

"""Benchmarks: speed, accuracy and settings."""

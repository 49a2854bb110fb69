"""Compiled kernels of the numba backend, and the threads they run on."""

"""The paper's studies, the benchmarks and the command line."""

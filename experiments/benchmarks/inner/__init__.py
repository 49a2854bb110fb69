"""Parts of the benchmark of the inner solver: its problems, bars, threads and versions."""

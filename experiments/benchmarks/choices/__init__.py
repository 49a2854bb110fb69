"""Parts of the benchmark of settings."""

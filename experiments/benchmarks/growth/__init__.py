"""Parts of the benchmark of growth: the curves, and the fits to them."""

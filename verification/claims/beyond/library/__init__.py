"""Beyond the paper: what the library's functions promise, by the functions that users call."""

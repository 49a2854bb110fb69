"""Our own statements, beyond the paper."""

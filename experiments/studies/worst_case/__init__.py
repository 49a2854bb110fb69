"""Section 2.2: worst-case densities."""

"""Sections 4 and 5: the regularisers of the limits, and generalisation bounds."""

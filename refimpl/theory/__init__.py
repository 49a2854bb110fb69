"""Regularisers and generalisation bounds: Sections 4 and 5."""

"""Section 6.3: contextual pricing."""

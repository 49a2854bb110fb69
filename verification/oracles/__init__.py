"""Oracles: slow, independent solutions that share no code with refimpl and import nothing from it."""

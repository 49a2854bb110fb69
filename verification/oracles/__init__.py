"""Oracles: slow, independent solutions that share no code with refimpl."""

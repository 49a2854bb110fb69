"""Sampling: how perturbed points are drawn and weighted, in bounded memory."""

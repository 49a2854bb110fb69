"""Risks of a data set: sampled, integrated, constrained, and the worst-case distribution."""

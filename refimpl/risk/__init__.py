"""Risk of a data set: sampled, integrated or constrained, and the worst-case distribution."""

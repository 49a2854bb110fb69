"""Training: the regularised loss, projected SGD and its plans, after Section 3."""

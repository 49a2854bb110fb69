"""Section 3: gradient estimators, the regularised loss, projected SGD and its plans."""

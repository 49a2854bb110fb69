"""
Effect of eta on a decision boundary
====================================

A robust logistic regression on two features of the breast cancer data, for an adversary that moves each
example inside a disc of radius 1/2. For eta = inf the loss is averaged over the disc; for eta = 0 it is taken
at the worst point. The predicted probability of the benign class is 1/2 on the solid and 0.9 on the dotted
lines: a smaller eta gives smaller coefficients, and so less confident predictions.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_breast_cancer
from sklearn.preprocessing import scale

from phiball.sklearn import RobustLogisticRegression

X, y = load_breast_cancer(return_X_y=True)
X = scale(X[:, :2])

figure, axis = plt.subplots(figsize=(8, 4.5), layout="constrained")
for label, name in enumerate(("malignant", "benign")):
    axis.scatter(*X[y == label].T, s=8, alpha=0.4, color=("tab:red", "tab:blue")[label], label=name)
line = np.array([-3.0, 4.0])
for eta, color in ((np.inf, "black"), (0.3, "tab:green"), (0.1, "tab:orange"), (0.0, "tab:purple")):
    model = RobustLogisticRegression(radius=0.5, eta=eta, C=10.0).fit(X, y)
    (a, b), c = model.coef_[0], model.intercept_[0]
    axis.plot(line, -(a * line + c) / b, color=color, label=f"eta = {eta}, |coef| = {np.hypot(a, b):.2f}")
    axis.plot(line, (np.log(9) - a * line - c) / b, color=color, linestyle=":")
axis.set(xlabel="mean radius, scaled", ylabel="mean texture, scaled", xlim=(-2.5, 4), ylim=(-3, 5))
figure.legend(loc="outside right upper", fontsize=8)

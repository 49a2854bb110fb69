"""
Robust and plain regression with outliers
=========================================

The outliers at the right pull least squares away from the other points, and robustness to perturbations of x
does not help. The median regression of ``RobustQuantileRegressor``, with the same perturbations, stays much
closer to the true line.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.linear_model import LinearRegression

from phiball.sklearn import RobustLinearRegression, RobustQuantileRegressor

draw = np.random.default_rng(0)
x = np.sort(draw.uniform(-2, 2, 60))
y = 1 + 2 * x + draw.normal(0, 0.5, 60)
y[-8:] -= 10  # outliers
X = x[:, None]

models = {
    "LinearRegression": LinearRegression(),
    "RobustLinearRegression": RobustLinearRegression(radius=0.3, eta=1.0, alpha=0.1),
    "RobustQuantileRegressor": RobustQuantileRegressor(quantile=0.5, radius=0.3, eta=1.0, alpha=0.001),
}
figure, axis = plt.subplots(figsize=(6, 4), layout="constrained")
axis.scatter(x[:-8], y[:-8], s=12, color="black", label="data")
axis.scatter(x[-8:], y[-8:], s=20, color="tab:red", marker="x", label="outliers")
axis.plot(x, 1 + 2 * x, color="grey", linestyle=":", label="true line")
for name, model in models.items():
    axis.plot(x, model.fit(X, y).predict(X), label=f"{name}, slope {model.coef_.item():.2f}")
axis.set(xlabel="x", ylabel="y")
axis.legend(fontsize=8)
